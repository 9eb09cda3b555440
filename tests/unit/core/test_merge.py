"""Several ranks' results become one case's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import At, Measurement, RecordWarning, Result, merge_ranks

STEP_TIME = Metric(name="step_time", unit="s", better=Better.LOWER, merge=Merge.SLOWEST)
THROUGHPUT = Metric(name="throughput", unit="images/s", better=Better.HIGHER, merge=Merge.SUM)
MFU = Metric(name="mfu", unit="%", better=Better.HIGHER, merge=Merge.MEAN)
LOSS = Metric(name="loss", unit="", merge=Merge.MEAN)
MEMORY = Metric(name="memory", unit="B", better=Better.LOWER, merge=Merge.MAXIMUM)
SLACK = Metric(name="slack", unit="B", better=Better.HIGHER, merge=Merge.MINIMUM)
TOTAL = Metric(name="total", unit="B", merge=Merge.SUM)
SIZE = Metric(name="size", unit="", merge=Merge.FIRST)


def of_rank(
    times: list[float],
    *,
    work: float = 8.0,
    mfu: float = 10.0,
    loss: list[float] | None = None,
    memory: float = 100.0,
    warnings: tuple[str, ...] = (),
) -> Result:
    step_time = Measurement.of_samples(STEP_TIME, times)
    return Result(
        measurements=[
            # Before the times that they derive from, as benchmarks list them.
            Measurement.of_rate(THROUGHPUT, work, step_time),
            Measurement.of_rate(MFU, mfu, step_time),
            step_time,
            Measurement.of_samples(LOSS, loss or [1.0], statistic="mean"),
            Measurement.of_value(MEMORY, memory),
            Measurement.of_value(SLACK, memory),
            Measurement.of_value(TOTAL, memory),
            Measurement.of_value(SIZE, 7.0),
        ],
        facts={"formula": "6ND", "memory": memory},
        warnings=[RecordWarning(kind=kind, message=f"{kind} at {memory:g}", remedy="") for kind in warnings],
    )


def merged(*ranks: Result) -> dict[str, Measurement]:
    return {m.metric.name: m for m in merge_ranks(ranks).measurements if m.scope == ""}


FIRST = of_rank([1.0, 4.0, 2.0], loss=[3.0, 2.0, 1.0], memory=100.0)
SECOND = of_rank([2.0, 3.0, 2.5], loss=[5.0, 4.0, 1.0], memory=300.0)


def test_one_rank_s_result_is_the_case_s() -> None:
    assert merge_ranks([FIRST]) is FIRST


def test_steps_taken_together_last_as_long_as_on_the_rank_that_took_longest() -> None:
    assert merged(FIRST, SECOND)["step_time"].samples == [2.0, 3.0, 2.5]


def test_noise_that_hits_one_rank_here_and_another_there_is_not_counted_twice() -> None:
    found = merged(of_rank([10.0, 12.0] * 5), of_rank([12.0, 10.0] * 5))
    assert found["throughput"].value == pytest.approx(16 / 11.0)


def test_ranks_that_go_their_own_ways_pool_their_steps_and_add_their_rates() -> None:
    apart = STEP_TIME.model_copy(update={"merge": Merge.POOLED})
    results = []
    for times in ([1.0, 1.0], [4.0, 4.0, 4.0]):
        step_time = Measurement.of_samples(apart, times)
        results.append(
            Result(measurements=[Measurement.of_rate(m, 8.0, step_time) for m in (THROUGHPUT, MFU)] + [step_time])
        )
    found = merged(*results)
    assert found["step_time"].samples == [1.0, 1.0, 4.0, 4.0, 4.0]
    assert found["throughput"].value == pytest.approx(8.0 + 2.0)
    assert found["mfu"].value == pytest.approx((8.0 + 2.0) / 2)


def test_throughput_is_everybody_s_work_over_the_longest_time() -> None:
    found = merged(FIRST, SECOND)["throughput"]
    assert found.value == pytest.approx((8 + 8) * 3 / (2.0 + 3.0 + 2.5))
    assert found.work == 16.0
    assert found.derived_from == "step_time"


def test_ranks_with_different_work_add_what_each_did() -> None:
    found = merged(of_rank([1.0] * 4, work=6.0), of_rank([2.0] * 4, work=10.0))["throughput"]
    assert found.value == pytest.approx(16.0 / 2.0)


def test_a_rate_relative_to_one_device_is_averaged_over_the_merged_time() -> None:
    found = merged(of_rank([1.0] * 4, mfu=10.0), of_rank([2.0] * 4, mfu=30.0))["mfu"]
    assert found.value == pytest.approx(20.0 / 2.0)


def test_losses_are_averaged_step_by_step() -> None:
    found = merged(FIRST, SECOND)["loss"]
    assert found.samples == [4.0, 3.0, 1.0]
    assert found.statistic == "mean"
    assert found.value == pytest.approx(8 / 3)


def test_single_values_follow_their_rule() -> None:
    found = merged(FIRST, SECOND)
    assert {name: found[name].value for name in ("memory", "slack", "total", "size")} == {
        "memory": 300.0,
        "slack": 100.0,
        "total": 400.0,
        "size": 7.0,
    }


def test_every_rank_s_own_measurements_are_kept_beside_the_whole() -> None:
    found = merge_ranks([FIRST, SECOND]).measurements
    assert [m.samples for m in found if m.metric.name == "step_time"] == [
        [2.0, 3.0, 2.5],
        [1.0, 4.0, 2.0],
        [2.0, 3.0, 2.5],
    ]
    assert [m.scope for m in found if m.metric.name == "throughput"] == ["", "rank 0", "rank 1"]
    own = next(m for m in found if m.metric.name == "throughput" and m.scope == "rank 1")
    assert own.value == pytest.approx(8 * 3 / 7.5)


def test_what_every_rank_knows_alike_is_told_once() -> None:
    assert [m.scope for m in merge_ranks([FIRST, SECOND]).measurements if m.metric.name == "size"] == [""]


def test_the_whole_case_comes_first_in_the_benchmark_s_order() -> None:
    names = [m.metric.name for m in merge_ranks([FIRST, SECOND]).measurements if m.scope == ""]
    assert names == ["throughput", "mfu", "step_time", "loss", "memory", "slack", "total", "size"]


def test_a_metric_that_only_one_rank_took_is_kept() -> None:
    energy = Measurement.of_value(Metric(name="energy", unit="J", merge=Merge.MEAN), 5.0)
    lone = FIRST.model_copy(update={"measurements": [*FIRST.measurements, energy]})
    assert merged(lone, SECOND)["energy"].value == 5.0


def test_a_warning_that_several_ranks_have_is_told_once_and_the_first_rank_s_words_stay() -> None:
    first = of_rank([1.0] * 3, memory=1.0, warnings=("noisy",))
    second = of_rank([1.0] * 3, memory=2.0, warnings=("noisy", "short"))
    found = {warning.kind: warning.message for warning in merge_ranks([first, second]).warnings}
    assert found == {"noisy": "noisy at 1", "short": "short at 2"}


def test_facts_are_the_first_rank_s_and_count_the_ranks() -> None:
    assert merge_ranks([FIRST, SECOND]).facts == {"formula": "6ND", "memory": 100.0, "ranks": 2}


def test_two_samples_of_each_rank_are_joined_one_by_one() -> None:
    one, other = (Result(measurements=[Measurement.of_samples(LOSS, samples)]) for samples in ([1.0, 3.0], [3.0, 7.0]))
    assert merged(one, other)["loss"].samples == [2.0, 5.0]


@pytest.mark.parametrize("samples", [([1.0], [3.0]), ([1.0, 1.0], [3.0]), ([1.0], [3.0, 3.0])])
def test_what_cannot_be_joined_sample_by_sample_is_one_value(samples: tuple[list[float], list[float]]) -> None:
    ranks = [Result(measurements=[Measurement.of_samples(LOSS, one, at={"size": 4})]) for one in samples]
    whole = merge_ranks(ranks).measurements[0]
    assert (whole.value, whole.statistic, whole.samples, whole.at) == (2.0, "single", [2.0], {"size": 4})


def test_every_point_of_a_sweep_is_merged_with_itself() -> None:
    def of_point(seconds: float, at: At) -> list[Measurement]:
        times = Measurement.of_samples(STEP_TIME, [seconds] * 3, at=at)
        return [Measurement.of_rate(THROUGHPUT, 12.0, times), times]

    first = Result(measurements=[*of_point(1.0, {"m": 1, "n": 2}), *of_point(4.0, {"m": 2, "n": 1})])
    second = Result(measurements=[*of_point(8.0, {"n": 1, "m": 2}), *of_point(2.0, {"n": 2, "m": 1})])
    whole = [m for m in merge_ranks([first, second]).measurements if not m.scope]
    assert [(m.metric.name, m.at, m.value) for m in whole] == [
        ("throughput", {"m": 1, "n": 2}, pytest.approx(12.0)),
        ("step_time", {"m": 1, "n": 2}, 2.0),
        ("throughput", {"m": 2, "n": 1}, pytest.approx(3.0)),
        ("step_time", {"m": 2, "n": 1}, 8.0),
    ]


def test_pooled_samples_keep_their_statistic_and_their_point() -> None:
    apart = STEP_TIME.model_copy(update={"merge": Merge.POOLED})
    ranks = [
        Result(measurements=[Measurement.of_samples(apart, samples, statistic="mean", at={"size": 4})])
        for samples in ([1.0, 1.0], [7.0])
    ]
    whole = merge_ranks(ranks).measurements[0]
    assert (whole.samples, whole.statistic, whole.at, whole.value) == ([1.0, 1.0, 7.0], "mean", {"size": 4}, 3.0)


def test_a_rank_whose_work_is_not_told_adds_none() -> None:
    silent = SECOND.model_copy(
        update={"measurements": [replace(m, work=None) if m.derived_from else m for m in SECOND.measurements]}
    )
    whole = merged(FIRST, silent)
    assert (whole["throughput"].work, whole["mfu"].work) == (8.0, 5.0)


def test_all_that_the_first_rank_says_of_a_kind_of_trouble_stays() -> None:
    first = of_rank([1.0] * 3, memory=1.0, warnings=("noisy", "short", "noisy"))
    second = of_rank([1.0] * 3, memory=2.0, warnings=("short", "hot", "noisy"))
    assert [warning.message for warning in merge_ranks([first, second]).warnings] == [
        "noisy at 1",
        "noisy at 1",
        "short at 1",
        "hot at 2",
    ]


def test_two_ranks_are_merged_and_none_is_taken_for_the_whole() -> None:
    both = merge_ranks([FIRST, FIRST])
    assert both.facts["ranks"] == 2
    assert {m.scope for m in both.measurements} == {"", "rank 0", "rank 1"}
