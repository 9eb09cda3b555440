"""Events of a trace: what is read, what lies within what, and sums of time."""

from __future__ import annotations

from paceline.core.trace_events import STEP_MARK, TraceEvent, innermost, length, overlap, own_time, read_events, union
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


def test_time_in_both_of_two_unions() -> None:
    assert overlap([(0, 10), (20, 30)], [(5, 25)]) == [(5, 10), (20, 25)]
    assert overlap([(5, 25)], [(0, 10), (20, 30), (40, 50)]) == [(5, 10), (20, 25)]
    assert overlap([(0, 5)], [(5, 9)]) == []
    assert overlap([(0, 5), (5, 9)], [(0, 5), (5, 9)]) == [(0, 5), (5, 9)]
    assert length([(0, 5), (7, 9)]) == 7


def test_spans_that_touch_are_one() -> None:
    assert union([(5, 9), (0, 5), (10, 12), (1, 2)]) == [(0, 9), (10, 12)]


def test_times_are_read_in_nanoseconds_and_lanes_are_threads_of_processes() -> None:
    trace = {
        "traceEvents": [
            {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.5, "dur": 2.25, "pid": 0, "tid": 7,
             "args": {"correlation": 9}},
            {"ph": "X", "cat": "cuda_driver", "name": "l", "ts": 1, "pid": 3, "tid": 4},
        ]
    }  # fmt: skip
    kernel, launch = read_events(trace)
    assert (kernel.start, kernel.end, kernel.lane, kernel.correlation) == (1500, 3750, "0 7", 9)
    assert (launch.start, launch.end, launch.is_launch, launch.correlation) == (1000, 1000, True, None)
    assert (kernel.on_device, launch.on_device, kernel.is_launch) == (True, False, False)


def test_only_an_annotation_marks_a_step() -> None:
    name = f"{STEP_MARK}4"
    assert TraceEvent(name, 0, 1, 1, on_device=False, category="user_annotation").step == 4
    assert TraceEvent(name, 0, 1, 1, on_device=False).step is None
    assert TraceEvent("other", 0, 1, 1, on_device=False, category="user_annotation").step is None


def test_an_operator_that_begins_when_its_neighbour_ends_is_beside_it() -> None:
    parts = [
        (one.name, span) for one, span in own_time([event("gloo:x", 0, 10), event("b", 10, 12), event("c", 12, 12)])
    ]
    assert parts == [("gloo:x", (0, 10)), ("b", (10, 12))]
    assert [one.name for one in innermost([event("a", 0, 10), event("b", 0, 4), event("c", 10, 12)])] == ["b", "c"]
