"""Efficiency over ranks and the lost time by name, from records whose answers are known."""

from __future__ import annotations

import math

import pytest

from paceline.analysis.scaling import (
    BUBBLE,
    COMMUNICATION,
    REDUCTION,
    REST,
    SLOWER,
    Scaled,
    ScalingSeries,
    scaling,
)
from paceline.analysis.summary import summarize_run
from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.stats import Interval, summarize
from paceline.core.subject import Subject
from support.insight_records import BACKWARD, EXPOSED, data_parallel, mesh, of_ranks, scaling_run
from support.insight_records import BUBBLE as BUBBLE_PART
from support.records import STEP_TIME, case, record, run_of, throughput


def series_of(*records: Record) -> list[ScalingSeries]:
    return scaling(summarize_run(run_of(list(records))).rows)


def lost(point: Scaled) -> dict[str, float]:
    return {name: pytest.approx(seconds) for name, seconds in point.losses.items()}


def test_equal_batches_of_each_rank_are_weak_scaling() -> None:
    (found,) = series_of(data_parallel(0, 1, 0.1), data_parallel(1, 4, 0.125))
    assert (found.rule, found.batch) == ("weak", 32)
    assert [point.ranks for point in found.points] == [1, 4]
    assert found.largest.efficiency == pytest.approx(0.8)
    assert lost(found.largest) == {REST: 0.025}


def test_one_batch_for_all_is_strong_scaling() -> None:
    (found,) = series_of(data_parallel(0, 1, 0.4, batch=128), data_parallel(1, 4, 0.125, batch=32))
    assert (found.rule, found.batch) == ("strong", 128)
    assert found.largest.efficiency == pytest.approx(0.8)
    assert lost(found.largest) == {REST: 0.025}


def test_a_case_may_be_the_base_of_both() -> None:
    weak = data_parallel(1, 2, 0.11)
    strong = data_parallel(2, 2, 0.06, batch=16)
    found = series_of(data_parallel(0, 1, 0.1), weak, strong)
    assert {one.rule: one.largest.row.case.index for one in found} == {"weak": 1, "strong": 2}


def test_other_work_is_another_series() -> None:
    other = data_parallel(1, 2, 0.1)
    model = other.case.model_copy(update={"parameters": other.case.parameters | {"model": "bert"}})
    assert series_of(data_parallel(0, 1, 0.1), other.model_copy(update={"case": model})) == []
    assert series_of(data_parallel(0, 1, 0.1), data_parallel(1, 1, 0.11)) == []
    failed = data_parallel(1, 2, 0.1).model_copy(update={"outcome": Outcome.FAILED})
    assert series_of(data_parallel(0, 1, 0.1), failed) == []


def test_the_rank_that_waits_least_tells_the_travelling_from_the_waiting() -> None:
    waits = of_ranks(EXPOSED, [0.015, 0.015, 0.015, 0.005])
    (found,) = series_of(data_parallel(0, 1, 0.1), data_parallel(1, 4, 0.125, found=waits))
    assert lost(found.largest) == {COMMUNICATION: 0.005, SLOWER: 0.01, REST: 0.01}
    assert found.largest.lost == pytest.approx(0.025)


def test_a_rank_whose_own_steps_are_longer_is_a_slower_rank() -> None:
    steps = [Measurement.of_samples(STEP_TIME, [value] * 5, scope=f"rank {rank}")
             for rank, value in enumerate((0.1, 0.1, 0.1, 0.125))]  # fmt: skip
    (found,) = series_of(data_parallel(0, 1, 0.1), data_parallel(1, 4, 0.125, found=steps))
    assert lost(found.largest) == {SLOWER: 0.025}


def test_without_a_trace_the_longer_backward_pass_tells_of_the_reduction() -> None:
    before, after = ([Measurement.of_samples(BACKWARD, [value] * 5)] for value in (0.05, 0.07))
    (found,) = series_of(data_parallel(0, 1, 0.1, found=before), data_parallel(1, 2, 0.125, found=after))
    assert lost(found.largest) == {REDUCTION: 0.02, REST: 0.005}


def test_more_waiting_than_was_lost_is_cut_to_what_was_lost() -> None:
    waits = of_ranks(EXPOSED, [0.5, 0.5])
    (found,) = series_of(data_parallel(0, 1, 0.1), data_parallel(1, 2, 0.125, found=waits))
    assert lost(found.largest) == {COMMUNICATION: 0.025}


