"""Communication that nothing hides: the time in which a rank's data travels while it computes nothing.

Taken from a trace of a few steps after the measured ones. On a GPU the kernels tell: those of NCCL communicate, all
others compute. On a CPU gloo's work tells, and of the operators those that no other is within: the outer ones of a
tensor-parallel layer wait for its communication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

STEPS = 2
_TALKING = ("gloo:", "nccl")
_WAITING = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "record_param_comms", "Optimizer.", "##")

Span = tuple[int, int]  # nanoseconds


@dataclass(frozen=True)
class Event:
    """One thing in a trace."""

    name: str
    start: int
    end: int
    lane: int  # the thread, or the device's stream
    on_device: bool

    @property
    def is_talking(self) -> bool:
        """Whether it moves data between ranks."""
        return any(word in self.name.lower() for word in _TALKING)


def trace(step: Callable[[], object], *, has_gpu: bool) -> list[Event]:
    """What happened in a few steps."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu else [])]
    with profile(activities=activities) as profiler:
        for _ in range(STEPS):
            step()
        if has_gpu:
            torch.cuda.synchronize()
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    return [
        Event(
            name=one.name(),
            start=one.start_ns(),
            end=one.start_ns() + one.duration_ns(),
            lane=one.device_resource_id() if _is_gpu(one) else one.start_thread_id(),
            on_device=_is_gpu(one),
        )
        for one in (results.events() if results is not None else ())
    ]


def exposed(events: Sequence[Event], *, on_device: bool) -> tuple[int, int]:
    """Nanoseconds of communication, and of those that no computation hides."""
    mine = [event for event in events if event.on_device == on_device and event.end > event.start]
    talking = union((event.start, event.end) for event in mine if event.is_talking)
    others = [event for event in mine if not event.is_talking and not event.name.startswith(_WAITING)]
    computing = union((event.start, event.end) for event in (others if on_device else innermost(others)))
    total = length(talking)
    return total, total - length(overlap(talking, computing))


def innermost(events: Iterable[Event]) -> list[Event]:
    """Those within which no other of their lane lies."""
    lanes: dict[int, list[Event]] = {}
    for event in events:
        lanes.setdefault(event.lane, []).append(event)
    found = []
    for lane in lanes.values():
        lane.sort(key=lambda event: (event.start, -event.end))
        for event, following in zip(lane, [*lane[1:], None], strict=True):
            if following is None or following.start >= event.end:
                found.append(event)
    return found


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time without overlaps, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def overlap(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """The time that is in both of two unions."""
    found = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            found.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(spans: Iterable[Span]) -> int:
    """How long they are together."""
    return sum(end - start for start, end in spans)


def _is_gpu(event: object) -> bool:
    return "CUDA" in str(event.device_type())  # type: ignore[attr-defined]
