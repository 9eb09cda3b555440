"""Which CPUs, caches and memory the benchmarks of memory take on machines of several kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from paceline.benchmarks.memory import host
from paceline.core.errors import OutOfMemory, Unsupported


class Swept(BaseModel):
    sizes: host.Sizes | None = None


def write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


@pytest.fixture
def two_way(tmp_path: Path) -> Path:
    """Four cores of two threads each, in two nodes."""
    for cpu in range(8):
        write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", f"{cpu % 4},{cpu % 4 + 4}\n")
    write(tmp_path, "sys/devices/system/node/node0/cpulist", "0-1,4-5\n")
    write(tmp_path, "sys/devices/system/node/node1/cpulist", "2-3,6-7\n")
    return tmp_path


def test_threads_take_one_cpu_of_every_core_before_its_siblings(two_way: Path) -> None:
    cpus = host.usable_cpus(root=two_way, allowed=set(range(8)))
    assert cpus.order == (0, 1, 2, 3, 4, 5, 6, 7)
    assert cpus.default_threads == 4
    assert cpus.choose(None) == [0, 1, 2, 3]
    assert cpus.choose(6) == [0, 1, 2, 3, 4, 5]


def test_only_what_the_process_may_use_is_taken(two_way: Path) -> None:
    cpus = host.usable_cpus(root=two_way, allowed={1, 5, 7})
    assert cpus.order == (1, 7, 5)
    assert cpus.cores == 2
    with pytest.raises(Unsupported, match="threads = 4, but this process may use 3 CPUs"):
        cpus.choose(4)


def test_a_node_binds_and_an_unknown_one_is_refused(two_way: Path) -> None:
    assert host.usable_cpus(1, root=two_way, allowed=set(range(8))).order == (2, 3, 6, 7)
    with pytest.raises(Unsupported, match="numa_node = 2 does not exist here; there are node0, node1"):
        host.usable_cpus(2, root=two_way, allowed=set(range(8)))
    with pytest.raises(Unsupported, match="no CPU that this process may use"):
        host.usable_cpus(1, root=two_way, allowed={0})


def test_a_quota_lets_fewer_threads_run(two_way: Path) -> None:
    write(two_way, "proc/self/cgroup", "0::/\n")
    write(two_way, "sys/fs/cgroup/cpu.max", "150000 100000\n")
    assert host.usable_cpus(root=two_way, allowed=set(range(8))).default_threads == 1
    write(two_way, "sys/fs/cgroup/cpu.max", "50000 100000\n")
    assert host.usable_cpus(root=two_way, allowed=set(range(8))).default_threads == 1
    write(two_way, "sys/fs/cgroup/cpu.max", "300000 100000\n")
    assert host.usable_cpus(root=two_way, allowed=set(range(8))).default_threads == 3


def write_caches(root: Path, cpu: int, caches: list[tuple[int, str, str, str]]) -> None:
    for index, (level, kind, size, shared) in enumerate(caches):
        for name, text in (("level", str(level)), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            write(root, f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{name}", text)


def test_the_largest_level_of_all_the_caches_together_counts(tmp_path: Path) -> None:
    for cpu in range(64):
        own = [(1, "Data", "64K"), (1, "Instruction", "64M"), (2, "Unified", "2048K")]
        write_caches(tmp_path, cpu, [*((*cache, str(cpu)) for cache in own), (3, "Unified", "16M", "0-63")])
    assert host.cache_of([0], root=tmp_path) == 16 * 1024**2
    assert host.cache_of(range(64), root=tmp_path) == 64 * 2 * 1024**2
    assert host.cache_of([0], root=tmp_path / "nowhere") is None


def test_siblings_on_a_core_do_not_halve_the_caches_of_one_thread_per_core(tmp_path: Path) -> None:
    """64 cores of two threads, a cache for every 8 cores: 8 caches, though each is shared by 16 logical CPUs."""
    for cpu in range(128):
        first = cpu % 64 // 8 * 8
        write_caches(tmp_path, cpu, [(3, "Unified", "32M", f"{first}-{first + 7},{first + 64}-{first + 71}")])
    assert host.cache_of(range(64), root=tmp_path) == 8 * 32 * 1024**2
    assert host.cache_of(range(128), root=tmp_path) == 8 * 32 * 1024**2
    assert host.cache_of(range(8), root=tmp_path) == 32 * 1024**2
    assert host.cache_of([0, 8], root=tmp_path) == 2 * 32 * 1024**2


def test_sizes_are_sorted_and_one_alone_is_a_sweep_too() -> None:
    assert Swept.model_validate({"sizes": ["1MiB", 4096, "4KiB"]}).sizes == [4096, 1024**2]
    assert Swept.model_validate({"sizes": "64KiB"}).sizes == [65536]
    for bad in ([], ["16"], "much"):
        with pytest.raises(ValidationError):
            Swept.model_validate({"sizes": bad})


def test_memory_that_cannot_be_had_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match="use smaller sizes"):
        host.HostMemory(2**62)


def test_random_bytes_follow_their_seed_and_hardly_repeat() -> None:
    data = host.random_bytes(100_001, 7)
    assert len(data) == 100_001
    assert np.array_equal(data, host.random_bytes(100_001, 7))
    assert not np.array_equal(data, host.random_bytes(100_001, 8))
    assert len(np.unique(data)) == 256


def test_a_figure_of_caches_is_warned() -> None:
    [warning] = host.cached_warning(10, 32, 4)
    assert warning.kind == "cached"
    assert host.cached_warning(128, 32, 4) == []
    assert host.cached_warning(10, None, 4) == []
