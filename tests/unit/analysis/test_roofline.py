"""Cases under ceilings that are known by hand: intensity, what bounds them, and where a ceiling is from."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.roofline import (
    OWN_RUN,
    Bound,
    KnownCeilings,
    Placed,
    Roofline,
    Rooflines,
    advice,
    device_of,
    rooflines,
)
from paceline.analysis.summary import summarize_run
from paceline.core.grouping import group_by
from paceline.core.metric import Metric
from paceline.core.record import Measurement, Outcome, Record, RecordWarning
from paceline.core.subject import ShownCeiling, Subject, Work
from support.insight_records import (
    GPU,
    SOURCE,
    ceiling,
    data_parallel,
    gpu_ceilings,
    inference,
    product,
    roofline_run,
)
from support.records import case, described_here, record, run_of, sample_run


def under(records: list[Record], known: KnownCeilings | None = None) -> tuple[Roofline, ...]:
    summary = summarize_run(run_of(records))
    return rooflines(summary.source, summary.rows, known if known is not None else gpu_ceilings()).rooflines


def only(one: Record, known: KnownCeilings | None = None) -> Placed:
    ((placed,),) = (roofline.placed for roofline in under([one], known))
    return placed


def test_a_product_at_its_peak_is_bound_by_compute() -> None:
    placed = only(product(0, 8192, 8192, 8192, 2 * 8192**3 / 640e12))
    assert (placed.bound, placed.nearest.name) == (Bound.COMPUTE, "bf16")
    assert placed.share == pytest.approx(0.8)
    assert placed.nearest.source == SOURCE


def test_a_flat_product_is_bound_by_memory() -> None:
    moved = 2 * (16 * 8192 + 8192 * 8192 + 16 * 8192)
    placed = only(product(0, 16, 8192, 8192, moved / 3e12))
    assert placed.bound is Bound.MEMORY
    assert placed.share == pytest.approx(0.75)
    assert "fewer bytes" in advice(placed)


def test_what_is_far_below_both_is_bound_by_neither() -> None:
    placed = only(product(0, 64, 64, 64, 5e-6))
    assert placed.bound is Bound.NEITHER
    assert placed.share == pytest.approx(3 * 2 * 64 * 64 / 5e-6 / 4e12)
    assert "launching" in advice(placed)


def test_a_device_that_waits_for_its_host_is_bound_by_it() -> None:
    found = {one.row.case.index: one.bound for one in under(roofline_run().records)[0].placed}
    assert found == {
        0: Bound.COMPUTE, 1: Bound.MEMORY, 2: Bound.NEITHER, 3: Bound.COMPUTE, 4: Bound.MEMORY, 5: Bound.COMPUTE,
        6: Bound.HOST, 7: Bound.COMPUTE,
    }  # fmt: skip


def test_below_the_compute_ceiling_uncounted_bytes_leave_memory_open() -> None:
    assert only(inference(0, 3.3e8, 21e12, 61e-3)).is_open
    assert not only(inference(0, 7e9, 14e9, 4.4e-3)).is_open  # memory bounds it already
    assert not only(inference(0, 3.3e8, 21e12, 21e12 / 700e12)).is_open  # nothing but compute can


def test_counted_activations_tell_whether_memory_could_bound_a_model() -> None:
    """A step of 21 TFLOP in 61 ms reaches 43 % of 800 TFLOP/s; the weights are 0.66 GB, and memory carries 4 TB/s."""
    little = only(inference(0, 3.3e8, 21e12, 61e-3, facts={"activation_bytes": 1e9}))
    assert (little.work.bytes, little.work.passed) == (0.66e9, 2e9)
    assert little.work.most_traffic == pytest.approx(2.66e9 / 61e-3)
    assert little.work.least_intensity == pytest.approx(21e12 / 2.66e9)
    assert (little.bound, little.is_open) == (Bound.COMPUTE, False)
    much = only(inference(0, 3.3e8, 21e12, 61e-3, facts={"activation_bytes": 100e9}))
    assert (much.bound, much.share, much.is_open) == (little.bound, little.share, True)
    slow = only(inference(0, 3.3e8, 21e12, 610e-3, facts={"activation_bytes": 100e9}))
    assert (slow.bound, slow.is_open) == (Bound.NEITHER, False)  # even so memory would carry no fifth of what it can
    assert only(inference(0, 3.3e8, 21e12, 61e-3)).work.most_traffic is None


def test_the_cpu_is_measured_against_its_main_memory() -> None:
    one = inference(0, 1e9, 2e9, 0.25, precision="fp32")
    cpu = described_here(one.model_copy(update={"case": one.case.model_copy(update={"target": "cpu"})}))
    known = KnownCeilings((
        ceiling("compute", "fp32", 1e12, device="cpu", device_name="Some CPU"),
        ceiling("memory", "main memory", 20e9, device="cpu", device_name="Some CPU"),
        ceiling("memory", "L2", 500e9, device="cpu", device_name="Some CPU"),
    ), "profile")  # fmt: skip
    placed = only(cpu, known)
    assert (placed.bound, placed.nearest.name) == (Bound.MEMORY, "main memory")
    assert placed.share == pytest.approx(0.8)


def test_data_that_stay_in_a_cache_are_not_bound_by_memory() -> None:
    placed = only(inference(0, 1e6, 1e9, 2e6 / 8e12))  # twice what the memory carries
    assert placed.is_cached
    assert placed.bound is not Bound.MEMORY


def test_the_highest_measured_ceiling_counts_and_a_datasheet_only_without_one() -> None:
    slow, fast = product(0, 8192, 8192, 8192, 2 * 8192**3 / 500e12), product(1, 4096, 4096, 4096, 2 * 4096**3 / 850e12)
    promised = (ceiling("compute", "bf16", 989e12), ceiling("memory", "device memory", 4.8e12))
    (with_both,) = under([slow, fast], KnownCeilings(gpu_ceilings().measured, SOURCE, promised))
    assert [(roof.value, roof.source) for roof in with_both.compute] == [(pytest.approx(850e12), OWN_RUN)]
    assert with_both.memory.value == 4e12
    # What a ceiling was taken from lies on it by definition.
    assert [one.row.case.index for one in with_both.placed] == [0]
    alone = only(inference(0, 7e9, 14e9, 4.4e-3), KnownCeilings(datasheet=promised))
    assert (alone.nearest.source, alone.nearest.value) == ("datasheet", 4.8e12)


def test_memory_that_was_only_copied_reads_and_writes_each_byte() -> None:
    copied = (ceiling("compute", "bf16", 800e12), ceiling("memory", "copy within device memory", 2e12))
    placed = only(inference(0, 7e9, 14e9, 4.4e-3), KnownCeilings(copied, SOURCE))
    assert (placed.memory.name, placed.memory.value) == ("device memory", 4e12)


def test_a_case_beyond_its_ceiling_asks_for_a_better_one() -> None:
    low = KnownCeilings((ceiling("compute", "bf16", 500e12), ceiling("memory", "device memory", 4e12)), SOURCE)
    placed = only(inference(0, 3e8, 6e12, 0.01), low)
    assert placed.is_beyond
    assert "measure that again" in advice(placed)


def test_without_ceilings_there_is_no_roof_and_the_device_is_named() -> None:
    summary = summarize_run(run_of([inference(0, 7e9, 14e9, 4.4e-3)]))
    found = rooflines(summary.source, summary.rows)
    assert found.rooflines == ()
    assert found.unknown == (GPU,)


def test_records_that_do_not_tell_their_bytes_are_named() -> None:
    one = inference(0, 7e9, 14e9, 4.4e-3)
    bare = described_here(one.model_copy(update={"facts": {"device": GPU}}))
    summary = summarize_run(run_of([bare, data_parallel(1, 1, 0.1), record(case(2, "other", "x"))]))
    found = rooflines(summary.source, summary.rows, gpu_ceilings())
    assert found.rooflines == ()
    assert [row.case.index for row in found.uncounted] == [0]


def test_records_of_earlier_versions_do_not_disturb() -> None:
    summary = summarize_run(sample_run())
    assert rooflines(summary.source, summary.rows, gpu_ceilings()).rooflines == ()


LEVEL = KnownCeilings((ceiling("compute", "bf16", 1000.0), ceiling("memory", "device memory", 1000.0)), SOURCE)


def working(rate: float, *kinds: str, index: int = 0, flops: float = 1000.0, moved: float = 1.0, **more: Any) -> Record:
    """A case that computes at this rate under ceilings of 1,000, with warnings of these kinds."""
    about = {"number_format": "bf16", "left_out": "", "passed": 0.0} | more
    work = Work(flops=flops, bytes=moved, rate=rate, unit="FLOP/s", formula="all", **about)
    warnings = [RecordWarning(kind=kind, message="so", remedy="do") for kind in kinds]
    where = case(index, "inference", f"model-{index}", category="inference")
    return record(where, work=work, subject=Subject(device=GPU), warnings=warnings)


def all_of(records: list[Record], ceilings: KnownCeilings = LEVEL) -> Rooflines:
    summary = summarize_run(run_of(records))
    return rooflines(summary.source, summary.rows, ceilings)


@pytest.mark.parametrize(
    ("rate", "kinds", "bound", "says"),
    [
        (1051.0, [], Bound.COMPUTE, "measure that again"),
        (1050.0, [], Bound.COMPUTE, "the units are busy"),
        (600.0, [], Bound.COMPUTE, "the units are busy"),
        (600.0, ["host-bound"], Bound.COMPUTE, "the units are busy"),
        (599.0, [], Bound.COMPUTE, "the units idle in part"),
        (599.0, ["contended"], Bound.COMPUTE, "the units idle in part"),
        (599.0, ["contended", "host-bound"], Bound.HOST, "launching work"),
        (200.0, [], Bound.COMPUTE, "the units idle in part"),
        (199.0, [], Bound.NEITHER, "launching work"),
        (199.0, ["host-bound"], Bound.HOST, "launching work"),
    ],
)
def test_how_near_a_case_is_to_its_ceiling_says_what_to_do(
    rate: float, kinds: list[str], bound: Bound, says: str
) -> None:
    placed = only(working(rate, *kinds), LEVEL)
    assert (placed.bound, placed.share, placed.nearest.name) == (bound, rate / 1000.0, "bf16")
    assert placed.is_beyond == (rate > 1050.0)
    assert says in advice(placed)


@pytest.mark.parametrize(
    ("traffic", "bound", "is_cached"),
    [
        (499.0, Bound.COMPUTE, False),
        (500.0, Bound.MEMORY, False),
        (1050.0, Bound.MEMORY, False),
        (1051.0, Bound.COMPUTE, True),
    ],
)
def test_memory_bounds_what_is_no_further_from_it_and_not_faster_than_it(
    traffic: float, bound: Bound, is_cached: bool
) -> None:
    placed = only(working(500.0, flops=500.0, moved=traffic), LEVEL)
    assert (placed.bound, placed.is_cached, placed.is_beyond) == (bound, is_cached, False)
    assert placed.nearest == (placed.memory if bound is Bound.MEMORY else placed.compute)
    assert placed.share == (traffic / 1000.0 if bound is Bound.MEMORY else 0.5)


@pytest.mark.parametrize(
    ("rate", "passed", "is_open"),
    [
        (400.0, 0.0, True),  # nobody knows how many bytes were left out
        (400.0, 1.0, True),
        (400.0, 0.99, False),
        (600.0, 0.0, False),
        (599.0, 0.0, True),
        (100.0, 3.0, True),  # a fifth of what memory carries
        (100.0, 2.9, False),
    ],
)
def test_bytes_that_were_left_out_leave_memory_open_if_they_could_weigh_more(
    rate: float, passed: float, is_open: bool
) -> None:
    assert only(working(rate, flops=2.0, passed=passed, left_out="activations"), LEVEL).is_open is is_open
    assert only(working(rate, flops=2.0, passed=passed), LEVEL).is_open is False


def test_cases_that_need_the_same_are_together() -> None:
    rates = [700.0, 100.0, 800.0]
    (drawn,) = all_of([working(rate, index=index) for index, rate in enumerate(rates)]).rooflines
    groups = group_by(drawn.placed, advice)
    assert [[one.row.case.index for one in group] for group in groups.values()] == [[0, 2], [1]]
    assert list(groups) == [advice(drawn.placed[0]), advice(drawn.placed[1])]


def test_ceilings_of_compute_are_those_in_use_and_the_highest_is_first() -> None:
    formats = ["fp32", "bf16", "fp32"]
    records = [working(1e12, index=index, number_format=one) for index, one in enumerate(formats)]
    (drawn,) = all_of(records, gpu_ceilings()).rooflines
    assert [(roof.name, roof.value) for roof in drawn.compute] == [("bf16", 800e12), ("fp32", 50e12)]
    assert (drawn.device, drawn.memory.name, len(drawn.placed)) == (GPU, "device memory", 3)


@pytest.mark.parametrize(
    "ceilings",
    [
        (ceiling("compute", "bf16", 1000.0),),
        (ceiling("memory", "device memory", 1000.0),),
        (ceiling("compute", "fp32", 1000.0), ceiling("memory", "device memory", 1000.0)),
    ],
    ids=["no memory", "no compute", "another precision"],
)
def test_a_device_that_lacks_one_of_the_ceilings_is_named(ceilings: tuple[Any, ...]) -> None:
    drawn = all_of([working(500.0)], KnownCeilings(ceilings, SOURCE))
    assert (drawn.rooflines, drawn.unknown) == ((), (GPU,))


def test_a_device_that_only_measured_ceilings_needs_none() -> None:
    gemm, nothing = product(0, 64, 64, 64, 5e-6), KnownCeilings()
    assert all_of([gemm], nothing).unknown == ()
    assert all_of([gemm, working(500.0, index=1)], nothing).unknown == (GPU,)


def test_what_failed_is_under_no_roof_and_not_missed_there() -> None:
    failed = working(500.0).model_copy(update={"outcome": Outcome.FAILED})
    bare = failed.model_copy(update={"work": None, "counts_work": True})
    assert all_of([failed, bare]) == Rooflines((), (), ())


def reached(index: int, name: str, value: float, *, kind: Any = "compute", rate: float = 500.0, **more: Any) -> Record:
    """A case that reached a ceiling of this kind itself."""
    measured = Measurement.of_value(Metric(name="most", unit="1/s"), value)
    about = {"measurements": [measured], "ceilings": (ShownCeiling(kind=kind, name=name, metric="most"),)}
    return working(rate, index=index).model_copy(update=about | more)


@pytest.mark.parametrize(
    ("value", "source", "indices"),
    [(999.0, SOURCE, [0, 1]), (1000.0, SOURCE, [0, 1]), (1001.0, OWN_RUN, [1])],
)
@pytest.mark.parametrize(("kind", "name"), [("compute", "bf16"), ("memory", "device memory")])
def test_this_run_replaces_only_a_lower_ceiling(
    kind: str, name: str, value: float, source: str, indices: list[int]
) -> None:
    (drawn,) = all_of([reached(0, name, value, kind=kind), working(500.0, index=1)]).rooflines
    roof = drawn.memory if kind == "memory" else drawn.compute[0]
    assert (roof.value, roof.source) == (max(value, 1000.0), source)
    assert [one.row.case.index for one in drawn.placed] == indices


def test_of_equal_cases_the_first_is_the_ceiling() -> None:
    (drawn,) = all_of([reached(0, "bf16", 2000.0), reached(1, "bf16", 2000.0)]).rooflines
    assert drawn.compute[0].defined_by == 0
    assert [one.row.case.index for one in drawn.placed] == [1]


def test_what_did_not_succeed_shows_no_ceiling() -> None:
    failed = reached(0, "bf16", 2000.0, outcome=Outcome.FAILED)
    (drawn,) = all_of([failed, working(500.0, index=1)]).rooflines
    assert (drawn.compute[0].value, drawn.compute[0].source) == (1000.0, SOURCE)


def test_a_run_of_which_every_case_is_a_ceiling_has_no_roofline() -> None:
    memory = KnownCeilings((ceiling("memory", "device memory", 1000.0),), SOURCE)
    assert all_of([reached(0, "bf16", 2000.0)], memory) == Rooflines((), (), ())


def test_warnings_of_a_ceiling_are_named_once() -> None:
    kinds = ["contended", "throttled", "contended"]
    warnings = [RecordWarning(kind=kind, message="so", remedy="do") for kind in kinds]
    records = [reached(0, "bf16", 2000.0, warnings=warnings), working(500.0, index=1)]
    (drawn,) = all_of(records).rooflines
    assert drawn.compute[0].warnings == ("contended", "throttled")
    assert drawn.memory.warnings == ()


def test_a_copy_counts_more_than_a_datasheet_and_less_than_what_was_read() -> None:
    copied = ceiling("memory", "copy within device memory", 300.0)
    compute, promised = ceiling("compute", "bf16", 1000.0), (ceiling("memory", "device memory", 5000.0),)
    placed = only(working(500.0), KnownCeilings((compute, copied), SOURCE, promised))
    assert (placed.memory.value, placed.memory.source) == (600.0, SOURCE)
    read = ceiling("memory", "device memory", 550.0)
    placed = only(working(500.0), KnownCeilings((copied, compute, read), SOURCE, promised))
    assert (placed.memory.value, placed.memory.source) == (550.0, SOURCE)


@pytest.mark.parametrize(
    ("target", "device", "name"),
    [("cpu", "EPYC 9654", "cpu"), ("cuda:0", GPU, GPU), ("cuda:0", None, "cuda:0"), ("cpu", None, "cpu")],
)
def test_a_device_has_the_name_that_its_ceilings_have(target: str, device: str | None, name: str) -> None:
    assert device_of(record(case(0, "gemm", "x", target=target), subject=Subject(device=device))) == name
