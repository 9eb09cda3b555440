"""The trace of a case: after everything is measured, and at no cost to what was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.benchmarks._model.measuring import DETAILED_STEPS, LOST, STEP_TIME, StepSession, add_trace
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.parameters import MeasuringParameters
from paceline.core.record import Measurement, Result
from paceline.devices.cpu import CpuDevice
from paceline.measure import trace

torch = pytest.importorskip("torch", reason="install it with: pip install '.[torch]'")


SESSION = StepSession(CpuDevice(), MeasuringParameters(), compiled=False, in_flight=1)


def measured() -> Result:
    return Result(measurements=[Measurement.of_samples(STEP_TIME, [0.01] * 5)], facts={"batch_size": 2})


def context(place: str, kept: list[Result]) -> Context:
    case = Case(index=0, benchmark="train", parameters={}, title="small", trace=place)
    return Context(case, keep=lambda result: kept.append(result.model_copy(deep=True)))


def add(result: Result, step: Callable[[], object], place: str) -> list[Result]:
    kept: list[Result] = []
    add_trace(result, SESSION, step, context(place, kept))
    return kept


def product() -> None:
    torch.ones(8, 8).mm(torch.ones(8, 8))


def test_a_case_that_wants_none_takes_no_step() -> None:
    result, steps = measured(), list[int]()
    assert add(result, lambda: steps.append(1), "") == []
    assert (steps, result) == ([], measured())


def test_what_the_facts_say_and_where_the_file_is(tmp_path: Path) -> None:
    result = measured()
    add(result, product, str(tmp_path / "a.json.gz"))
    told = result.facts["trace"]
    assert told["file"] == str(tmp_path / "a.json.gz")
    assert told["bytes"] == (tmp_path / "a.json.gz").stat().st_size
    assert told["spent"]["steps"] == trace.STEPS
    assert "aten::mm" in {one["name"] for one in told["spent"]["kernels"]}
    assert told["slowdown"] == pytest.approx(told["spent"]["step_seconds"] / 0.01)
    (multiplied,) = [one for one in told["details"]["operations"] if one["name"] == "aten::mm"]
    assert multiplied["sizes"] == [[1, 8, 8, 8]]
    assert "test_tracing.py" in multiplied["where"]
    assert result.measurements == measured().measurements
    assert result.warnings == []


def test_a_second_trace_that_fails_leaves_the_first(tmp_path: Path) -> None:
    result, calls = measured(), list[int]()

    def step() -> None:
        calls.append(1)
        if len(calls) > trace.STEPS + 1:
            raise MemoryError("no more")
        product()

    add(result, step, str(tmp_path / "a.json.gz"))
    assert result.facts["trace"]["spent"]["steps"] == trace.STEPS
    assert "details" not in result.facts["trace"]


def test_the_home_folder_is_found_where_the_case_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    result = measured()
    add(result, product, "~/traces/a.json.gz")
    assert (tmp_path / "traces" / "a.json.gz").is_file()
    assert result.facts["trace"]["file"] == "~/traces/a.json.gz"


def test_the_result_is_safe_before_the_first_traced_step(tmp_path: Path) -> None:
    order: list[str] = []
    case = Case(index=0, benchmark="train", parameters={}, title="small", trace=str(tmp_path / "a.json.gz"))
    safe = Context(case, keep=lambda result: order.append(result.facts["trace"]["missing"]))
    add_trace(measured(), SESSION, lambda: order.append("step"), safe)
    assert order == [LOST, *["step"] * (trace.STEPS + 1 + DETAILED_STEPS + 1)]


@pytest.mark.parametrize("error", [MemoryError("no more"), RuntimeError("CUDA error: out of memory")])
def test_memory_that_runs_out_costs_nothing(tmp_path: Path, error: Exception) -> None:
    def step() -> None:
        raise error

    result = measured()
    add(result, step, str(tmp_path / "a.json.gz"))
    assert result.facts == {"batch_size": 2, "trace": {"missing": f"{type(error).__name__}: {error}"}}
    assert result.measurements == measured().measurements
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_kept_leaves_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_EVENTS", 1)
    result = measured()
    add(result, product, str(tmp_path / "a.json.gz"))
    told = result.facts["trace"]
    assert "file" not in told
    assert "no viewer opens" in told["no_file"]
    assert told["spent"]["steps"] == trace.STEPS


def test_a_profiler_that_sees_nothing_says_so(tmp_path: Path) -> None:
    result = measured()
    add(result, lambda: None, str(tmp_path / "a.json.gz"))
    assert result.facts["trace"]["missing"] == "the profiler saw no operator"
