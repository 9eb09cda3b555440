"""What the memory benchmarks know of a machine: usable CPUs, levels of its memory, how much of it is free."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from paceline.benchmarks._micro.parameters import OneOrMore, Upwards
from paceline.core.environment import Environment
from paceline.core.errors import OutOfMemory, Unsupported
from paceline.core.probe import ROOT, parse_size, read_cpu_list, read_int, read_table, read_text
from paceline.core.quantity import Size, show_size
from paceline.core.record import Record, RecordWarning
from paceline.core.subject import MAIN_MEMORY, CeilingKind, ShownCeiling
from paceline.devices import kind_of
from paceline.devices.base import pcie_bandwidth
from paceline.machine import container
from paceline.machine.cpu import describe_cpu
from paceline.measure.memory import Peak

UNKNOWN_CACHE = 64 * 1024**2  # taken for the caches of a machine that does not report them
HUGE_PAGE = 2 * 1024**2
BEYOND_CACHE = 4  # times its size: then a cache matters no more
# Data that fill more of a cache than this share it with too much else; less than this many times the level below
# come partly from there.
FITS = 0.75
OUTGROWS = 2.0
SAMPLE_SECONDS = 2e-4  # native code repeats what is shorter, and divides

Bytes = NDArray[np.uint8]

# A sweep over memory; less than a cache line cannot be distinguished from it.
Sizes = Annotated[list[Annotated[Size, Field(ge=64)]], OneOrMore, Field(min_length=1), Upwards]


@dataclass(frozen=True)
class Cpus:
    """Logical CPUs in the order in which threads should take them: one of every core first, then its siblings."""

    order: tuple[int, ...]
    cores: int
    quota: float | None = None  # cores' worth of time

    @property
    def default_threads(self) -> int:
        """One thread for each core, and no more than the control group lets run at a time."""
        return max(1, min(self.cores, math.floor(self.quota) if self.quota else self.cores))

    def choose(self, threads: int | None) -> list[int]:
        """The CPUs for so many threads, each its own."""
        count = threads or self.default_threads
        if count > len(self.order):
            raise Unsupported(f"threads = {count}, but this process may use {len(self.order)} CPUs: use fewer threads")
        return list(self.order[:count])


def usable_cpus(node: int | None = None, *, root: Path = ROOT, allowed: Set[int] | None = None) -> Cpus:
    """What this process may run on, of one NUMA node where it is named."""
    allowed = os.sched_getaffinity(0) if allowed is None else allowed
    if node is not None:
        listed = read_text(root / f"sys/devices/system/node/node{node}/cpulist")
        if listed is None:
            nodes = sorted(path.name for path in (root / "sys/devices/system/node").glob("node[0-9]*"))
            raise Unsupported(f"numa_node = {node} does not exist here; there are {', '.join(nodes) or 'none'}")
        allowed = set(allowed) & read_cpu_list(listed)
        if not allowed:
            raise Unsupported(f"numa_node = {node} has no CPU that this process may use; it has {listed or 'none'}")
    cores: dict[str, list[int]] = {}
    for cpu in sorted(allowed):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        core = read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list") or str(cpu)
        cores.setdefault(core, []).append(cpu)
    firsts = [cpus[0] for cpus in cores.values()]
    siblings = sorted(cpu for cpus in cores.values() for cpu in cpus[1:])
    return Cpus((*firsts, *siblings), len(firsts), container.cpu_quota(root))


def cache_of(cpus: Sequence[int] | None = None, *, root: Path = ROOT) -> int | None:
    """Bytes of the largest level of caches that these CPUs (unset: the first one) have together; None if not reported.

    Each cache counts once, by the list of CPUs that share it: their number alone says nothing about how many caches
    one thread per core reaches, for siblings on a core are counted in it too.
    """
    if cpus is None:
        cpus = usable_cpus(root=root).order[:1]
    by_level: dict[int, dict[str, int]] = {}
    for cpu in cpus:
        for index in (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index[0-9]*"):
            level, size = read_int(index / "level"), read_text(index / "size")
            if level is not None and size and read_text(index / "type") != "Instruction":
                sharing = read_text(index / "shared_cpu_list") or str(cpu)
                by_level.setdefault(level, {})[sharing] = parse_size(size)
    return max((sum(caches.values()) for caches in by_level.values()), default=None)


def free_memory(node: int | None = None, *, root: Path = ROOT) -> int:
    """Bytes that may be taken: what the machine, the control group and the NUMA node have left."""
    free = container.free_memory(root)
    left = [] if free is None else [max(0, free)]
    if node is not None:
        left += [one.memory for one in describe_cpu(root).numa_nodes if one.index == node and one.memory]
    return min(left, default=1024**3)


@contextmanager
def pinned_to(cpu: int) -> Iterator[None]:
    """Keep the calling thread on one CPU, so that it takes its caches nowhere else."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        raise Unsupported(f"this process cannot be pinned to CPU {cpu}: {error.strerror}") from None
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def on_node(node: int | None) -> AbstractContextManager[None]:
    """Keep the calling thread, and so the memory that it touches first, on a NUMA node; None leaves it alone."""
    return nullcontext() if node is None else pinned_to(usable_cpus(node).order[0])


