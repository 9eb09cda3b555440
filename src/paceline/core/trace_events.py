"""A profiler's trace: the events of threads and of a device's streams, and arithmetic with the time they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.grouping import group_by

STEP_MARK = "paceline step "  # the name of the annotation around a traced step, before its number

Span = tuple[int, int]  # nanoseconds

_LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver")
_HOST_CATEGORIES = ("cpu_op", "user_annotation", "python_function", *_LAUNCH_CATEGORIES)


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One thing in a trace."""

    name: str
    start: int
    end: int
    lane: int | str  # the thread, or the device's stream
    on_device: bool
    category: str = "cpu_op"
    correlation: int | None = None  # the same for a launch and for what it launched
    arguments: Mapping[str, Any] = field(default_factory=dict, compare=False)  # sizes, types, ids: as the file has them

    @property
    def is_talking(self) -> bool:
        """Whether it moves data between ranks."""
        return any(word in self.name.lower() for word in ("gloo:", "nccl", "rccl"))

    @property
    def is_operator(self) -> bool:
        """Whether the host works in it; annotations only give a name to what others do, except those of gloo."""
        is_talking_note = self.category == "user_annotation" and self.is_talking
        return not self.on_device and (self.category == "cpu_op" or is_talking_note)

    @property
    def is_launch(self) -> bool:
        """Whether it is a call that gives work to the device."""
        return self.category in _LAUNCH_CATEGORIES

    @property
    def step(self) -> int | None:
        """Which traced step it marks, if it marks one."""
        is_mark = self.category == "user_annotation" and self.name.startswith(STEP_MARK)
        return int(self.name.removeprefix(STEP_MARK)) if is_mark else None


def read_events(trace: Mapping[str, Any]) -> list[TraceEvent]:
    """The events of a trace in Chrome's format that show where time went."""
    events = []
    for one in trace["traceEvents"]:
        category = one.get("cat")
        on_device = category in ("kernel", "gpu_memcpy", "gpu_memset")
        if one.get("ph") != "X" or not (on_device or category in _HOST_CATEGORIES):
            continue
        start = round(one["ts"] * 1000)
        events.append(
            TraceEvent(
                name=one["name"],
                start=start,
                end=start + round(one.get("dur", 0) * 1000),
                lane=f"{one['pid']} {one['tid']}",
                on_device=on_device,
                category=category,
                correlation=one.get("args", {}).get("correlation"),
                arguments=one.get("args", {}),
            )
        )
    return events


def own_time(events: Iterable[TraceEvent]) -> Iterator[tuple[TraceEvent, Span]]:
    """Of events that lie within one another in their lanes, when each was the innermost; communication is one whole."""
    around: list[TraceEvent] = []
    now = 0  # until when time is given away

    def until(moment: int) -> Iterator[tuple[TraceEvent, Span]]:
        nonlocal now
        while around and now < moment:
            end = min(around[-1].end, moment)
            if end > now:
                yield around[-1], (now, end)
                now = end
            if around[-1].end <= moment:
                around.pop()

    for lane in lanes(events):
        around, now = [], 0
        for event in lane:
            yield from until(event.start)
            while around and around[-1].end <= event.start:
                around.pop()
            if around and around[-1].is_talking:
                continue  # what is done within it is a part of it
            now = max(now, event.start)
            around.append(event)
        yield from until(max(event.end for event in lane))


def innermost(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """Those within which no other of their lane lies."""
    return [
        event
        for lane in lanes(events)
        for event, following in zip(lane, [*lane[1:], None], strict=True)
        if following is None or following.start >= event.end
    ]


def lanes(events: Iterable[TraceEvent]) -> list[list[TraceEvent]]:
    """The events of each lane in order, an outer one before those that begin with it."""
    in_order = sorted(events, key=lambda event: (event.start, -event.end))
    return list(group_by(in_order, lambda event: event.lane).values())


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time without overlaps, in order."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def overlap(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """The time that is in both of two unions."""
    common = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            common.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common


def length(spans: Iterable[Span]) -> int:
    """How long they are together."""
    return sum(end - start for start, end in spans)
