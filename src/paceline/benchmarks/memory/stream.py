"""Bandwidth of memory: copy, scale, add and triad over long arrays, on all cores, one NUMA node, or a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.parameters import (
    BANDWIDTH,
    PEAK_SHARE,
    TIME,
    MicroParameters,
    TorchBenchmark,
    join_words,
    peak_share,
    show_sizes,
)
from paceline.benchmarks._micro.session import MicroSession, TimedPoint, headline
from paceline.benchmarks.memory import host
from paceline.benchmarks.memory.host import HostMemory, Sizes
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, SilentCorruption, Unsupported
from paceline.core.metric import Metric
from paceline.core.parameters import EachPart
from paceline.core.quantity import Size, show_size
from paceline.core.record import At, Measurement, Record, Result
from paceline.core.subject import DEVICE_MEMORY, MAIN_MEMORY, Alias, Description, ShownCeiling, Work, key_word
from paceline.devices import Device, open_device
from paceline.machine.cpu import show_cpu_list
from paceline.measure import native
from paceline.measure.memory import peak_memory_bandwidth

if TYPE_CHECKING:
    from torch import Tensor

WORD = 8  # bytes of a double
FACTOR = 3.0
START_VALUES = 1021
GPU_SIZE = 1024**3
FREE_PART = 8  # of the free memory, each array takes at most one in so many bytes
CALL_SECONDS = 0.02  # native code repeats a kernel for about so long before it comes back
MOST_PASSES = 1 << 20
MOST_REPETITIONS = 64


@dataclass(frozen=True)
class Kernel:
    """One of the four, and the words that it moves for each element."""

    name: str
    code: int  # as in the C source; they run in this order
    words: int

    @property
    def bandwidth(self) -> Metric:
        description = f"{self.words} x 8 bytes per element over the time of {self.name}"
        return BANDWIDTH.model_copy(update={"name": f"{self.name}_bandwidth", "description": description})

    @property
    def time(self) -> Metric:
        return TIME.model_copy(update={"name": f"{self.name}_time", "description": f"time of one pass of {self.name}"})


KERNELS = (Kernel("copy", 1, 2), Kernel("scale", 2, 2), Kernel("add", 3, 3), Kernel("triad", 4, 3))
TRIAD = KERNELS[-1]
Mix = Literal["reads", "3r1w", "2r1w", "1r1w", "writes"]
MIXES: dict[str, Kernel] = {
    name: Kernel("mix", code, words)
    for code, (name, words) in enumerate({"reads": 1, "3r1w": 4, "2r1w": 3, "1r1w": 2, "writes": 1}.items(), start=6)
}
WRITTEN = 0x0123456789ABCDEF  # by "writes", as in the C source


class StreamParameters(MicroParameters):
    """How long the arrays are, and who works on them."""

    size: Size | None = Field(default=None, ge=64)
    """Bytes of each of the three arrays; unset takes four times the caches on a CPU, 1 GiB on a GPU"""
    sizes: Sizes | None = None
    """Several sizes instead, one after another: bandwidth of every cache level"""
    threads: int | None = Field(default=None, ge=1)
    """Threads on a CPU; unset takes one for each core that this process may use"""
    numa_node: Annotated[int | None, EachPart("numa_nodes")] = Field(default=None, ge=0)
    """Bind threads, and so the memory that they touch first, to this NUMA node; each: one case for each of several"""
    memory_node: Annotated[int | None, EachPart("numa_nodes")] = Field(default=None, ge=0)
    """NUMA node whose memory is used, if not that of the threads"""
    mix: Mix | None = None
    """Instead of the four kernels one with so many reads and writes of memory: reads alone, 3, 2 or 1 for each write,
    writes alone"""
    engine: Literal["auto", "native", "torch"] = "auto"
    """native: C code with pinned threads (CPU); torch: its operators; auto: native on a CPU with a C compiler"""


class Stream(TorchBenchmark[StreamParameters]):
    """c = a, b = s c, c = a + b, a = b + s c; bytes are counted as STREAM does."""

    name = "stream"
    summary = "memory bandwidth of copy, scale, add and triad on CPU cores or a GPU, results checked"
    category = "memory"
    is_within_device = True
    metrics = (
        *(kernel.bandwidth for kernel in reversed(KERNELS)),
        MIXES["1r1w"].bandwidth.model_copy(update={"description": "bytes read and written over the time of a mix"}),
        PEAK_SHARE,
        *(kernel.time for kernel in KERNELS),
        MIXES["1r1w"].time,
    )
    without_torch = ("engine", "native")

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        is_native = parameters.get("engine") == "auto" and parameters.get("target") == "cpu" and native.is_possible()
        return () if is_native else super().imports(parameters)

    @classmethod
    def title(cls, parameters: StreamParameters) -> str:
        return join_words(
            show_sizes(parameters.sizes or ([parameters.size] if parameters.size else [])),
            f"{parameters.threads} threads" if parameters.threads else "",
            f"NUMA node {parameters.numa_node}" if parameters.numa_node is not None else "",
            f"memory of node {parameters.memory_node}" if parameters.memory_node is not None else "",
            parameters.mix,
            parameters.engine if parameters.engine != "auto" else "",
        )

    @classmethod
    def check(cls, parameters: StreamParameters, case: Case) -> None:
        if parameters.size is not None and parameters.sizes is not None:
            message = "size alongside sizes: give one or the other"
            raise InputError("conflicting-keys", message, key="size", value=parameters.size)
        for key in ("mix", "memory_node"):
            if getattr(parameters, key) is not None and parameters.engine == "torch":
                message = f"{key} with engine = torch: only the native engine has it"
                raise InputError("conflicting-keys", message, key=key, value=getattr(parameters, key))

    @classmethod
    def describe(cls, record: Record, parameters: StreamParameters, environment: Environment) -> Description:
        metric = TRIAD.bandwidth.name
        if parameters.mix or parameters.memory_node is not None:
            return Description(aliases=_names_of_latency_tool(record, parameters))
        if record.case.target == "cpu":
            name, group, values = MAIN_MEMORY, "cpu-stream", _names_on_cpu(record)
        else:
            name, group, values = DEVICE_MEMORY, "gpu-stream", _names_on_gpu(record)
        ceilings: tuple[ShownCeiling, ...] = (ShownCeiling(kind="memory", name=name, metric=metric),)
        if record.case.target == "cpu" and parameters.sizes:
            threads = int(record.facts.get("threads") or 1)
            caches = host.levels(environment, threads)[:-1]
            ceilings = tuple(host.shown_ceilings(record, metric, "memory", caches, arrays=3))
        work = None if parameters.sizes else _triad_work(record)
        return Description(work=work, ceilings=ceilings, aliases=_superbench.alias(record, group, values))

    def measure(self, parameters: StreamParameters, context: Context) -> Result:
        device = open_device(context.target)
        placement = place_arrays(parameters, device)
        sizes = parameters.sizes or [parameters.size or placement.default_size]
        kernels = (MIXES[parameters.mix],) if parameters.mix else KERNELS
        points: dict[str, list[Measurement]] = {metric.name: [] for metric in self.metrics}
        stopped: dict[str, str] = {}
        with MicroSession(parameters, context, device) as session:
            for size in sizes:
                at: At = {"size": size} if parameters.sizes else {}
                arrays = placement.new_arrays(max(1, size // WORD))
                for kernel in kernels:
                    point = arrays.time(session, kernel, at)
                    points[kernel.bandwidth.name].append(point.rate(kernel.bandwidth, arrays.work(kernel)))
                    points[kernel.time.name].append(point.time)
                    stopped[f"{kernel.name} {show_size(size)}"] = point.timed.stopped.value
                    arrays.check(kernel)
                del arrays  # before the next are made
        whole = [headline(sweep) for sweep in points.values() if sweep]
        peak = peak_memory_bandwidth(device.name) if device.kind.is_accelerator else None
        moved = points[kernels[-1].bandwidth.name][-1].work or 0.0
        share, peak_facts = peak_share(peak, moved, headline(points[kernels[-1].time.name]))
        if share and sizes[-1] < host.BEYOND_CACHE * device.cache_size():
            share, peak_facts["peak_share"] = [], "left out: the arrays may stay in the GPU's cache"
        swept = [point for sweep in points.values() for point in sweep] if parameters.sizes else []
        facts = {
            "array_sizes": sizes,
            "mix": parameters.mix,
            "counted": "8 bytes for each word that is read or written; writes alone make a cache read them first"
            if parameters.mix
            else "16 bytes per element for copy and scale, 24 for add and triad; "
            "what a cache reads before it writes is not counted",
            "checked": "every element of all arrays after each kernel",
            "stopped": stopped,
        }
        result = session.result([*whole, *share, *swept], facts | placement.facts | peak_facts)
        result.warnings += host.cached_warning(sizes[-1], placement.cache, host.BEYOND_CACHE)
        return result


def _names_of_latency_tool(record: Record, parameters: StreamParameters) -> dict[str, Alias]:
    """As SuperBench names what Intel's latency checker reports."""
    if parameters.mix == "reads" and parameters.numa_node is not None and parameters.memory_node is not None:
        key = f"mem_bandwidth_matrix_numa_{parameters.numa_node}_{parameters.memory_node}_bw"
    elif parameters.mix in ("reads", "3r1w", "2r1w", "1r1w") and parameters.numa_node is parameters.memory_node is None:
        words = "all_reads" if parameters.mix == "reads" else f"{parameters.mix[0]}_1_reads-writes"
        key = f"mem_max_bandwidth_{words}_bw"
    else:
        return {}
    values = _superbench.means(record, {key: (MIXES["reads"].bandwidth.name, _superbench.MEGA)})
    return _superbench.alias(record, "cpu-memory-bw-latency", values, part=key)


