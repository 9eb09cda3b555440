"""Copies between host and device, within a device, and within the host: bytes per second by size."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

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
from paceline.benchmarks._micro.session import MicroSession, TimedPoint, headline, repeats_for
from paceline.benchmarks.memory import host
from paceline.benchmarks.memory.host import HostMemory, Sizes
from paceline.benchmarks.ranks import join
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, SilentCorruption, Unsupported
from paceline.core.parameters import EachPart
from paceline.core.quantity import Duration, show_size
from paceline.core.record import Measurement, Record, Result
from paceline.core.subject import COPY_WITHIN_DEVICE, Alias, Description, ShownCeiling, key_word
from paceline.devices import Device, open_device
from paceline.measure import native
from paceline.measure.memory import peak_memory_bandwidth

if TYPE_CHECKING:
    from torch import Tensor

By = Literal["engine", "sm"]
Way = Literal["h2d", "d2h", "d2d", "h2h", "h2d and d2h"]

SMALLEST = 4 * 1024
FACTOR = 4
GPU_LARGEST = 1024**3
FREE_PART = 8  # of the free memory, a buffer takes at most one in so many bytes
MOST_PASSES = 1 << 20
BLOCKS, THREADS = 1024, 256  # of a copy by the units that compute
WORD = 16  # bytes, as in the CUDA source
MOST_WORDS = 2**30  # which that counts in 32 bits

# What a copy in each direction shows of a device.
_CEILINGS = {
    "h2d": "host to device",
    "d2h": "device to host",
    "d2d": COPY_WITHIN_DEVICE,
    "h2h": "copy within main memory, one thread",
}
_COUNTED: dict[Way, str] = {
    "h2d": "bytes copied, once",
    "d2h": "bytes copied, once",
    "h2d and d2h": "bytes copied in both directions together",
    "d2d": "bytes copied, once; memory reads and writes each of them, which peak_share counts",
    "h2h": "bytes copied, once; memory reads and writes each of them",
}


class CopyParameters(MicroParameters):
    """What is copied where."""

    direction: Literal["auto", "h2d", "d2h", "d2d", "h2h"] = "auto"
    """Host to device, device to host, within the device, within the host; auto: d2d on a GPU, h2h on a CPU"""
    both: bool = False
    """Copy h2d and d2h at the same time, on two streams; the rate counts both"""
    host_memory: Literal["pinned", "pageable"] = "pinned"
    """Whether the host's side of h2d and d2h is locked in memory, where the device can reach it by itself"""
    by: By = "engine"
    """What copies: the device's copy engines, or a kernel on the units that compute (SM)"""
    numa_node: Annotated[int | None, EachPart("numa_nodes")] = Field(default=None, ge=0)
    """Where the host's memory lies, and the thread that asks for the copies; unset leaves it to the system"""
    sizes: Sizes | None = None
    """Bytes of each copy; unset goes from 4 KiB to 1 GiB on a GPU, to beyond the caches on a CPU"""
    budget: Duration = Field(default=0.5, gt=0)
    """Time to spend on measuring each size, at most"""
    warm_up: Duration = 0.25
    """Time to spend on warming up each size, at most; it ends sooner when the time is steady"""


