"""Steps of a model on the CPU, and literal events of a GPU, as traced cases to explain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.analysis.explain import Traced, traced_case
from paceline.analysis.roofline import KnownCeilings
from paceline.benchmarks._model.measuring import StepSession, _details
from paceline.core.parameters import MeasuringParameters
from paceline.core.record import Measurement, Record
from paceline.core.subject import StepTrace, Subject, Work
from paceline.core.trace_events import TimeSpent, TraceEvent, read_events, time_spent
from paceline.core.trace_signs import StepDetails, step_details
from paceline.devices.cpu import CpuDevice
from paceline.measure import trace
from support.records import STEP_TIME, case, record, run_of


def traced(
    spent: TimeSpent,
    details: StepDetails,
    *,
    step: float | None = None,
    precision: Any = "fp32",
    batch: int = 1,
    target: str = "cpu",
    work: Work | None = None,
    alternatives: tuple[str, ...] = (),
    ceilings: KnownCeilings | None = None,
    **more: Any,
) -> Traced:
    """A case that was measured and traced."""
    found: Record = record(
        case(0, "train", "planted", target=target),
        [Measurement.of_samples(STEP_TIME, [step or spent.step_seconds] * 5)],
        trace=StepTrace(spent=spent, details=details, alternatives=alternatives, **more),
        subject=Subject(model="planted", precision=precision, batch=batch, device="cpu" if target == "cpu" else "GPU"),
        work=work,
    )
    return traced_case(run_of([found]), ceilings or KnownCeilings(), found)


def traced_on_cpu(step: Callable[[], object], **more: Any) -> Traced:
    """A step that is traced here, as a case traces its own."""
    step()
    session = StepSession(CpuDevice(), MeasuringParameters(), compiled=False, in_flight=1)
    taken = trace.take(step, session.device, steps=2, in_flight=1)
    spent = time_spent(read_events(taken), on_device=False, steps_queue=False)
    details = _details(session, step, 2)
    assert spent is not None
    assert details is not None
    return traced(spent, details, **more)


MARKS = ((0, 0, 100), (1, 1_000, 1_900))  # number, start and end of the traced steps in microseconds


def gpu_events(*events: Mapping[str, Any]) -> list[TraceEvent]:
    """A trace in Chrome's format: two steps of a millisecond, and these events in the second."""
    marks = [
        {"name": f"paceline step {number}", "cat": "user_annotation", "ts": start, "dur": end - start}
        for number, start, end in MARKS
    ]
    common: dict[str, Any] = {"ph": "X", "pid": 1, "tid": 1, "args": {}}
    return read_events({"traceEvents": [common | dict(one) for one in (*marks, *events)]})


def launched(number: int, name: str, kernel: str, ts: float, dur: float, **inputs: Any) -> list[dict[str, Any]]:
    """An operator, its launch, and its kernel on the device."""
    ids = {"External id": number}
    bytes_moved = {"bytes": inputs.pop("bytes")} if "bytes" in inputs else {}
    kind = "gpu_memcpy" if kernel.startswith("Memcpy") else "kernel"
    arguments = ids | {key.replace("_", " "): value for key, value in inputs.items()}
    launch = {"correlation": number}
    return [
        {"name": name, "cat": "cpu_op", "ts": ts, "dur": 5, "args": arguments},
        {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": ts + 1, "dur": 2, "args": launch},
        {"name": kernel, "cat": kind, "ts": ts + 10, "dur": dur, "tid": 7, "args": launch | bytes_moved},
    ]


def explained_gpu(*events: Mapping[str, Any], step: float = 1e-3, **more: Any) -> Traced:
    """A case on a GPU with these events in its step."""
    read = gpu_events(*events)
    spent = time_spent(read, on_device=True, steps_queue=False)
    assert spent is not None
    return traced(spent, step_details(read, on_device=True), step=step, target="cuda:0", **more)
