"""What every summary and every merge of ranks must satisfy, whatever the samples."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.metric import Merge, Metric
from paceline.core.record import Measurement, Result, merge_ranks
from paceline.core.stats import (
    PERCENTILES,
    Summary,
    drift_interval,
    effective_count,
    median_interval,
    outliers,
    summarize,
)

TIME = Metric(name="step_time", unit="s", merge=Merge.SLOWEST)
RATE = Metric(name="throughput", unit="samples/s", merge=Merge.SUM)

positive = st.floats(1e-6, 1e6)
samples = st.lists(positive, min_size=1, max_size=60) | st.lists(st.sampled_from([1.0, 1.5, 2.0]), min_size=1)


def in_order(*values: float) -> bool:
    return all(a <= b * (1 + 1e-12) for a, b in pairwise(values))


@given(samples)
def test_figures_are_in_order(values: list[float]) -> None:
    found = summarize(values)
    assert in_order(found.minimum, *found.percentiles.values(), found.maximum)
    assert in_order(found.minimum, found.mean, found.maximum)
    assert found.percentiles["50"] == pytest.approx(found.median)
    assert 1 <= found.effective_count <= found.count == len(values)
    assert 0 <= found.outliers <= found.count / 2


@given(samples)
def test_intervals_hold_what_they_are_of(values: list[float]) -> None:
    found = summarize(values)
    if found.median_interval is not None:
        interval = found.median_interval
        assert found.minimum <= interval.low <= found.median <= interval.high <= found.maximum
        assert 0.5 <= interval.confidence < 1
    if found.mean_interval is not None:
        assert found.mean_interval.low <= found.mean <= found.mean_interval.high
    assert (found.median_interval is None) == (len(values) < 2)


@given(samples, st.floats(1e-3, 1e9))
def test_a_rate_s_figures_are_in_the_opposite_order(values: list[float], work: float) -> None:
    found = summarize(values).as_rate(work)
    assert in_order(found.minimum, *reversed(found.percentiles.values()), found.maximum)
    assert in_order(found.minimum, found.mean, found.maximum)
    for interval, value in ((found.median_interval, found.median), (found.mean_interval, found.mean)):
        if interval is not None:
            assert in_order(interval.low, value, interval.high)


@given(samples, st.sampled_from([2.0**k for k in range(-20, 21)]))
def test_another_unit_changes_no_verdict(values: list[float], factor: float) -> None:
    scaled = [value * factor for value in values]
    before, after = summarize(values).median_interval, summarize(scaled).median_interval
    assert (before is None) == (after is None)
    if before is not None and after is not None:
        assert (after.low, after.high) == (before.low * factor, before.high * factor)
    assert effective_count(scaled) == effective_count(values)
    assert list(outliers(scaled)) == list(outliers(values))
    drifted, scaled_drift = drift_interval(values), drift_interval(scaled)
    assert (drifted is None) == (scaled_drift is None)
    if drifted is not None and scaled_drift is not None:
        assert (scaled_drift.low, scaled_drift.high) == pytest.approx((drifted.low, drifted.high))


@given(samples)
def test_all_but_the_correlation_is_blind_to_order(values: list[float]) -> None:
    def blind(found: Summary) -> list[float]:
        return [found.mean, found.median, found.minimum, found.maximum, *found.percentiles.values(), found.outliers]

    assert blind(summarize(sorted(values))) == pytest.approx(blind(summarize(values)))


@given(samples)
def test_more_confidence_never_narrows_the_interval(values: list[float]) -> None:
    narrow, wide = median_interval(values, 0.8), median_interval(values, 0.99)
    if narrow is not None and wide is not None:
        assert wide.low <= narrow.low <= narrow.high <= wide.high
        assert wide.confidence >= narrow.confidence


@given(samples)
def test_percentiles_are_numpy_s(values: list[float]) -> None:
    found = summarize(values)
    for percentile in PERCENTILES:
        assert found.percentiles[f"{percentile:g}"] == pytest.approx(np.percentile(values, percentile))


@given(st.lists(positive, min_size=3, max_size=20))
def test_drift_backwards_has_the_opposite_sign(values: list[float]) -> None:
    forth, back = drift_interval(values), drift_interval(values[::-1])
    assert (forth is None) == (back is None)
    if forth is not None and back is not None:
        assert (forth.low > 0) == (back.high < 0)
        assert (forth.high < 0) == (back.low > 0)


# ---- ranks

ranks = st.integers(1, 30).flatmap(
    lambda steps: st.lists(
        st.tuples(st.lists(positive, min_size=steps, max_size=steps), st.integers(1, 512)), min_size=2, max_size=5
    )
)


def result(times: list[float], work: float) -> Result:
    step_time = Measurement.of_samples(TIME, times)
    return Result(measurements=[Measurement.of_rate(RATE, work, step_time), step_time])


def whole(results: list[Result], name: str) -> Measurement:
    return next(m for m in merge_ranks(results).measurements if m.metric.name == name and m.scope == "")


@given(ranks)
def test_merged_steps_are_those_of_the_rank_that_took_longest(of_ranks: list[tuple[list[float], int]]) -> None:
    merged = whole([result(*one) for one in of_ranks], "step_time").samples
    assert math.fsum(merged) == max(math.fsum(times) for times, _ in of_ranks)


@given(ranks)
def test_global_throughput_is_all_work_over_the_merged_time(of_ranks: list[tuple[list[float], int]]) -> None:
    results = [result(*one) for one in of_ranks]
    times = whole(results, "step_time").samples
    found = whole(results, "throughput").value
    assert found == pytest.approx(sum(work for _, work in of_ranks) * len(times) / math.fsum(times), rel=1e-9)
    # Nobody waits for others in its own figure, so together the ranks claim at least as much.
    assert found <= sum(one.measurements[0].value for one in results) * (1 + 1e-9)


@given(ranks)
def test_the_order_of_ranks_changes_no_merged_figure(of_ranks: list[tuple[list[float], int]]) -> None:
    results = [result(*one) for one in of_ranks]
    for name in ("step_time", "throughput"):
        assert whole(results, name).value == pytest.approx(whole(results[::-1], name).value)


@given(ranks)
def test_every_rank_keeps_its_own_samples(of_ranks: list[tuple[list[float], int]]) -> None:
    merged = merge_ranks([result(*one) for one in of_ranks])
    for rank, (times, _) in enumerate(of_ranks):
        own = [m for m in merged.measurements if m.scope == f"rank {rank}" and m.metric.name == "step_time"]
        assert [m.samples for m in own] == [times]
