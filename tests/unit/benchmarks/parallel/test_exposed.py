"""Communication that computation hides, and what is left of it."""

from __future__ import annotations

from paceline.benchmarks.parallel.parallel import exposed
from paceline.core.trace_events import TraceEvent, length, overlap, union
from support.profiled import events_of


def event(name: str, start: int, end: int, lane: int = 1, on_device: bool = False) -> TraceEvent:
    return TraceEvent(name, start, end, lane, on_device)


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


def test_a_trace_that_torch_took_of_two_ranks() -> None:
    seen = events_of("cpu-two-ranks.json.gz")
    total, bare = exposed(seen, on_device=False)
    talking = union((one.start, one.end) for one in seen if one.name.startswith("gloo:"))
    products = union((one.start, one.end) for one in seen if one.name == "aten::mm")
    assert total == length(talking) > 0
    assert 0 < bare <= total - length(overlap(talking, products))


def test_without_communication_nothing_is_exposed() -> None:
    assert exposed([event("aten::mm", 0, 10)], on_device=False) == (0, 0)
