"""Copies between the GPUs of one machine: the bandwidth of every pair, one way and both ways, and the latency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.parameters import (
    BANDWIDTH,
    TIME,
    MicroParameters,
    TorchBenchmark,
    join_words,
    rate_metric,
    time_metric,
)
from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.memory import host
from paceline.benchmarks.memory.copy import By, copy_by
from paceline.core.benchmark import Context
from paceline.core.environment import Environment
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.core.metric import Merge
from paceline.core.parameters import EachPart
from paceline.core.quantity import Duration, Size
from paceline.core.record import At, Measurement, Record, Result
from paceline.core.subject import Description, ShownCeiling
from paceline.devices import Device, counts, kind_of

if TYPE_CHECKING:
    from torch import Tensor

SMALL = 8  # bytes: what remains of such a copy's time is its latency
ELEMENT_BYTES = 8

MINIMUM = rate_metric(
    "minimum_bandwidth", "of the slowest pair, one way: what bounds everything that takes all GPUs", Merge.FIRST
)
AVERAGE = rate_metric("average_bandwidth", "over all pairs, one way", Merge.FIRST)
MAXIMUM = rate_metric("maximum_bandwidth", "of the fastest pair, one way", Merge.FIRST)
LATENCY = time_metric("latency", f"a copy of {SMALL} bytes, waited for by the host", Merge.FIRST)
BOTH_WAYS_TIME = time_metric("both_ways_time", "a copy each way at the same time, both ended", Merge.FIRST)
BOTH_WAYS_BANDWIDTH = rate_metric("both_ways_bandwidth", "bytes of both copies over their time", Merge.FIRST)


TOTAL = rate_metric(
    "total_bandwidth", "bytes of all copies of a pattern over the time until the last has ended", Merge.FIRST
)
Pattern = Literal["pairs", "one-to-all", "all-to-one", "all-to-all", "host-to-all", "all-to-host"]


class P2pParameters(MicroParameters):
    """How much is copied between two GPUs."""

    size: Size = Field(default=256 * 1024**2, ge=ELEMENT_BYTES)
    """Bytes of one copy, one way"""
    pattern: Pattern = "pairs"
    """pairs: each by itself; the others: all copies of a pattern at the same time, each GPU in turn as the one"""
    by: By = "engine"
    """What copies: the copy engines, or a kernel on the units that compute (SM)"""
    numa_node: Annotated[int | None, EachPart("numa_nodes")] = Field(default=None, ge=0)
    """Where the memory of host-to-all and all-to-host lies; unset leaves it to the system"""
    budget: Duration = Field(default=0.3, gt=0)
    """Time to spend on measuring each pair, at most"""
    warm_up: Duration = 0.2
    """Time to spend on warming up each pair, at most; it ends sooner when the time is steady"""


class P2p(TorchBenchmark[P2pParameters]):
    """Every pair of this machine's GPUs, one after another."""

    name = "p2p"
    summary = "copies between all pairs of GPUs: bandwidth matrix one way and both ways, latency, data checked"
    category = "communication"
    metrics = (MINIMUM, AVERAGE, MAXIMUM, TOTAL, BANDWIDTH, TIME, BOTH_WAYS_BANDWIDTH, BOTH_WAYS_TIME, LATENCY)

    @classmethod
    def title(cls, parameters: P2pParameters) -> str:
        return join_words(
            parameters.pattern if parameters.pattern != "pairs" else "",
            "by SM" if parameters.by == "sm" else "",
            f"NUMA node {parameters.numa_node}" if parameters.numa_node is not None else "",
        )

    @classmethod
    def describe(cls, record: Record, parameters: P2pParameters, environment: Environment) -> Description:
        engine = "sm" if parameters.by == "sm" else "dma"
        if parameters.pattern != "pairs":
            points = [point for point in record.measurements if point.metric.name == TOTAL.name and point.at]
            values = {_key(parameters, engine, point.at.get("gpu")): point.value / _superbench.GIGA for point in points}
            part = f"{parameters.pattern} {engine} {parameters.numa_node}"
            return Description(aliases=_superbench.alias(record, "gpu-copy-bw", values, part=part))
        shown = {"maximum_bandwidth": "GPU to GPU, fastest pair", "minimum_bandwidth": "GPU to GPU, slowest pair"}
        keys = {"gpu{from}_to_gpu{to}_write_by_" + engine + "_bw": ("bandwidth", _superbench.GIGA)}
        ceilings = tuple(ShownCeiling(kind="link", name=name, metric=key) for key, name in shown.items())
        aliases = _superbench.alias(
            record, "gpu-copy-bw", _superbench.means_at(record, keys, "from", "to"), part=engine
        )
        return Description(ceilings=ceilings, aliases=aliases)

    def measure(self, parameters: P2pParameters, context: Context) -> Result:
        kind, gpus = kind_of(context.target), counts()
        if gpus and not kind.is_accelerator:
            gpu = f"{next(iter(gpus))}:0"
            raise Unsupported(
                f"copies between GPUs are not measured on a CPU: use --target {gpu}, which takes all GPUs"
            )
        count = gpus.get(kind.name, 0)
        with_host = parameters.pattern in ("host-to-all", "all-to-host")
        if count < (1 if with_host else 2):
            show = f", and let {kind.visible_variable} show them" if kind.visible_variable else ""
            few = "the host and GPUs take one" if with_host else "GPUs take two of them"
            raise Unsupported(
                f"copies between {few}, but torch sees {count} here: run it on a machine with several GPUs{show}"
            )
        measurements: list[Measurement] = []
        devices = [kind.open(index) for index in range(count)]
        with MicroSession(parameters, context, devices[0]) as session, host.on_node(parameters.numa_node):
            if parameters.pattern != "pairs":
                measurements = _measure_pattern(session, parameters, devices)
            for source, target in permutations(range(count), 2) if parameters.pattern == "pairs" else ():
                # torch copies on the source's stream: it is there that events must lie.
                session.device = devices[source] = kind.open(source)
                measurements += _measure_pair(session, parameters, devices[source], devices[target])
        facts = {
            "size": parameters.size // ELEMENT_BYTES * ELEMENT_BYTES,
            "gpus": [device.name for device in devices],
            "by": copy_by(parameters.by, devices[0]).how,
            "peer_access": {f"{a} to {b}": kind.can_access_peer(a, b) for a, b in permutations(range(count), 2)},
            "checked": "every element of the last copy of every pair",
        }
        if parameters.pattern != "pairs":
            slowest = min((one for one in measurements if one.metric is TOTAL), key=lambda one: one.value)
            return session.result([replace(slowest, at={}), *measurements], facts)
        return session.result([*over_pairs(measurements), *measurements], facts)


