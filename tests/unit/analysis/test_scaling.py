"""Efficiency over ranks and the lost time by name, from records whose answers are known."""

from __future__ import annotations

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
from support.insight_records import BACKWARD, EXPOSED, data_parallel, mesh, of_ranks, scaling_run
from support.records import STEP_TIME, case, record, run_of, throughput


def series_of(*records: Record) -> list[ScalingSeries]:
    return scaling(summarize_run(run_of(list(records))).rows)


def lost(point: Scaled) -> dict[str, float]:
    return {loss.name: pytest.approx(loss.seconds) for loss in point.losses}


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
    assert found.largest.losses == ()


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
    assert found.largest.losses == ()


def test_a_run_may_have_several_series() -> None:
    assert [(one.rule, len(one.points)) for one in series_of(*scaling_run().records)] == [("weak", 4), ("strong", 4)]
