"""Communication that computation hides, and what is left of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.benchmarks.parallel._exposed import Event, Span, exposed, innermost, length, overlap, union

spans = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda ends: (min(ends), max(ends))), max_size=12
)


def ticks(parts: list[Span]) -> set[int]:
    return {tick for start, end in parts for tick in range(start, end)}


@given(spans, spans)
def test_unions_and_overlaps_are_those_of_sets(first: list[Span], second: list[Span]) -> None:
    assert ticks(union(first)) == ticks(first)
    assert length(union(first)) == len(ticks(first))
    assert ticks(overlap(union(first), union(second))) == ticks(first) & ticks(second)


def event(name: str, start: int, end: int, lane: int = 1, on_device: bool = False) -> Event:
    return Event(name, start, end, lane, on_device)


def test_what_a_product_hides_is_not_exposed() -> None:
    seen = [event("gloo:all_reduce", 0, 100, lane=2), event("aten::mm", 20, 50), event("aten::mm", 90, 130)]
    assert exposed(seen, on_device=False) == (100, 60)


def test_waiting_hides_nothing() -> None:
    seen = [
        event("gloo:all_reduce", 10, 90, lane=2),
        event("_c10d_functional::wait_tensor", 0, 100),
        event("aten::linear", 0, 100),  # a layer whose inner operators are what it computes
        event("aten::mm", 0, 30),
    ]
    assert exposed(seen, on_device=False) == (80, 60)


def test_on_a_gpu_only_its_own_kernels_count() -> None:
    seen = [
        event("ncclDevKernel_AllReduce_Sum", 0, 50, lane=20, on_device=True),
        event("sm90_xmma_gemm", 10, 30, lane=7, on_device=True),
        event("aten::mm", 0, 100),
    ]
    assert exposed(seen, on_device=True) == (50, 30)


def test_the_innermost_of_each_thread() -> None:
    seen = [event("a", 0, 10), event("b", 2, 5), event("c", 5, 10), event("d", 0, 10, lane=2)]
    assert {one.name for one in innermost(seen)} == {"b", "c", "d"}


def test_without_communication_nothing_is_exposed() -> None:
    assert exposed([event("aten::mm", 0, 10)], on_device=False) == (0, 0)
