"""Cases under ceilings that are known by hand: intensity, what bounds them, and where a ceiling is from."""

from __future__ import annotations

import pytest

from paceline.analysis.roofline import OWN_RUN, Bound, KnownCeilings, Placed, Roofline, advice, rooflines
from paceline.analysis.summary import summarize_run
from paceline.core.record import Record
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
