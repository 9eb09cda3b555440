"""Events of a trace: what is read, what lies within what, and sums of time."""

from __future__ import annotations

from paceline.core.trace_events import TraceEvent, innermost, own_time, read_events, union
from support.profiled import events_of


def event(name: str, start: int, end: int, lane: int = 1) -> TraceEvent:
    return TraceEvent(name, start, end, lane, on_device=False)


def test_the_innermost_of_each_thread() -> None:
    seen = [event("a", 0, 10), event("b", 2, 5), event("c", 5, 10), event("d", 0, 10, lane=2)]
    assert {one.name for one in innermost(seen)} == {"b", "c", "d"}


def test_own_time_is_without_what_lies_within() -> None:
    seen = [event("a", 0, 20), event("b", 2, 12), event("c", 4, 6), event("d", 8, 12), event("e", 30, 40)]
    parts = [(one.name, span) for one, span in own_time(seen)]
    assert parts == [
        ("a", (0, 2)), ("b", (2, 4)), ("c", (4, 6)), ("b", (6, 8)), ("d", (8, 12)), ("a", (12, 20)), ("e", (30, 40)),
    ]  # fmt: skip


def test_own_time_of_threads_is_apart() -> None:
    parts = [(one.name, span) for one, span in own_time([event("a", 0, 10), event("b", 2, 5, lane=2)])]
    assert sorted(parts) == [("a", (0, 10)), ("b", (2, 5))]


def test_a_part_of_communication_is_communication() -> None:
    parts = list(own_time([event("gloo:all_reduce", 0, 10), event("aten::add", 2, 5)]))
    assert {one.name for one, _ in parts} == {"gloo:all_reduce"}
    assert union(span for _, span in parts) == [(0, 10)]


def test_a_rounded_child_may_end_after_its_parent() -> None:
    parts = [(one.name, span) for one, span in own_time([event("a", 0, 10), event("b", 5, 11), event("c", 11, 12)])]
    assert parts == [("a", (0, 5)), ("b", (5, 11)), ("c", (11, 12))]


def test_what_is_read_of_a_trace() -> None:
    seen = events_of("gpu-two-streams.json")
    assert [one.step for one in seen if one.step is not None] == [0, 1, 2]
    assert sum(one.on_device for one in seen) == 8  # not the annotations on the device, which hold others
    assert sum(one.is_launch for one in seen) == 9
    assert [one.name for one in seen if one.is_operator] == ["aten::mm"]


def test_gloo_works_in_an_annotation_and_nothing_else_does() -> None:
    working = {one.name for one in events_of("cpu-nested.json") if one.is_operator}
    assert "gloo:all_reduce" in working
    assert "Optimizer.step#AdamW.step" not in working
    assert not any(name.startswith("paceline step") for name in working)


def test_an_instant_and_an_unknown_event_are_left_out() -> None:
    trace = {"traceEvents": [{"ph": "i", "name": "x", "ts": 1}, {"ph": "X", "cat": "Trace", "name": "y", "ts": 1}]}
    assert read_events(trace) == []
