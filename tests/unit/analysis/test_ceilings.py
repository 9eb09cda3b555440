"""From records to ceilings: the figures that they show, by device, and what is absent."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.roofline import ceilings_of
from paceline.core.metric import Better, Merge, Metric
from paceline.core.profile import Ceiling
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.core.subject import ShownCeiling, Subject
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