class Copy(TorchBenchmark[CopyParameters]):
    """Copies random data and compares what arrived."""

    name = "copy"
    summary = "copy bandwidth h2d, d2h, d2d or within the host, by size, pinned or pageable, data checked"
    category = "memory"
    metrics = (BANDWIDTH, PEAK_SHARE, TIME)
    distributed = True
    without_torch = ("direction", "h2h")

    @classmethod
    def title(cls, parameters: CopyParameters) -> str:
        direction = parameters.direction if parameters.direction != "auto" else ""
        return join_words(
            "h2d and d2h at once" if parameters.both else direction,
            "pageable" if parameters.host_memory == "pageable" else "",
            "by SM" if parameters.by == "sm" else "",
            f"NUMA node {parameters.numa_node}" if parameters.numa_node is not None else "",
            show_sizes(parameters.sizes),
        )

    @classmethod
    def check(cls, parameters: CopyParameters, case: Case) -> None:
        if parameters.both and parameters.direction != "auto":
            message = f"both alongside direction = {parameters.direction}: both is h2d and d2h, give it alone"
            raise InputError("conflicting-keys", message, key="direction", value=parameters.direction)
        if parameters.both and parameters.host_memory == "pageable":
            message = "both with pageable memory: the host waits for each such copy, so use pinned"
            raise InputError("needs-pinned-memory", message, key="host_memory", value="pageable", suggestion="pinned")

        if parameters.by == "sm" and parameters.host_memory == "pageable":
            message = "a kernel does not reach pageable memory: use pinned, or by = engine"
            raise InputError("needs-pinned-memory", message, key="host_memory", value="pageable", suggestion="pinned")

    @classmethod
    def describe(cls, record: Record, parameters: CopyParameters, environment: Environment) -> Description:
        way, memory = record.facts.get("direction"), record.facts.get("host_memory")
        ceilings: tuple[ShownCeiling, ...] = ()
        if way in _CEILINGS and parameters.by == "engine":
            name = f"{_CEILINGS[way]}, {memory}" if memory else _CEILINGS[way]
            ceilings = (ShownCeiling(kind="link" if memory else "memory", name=name, metric=BANDWIDTH.name),)
        return Description(ceilings=ceilings, aliases=_superbench_names(record, parameters))

    @classmethod
    def within_device(cls, parameters: CopyParameters) -> bool:
        return parameters.direction in ("auto", "d2d") and not parameters.both

    def measure(self, parameters: CopyParameters, context: Context) -> Result:
        device = open_device(context.target)
        way = find_way(parameters, device)
        sizes = parameters.sizes or default_sizes(device)
        with join(context, device.kind) as ranks, host.on_node(parameters.numa_node):
            if way == "h2h":
                cpus = host.usable_cpus(parameters.numa_node).order
                copies: HostCopies | DeviceCopies = HostCopies(sizes[-1], parameters.seed, cpus[ranks.rank % len(cpus)])
            else:
                copies = DeviceCopies(
                    way, parameters.host_memory, device, sizes[-1], parameters.seed, copy_by(parameters.by, device)
                )
            with MicroSession(parameters, context, device, ranks) as session:
                points = [copies.time(session, size) for size in sizes]
        rates = [point.rate(BANDWIDTH, float(point.at["size"]) * copies.at_once) for point in points]
        times = [point.time for point in points]
        share, peak_facts = share_of_peak(way, device, context.target, sizes[-1], rates[-1], headline(times))
        facts = {
            "direction": way,
            "numa_node": parameters.numa_node,
            "host_memory": parameters.host_memory if way not in ("d2d", "h2h") else None,
            "counted": _COUNTED[way],
            "checked": "every byte, after each size, against the random data that was sent",
        }
        whole = [headline(rates), *share, headline(times)]
        result = session.result([*whole, *rates, *times], facts | copies.facts | peak_facts)
        if way == "h2h":
            result.warnings += host.cached_warning(2 * sizes[-1], host.cache_of(), 2)
        if parameters.host_memory == "pageable":
            # The host takes part in every such copy: that the device waits for it is what was to be measured.
            result.warnings = [warning for warning in result.warnings if warning.kind != "host-bound"]
        return result


def _superbench_names(record: Record, parameters: CopyParameters) -> dict[str, Alias]:
    direction = parameters.direction
    if direction == "auto":
        direction = "h2h" if record.case.target == "cpu" else "d2d"
    if direction == "h2h" or parameters.both:
        return {}
    if parameters.numa_node is not None or record.case.superbench.startswith("gpu-copy-bw"):
        gpu = f"gpu{record.case.target.partition(':')[2] or 0}"
        ends = {"h2d": f"cpu_to_{gpu}", "d2h": f"{gpu}_to_cpu", "d2d": f"{gpu}_to_{gpu}"}[direction]
        engine = "sm" if parameters.by == "sm" else "dma"
        key = f"{ends}_by_{engine}_under_numa{parameters.numa_node or 0}_bw"
        values = _superbench.means(record, {key: (BANDWIDTH.name, _superbench.GIGA)})
        return _superbench.alias(record, "gpu-copy-bw", values, part=key)
    if parameters.by == "sm":
        return {}
    key = f"{direction}_bw"
    memory = parameters.host_memory
    note = "" if memory == "pinned" or direction == "d2d" else f"host_memory={key_word(memory)}"
    # There, a copy within the device counts what is read and what is written.
    unit = _superbench.GIGA / 2 if direction == "d2d" else _superbench.GIGA
    values = _superbench.means(record, {key: (BANDWIDTH.name, unit)})
    return _superbench.alias(record, "mem-bw", values, part=key, note=note)