def _triad_work(record: Record) -> Work | None:
    bandwidth = record.measurement(TRIAD.bandwidth.name)
    if bandwidth is None or not bandwidth.value > 0:
        return None
    flops, moved = 2.0, float(TRIAD.words * WORD)  # of one element
    rate = bandwidth.value * flops / moved
    formula = "two arrays read and one written, as STREAM counts"
    return Work(flops=flops, bytes=moved, rate=rate, unit="FLOP/s", number_format="fp64", formula=formula)


def _names_on_cpu(record: Record) -> dict[str, float]:
    threads = record.facts.get("threads")
    values = {"threads": float(threads)} if isinstance(threads, int) else {}
    for kernel in KERNELS:
        rate, seconds = record.measurement(kernel.bandwidth.name), record.measurement(kernel.time.name)
        if rate is not None:
            values[f"{kernel.name}_throughput"] = rate.summary.maximum / _superbench.MEGA  # there, of the fastest pass
        if seconds is not None:
            times = {"avg": seconds.summary.mean, "min": seconds.summary.minimum, "max": seconds.summary.maximum}
            values |= {f"{kernel.name}_time_{key}": value for key, value in times.items()}
    return values


def _names_on_gpu(record: Record) -> dict[str, float]:
    index = record.case.target.partition(":")[2] or "0"
    sizes = record.facts.get("array_sizes")
    buffer = f"_buffer_{sizes[-1]}" if isinstance(sizes, list) and sizes else ""
    end = f"double_gpu_{key_word(index)}{buffer}_bw"
    keys = {f"STREAM_{kernel.name.upper()}_{end}": (kernel.bandwidth.name, _superbench.GIGA) for kernel in KERNELS}
    return _superbench.means(record, keys)


