"""Rows of requests: taken apart by host, put together in the order of their times, and written while they happen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.load import trace as traces
from paceline.load.trace import OK, SHED, Log, Trace
from support.traces import trace


def numbers(*values: int) -> Any:
    return np.array(values, np.int32)


def test_lateness_and_latency_count_from_the_intended_time() -> None:
    made = trace([0.5, 0.25], gap=1.0, late=0.125)
    assert made.lateness.tolist() == [0.125, 0.125]
    assert made.latency.tolist() == [0.5, 0.25]


def test_both_answers_of_an_overloaded_server_are_shed() -> None:
    made = trace([0.5] * 5, status=[OK, SHED, 429, 430, 500])
    assert made.shed.tolist() == [False, True, True, False, False]
    assert made.ok.tolist() == [True, False, False, False, False]


def test_rows_are_taken_with_all_that_belongs_to_them() -> None:
    plain = trace([0.5, 0.25, 1.0])
    taken = plain.taken(np.array([2, 0]))
    assert taken.latency.tolist() == [1.0, 0.5]
    assert (taken.batch, taken.dispatched, taken.host, taken.chunks) == (None, None, None, None)
    full = trace(
        [0.5, 0.25, 1.0],
        batch=numbers(1, 2, 3),
        host=numbers(0, 1, 0),
        dispatched=np.array([0.0, 0.5, 1.0]),
        chunks=[np.array([1.0]), np.array([2.0]), np.array([3.0])],
        stages={"queue": np.array([0.1, 0.2, 0.3])},
    )
    rest = full.after(1)
    assert rest.batch is not None and rest.batch.tolist() == [2, 3]
    assert rest.dispatched is not None and rest.dispatched.tolist() == [0.5, 1.0]
    assert rest.chunks is not None and [times.tolist() for times in rest.chunks] == [[2.0], [3.0]]
    assert rest.stages["queue"].tolist() == [0.2, 0.3]
    assert full.of_host(0).latency.tolist() == pytest.approx([0.5, 1.0])
    assert full.of_host(1).latency.tolist() == pytest.approx([0.25])


def test_parts_are_merged_in_the_order_of_their_times_though_some_lack_a_column() -> None:
    bare = trace([0.5, 0.5], intended=np.array([0.0, 2.0]), sent=np.array([0.25, 2.25]), cpu_seconds=1.0)
    full = trace(
        [0.5, 0.5],
        intended=np.array([1.0, 3.0]),
        batch=numbers(4, 5),
        dispatched=np.array([1.125, 3.125]),
        host=numbers(1, 1),
        chunks=[np.array([7.0]), np.empty(0)],
        stages={"queue": np.array([0.5, 0.75])},
        cpu_seconds=2.0,
    )
    merged = Trace.merged([bare, full])
    assert merged.intended.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert merged.batch is not None and merged.batch.tolist() == [0, 4, 0, 5]
    assert merged.dispatched is not None and merged.dispatched.tolist() == [0.25, 1.125, 2.25, 3.125]
    assert merged.chunks is not None and [times.tolist() for times in merged.chunks] == [[], [7.0], [], []]
    assert np.isnan(merged.stages["queue"]).tolist() == [True, False, True, False]
    assert merged.stages["queue"][[1, 3]].tolist() == [0.5, 0.75]
    assert merged.host is None  # it is not known of all
    assert merged.cpu_seconds == 3.0


def test_what_no_part_has_the_whole_does_not_have() -> None:
    merged = Trace.merged([trace([0.5]), trace([0.5])])
    assert (merged.batch, merged.dispatched, merged.host, merged.chunks) == (None, None, None, None)
    assert merged.stages == {}


def test_what_all_parts_have_the_whole_has() -> None:
    parts = [trace([0.5], host=numbers(number), batch=numbers(number + 5)) for number in range(2)]
    merged = Trace.merged(parts)
    assert merged.host is not None and merged.host.tolist() == [0, 1]
    assert merged.batch is not None and merged.batch.tolist() == [5, 6]


# Logs.


def columns(log: Log) -> list[list[Any]]:
    names = ("intended", "dispatched", "sent", "first", "done", "status", "size", "timing", "events")
    return [getattr(log, name) for name in names]


@pytest.mark.parametrize(("first", "room"), [(1, 4096), (4096, 4096), (5000, 5000)])
def test_a_log_makes_room_in_blocks_and_where_nothing_happened_there_is_nothing(first: int, room: int) -> None:
    log = Log([0], 0, lambda _row: None)
    assert log.add(first) == 0
    assert {len(column) for column in columns(log)} == {room}
    assert all(not value for column in columns(log) for value in column)
    assert log.number == first


def test_a_log_makes_more_room_when_it_is_full_and_not_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_BLOCK", 3)
    log = Log([0], 0, lambda _row: None)
    rows, lengths = [], []
    for _ in range(4):
        rows.append(log.add(1))
        lengths.append(len(log.sent))
    assert rows == [0, 1, 2, 3]
    assert lengths == [3, 3, 3, 6]
    assert log.add(7) == 4
    assert len(log.sent) == 11


def test_kinds_repeat() -> None:
    log = Log([2, 0, 1], 0, lambda _row: None)
    assert [log.kind(row) for row in range(5)] == [2, 0, 1, 2, 0]


@pytest.mark.parametrize(("keep", "bodies"), [(0, []), (1, [b"a"]), (3, [b"a", b"b", b"c"])])
def test_the_first_answers_of_a_kind_are_kept_and_none_of_kinds_that_are_not_sent(
    keep: int, bodies: list[bytes]
) -> None:
    log = Log([0, 0, 1], keep, lambda _row: None)
    for body in (b"a", b"b", b"c", b"d"):
        assert log.wants_body(0) is (len(log.answers) < keep)
        log.keep_body(0, body)
        log.keep_body(7, body)
    assert log.answers == [(0, body) for body in bodies]
    assert not log.wants_body(7)
    assert log.wants_body(1) is (keep > 0)