def find_way(parameters: CopyParameters, device: Device) -> Way:
    """What is to be copied where on this device; what it cannot do is unsupported."""
    if not device.kind.is_accelerator:
        if parameters.by == "sm":
            raise Unsupported("by = sm needs a GPU: use --target cuda:0, or by = engine on a CPU")
        if parameters.both or parameters.direction not in ("auto", "h2h"):
            way = "both" if parameters.both else f"direction = {parameters.direction}"
            raise Unsupported(f"{way} needs a GPU: use --target cuda:0, or direction = h2h on a CPU")
        return "h2h"
    if parameters.both:
        return "h2d and d2h"
    if parameters.direction == "h2h":
        raise Unsupported("direction = h2h copies within the host: use --target cpu")
    return "d2d" if parameters.direction == "auto" else parameters.direction


def default_sizes(device: Device) -> list[int]:
    """From a page to what no cache holds, within what memory is free."""
    free = host.free_memory()
    if device.kind.is_accelerator:
        return host.powers(SMALLEST, GPU_LARGEST, FACTOR, most=min(free, device.free_memory()) // FREE_PART)
    return host.powers(SMALLEST, 2 * (host.cache_of() or host.UNKNOWN_CACHE), FACTOR, most=free // FREE_PART)


class HostCopies:
    """Copies within host memory, by the C library, one thread."""

    at_once = 1  # copies of one size that go at the same time

    def __init__(self, largest: int, seed: int, cpu: int) -> None:
        self._copy = native.load(Path(__file__).with_name("copy.c")).copy_repeatedly
        self._copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self._copy.restype = ctypes.c_double
        self._cpu = cpu
        self.facts: dict[str, Any] = {"how": "memcpy of the C library, one thread", "cpu": cpu}
        self._sent = host.random_bytes(largest, seed)
        self.source, self.destination = HostMemory(largest), HostMemory(largest)
        with host.pinned_to(cpu):
            self.source.bytes[:] = self._sent

    def time(self, session: MicroSession, size: int) -> TimedPoint:
        """Time copies of one size, and compare what arrived."""
        with host.pinned_to(self._cpu):
            np.bitwise_not(self._sent[:size], out=self.destination.bytes[:size])
            passes = repeats_for(host.SAMPLE_SECONDS, MOST_PASSES, lambda passes: self._seconds(size, passes))
            point = session.time_reported(
                lambda: [self._seconds(size, passes)],
                TIME,
                "monotonic clock in native code",
                at={"size": size},
                calls=passes,
                work=float(size),
            )
        compare(self._sent[:size], self.destination.bytes[:size], "h2h")
        return point

    def _seconds(self, size: int, passes: int) -> float:
        return float(self._copy(self.destination.address, self.source.address, size, passes))


class Pair(NamedTuple):
    """One copy."""

    way: str
    source: Tensor
    destination: Tensor


class Copier(NamedTuple):
    """What carries out a copy."""

    how: str
    copy: Callable[[Tensor, Tensor], object]  # to, from


def copy_by(by: By, device: Device) -> Copier:
    """The device's copy engines, or its units that compute."""
    if by == "engine":
        return Copier(device.kind.copy_call, lambda to, source: to.copy_(source, non_blocking=True))
    kernel = device.build_kernel(Path(__file__).with_name("copy.cu").read_text(encoding="utf-8"), "copy_by_sm")

    def copy(to: Tensor, source: Tensor) -> None:
        words, rest = divmod(source.nbytes, WORD)
        if words > MOST_WORDS:
            raise Unsupported(f"copies by SM are of {show_size(MOST_WORDS * WORD)} at most: use --by engine, or --size")
        grid = (max(1, min(BLOCKS, -(-words // THREADS))), 1, 1)
        kernel(grid=grid, block=(THREADS, 1, 1), args=[to, source, words, rest])

    return Copier(f"a kernel of {THREADS} threads in up to {BLOCKS} blocks, {WORD} bytes for each at a time", copy)


class DeviceCopies:
    """Copies to, from or within a GPU."""

    def __init__(self, way: Way, host_memory: str, device: Device, largest: int, seed: int, by: Copier) -> None:
        import torch

        self._sent = host.random_bytes(largest, seed)
        sent = torch.from_numpy(self._sent)

        def on_host() -> Tensor:
            return torch.empty(largest, dtype=torch.uint8, pin_memory=host_memory == "pinned").copy_(sent)

        def on_device() -> Tensor:
            return sent.to(device.torch())

        makers = {"h2d": (on_host, on_device), "d2h": (on_device, on_host), "d2d": (on_device, on_device)}
        ways = ["h2d", "d2h"] if way == "h2d and d2h" else [way]
        self.pairs = [Pair(one, makers[one][0](), makers[one][1]()) for one in ways]
        self.at_once = len(self.pairs)
        self.facts = {"how": by.how}
        self._copy = by.copy
        self._can_record = host_memory == "pinned" or way == "d2d"
        self._device = device
        self._side = device.stream() if self.at_once == 2 else None

    def time(self, session: MicroSession, size: int) -> TimedPoint:
        """Time copies of one size, and compare what arrived."""
        for pair in self.pairs:
            # Every byte differs before, so that no copy can be missed.
            pair.destination[:size].copy_(pair.source[:size]).bitwise_not_()
        point = session.time(
            self.call(size),
            TIME,
            at={"size": size},
            work=float(size * self.at_once),
            graph=self._can_record,
        )
        self.check(size)
        return point

    def call(self, size: int) -> Callable[[], object]:
        """The copy of this size, or both of them."""
        (to, source), *rest = [(pair.destination[:size], pair.source[:size]) for pair in self.pairs]
        copy = self._copy
        if self._side is None:
            return lambda: copy(to, source)
        side, (back_to, back_source) = self._side, rest[0]

        def at_once() -> None:
            here = self._device.current_stream()
            side.wait_stream(here)
            copy(to, source)
            with self._device.on_stream(side):
                copy(back_to, back_source)
            here.wait_stream(side)

        return at_once

    def check(self, size: int) -> None:
        """Compare what arrived with what was sent."""
        self._device.synchronize()
        for pair in self.pairs:
            compare(self._sent[:size], pair.destination[:size].cpu().numpy(), pair.way)


def compare(sent: host.Bytes, arrived: host.Bytes, way: str) -> None:
    """A byte that arrived changed, or not at all, is silent corruption."""
    if np.array_equal(sent, arrived):
        return
    wrong = np.flatnonzero(sent != arrived)
    raise SilentCorruption(
        f"{len(wrong)} of {len(sent)} bytes copied {way} did not arrive as they were sent, the first at {wrong[0]}"
    )


def share_of_peak(
    way: Way, device: Device, target: str, size: int, rate: Measurement, time: Measurement
) -> tuple[list[Measurement], dict[str, Any]]:
    """What part of the peak bandwidth the largest copy reached, where the peak is known and bears on it."""
    if way == "h2h":
        return [], {}
    unknown, work = "unknown for this device", rate.work or 0.0
    if way == "d2d":
        share, facts = peak_share(peak_memory_bandwidth(device.name), 2.0 * work, time, unknown)
        is_cached = size < host.BEYOND_CACHE * device.cache_size()
        reason = "the data may stay in the GPU's cache" if is_cached else ""
    else:
        peak = host.pcie_peak(target, ways=2 if way == "h2d and d2h" else 1)
        share, facts = peak_share(peak, work, time, unknown)
        reason = "the copies are faster than PCIe, so they go another way" if peak and rate.value > peak.rate else ""
    if share and reason:
        return [], facts | {"peak_share": f"left out: {reason}"}
    return share, facts
