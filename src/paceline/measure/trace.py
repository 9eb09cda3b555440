"""Takes a profiler's trace of a few steps, and keeps it as a file in Chrome's format.

Never around measured steps: a profiler makes them longer. What is traced are further steps, issued as the measured ones
were: as many in flight, and waited for in the same way.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from paceline.core.errors import PacelineError
from paceline.core.files import write_atomic
from paceline.core.trace_events import STEP_MARK, read_events, time_spent
from paceline.devices import Device
from paceline.measure.loop import quiet_collector

STEPS = 3
LONG_SECONDS = 20.0  # what tracing may take: of long steps fewer are traced, but one at least
MOST_EVENTS = 2_000_000  # beyond that no viewer opens the file

Chrome = dict[str, Any]  # a trace as the file holds it


class TraceFailed(PacelineError):
    """There is no trace, and why."""


def steps_to_trace(step_seconds: float) -> int:
    """How many steps of this length are traced."""
    return max(1, min(STEPS, int(LONG_SECONDS / step_seconds))) if step_seconds > 0 else STEPS


def take(
    step: Callable[[], object],
    device: Device,
    *,
    steps: int,
    in_flight: int,
    all_ready: Callable[[bool], bool] = lambda ready: ready,
    detailed: bool = False,
) -> Chrome:
    """A trace of as many steps and one before them, which pays for the profiler's start.

    A detailed one has the sizes of operators and the Python calls around them, which makes the host slower; its marks
    are around the work alone, without the waiting for it.

    `all_ready` takes whether the profiler has started and returns whether it has for every rank: either all of them
    take the steps, or none does.
    """
    from torch.profiler import profile, record_function

    timeline = device.timeline(in_flight)
    is_started, trouble = False, "on another rank"
    try:
        profiler = profile(activities=device.profiler_activities(), record_shapes=detailed, with_stack=detailed)
        profiler.start()
        is_started = True
    except Exception as error:  # CUPTI and kineto raise whatever they like
        trouble = f"{type(error).__name__}: {error}"
    if not all_ready(is_started):
        if is_started:
            profiler.stop()
        raise TraceFailed(f"the profiler did not start: {trouble}")
    try:
        with quiet_collector():
            for number in range(steps + 1):
                mark = record_function(f"{STEP_MARK}{number}")
                with nullcontext() if detailed else mark:
                    timeline.begin()
                    with mark if detailed else nullcontext():
                        step()
                    timeline.end()
            timeline.finish()
            device.synchronize()
    finally:
        profiler.stop()
    with tempfile.TemporaryDirectory(prefix="paceline-trace-") as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        trace: Chrome = json.loads(file.read_bytes())
    return trace


def issue_seconds(step: Callable[[], object], device: Device) -> float:
    """What the host takes to issue a step that nothing holds up: no step can be shorter, however fast its kernels."""
    taken = []
    for _ in range(STEPS):
        device.synchronize()
        begun = device.clock()
        step()
        taken.append(device.clock() - begun)
    device.synchronize()
    return median(taken)


SMALL_KERNELS = 200  # in a graph that is replayed to see what tracing adds
REPLAYS = 20


def launch_cost(device: Device) -> float:
    """Seconds that tracing adds before each kernel of a graph: small ones, replayed with and without a profiler."""
    import torch

    number = torch.zeros(1, device=device.torch())

    def several() -> None:
        for _ in range(SMALL_KERNELS):
            number.add_(1)

    replay = device.capture(several)

    def replays() -> None:
        for _ in range(REPLAYS):
            replay()

    replay()
    plain = device.seconds_of(replays) / REPLAYS
    spent = time_spent(read_events(take(replay, device, steps=STEPS, in_flight=2)), on_device=True, steps_queue=True)
    return max(0.0, spent.step_seconds - plain) / SMALL_KERNELS if spent is not None else 0.0


def keep(trace: Chrome, path: Path) -> int:
    """Write the trace, whole or not at all; the size of the file."""
    count = len(trace["traceEvents"])
    if count > MOST_EVENTS:
        raise TraceFailed(f"it has {count:,} events, and no viewer opens more than {MOST_EVENTS:,}")
    shared = {key: value for key, value in trace.items() if key != "host_name"} | {"traceName": path.name}
    packed = gzip.compress(json.dumps(shared, separators=(",", ":")).encode(), mtime=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, packed)
    except OSError as error:
        raise TraceFailed(f"it cannot be written: {error.strerror}; give another folder with --profile DIR") from None
    return len(packed)
