"""The chain of dependent loads goes through all memory, and a broken one is seen."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.benchmarks.memory import latency
from paceline.benchmarks.memory.latency import Chain, MemoryLatency, MemoryLatencyParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption, Unsupported


def new_chain(size: int = 65536, seed: int = 1) -> Chain:
    return Chain(size, 64, seed, huge_pages=False)


def links(chain: Chain) -> np.ndarray:
    """Which line each line points to."""
    addresses = chain.memory.bytes.view(np.uint64)[::8].astype(np.int64)
    return (addresses - chain.memory.bytes.ctypes.data) // 64


def test_the_chain_is_one_cycle_through_every_line_in_no_order() -> None:
    following = links(new_chain())
    at, seen = 0, []
    for _ in range(len(following)):
        seen.append(at)
        at = int(following[at])
    assert at == 0
    assert sorted(seen) == list(range(1024))
    neighbours = np.abs(np.diff(seen)) == 1
    assert neighbours.mean() < 0.05, "a prefetcher could guess it"


def test_the_seed_decides_the_order() -> None:
    assert np.array_equal(links(new_chain(seed=5)), links(new_chain(seed=5)))
    assert not np.array_equal(links(new_chain(seed=5)), links(new_chain(seed=6)))


def test_the_smallest_chain_works() -> None:
    chain = new_chain(64)
    chain.check()
    assert chain.sample()[0] > 0


@pytest.mark.parametrize(("offset", "words"), [(0, "closes after 1"), (None, "never closes")])
def test_a_changed_link_is_silent_corruption(offset: int | None, words: str) -> None:
    chain = new_chain()
    chain.check()
    first = chain.memory.bytes.ctypes.data
    chain.memory.bytes.view(np.uint64)[0] = first if offset == 0 else first + 3  # to itself; to no line at all
    with pytest.raises(SilentCorruption, match=words):
        chain.check()


def measure(target: str, **values: object) -> list[tuple[object, float]]:
    parameters = MemoryLatencyParameters.read({"steps": 5, "warm_up": "1ms", **values})
    case = Case(index=0, benchmark="memory-latency", parameters={}, title="", target=target)
    result = MemoryLatency().measure(parameters, Context(case=case))
    return [(m.at.get("size"), m.value) for m in result.measurements]


def test_the_largest_size_speaks_for_the_case_and_main_memory_is_slower_than_the_first_cache() -> None:
    far = 2 * (latency.host.cache_of() or latency.host.UNKNOWN_CACHE)
    found = measure("cpu", sizes=[far, 8192])
    assert [size for size, _ in found] == [None, 8192, far]
    assert found[0][1] == found[2][1]
    assert found[2][1] > 3 * found[1][1]


def test_a_gpu_is_refused_with_what_to_do() -> None:
    with pytest.raises(Unsupported, match="--target cpu"):
        measure("cuda:0")


def test_default_sizes_go_beyond_the_cache_and_stay_within_memory() -> None:
    sizes = latency.default_sizes(1024**2)
    assert sizes[0] == 8192
    assert sizes[-1] == 4 * 1024**2
    assert latency.default_sizes(2**50)[-1] <= 1024**3


@pytest.mark.parametrize(("size", "warned"), [("2MiB", True), ("4MiB", False)])
def test_a_chain_of_which_a_cache_can_keep_much_is_warned(
    size: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of twice its size a cache that evicts at random keeps a fifth from lap to lap; of four times, next to nothing."""
    monkeypatch.setattr(latency.host, "cache_of", lambda cpus=None: 1024**2)
    parameters = MemoryLatencyParameters.read({"steps": 5, "warm_up": "1ms", "sizes": size})
    case = Case(index=0, benchmark="memory-latency", parameters={}, title="")
    warnings = [warning.kind for warning in MemoryLatency().measure(parameters, Context(case=case)).warnings]
    assert ("cached" in warnings) is warned


def test_a_pair_of_nodes_is_measured_and_named() -> None:
    parameters = MemoryLatencyParameters.read({"numa_node": 0, "memory_node": 0, "sizes": ["64KiB"], "steps": 2})
    assert MemoryLatency.title(parameters) == "64 KiB NUMA node 0 memory of node 0"
    case = Case(index=0, benchmark="memory-latency", parameters={}, title="", target="cpu")
    result = MemoryLatency().measure(parameters, Context(case=case))
    assert result.measurements[0].value > 0
    with pytest.raises(Unsupported, match="numa_node = 99 does not exist"):
        MemoryLatency().measure(MemoryLatencyParameters(memory_node=99), Context(case=case))