def test_what_is_faster_than_ideal_lost_nothing() -> None:
    (found,) = series_of(data_parallel(0, 1, 0.1), data_parallel(1, 2, 0.09))
    assert found.largest.efficiency == pytest.approx(10 / 9)
    assert found.largest.losses == {}


def test_layouts_of_one_model_are_one_series_and_the_bubble_is_no_communication() -> None:
    parallel = series_of(
        mesh(0, (1, 1, 1), 0.8), mesh(1, (4, 1, 1), 0.24, exposed=[0.03] * 4),
        mesh(2, (1, 1, 4), 0.25, exposed=[0.045] * 4, bubble=16.0),
    )  # fmt: skip
    (found,) = parallel
    assert found.rule == "strong"
    assert [point.mesh for point in found.points] == ["1x1x1", "4x1x1", "1x1x4"]
    assert lost(found.points[1]) == {COMMUNICATION: 0.03, REST: 0.01}
    assert lost(found.points[2]) == {BUBBLE: 0.04, COMMUNICATION: 0.005, REST: 0.005}
    assert [point.mesh for point in found.best] == ["1x1x1", "4x1x1"]


def test_ranks_that_share_the_cores_of_a_cpu_are_not_more_machine() -> None:
    one = data_parallel(0, 1, 0.1, target="cpu", facts={"threads": 2})
    two = data_parallel(1, 2, 0.25, target="cpu", facts={"threads": 1})
    (found,) = series_of(one, two)
    assert found.shares_cores
    assert found.largest.efficiency == pytest.approx(0.8)
    assert found.largest.lost == pytest.approx(0.05)


def test_the_interval_holds_the_warning_of_both() -> None:
    def noisy(index: int, ranks: int) -> Record:
        times = Measurement.of_samples(STEP_TIME, [0.1, 0.101, 0.099, 0.1, 0.102, 0.098, 0.1, 0.1] * 3)
        rate = Measurement.of_rate(throughput("images/s"), 32 * ranks, times)
        return data_parallel(index, ranks, 0.1).model_copy(update={"measurements": [rate, times]})

    (found,) = series_of(noisy(0, 1), noisy(1, 2))
    own = found.largest.row.headline
    assert own is not None and own.relative
    assert found.largest.high - 1 == pytest.approx(own.relative * 2**0.5)
    assert found.largest.low < 1 < found.largest.high


def test_of_repetitions_the_middle_one_counts() -> None:
    times = (0.2, 0.125, 0.1)
    again = [data_parallel(place, 2, seconds) for place, seconds in enumerate(times, start=1)]
    (found,) = series_of(data_parallel(0, 1, 0.1), *again)
    assert len(found.points) == 2
    assert found.largest.efficiency == pytest.approx(0.8)


def test_collectives_keep_a_part_of_their_bus_bandwidth() -> None:
    metric = Metric(name="bus_bandwidth", unit="B/s", better=Better.HIGHER, merge=Merge.FIRST)
    records = [
        record(case(place, "collective", f"all-reduce x{ranks}", ranks=ranks, target="cuda:*", operation="all-reduce"),
               [Measurement.of_value(metric, value)])
        for place, (ranks, value) in enumerate(((2, 400e9), (8, 300e9)))
    ]  # fmt: skip
    (found,) = series_of(*records)
    assert found.rule == "bandwidth"
    assert found.largest.efficiency == pytest.approx(0.75)
    assert found.largest.losses == {}


def test_a_run_may_have_several_series() -> None:
    assert [(one.rule, len(one.points)) for one in series_of(*scaling_run().records)] == [("weak", 4), ("strong", 4)]


def rated(
    index: int, ranks: int, value: float, *, batch: int | None = 8, target: str = "cuda:*", threads: int | None = None,
    spread: float | None = None, outcome: Outcome = Outcome.OK,
) -> Record:  # fmt: skip
    """A training of which the throughput alone was written down, with an interval of this part to both sides."""
    interval = None
    if spread is not None:
        interval = Interval(low=value * (1 - spread), high=value * (1 + spread), confidence=0.95)
    summary = summarize([1.0]).model_copy(update={"mean": value, "mean_interval": interval})
    rate = Measurement(metric=throughput("images/s"), statistic="mean", summary=summary)
    what = case(index, "train", f"m x{ranks}", ranks=ranks, target=target, category="training", model="m")
    return record(what, [rate], subject=Subject(batch=batch, threads=threads), outcome=outcome)


