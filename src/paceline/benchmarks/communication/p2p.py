"""Copies between the GPUs of one machine: the bandwidth of every pair, one way and both ways, and the latency."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import TYPE_CHECKING

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.metrics import BANDWIDTH, TIME, rate_metric, time_metric
from paceline.benchmarks._micro.parameters import MicroParameters, TorchBenchmark
from paceline.benchmarks._micro.session import MicroSession
from paceline.core.benchmark import Context
from paceline.core.environment import Environment
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.core.metric import Merge
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


class P2pParameters(MicroParameters):
    """How much is copied between two GPUs."""

    size: Size = Field(default=256 * 1024**2, ge=ELEMENT_BYTES)
    """Bytes of one copy, one way"""
    budget: Duration = Field(default=0.3, gt=0)
    """Time to spend on measuring each pair, at most"""
    warm_up: Duration = 0.2
    """Time to spend on warming up each pair, at most; it ends sooner when the time is steady"""


class P2p(TorchBenchmark[P2pParameters]):
    """Every pair of this machine's GPUs, one after another."""

    name = "p2p"
    summary = "copies between all pairs of GPUs: bandwidth matrix one way and both ways, latency, data checked"
    category = "communication"
    metrics = (MINIMUM, AVERAGE, MAXIMUM, BANDWIDTH, TIME, BOTH_WAYS_BANDWIDTH, BOTH_WAYS_TIME, LATENCY)

    @classmethod
    def describe(cls, record: Record, parameters: P2pParameters, environment: Environment) -> Description:
        shown = {"maximum_bandwidth": "GPU to GPU, fastest pair", "minimum_bandwidth": "GPU to GPU, slowest pair"}
        keys = {"gpu{from}_to_gpu{to}_write_by_dma_bw": ("bandwidth", _superbench.GIGA)}
        ceilings = tuple(ShownCeiling(kind="link", name=name, metric=key) for key, name in shown.items())
        aliases = _superbench.alias(record, "gpu-copy-bw", _superbench.means_at(record, keys, "from", "to"))
        return Description(ceilings=ceilings, aliases=aliases)

    def measure(self, parameters: P2pParameters, context: Context) -> Result:
        kind, gpus = kind_of(context.target), counts()
        if gpus and not kind.is_accelerator:
            gpu = f"{next(iter(gpus))}:0"
            raise Unsupported(
                f"copies between GPUs are not measured on a CPU: use --target {gpu}, which takes all GPUs"
            )
        count = gpus.get(kind.name, 0)
        if count < 2:
            show = f", and let {kind.visible_variable} show them" if kind.visible_variable else ""
            raise Unsupported(
                f"copies between GPUs take two of them, but torch sees {count} here: run it on a machine with several "
                f"GPUs{show}"
            )
        measurements: list[Measurement] = []
        devices = [kind.open(index) for index in range(count)]
        with MicroSession(parameters, context, devices[0]) as session:
            for source, target in permutations(range(count), 2):
                # torch copies on the source's stream: it is there that events must lie.
                session.device = devices[source] = kind.open(source)
                measurements += _measure_pair(session, parameters, devices[source], devices[target])
        facts = {
            "size": parameters.size // ELEMENT_BYTES * ELEMENT_BYTES,
            "gpus": [device.name for device in devices],
            "peer_access": {f"{a} to {b}": kind.can_access_peer(a, b) for a, b in permutations(range(count), 2)},
            "checked": "every element of the last copy of every pair",
        }
        return session.result([*over_pairs(measurements), *measurements], facts)


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
    there = Copy(parameters.size, source, target, parameters.seed)
    size = there.size
    one_way = session.time(there.call, TIME, at=at, work=size)
    there.check()
    small = Copy(SMALL, source, target, parameters.seed)
    latency = session.time(small.call, LATENCY, at=at, each=True)
    small.check()
    measurements = [one_way.rate(BANDWIDTH, size), one_way.time, latency.time]
    if first < second:  # the other order is the same work
        back = Copy(parameters.size, target, source, parameters.seed + 1)
        both = session.time(both_ways(there, back), BOTH_WAYS_TIME, at=at, work=2 * size)
        there.check()
        back.check()
        measurements += [both.rate(BOTH_WAYS_BANDWIDTH, 2 * size), both.time]
    return measurements


class Copy:
    """Data on one GPU, room for it on another, and the copy from here to there."""

    def __init__(self, size: int, source: Device, target: Device, seed: int) -> None:
        import torch

        self.source, self.target = source, target
        self._count = size // ELEMENT_BYTES
        self.size = self._count * ELEMENT_BYTES  # bytes that are copied
        self._seed = seed
        self._from = self._data(source)
        self._to = torch.zeros(self._count, dtype=torch.int64, device=target.torch())
        source.synchronize()
        target.synchronize()

    def call(self) -> None:
        """Copy; the host does not wait."""
        self._to.copy_(self._from, non_blocking=True)

    def check(self) -> None:
        """Every element must have arrived; then the destination is cleared for the next."""
        self.source.synchronize()
        self.target.synchronize()
        wrong = self._to != self._data(self.target)
        if bool(wrong.any()):
            index = int(wrong.nonzero()[0])
            raise SilentCorruption(
                f"a copy from GPU {self.source.torch().index} to GPU {self.target.torch().index} is wrong at "
                f"element {index}: {int(self._to[index])} instead of {int(self._from[index])}"
            )
        self._to.zero_()
        self.target.synchronize()

    def _data(self, device: Device) -> Tensor:
        """Computed alike on both GPUs, so that the check needs no copy; never zero, for that is what clears."""
        import torch

        numbers = torch.arange(1, self._count + 1, dtype=torch.int64, device=device.torch())
        return numbers.mul_(0x9E3779B97F4A7C15 - (1 << 64)).add_(2 * (self._seed % (1 << 32))).bitwise_or_(1)


def both_ways(there: Copy, back: Copy) -> Callable[[], None]:
    """Both copies at once, as one call on the first GPU's stream.

    Each copy has streams of its own on both GPUs: torch makes the streams of both ends wait for a copy, so that on
    shared ones the second would wait for the first.
    """
    main = there.source.current_stream()
    pairs = [(copy, copy.source.stream(), copy.target.stream()) for copy in (there, back)]

    def call() -> None:
        for copy, at_source, at_target in pairs:
            at_source.wait_stream(main)
            with copy.target.on_stream(at_target), copy.source.on_stream(at_source):
                copy.call()
        for _, at_source, at_target in pairs:
            main.wait_stream(at_source)
            main.wait_stream(at_target)

    return call
