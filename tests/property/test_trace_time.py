"""However the events of a trace overlap, every moment is counted once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.trace_events import (
    IDLE,
    ORDER,
    STEP_MARK,
    Span,
    TraceEvent,
    length,
    overlap,
    own_time,
    time_spent,
    union,
)

spans = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda ends: (min(ends), max(ends))), max_size=12
)
NAMES = ("aten::mm", "aten::add", "gloo:all_reduce", "aten::view", "c10d::allreduce_", "unheard::of")
events = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 90), st.integers(1, 30), st.integers(1, 3)),
    min_size=1,
    max_size=20,
)


def ticks(parts: list[Span]) -> set[int]:
    return {tick for start, end in parts for tick in range(start, end)}


@given(spans, spans)
def test_unions_and_overlaps_are_those_of_sets(first: list[Span], second: list[Span]) -> None:
    assert ticks(union(first)) == ticks(first)
    assert length(union(first)) == len(ticks(first))
    assert ticks(overlap(union(first), union(second))) == ticks(first) & ticks(second)


@given(spans)
def test_own_times_fill_the_same_time_once(seen: list[Span]) -> None:
    found = [span for _, span in own_time(TraceEvent("a", *span, lane=1, on_device=False) for span in seen)]
    assert ticks(found) == ticks(seen)
    assert length(found) == len(ticks(seen))


@given(events, st.booleans())
def test_shares_add_up_to_the_step(seen: list[tuple[str, int, int, int]], on_device: bool) -> None:
    work = [TraceEvent(name, start, start + wide, lane, on_device) for name, start, wide, lane in seen]
    marks = [TraceEvent(f"{STEP_MARK}{n}", 40 * n, 40 * n + 40, 0, False, "user_annotation") for n in range(3)]
    spent = time_spent([*work, *marks], on_device=on_device, steps_queue=False)
    if spent is None:
        return
    assert sum(spent.shares.values()) == pytest.approx(1.0)
    assert set(spent.shares) == {*ORDER, IDLE}
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in (*spent.shares.values(), *spent.groups.values()))
    assert -1e-9 <= spent.hidden_communication <= 1 - spent.shares["communication"] + 1e-9