def moved(
    index: int, ranks: int, value: float, *, target: str = "cuda:*", more: tuple[Measurement, ...] = ()
) -> Record:
    """A collective that reached this bus bandwidth."""
    metric = Metric(name="bus_bandwidth", unit="B/s", better=Better.HIGHER, merge=Merge.FIRST)
    what = case(index, "collective", f"all-reduce x{ranks}", ranks=ranks, target=target, operation="all-reduce")
    return record(what, [Measurement.of_value(metric, value), *more])


def timed(values: list[float], metric: Metric = STEP_TIME) -> list[Measurement]:
    """The steps of each rank."""
    return [Measurement.of_samples(metric, [one] * 5, scope=f"rank {rank}") for rank, one in enumerate(values)]


@pytest.mark.parametrize(
    "unusable",
    [
        rated(1, 2, 0.0),
        rated(1, 2, math.inf),
        rated(1, 2, -2.0),
        rated(1, 2, 2.0, batch=None),
        rated(1, 2, 2.0, batch=0),
        rated(1, 2, 2.0, batch=-8),
        rated(1, 2, 2.0, outcome=Outcome.TIMEOUT),
        rated(1, 2, 2.0, target="xpu:*"),
        rated(1, 2, 2.0).model_copy(update={"measurements": []}),
        rated(1, 2, 2.0).model_copy(update={"measurements": [Measurement.of_value(EXPOSED, 1.0)]}),
    ],
    ids=["zero", "endless", "negative", "no batch", "empty batch", "less than no batch", "timed out", "other device",
         "nothing measured", "no throughput"],
)  # fmt: skip
def test_a_case_that_cannot_be_compared_is_in_no_series(unusable: Record) -> None:
    assert series_of(rated(0, 1, 1.0), unusable) == []
    assert series_of(unusable.model_copy(update={"case": unusable.case.model_copy(update={"index": 0})}),
                     rated(1, 1, 1.0)) == []  # fmt: skip


def test_one_sample_a_second_of_a_batch_of_one_scales_like_any_other() -> None:
    (series,) = series_of(rated(0, 1, 1.0, batch=1), rated(1, 2, 1.6, batch=1))
    assert (series.rule, series.batch) == ("strong", 1.0)
    assert [(one.value, one.devices, one.ranks) for one in series.points] == [(1.0, 1.0, 1), (1.6, 2.0, 2)]
    assert series.largest.efficiency == pytest.approx(0.8)
    assert not series.shares_cores


def test_without_times_of_steps_no_time_is_lost() -> None:
    (series,) = series_of(rated(0, 1, 1.0), rated(1, 2, 1.6))
    assert [(one.seconds, one.losses) for one in series.points] == [(None, {}), (None, {})]


def test_the_interval_of_an_efficiency_is_a_part_of_it_and_not_below_zero() -> None:
    (plain,) = series_of(rated(0, 1, 10.0), rated(1, 2, 16.0))
    assert (plain.largest.low, plain.largest.high) == (pytest.approx(0.8), pytest.approx(0.8))
    (spread,) = series_of(rated(0, 1, 10.0, spread=0.03), rated(1, 2, 16.0, spread=0.04))
    assert (spread.base.low, spread.base.high) == (1.0, 1.0)
    assert (spread.largest.low, spread.largest.high) == (pytest.approx(0.8 * 0.95), pytest.approx(0.8 * 1.05))
    (wide,) = series_of(rated(0, 1, 10.0, spread=0.9), rated(1, 2, 16.0, spread=1.2))
    assert (wide.largest.low, wide.largest.high) == (0.0, pytest.approx(0.8 * 2.5))


@pytest.mark.parametrize(
    ("target", "threads", "devices", "shares"),
    [
        ("cpu", (2, 1), (2.0, 2.0), True),
        ("cpu", (2, 2), (2.0, 4.0), False),
        ("cpu", (None, None), (1.0, 2.0), False),
        ("cpu", (0, 0), (1.0, 2.0), False),
        ("cuda:*", (4, 4), (1.0, 2.0), False),
        ("cuda:*", (4, 2), (1.0, 2.0), False),
    ],
)
def test_a_gpu_counts_for_each_rank_and_a_processor_by_its_cores(
    target: str, threads: tuple[int | None, int | None], devices: tuple[float, float], shares: bool
) -> None:
    records = [
        rated(0, 1, 10.0, target=target, threads=threads[0]),
        rated(1, 2, 16.0, target=target, threads=threads[1]),
    ]
    (series,) = series_of(*records)
    assert tuple(point.devices for point in series.points) == devices
    assert series.shares_cores is shares
    assert series.largest.efficiency == pytest.approx(1.6 * devices[0] / devices[1])