class Arrays:
    """Three arrays of one size."""

    elements: int

    def work(self, kernel: Kernel) -> float:
        """Bytes that one pass counts."""
        return float(kernel.words * WORD * self.elements)

    def corrupted(self, kernel: Kernel, wrong: int, first: int) -> SilentCorruption:
        """The error for elements that are wrong."""
        return SilentCorruption(
            f"after {kernel.name}, {wrong} of {self.elements} elements are not what they must be, the first at "
            f"{first}: memory or a core computes wrongly"
        )


@dataclass(frozen=True)
class ArrayPlacement:
    """Where the arrays lie and who works on them."""

    new_arrays: Callable[[int], NativeArrays | TorchArrays]  # of so many elements
    default_size: int
    cache: int | None
    facts: dict[str, Any]


def place_arrays(parameters: StreamParameters, device: Device) -> ArrayPlacement:
    """The requested engine on the device."""
    if device.kind.is_accelerator:
        if parameters.engine == "native":
            raise Unsupported("engine = native is for CPUs: use engine = torch on a GPU, or --target cpu")
        given = {key for key in ("threads", "numa_node", "memory_node", "mix") if getattr(parameters, key) is not None}
        if given:
            raise Unsupported(f"{', '.join(sorted(given))}: for CPUs; leave it out on a GPU, or use --target cpu")
        size = min(GPU_SIZE, device.free_memory() // FREE_PART)
        engine = {"engine": "torch"}
        return ArrayPlacement(lambda elements: TorchArrays(elements, device), size, device.cache_size(), engine)
    cpus = host.usable_cpus(parameters.numa_node).choose(parameters.threads)
    cache = host.cache_of(cpus)
    free = host.free_memory(parameters.numa_node if parameters.memory_node is None else parameters.memory_node)
    size = min(host.BEYOND_CACHE * (cache or host.UNKNOWN_CACHE), free // FREE_PART)
    facts: dict[str, Any] = {"threads": len(cpus), "cpus": show_cpu_list(cpus), "caches": cache}
    try:
        if parameters.engine != "torch":
            library = load_native()
            placed = "each thread is pinned, and first to touch its part of the arrays"
            if parameters.memory_node is not None:
                placed = f"each thread is pinned; threads of node {parameters.memory_node} touched the arrays first"
            facts |= {"engine": "native", "memory": placed}
            near = cpus if parameters.memory_node is None else host.usable_cpus(parameters.memory_node).choose(None)
            return ArrayPlacement(lambda elements: NativeArrays(library, elements, cpus, near), size, cache, facts)
        why = "it was requested"
    except Unsupported as error:
        is_native_only = parameters.mix is not None or parameters.memory_node is not None
        if parameters.engine == "native" or is_native_only or importlib.util.find_spec("torch") is None:
            raise
        why = str(error)
    import torch

    os.sched_setaffinity(0, cpus)  # the threads that torch is about to start inherit it
    torch.set_num_threads(len(cpus))
    facts |= {"engine": "torch", "engine_reason": why}
    return ArrayPlacement(lambda elements: TorchArrays(elements, device), size, cache, facts)


class NativeArrays(Arrays):
    """Arrays in host memory that C threads work on."""

    def __init__(self, library: ctypes.CDLL, elements: int, cpus: list[int], near: list[int] | None = None) -> None:
        """`near` are the CPUs that touch the memory first, so that it comes to lie near them."""
        self._library = library
        self.elements = elements
        self.memory = [HostMemory(elements * WORD) for _ in range(3)]
        self._passes = 0  # of a mix, since the arrays were filled
        self._use(near or cpus)
        self._call("stream_fill")
        self._use(cpus)

    def _use(self, cpus: list[int]) -> None:
        self._threads = len(cpus)
        self._cpus = (ctypes.c_int * len(cpus))(*cpus)

    def time(self, session: MicroSession, kernel: Kernel, at: At) -> TimedPoint:
        """Time a kernel; those before it have run."""
        passes = 1
        while (took := min(self.run(kernel, passes, 2))) < host.SAMPLE_SECONDS and passes < MOST_PASSES:
            passes *= 2
        repetitions = max(1, min(MOST_REPETITIONS, math.ceil(CALL_SECONDS / took)))
        return session.time_reported(
            lambda: self.run(kernel, passes, repetitions),
            kernel.time,
            "monotonic clock in native code, from the first thread's start to the last one's end",
            at=at,
            calls=passes,
            work=self.work(kernel),
        )

    def run(self, kernel: Kernel, passes: int, repetitions: int) -> list[float]:
        """Seconds of each repetition of so many passes."""
        if kernel.code == MIXES["reads"].code:
            self.memory[2].bytes[:] = 0  # where each thread leaves its sum
        self._passes += passes * repetitions + (passes > 1)
        seconds = (ctypes.c_double * repetitions)()
        self._call("stream_run", kernel.code, passes, repetitions, seconds)
        return list(seconds)

    def check(self, kernel: Kernel) -> None:
        """Compare every element with what the kernels up to this one must have made of it."""
        if kernel.name == "mix":
            self._check_mix(kernel)
            return
        wrong, first = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("stream_check", kernel.code, ctypes.byref(wrong), ctypes.byref(first))
        if wrong.value:
            raise self.corrupted(kernel, wrong.value, first.value)

    def _check_mix(self, kernel: Kernel) -> None:
        a, b, c = (memory.bytes.view(np.uint64) for memory in self.memory)
        passes, filled = np.uint64(self._passes), np.array([-2.0]).view(np.uint64)
        expected: dict[int, Callable[[], Any]] = {
            MIXES["3r1w"].code: lambda: filled + passes * (a + b),
            MIXES["2r1w"].code: lambda: filled + passes * a,
            MIXES["1r1w"].code: lambda: np.full_like(c, filled[0] + passes),
            MIXES["writes"].code: lambda: np.full_like(c, WRITTEN),
            MIXES["reads"].code: lambda: c if c.sum() == a.sum() else ~c,
        }
        wrong = np.flatnonzero(c != expected[kernel.code]())
        if len(wrong):
            raise self.corrupted(kernel, len(wrong), int(wrong[0]))

    def _call(self, function: str, *more: Any) -> None:
        addresses = [memory.address for memory in self.memory]
        error = getattr(self._library, function)(*addresses, self.elements, self._cpus, self._threads, *more)
        if error:
            raise Unsupported(
                f"{self._threads} pinned threads cannot be started ({os.strerror(error)}): use --threads 1"
            )


class TorchArrays(Arrays):
    """Arrays on a device that torch's operators work on."""

    def __init__(self, elements: int, device: Device) -> None:
        import torch

        self.elements = elements
        numbers = torch.arange(elements, dtype=torch.float64, device=device.torch())
        self._start = numbers.remainder_(START_VALUES).add_(1)
        self.a = self._start.clone()
        self.b = torch.full_like(self.a, -1.0)
        self.c = torch.full_like(self.a, -2.0)

    def time(self, session: MicroSession, kernel: Kernel, at: At) -> TimedPoint:
        import torch

        a, b, c = self.a, self.b, self.c
        calls: dict[str, Callable[[], Tensor]] = {
            "copy": lambda: c.copy_(a),
            "scale": lambda: torch.mul(c, FACTOR, out=b),
            "add": lambda: torch.add(a, b, out=c),
            "triad": lambda: torch.add(b, c, alpha=FACTOR, out=a),
        }
        work = self.work(kernel)
        return session.time(calls[kernel.name], kernel.time, at=at, work=work, graph=True)

    def check(self, kernel: Kernel) -> None:
        start, done = self._start, kernel.code
        wrong = self.a != start * (15.0 if done >= 4 else 1.0)
        if done >= 2:
            wrong |= self.b != start * 3.0
        wrong |= self.c != start * (4.0 if done >= 3 else 1.0)
        count = int(wrong.sum())
        if count:
            raise self.corrupted(kernel, count, int(wrong.nonzero()[0]))


def load_native() -> ctypes.CDLL:
    """The C code, built for this machine."""
    library = native.load(Path(__file__).with_name("stream.c"))
    size = ctypes.c_size_t
    common: list[type[Any]] = [*[ctypes.c_void_p] * 3, size, ctypes.POINTER(ctypes.c_int), size]
    library.stream_fill.argtypes = common
    library.stream_run.argtypes = [*common, ctypes.c_int, size, size, ctypes.POINTER(ctypes.c_double)]
    library.stream_check.argtypes = [*common, ctypes.c_int, ctypes.POINTER(size), ctypes.POINTER(size)]
    return library
