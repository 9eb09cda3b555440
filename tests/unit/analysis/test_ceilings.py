"""From records to ceilings: the figures that they show, by device, and what is absent."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.roofline import ceilings_of
from paceline.core.metric import Better, Merge, Metric
from paceline.core.profile import Ceiling
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.core.stats import Interval, summarize
from paceline.core.subject import CeilingKind, ShownCeiling, Subject
from support.records import case, record, run_of

ENVIRONMENT = {"cpu": {"model": "EPYC 9654"}}


def rate(name: str, value: float, unit: str) -> Measurement:
    times = Measurement.of_samples(Metric(name="time", unit="s"), [1.0] * 20)
    return Measurement.of_rate(Metric(name=name, unit=unit, better=Better.HIGHER, merge=Merge.SUM), value, times)


def found(*records: Record) -> dict[tuple[str, str, str], Ceiling]:
    ceilings, _ = ceilings_of(run_of(list(records), environment=ENVIRONMENT))
    return {(one.device, one.kind, one.name): one for one in ceilings}


def gemm(index: int, precision: str, value: float, *, target: str = "cpu", device: str = "cpu", **more: Any) -> Record:
    where = case(index, "gemm", precision, precision=precision, target=target)
    shown = (ShownCeiling(kind="compute", name=precision, metric="compute_rate"),)
    measured = [rate("compute_rate", value, "FLOP/s")]
    return record(where, measured, ceilings=shown, subject=Subject(device=device), **more)


def test_a_matrix_product_is_the_compute_ceiling_of_its_precision() -> None:
    warning = RecordWarning(kind="contended", message="others", remedy="stop them")
    ceilings = found(gemm(0, "fp32", 2e12, warnings=[warning]))
    one = ceilings["cpu", "compute", "fp32"]
    assert (one.value, one.unit, one.device_name) == (2e12, "FLOP/s", "EPYC 9654")
    assert one.low is not None
    assert one.high is not None
    assert one.low <= one.value <= one.high
    assert [warning.kind for warning in one.warnings] == ["contended"]
    assert one.datasheet is None


def test_a_gpu_has_the_name_that_the_record_gives() -> None:
    (one,) = found(gemm(0, "bf16", 8e14, target="cuda:0", device="NVIDIA H200")).values()
    assert one.device_name == "NVIDIA H200"


def test_of_repetitions_the_best_is_the_ceiling() -> None:
    assert (
        found(gemm(0, "fp32", 2e12), gemm(1, "fp32", 3e12), gemm(2, "fp32", 1e12))["cpu", "compute", "fp32"].value
        == 3e12
    )


@pytest.mark.parametrize("outcome", [Outcome.UNSUPPORTED, Outcome.FAILED, Outcome.TIMEOUT])
def test_what_did_not_succeed_is_absent_with_its_reason(outcome: Outcome) -> None:
    cause = Cause(kind=CauseKind.ERROR, message="fp8 needs compute capability 8.9")
    failed = record(case(1, "gemm", "fp8", precision="fp8", target="cuda:0"), outcome=outcome, cause=cause)
    ceilings, absent = ceilings_of(run_of([gemm(0, "fp32", 2e12), failed], environment=ENVIRONMENT))
    assert [one.name for one in ceilings] == ["fp32"]
    (one,) = absent
    assert (one.what, one.device, one.reason) == ("gemm fp8", "cuda:0", "fp8 needs compute capability 8.9")


def test_what_was_not_run_is_absent_too() -> None:
    waiting = case(1, "gemm", "fp16", precision="fp16", target="cpu")
    ceilings, absent = ceilings_of(run_of([gemm(0, "fp32", 2e12)], not_run=[waiting], environment=ENVIRONMENT))
    assert len(ceilings) == 1
    assert [(one.what, one.reason) for one in absent] == [("gemm fp16", "it was not run")]


def test_a_run_of_models_has_no_ceilings() -> None:
    other = record(case(0, "train", "lstm", target="cpu"), [rate("throughput", 5.0, "samples/s")])
    assert ceilings_of(run_of([other], environment=ENVIRONMENT)) == ([], [])


def shows(
    index: int,
    measured: Measurement,
    *kinds: str,
    kind: CeilingKind = "memory",
    name: str = "main memory",
    metric: str = "rate",
    subject: Subject | None = None,
    **about: Any,
) -> Record:
    """A record of one figure, with warnings of these kinds."""
    warnings = [RecordWarning(kind=one, message="so", remedy="do") for one in kinds]
    where = case(index, "memory", name, **({"target": "cpu"} | about))
    shown = (ShownCeiling(kind=kind, name=name, metric=metric),)
    return record(where, [measured], ceilings=shown, subject=subject or Subject(device="host"), warnings=warnings)


def single(value: float, unit: str = "B/s") -> Measurement:
    return Measurement.of_value(Metric(name="rate", unit=unit), value)


def within(low: float, high: float) -> Measurement:
    """100, with this interval."""
    interval = Interval(low=low, high=high, confidence=0.95)
    summary = summarize([100.0]).model_copy(update={"mean_interval": interval})
    return Measurement(metric=Metric(name="rate", unit="B/s"), statistic="mean", summary=summary)


@pytest.mark.parametrize(
    ("measured", "kinds"),
    [
        (within(99.0, 101.0), ["contended"]),
        (within(95.0, 105.0), ["contended"]),
        (within(94.0, 101.0), ["imprecise", "contended"]),
        (single(100.0), ["imprecise", "contended"]),
    ],
    ids=["precise", "just precise", "imprecise", "seen once"],
)
def test_a_figure_within_five_percent_is_not_imprecise(measured: Measurement, kinds: list[str]) -> None:
    (one,) = found(shows(0, measured, "imprecise", "contended")).values()
    assert [warning.kind for warning in one.warnings] == kinds
    ends = (measured.interval.low, measured.interval.high) if measured.interval else (None, None)
    assert (one.value, one.low, one.high) == (100.0, *ends)


@pytest.mark.parametrize(("name", "kinds"), [("L2", ["contended"]), ("main memory", ["cached", "contended"])])
def test_a_cache_may_hold_what_is_to_show_the_cache(name: str, kinds: list[str]) -> None:
    (one,) = found(shows(0, single(100.0), "cached", "contended", name=name)).values()
    assert [warning.kind for warning in one.warnings] == kinds


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_figure_of_nothing_is_no_ceiling(value: float) -> None:
    assert found(shows(0, single(value))) == {}


def test_a_ceiling_whose_figure_is_missing_is_passed_over() -> None:
    assert found(shows(0, single(100.0), metric="other")) == {}


def test_a_ceiling_may_be_a_point_of_a_sweep() -> None:
    metric = Metric(name="rate", unit="B/s")
    measured = [Measurement.of_value(metric, 10.0 * size, at={"size": size}) for size in (1, 2, 3)]
    shown = (ShownCeiling(kind="memory", name="L1", metric="rate", at={"size": 2}),)
    (one,) = found(record(case(0, "memory", "x", target="cpu"), measured, ceilings=shown)).values()
    assert one.value == 20.0


def test_of_repetitions_the_shortest_time_is_the_ceiling() -> None:
    times = [5e-6, 3e-6, 4e-6]
    records = [shows(at, single(value, "s"), kind="launch", name="kernel") for at, value in enumerate(times)]
    (one,) = found(*records).values()
    assert (one.value, one.unit) == (3e-6, "s")


@pytest.mark.parametrize("unit", ["s", "B/s"])
def test_of_equal_repetitions_the_first_is_the_ceiling(unit: str) -> None:
    (one,) = found(shows(0, single(2.0, unit), "first"), shows(1, single(2.0, unit), "second")).values()
    assert [warning.kind for warning in one.warnings] == ["first"]


def test_devices_kinds_and_names_have_ceilings_of_their_own() -> None:
    records = [
        shows(0, single(1.0)),
        shows(1, single(2.0), name="L2"),
        shows(2, single(3.0), kind="link"),
        shows(3, single(4.0), target="cuda:0"),
    ]
    assert {key: one.value for key, one in found(*records).items()} == {
        ("cpu", "memory", "main memory"): 1.0,
        ("cpu", "memory", "L2"): 2.0,
        ("cpu", "link", "main memory"): 3.0,
        ("cuda:0", "memory", "main memory"): 4.0,
    }


@pytest.mark.parametrize(
    ("target", "device", "model", "name"),
    [
        ("cpu", "host", "EPYC 9654", "EPYC 9654"),
        ("cpu", "host", None, "host"),
        ("cpu", None, None, "cpu"),
        ("cuda:0", "NVIDIA H200", "EPYC 9654", "NVIDIA H200"),
        ("cuda:0", None, "EPYC 9654", "cuda:0"),
    ],
)
def test_a_device_has_the_best_name_that_there_is(
    target: str, device: str | None, model: str | None, name: str
) -> None:
    measured = shows(0, single(1.0), target=target, subject=Subject(device=device))
    (one,), _ = ceilings_of(run_of([measured], environment={"cpu": {"model": model}}))
    assert (one.device, one.device_name) == (target, name)


def test_what_ended_without_a_cause_is_absent_by_its_outcome() -> None:
    failed = record(case(0, "gemm", "", target="cpu"), outcome=Outcome.TIMEOUT)
    _, absent = ceilings_of(run_of([failed], environment=ENVIRONMENT))
    assert [(one.what, one.reason) for one in absent] == [("gemm", "it ended as timeout")]


def test_what_was_interrupted_is_absent_once() -> None:
    cause = Cause(kind=CauseKind.INTERRUPTED, message="the run was stopped")
    stopped = record(case(0, "gemm", "fp32", target="cpu"), outcome=Outcome.FAILED, cause=cause)
    waiting = case(1, "gemm", "fp16", target="cpu")
    _, absent = ceilings_of(run_of([stopped], not_run=[waiting], environment=ENVIRONMENT))
    assert [(one.what, one.reason) for one in absent] == [
        ("gemm fp32", "the run was stopped"),
        ("gemm fp16", "it was not run"),
    ]