def test_a_bandwidth_is_of_the_link_whatever_its_ranks_compute_on() -> None:
    steps = (Measurement.of_samples(STEP_TIME, [0.1] * 5),)
    (series,) = series_of(moved(0, 2, 4e9, target="cpu", more=steps), moved(1, 4, 3e9, target="cpu", more=steps))
    assert (series.rule, series.batch, series.shares_cores) == ("bandwidth", None, False)
    assert [(one.devices, one.seconds) for one in series.points] == [(1.0, None), (1.0, None)]
    assert (series.largest.low, series.largest.high) == (0.75, 0.75)


def test_of_five_repetitions_the_third_counts_and_of_two_the_better() -> None:
    rates = (10.0, 18.0, 12.0, 16.0, 14.0)
    (series,) = series_of(rated(0, 1, 10.0), *(rated(place, 2, rate) for place, rate in enumerate(rates, start=1)))
    assert series.largest.value == 14.0
    (series,) = series_of(rated(0, 1, 10.0), rated(1, 2, 18.0), rated(2, 2, 12.0))
    assert series.largest.value == 18.0


def test_the_largest_is_the_best_of_those_with_the_most_ranks() -> None:
    (series,) = series_of(
        mesh(0, (1, 1, 1), 0.8), mesh(1, (2, 1, 1), 0.41), mesh(2, (1, 1, 4), 0.25), mesh(3, (4, 1, 1), 0.24)
    )
    assert [point.mesh for point in series.points] == ["1x1x1", "2x1x1", "4x1x1", "1x1x4"]
    assert (series.largest.ranks, series.largest.mesh) == (4, "4x1x1")
    assert [point.mesh for point in series.best] == ["1x1x1", "2x1x1", "4x1x1"]


def test_of_equally_good_layouts_the_first_is_the_best() -> None:
    (series,) = series_of(mesh(0, (1, 1, 1), 0.8), mesh(1, (2, 1, 1), 0.5), mesh(2, (1, 2, 1), 0.5))
    assert [point.mesh for point in series.best] == ["1x1x1", "2x1x1"]


def test_what_the_base_waited_for_already_is_not_lost_by_more_ranks() -> None:
    # A fourth of the base's work, and so of its waits: 0.1 s in 0.4 s are to be 0.1 s of 0.125 s.
    (series,) = series_of(
        data_parallel(0, 1, 0.4, batch=128, found=of_ranks(EXPOSED, [0.02])),
        data_parallel(1, 4, 0.125, batch=32, found=of_ranks(EXPOSED, [0.02] * 4)),
    )
    assert lost(series.largest) == {COMMUNICATION: 0.015, REST: 0.01}
    assert series.largest.seconds == pytest.approx(0.125)


def test_a_longer_backward_pass_is_longer_than_its_part_of_the_base() -> None:
    before, after = ([Measurement.of_samples(BACKWARD, [value] * 5)] for value in (0.2, 0.06))
    (series,) = series_of(
        data_parallel(0, 1, 0.4, batch=128, found=before), data_parallel(1, 4, 0.125, batch=32, found=after)
    )
    assert lost(series.largest) == {REDUCTION: 0.01, REST: 0.015}


@pytest.mark.parametrize("has_backward", [(True, False), (False, True)])
def test_a_backward_pass_of_one_side_alone_says_nothing(has_backward: tuple[bool, bool]) -> None:
    base, more = ([Measurement.of_samples(BACKWARD, [0.07] * 5)] if has else [] for has in has_backward)
    (series,) = series_of(data_parallel(0, 1, 0.1, found=base), data_parallel(1, 2, 0.125, found=more))
    assert lost(series.largest) == {REST: 0.025}