class HostMemory:
    """Fresh memory at a known address; each page comes to lie near the CPU that touches it first."""

    def __init__(self, size: int, *, huge_pages: bool | None = None) -> None:
        """`huge_pages`: ask for them, forbid them, or leave it to the system (None)."""
        try:
            # Python's own choice would be shared memory, which has other rules for huge pages.
            self._map = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            message = f"{show_size(size)} of memory cannot be allocated ({error.strerror}): use smaller sizes"
            raise OutOfMemory(message, "host") from None
        if huge_pages is not None:
            with suppress(OSError):  # a kernel without huge pages refuses both advices
                self._map.madvise(mmap.MADV_HUGEPAGE if huge_pages else mmap.MADV_NOHUGEPAGE)
        whole = np.frombuffer(self._map, dtype=np.uint8)
        start = -whole.ctypes.data % HUGE_PAGE
        self.bytes: Bytes = whole[start : start + size]

    @property
    def address(self) -> ctypes.c_void_p:
        """For native code."""
        return ctypes.c_void_p(self.bytes.ctypes.data)


def huge_page_bytes() -> int:
    """How much of this process's memory lies in huge pages."""
    return parse_size(read_table(Path("/proc/self/smaps_rollup")).get("AnonHugePages", "0"))


def random_bytes(count: int, seed: int) -> Bytes:
    """Random data: constant data would draw less power, and hide a copy that never happened."""
    words = np.random.Generator(np.random.SFC64(seed)).integers(0, 2**64, -(-count // 8), dtype=np.uint64)
    return words.view(np.uint8)[:count]


def powers(first: int, last: int, factor: int, most: int) -> list[int]:
    """Sizes from the first on, each a multiple of the one before, to the first that reaches the last, or to `most`."""
    sizes = [first]
    while sizes[-1] < last and sizes[-1] * factor <= most:
        sizes.append(sizes[-1] * factor)
    return sizes


def cached_warning(size: int, cache: int | None, times: int, remedy: str = "use larger sizes") -> list[RecordWarning]:
    """The warning that the case's figure is one of main memory, where its data may stay in caches."""
    if cache is None or size >= times * cache:
        return []
    message = f"{show_size(size)} of data is less than {times} times the last cache ({show_size(cache)})"
    return [RecordWarning(kind="cached", message=message, remedy=f"read the figure as one of caches, or {remedy}")]


def pcie_peak(target: str, *, ways: int) -> Peak | None:
    """The PCIe link of a GPU at its best, in so many directions; an idle link slows down, so not as it is just now."""
    link = kind_of(target).link(target)
    rate = pcie_bandwidth(*link) if link else None
    if link is None or rate is None:
        return None
    generation, width = link
    both = ", both directions" if ways == 2 else ""
    return Peak(ways * rate, f"PCIe generation {generation} x{width}{both}, before packet headers, from the driver")


@dataclass(frozen=True)
class Level:
    """A level of the memory that a CPU sees."""

    name: str
    low: float  # bytes of data that no longer fit the level below
    high: float  # bytes that still fit this one


def levels(environment: Environment, cores: int) -> list[Level]:
    """The caches for data that `cores` cores reach together, and what lies behind them; empty where none is known.

    A cache is reported as shared by so many logical CPUs, of which a core may have several.
    """
    physical, logical = environment.cpu.physical_cores, environment.cpu.logical_cores
    threads_per_core = max(1.0, logical / physical) if physical and logical else 1.0
    cores = min(cores, physical or cores)
    hierarchy: list[Level] = []
    below = 0.0
    data = [cache for cache in environment.cpu.caches if cache.kind != "Instruction" and cache.size]
    for cache in sorted(data, key=lambda cache: cache.level):
        sharing_cores = max(1.0, (cache.shared_by or 1) / threads_per_core)
        capacity = float(cache.size or 0) * math.ceil(cores / sharing_cores)
        hierarchy.append(Level(f"L{cache.level}", OUTGROWS * below, FITS * capacity))
        below = capacity
    return [*hierarchy, Level(MAIN_MEMORY, OUTGROWS * below, math.inf)] if hierarchy else []


def shown_ceilings(
    record: Record, metric: str, kind: CeilingKind, hierarchy: Sequence[Level], *, arrays: int
) -> Iterator[ShownCeiling]:
    """Of a sweep over the sizes of so many arrays: for each level of memory, the largest data that belong to it."""
    points = [m.at for m in record.measurements if m.metric.name == metric and not m.scope and "size" in m.at]
    for level in hierarchy:
        inside = [at for at in points if level.low <= arrays * float(at["size"]) <= level.high]
        if inside:
            at = max(inside, key=lambda at: float(at["size"]))
            yield ShownCeiling(kind=kind, name=level.name, metric=metric, at=at)