def pattern_ends(pattern: str, count: int) -> dict[int | None, list[tuple[int | None, int | None]]]:
    """The copies of a pattern, from and to (None: the host), by the GPU that is the one; None where none is."""
    everyone = range(count)
    if pattern == "host-to-all":
        return {None: [(None, gpu) for gpu in everyone]}
    if pattern == "all-to-host":
        return {None: [(gpu, None) for gpu in everyone]}
    pairs: list[tuple[int | None, int | None]] = list(permutations(everyone, 2))
    if pattern == "all-to-all":
        return {None: pairs}
    end = 0 if pattern == "one-to-all" else 1
    return {one: [pair for pair in pairs if pair[end] == one] for one in everyone}


def _measure_pattern(session: MicroSession, parameters: P2pParameters, devices: list[Device]) -> list[Measurement]:
    measurements = []
    kind = devices[0].kind
    devices[0] = session.device = kind.open(0)  # the current one, whose stream the others wait for
    for one, pairs in pattern_ends(parameters.pattern, len(devices)).items():
        at: At = {"pattern": parameters.pattern, **({} if one is None else {"gpu": one})}
        copies = [
            Copy(
                parameters.size,
                None if source is None else devices[source],
                None if target is None else devices[target],
                parameters.seed + number,
                parameters.by,
            )
            for number, (source, target) in enumerate(pairs)
        ]
        size = float(sum(copy.size for copy in copies))
        point = session.time(at_once(copies, devices[0].current_stream()), TIME, at=at, work=size)
        for copy in copies:
            copy.check()
        measurements += [point.rate(TOTAL, size), point.time]
    return measurements


def _key(parameters: P2pParameters, engine: str, gpu: object) -> str:
    """A pattern as SuperBench names it."""
    words = {"one": f"gpu{gpu}", "all": "gpu_all", "host": "cpu"}
    source, _, target = parameters.pattern.partition("-to-")
    write = "" if "host" in (source, target) else "_write"
    under = "" if parameters.numa_node is None else f"_under_numa{parameters.numa_node}"
    return f"{words[source]}_to_{words[target]}{write}_by_{engine}{under}_bw"