def test_where_the_communication_is_measured_the_backward_pass_is_not_asked() -> None:
    before, after = ([Measurement.of_samples(BACKWARD, [value] * 5)] for value in (0.05, 0.07))
    (series,) = series_of(
        data_parallel(0, 1, 0.1, found=before),
        data_parallel(1, 2, 0.125, found=[*after, Measurement.of_value(EXPOSED, 0.005)]),
    )
    assert lost(series.largest) == {COMMUNICATION: 0.005, REST: 0.02}


def test_a_shorter_wait_than_that_of_the_base_is_no_loss() -> None:
    (series,) = series_of(
        data_parallel(0, 1, 0.1, found=of_ranks(EXPOSED, [0.03])),
        data_parallel(1, 2, 0.125, found=of_ranks(EXPOSED, [0.01, 0.01])),
    )
    assert lost(series.largest) == {REST: 0.025}


def test_a_base_without_times_of_steps_is_taken_to_wait_as_long_as_it_says() -> None:
    base = rated(0, 1, 320.0, batch=32).model_copy(
        update={
            "case": data_parallel(0, 1, 0.1).case,
            "measurements": [
                Measurement.of_value(throughput("images/s"), 320.0),
                Measurement.of_value(EXPOSED, 0.004),
                Measurement.of_value(BUBBLE_PART, 10.0),
            ],
        }
    )
    waits = [Measurement.of_value(EXPOSED, 0.015), Measurement.of_value(BUBBLE_PART, 8.0)]
    (series,) = series_of(base, data_parallel(1, 4, 0.125, found=waits))
    assert lost(series.largest) == {BUBBLE: 0.01, COMMUNICATION: 0.001, REST: 0.014}


def test_the_lost_time_of_very_short_steps_is_told_too() -> None:
    (series,) = series_of(data_parallel(0, 1, 1e-5), data_parallel(1, 2, 1.25e-5))
    assert lost(series.largest) == {REST: 0.25e-5}


@pytest.mark.parametrize(
    ("steps", "losses"),
    [
        ([0.1, 0.125], {SLOWER: 0.0125, REST: 0.0125}),
        ([0.1], {REST: 0.025}),
        ([0.13, 0.13], {REST: 0.025}),
        ([0.12, 0.12, 0.125], {SLOWER: 0.005, REST: 0.02}),
    ],
    ids=["two", "one alone", "longer than the whole", "three"],
)
def test_ranks_are_slower_than_the_middle_one(steps: list[float], losses: dict[str, float]) -> None:
    each = [*timed(steps), *timed([0.05] * len(steps), BACKWARD)]
    (series,) = series_of(data_parallel(0, 1, 0.1), data_parallel(1, 4, 0.125, found=each))
    assert lost(series.largest) == {name: pytest.approx(seconds) for name, seconds in losses.items()}


@pytest.mark.parametrize(
    ("waits", "losses"),
    [
        (of_ranks(EXPOSED, [0.015, 0.005]), {COMMUNICATION: 0.005, SLOWER: 0.01, REST: 0.01}),
        ([Measurement.of_value(EXPOSED, 0.015)], {COMMUNICATION: 0.015, REST: 0.01}),
        ([*of_ranks(EXPOSED, [0.008, 0.004]), *timed([0.12, 0.12])],
         {COMMUNICATION: 0.004, SLOWER: 0.009, REST: 0.012}),
    ],
    ids=["two ranks", "no ranks", "steps and waits"],
)  # fmt: skip
def test_waits_are_divided_by_what_is_waited_for(waits: list[Measurement], losses: dict[str, float]) -> None:
    (series,) = series_of(data_parallel(0, 1, 0.1), data_parallel(1, 4, 0.125, found=waits))
    assert lost(series.largest) == {name: pytest.approx(seconds) for name, seconds in losses.items()}


def test_in_a_pipeline_unequal_waits_are_the_bubble_and_no_slower_ranks() -> None:
    (series,) = series_of(
        mesh(0, (1, 1, 1), 0.8), mesh(1, (1, 1, 4), 0.25, exposed=[0.045, 0.02, 0.02, 0.045], bubble=16.0)
    )
    assert lost(series.largest) == {BUBBLE: 0.04, COMMUNICATION: 0.005, REST: 0.005}
    (series,) = series_of(mesh(0, (1, 1, 1), 0.8), mesh(1, (1, 1, 4), 0.25, exposed=[0.03] * 4, bubble=16.0))
    assert lost(series.largest) == {BUBBLE: 0.04, REST: 0.01}
