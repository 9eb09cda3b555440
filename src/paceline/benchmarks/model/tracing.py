"""Takes the trace that a case asks for, once everything is measured; the measurement stands, whatever comes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.benchmarks.model.metrics import STEP_TIME
from paceline.benchmarks.ranks import Ranks
from paceline.core.benchmark import Context, Progress
from paceline.core.record import Result
from paceline.core.time_spent import time_spent
from paceline.core.trace_events import read_events
from paceline.devices import Device
from paceline.measure import trace

FACT = "trace"
NO_KERNELS = (
    "the profiler saw no kernel on the GPU, only the host's side: its CUPTI library is missing, or another profiler "
    "or monitor holds the GPU"
)
LOST = "the process ended before it was taken"
NO_OPERATORS = "the profiler saw no operator"


def add_trace(
    result: Result,
    step: Callable[[], object],
    device: Device,
    *,
    in_flight: int,
    ranks: Ranks,
    context: Context,
) -> None:
    """If the case wants a trace, take one of a few more steps, and put into the facts what it tells."""
    if not context.case.trace:
        return
    context.keep(result.model_copy(update={"facts": result.facts | {FACT: {"missing": LOST}}}))
    context.report(Progress(phase="tracing"))
    try:
        measured = next(one.value for one in result.measurements if one.metric.name == STEP_TIME.name)
        steps = ranks.smallest(trace.steps_to_trace(measured))
        taken = trace.take(step, device, steps=steps, in_flight=in_flight, all_ready=ranks.all_agree)
        if ranks.rank == 0:
            queue = device.kind.is_accelerator and in_flight > 1
            result.facts[FACT] = _told(taken, device, measured, queue=queue, place=context.case.trace)
    except Exception as error:  # the profiler's, the memory's, the disk's: there is no trace, and that is all
        result.facts[FACT] = {"missing": _reason(error)}


def _told(taken: trace.Chrome, device: Device, measured: float, *, queue: bool, place: str) -> dict[str, Any]:
    """The summary, which stays if the file goes; and the file, unless it could not be kept."""
    on_device = device.kind.is_accelerator
    spent = time_spent(read_events(taken), on_device=on_device, steps_queue=queue)
    told: dict[str, Any] = {}
    if spent is None:
        told["missing"] = NO_KERNELS if on_device else NO_OPERATORS
    else:
        told |= {"spent": spent.model_dump(mode="json"), "slowdown": spent.step_seconds / measured}
    try:
        told |= {"bytes": trace.keep(taken, Path(place).expanduser()), "file": place}
    except trace.TraceFailed as error:
        told["no_file"] = str(error)
    return told


def _reason(error: Exception) -> str:
    if isinstance(error, trace.TraceFailed):
        return str(error)
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]
