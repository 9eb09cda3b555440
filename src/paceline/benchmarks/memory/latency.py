"""Latency of host memory: how long one load takes that must wait for the one before it, by size of the data."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.parameters import MicroParameters, join_words, show_sizes, time_metric
from paceline.benchmarks._micro.session import MicroSession, headline, repeats_for
from paceline.benchmarks.memory import host
from paceline.benchmarks.memory.host import HostMemory, Sizes
from paceline.core.benchmark import Benchmark, Context
from paceline.core.environment import Environment
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.core.parameters import EachPart
from paceline.core.quantity import Duration, show_size
from paceline.core.record import Record, RecordWarning, Result
from paceline.core.subject import MAIN_MEMORY, Description, ShownCeiling
from paceline.devices import open_device
from paceline.measure import native

SMALLEST = 8 * 1024
LARGEST = 1024**3
BEYOND_CACHE = 4  # a cache that is not a strict queue keeps up to its part of the chain from lap to lap
FREE_PART = 4  # of the free memory, one in so many bytes may be taken
LOADS_PER_TURN = 16  # as in the C source
SAMPLE_SECONDS = 1e-3
MOST_TURNS = 1 << 20

LATENCY = time_metric("latency", "time of one dependent load")


class MemoryLatencyParameters(MicroParameters):
    """How much memory the chain of loads goes through."""

    sizes: Sizes | None = None
    """Sizes of the data; unset goes from 8 KiB to four times the last cache (1 GiB at most)"""
    numa_node: Annotated[int | None, EachPart("numa_nodes")] = Field(default=None, ge=0)
    """NUMA node whose CPU loads; unset takes any"""
    memory_node: Annotated[int | None, EachPart("numa_nodes")] = Field(default=None, ge=0)
    """NUMA node whose memory is loaded from, if not that of the CPU; with each for both, one case for every pair"""
    huge_pages: bool = False
    """Ask for huge pages, so that address translation costs next to nothing; otherwise forbid them"""
    budget: Duration = Field(default=0.4, gt=0)
    """Time to spend on measuring each size, at most"""
    warm_up: Duration = 0.2
    """Time to spend on warming up each size, at most; it ends sooner when the time is steady"""


class MemoryLatency(Benchmark[MemoryLatencyParameters]):
    """One thread follows one random cycle through all cache lines of its data."""

    name = "memory-latency"
    summary = "time of one dependent load from host memory, by size of the data: every cache level and main memory"
    category = "memory"
    metrics = (LATENCY,)

    @classmethod
    def title(cls, parameters: MemoryLatencyParameters) -> str:
        return join_words(
            show_sizes(parameters.sizes),
            f"NUMA node {parameters.numa_node}" if parameters.numa_node is not None else "",
            f"memory of node {parameters.memory_node}" if parameters.memory_node is not None else "",
            "huge pages" if parameters.huge_pages else "",
        )

    @classmethod
    def describe(cls, record: Record, parameters: MemoryLatencyParameters, environment: Environment) -> Description:
        nodes = (parameters.numa_node, parameters.memory_node)
        if None not in nodes or record.case.superbench:  # a machine with one node needs no number
            key = "mem_latency_matrix_numa_{}_{}_lat".format(*(node or 0 for node in nodes))
            values = _superbench.means(record, {key: (LATENCY.name, _superbench.NS)})
            return Description(aliases=_superbench.alias(record, "cpu-memory-bw-latency", values, part=key))
        caches = host.levels(environment, cores=1)
        whole = ShownCeiling(kind="latency", name=MAIN_MEMORY, metric=LATENCY.name)
        shown = tuple(host.shown_ceilings(record, LATENCY.name, "latency", caches, arrays=1)) if caches else (whole,)
        figure = (LATENCY.name, _superbench.NS)
        by_size = _superbench.means_at(record, {"mem_latency_{size}_lat": figure}, "size")
        values = _superbench.means(record, {"mem_latency_lat": figure}) | by_size
        aliases = _superbench.alias(record, "cpu-memory-bw-latency", values)
        if parameters.memory_node is not None:
            shown = ()  # another node's memory may be further away than its own
        return Description(ceilings=shown, aliases=aliases)

    def measure(self, parameters: MemoryLatencyParameters, context: Context) -> Result:
        if context.target != "cpu":
            raise Unsupported(f"memory-latency measures the host's memory, not {context.target}: use --target cpu")
        cpus = host.usable_cpus(parameters.numa_node)
        # The first CPUs are those that tend to serve interrupts.
        cpu = cpus.order[cpus.cores - 1]
        cache = host.cache_of([cpu])
        sizes = parameters.sizes or default_sizes(cache)
        huge: dict[str, int] = {}
        stride = line_bytes()
        times = []
        with host.pinned_to(cpu), MicroSession(parameters, context, open_device("cpu")) as session:
            for size in sizes:
                before = host.huge_page_bytes()
                with host.on_node(parameters.memory_node):
                    chain = Chain(size, stride, parameters.seed, huge_pages=parameters.huge_pages)
                huge[show_size(size)] = max(0, host.huge_page_bytes() - before)
                how = "monotonic clock in native code"
                times.append(
                    session.time_reported(chain.sample, LATENCY, how, at={"size": size}, calls=chain.loads).time
                )
                chain.check()
                del chain
        ordinary = show_size(os.sysconf("SC_PAGE_SIZE"))
        pages = f"ordinary pages of {ordinary}: beyond a few MiB the time includes translating addresses"
        facts = {
            "pages": "huge pages were asked for" if parameters.huge_pages else pages,
            "in_huge_pages": huge if parameters.huge_pages else None,
            "cache_line": stride,
            "cpu": cpu,
            "caches": cache or "the machine does not report its caches",
            "checked": "after each size, that the chain is still one cycle through every cache line",
        }
        result = session.result([headline(times), *times], facts)
        result.warnings += host.cached_warning(sizes[-1], cache, BEYOND_CACHE)
        largest = show_size(sizes[-1])
        if parameters.huge_pages and sizes[-1] >= host.HUGE_PAGE and huge[largest] < sizes[-1] // 2:
            part = show_size(huge[largest])
            message = f"huge pages were asked for, but only {part} of {largest} lie in them"
            remedy = (
                "allow them (/sys/kernel/mm/transparent_hugepage/enabled), or read the figure as one of small pages"
            )
            result.warnings.append(RecordWarning(kind="pages", message=message, remedy=remedy))
        return result


class Chain:
    """Memory whose cache lines are linked into one random cycle."""

    def __init__(self, size: int, stride: int, seed: int, *, huge_pages: bool) -> None:
        self._native = native.load(Path(__file__).with_name("latency.c"))
        self._native.chain_build.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint64]
        self._native.chain_build.restype = None
        self._native.chain_follow.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_double)]
        self._native.chain_follow.restype = ctypes.c_void_p
        self._native.chain_length.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self._native.chain_length.restype = ctypes.c_size_t
        self._stride = stride
        self._lines = max(2, size // stride)
        self.memory = HostMemory(self._lines * stride, huge_pages=huge_pages)
        self._native.chain_build(self.memory.address, self._lines, stride, seed)
        self._at = self.memory.address.value
        # On the way to a sample that is long enough, caches take what they can.
        self._turns = repeats_for(SAMPLE_SECONDS, MOST_TURNS, self._follow)
        self.loads = self._turns * LOADS_PER_TURN  # of one sample

    def sample(self) -> list[float]:
        """Seconds of so many loads."""
        return [self._follow(self._turns)]

    def check(self) -> None:
        """Walk the whole cycle; a chain that lost a line is silent corruption."""
        length = self._native.chain_length(self.memory.address, self._lines, self._stride)
        if length != self._lines:
            now = f"closes after {length}" if length else "never closes"
            raise SilentCorruption(
                f"the chain through {show_size(len(self.memory.bytes))} was one cycle of {self._lines} lines, but now "
                f"{now}: memory has changed by itself"
            )

    def _follow(self, turns: int) -> float:
        seconds = ctypes.c_double()
        self._at = self._native.chain_follow(self._at, turns, ctypes.byref(seconds))
        return seconds.value


def default_sizes(cache: int | None) -> list[int]:
    """From what the first cache holds to what none does, in powers of two, within what memory is free."""
    largest = BEYOND_CACHE * (cache or host.UNKNOWN_CACHE)
    return host.powers(SMALLEST, largest, 2, most=min(LARGEST, host.free_memory() // FREE_PART))


def line_bytes() -> int:
    """What a cache fetches at a time."""
    try:
        reported = os.sysconf("SC_LEVEL1_DCACHE_LINESIZE")
    except (ValueError, OSError):
        reported = 0
    return reported if reported in (32, 64, 128, 256) else 64