def over_pairs(measurements: list[Measurement]) -> list[Measurement]:
    """The slowest pair, the average pair and the fastest, of the copies one way."""
    rates = [measurement.value for measurement in measurements if measurement.metric.name == BANDWIDTH.name]
    values = {MINIMUM: min(rates), AVERAGE: sum(rates) / len(rates), MAXIMUM: max(rates)}
    return [Measurement.of_value(metric, value) for metric, value in values.items()]


def _measure_pair(
    session: MicroSession, parameters: P2pParameters, source: Device, target: Device
) -> list[Measurement]:
    first, second = source.torch().index, target.torch().index
    at: At = {"from": first, "to": second}
    there = Copy(parameters.size, source, target, parameters.seed, parameters.by)
    size = there.size
    one_way = session.time(there.call, TIME, at=at, work=size)
    there.check()
    small = Copy(SMALL, source, target, parameters.seed, parameters.by)
    latency = session.time(small.call, LATENCY, at=at, each=True)
    small.check()
    measurements = [one_way.rate(BANDWIDTH, size), one_way.time, latency.time]
    if first < second:  # the other order is the same work
        back = Copy(parameters.size, target, source, parameters.seed + 1, parameters.by)
        both = session.time(at_once([there, back], source.current_stream()), BOTH_WAYS_TIME, at=at, work=2 * size)
        there.check()
        back.check()
        measurements += [both.rate(BOTH_WAYS_BANDWIDTH, 2 * size), both.time]
    return measurements


class Copy:
    """Data at one end, room for it at the other, and the copy from here to there; None as an end is the host."""

    def __init__(self, size: int, source: Device | None, target: Device | None, seed: int, by: By = "engine") -> None:
        self.ends = [end for end in (source, target) if end is not None]
        if by == "sm" and source and target and not source.kind.can_access_peer(*self._indices):
            raise Unsupported(
                f"no kernel of GPU {self._indices[0]} reaches the memory of GPU {self._indices[1]}: use --by engine"
            )
        self._names = [f"GPU {end.torch().index}" if end else "the host" for end in (source, target)]
        self._count = size // ELEMENT_BYTES
        self.size = self._count * ELEMENT_BYTES  # bytes that are copied
        self._seed, self._target = seed, target
        self._from, self._to = self._data(source), self._data(target).zero_()
        issuing = self.ends[0]
        with issuing.on_stream(issuing.current_stream()) if by == "sm" else nullcontext():
            self._copy = copy_by(by, issuing).copy  # a kernel belongs to the GPU that is current
            self._to.copy_(self._from).zero_()  # torch opens the way between two GPUs at the first copy
        self._wait()

    @property
    def _indices(self) -> list[int]:
        return [end.torch().index for end in self.ends]

    def call(self) -> None:
        """Copy; the host does not wait."""
        self._copy(self._to, self._from)

    def check(self) -> None:
        """Every element must have arrived; then the destination is cleared for the next."""
        self._wait()
        wrong = self._to != self._data(self._target)
        if bool(wrong.any()):
            index = int(wrong.nonzero()[0])
            raise SilentCorruption(
                f"a copy from {self._names[0]} to {self._names[1]} is wrong at element {index}: {int(self._to[index])} "
                f"instead of {int(self._from[index])}"
            )
        self._to.zero_()
        self._wait()

    def _wait(self) -> None:
        for end in self.ends:
            end.synchronize()

    def _data(self, device: Device | None) -> Tensor:
        """Computed alike at both ends, so that the check needs no copy; never zero, for that is what clears."""
        import torch

        numbers = torch.arange(1, self._count + 1, dtype=torch.int64, device=device.torch() if device else "cpu")
        numbers.mul_(0x9E3779B97F4A7C15 - (1 << 64)).add_(2 * (self._seed % (1 << 32))).bitwise_or_(1)
        return numbers if device else numbers.pin_memory()


def at_once(copies: Sequence[Copy], main: Any) -> Callable[[], None]:
    """Copies at the same time, as one call on a stream of one GPU.

    Each copy has streams of its own on both GPUs: torch makes the streams of both ends wait for a copy, so that on
    shared ones the second would wait for the first.
    """
    each = [(copy, [(end, end.stream()) for end in copy.ends]) for copy in copies]

    def call() -> None:
        for copy, streams in each:
            with ExitStack() as entered:
                for end, stream in reversed(streams):  # the source last: it is there that a copy is issued
                    stream.wait_stream(main)
                    entered.enter_context(end.on_stream(stream))
                copy.call()
        for _, streams in each:
            for _, stream in streams:
                main.wait_stream(stream)

    return call
