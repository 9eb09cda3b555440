"""Computation while a collective runs: how much each slows the other down, and how much of the time is hidden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import MicroParameters, TorchBenchmark, time_metric
from paceline.benchmarks._micro.session import MicroSession, headline, repeated
from paceline.benchmarks.communication._exchange import OPERATIONS, OperationName, TorchExchange, Transfer
from paceline.benchmarks.ranks import join
from paceline.core.benchmark import Context
from paceline.core.environment import Environment
from paceline.core.errors import Unsupported
from paceline.core.metric import Better, Merge, Metric
from paceline.core.quantity import Size
from paceline.core.record import At, Measurement, Record, Result
from paceline.core.subject import Description, FloatPrecision
from paceline.devices import Device, open_device
from paceline.devices.timeline import monotonic
from paceline.models.base import set_fp32_mode

Computation = Callable[[], object]


@dataclass(frozen=True)
class EndTimes:
    """Seconds from the common begin to the end of each; zero for what did not run."""

    computed: float
    arrived: float

    @property
    def whole(self) -> float:
        """Until both had ended."""
        return max(self.computed, self.arrived)


class HostRunner:
    """Runs a computation, a collective, or both; returns when they have ended.

    `compute` issues the computation; `start` begins the collective and returns its handle. The collective runs in the
    backend's threads while this thread computes.
    """

    how = "host monotonic clock; the collective's end is noted by the thread that carried it out"

    def __call__(self, compute: Computation | None, start: Callable[[], Any] | None) -> EndTimes:
        begun = monotonic()
        ended = start().get_future().then(lambda _: monotonic()) if start else None
        if compute:
            compute()
        computed = monotonic() - begun if compute else 0.0
        return EndTimes(computed, ended.wait() - begun if ended else 0.0)


class DeviceRunner:
    """The same on an accelerator: the collective runs on the backend's stream, the computation on the current one.

    Issuing takes microseconds and returns long before the work is done: the events are read after the device was
    synchronised, never a clock before it.
    """

    how = "device events on the stream of each, read after the device was synchronised"

    def __init__(self, device: Device) -> None:
        self._device = device
        self._side_stream = device.stream()
        self._begun, self._computed, self._arrived = device.event(), device.event(), device.event()

    def __call__(self, compute: Computation | None, start: Callable[[], Any] | None) -> EndTimes:
        self._device.synchronize()
        self._begun.record()
        if start:
            handle = start()
            with self._device.on_stream(self._side_stream):
                handle.wait()  # makes this stream wait, neither the host nor the computation
                self._arrived.record()
        if compute:
            compute()
            self._computed.record()
        self._device.synchronize()
        return EndTimes(
            self._begun.elapsed_time(self._computed) * 1e-3 if compute else 0.0,
            self._begun.elapsed_time(self._arrived) * 1e-3 if start else 0.0,
        )


GPU_SIZE, CPU_SIZE = 256 * 1024**2, 4 * 1024**2
GPU_MATMUL, CPU_MATMUL = 2048, 384
TRIALS = 5


def _slowdown(name: str) -> Metric:
    words = f"time of the {name} alongside the other over its time alone, on the rank where it is worst"
    return Metric(name=f"{name}_slowdown", unit="x", better=Better.LOWER, merge=Merge.MAXIMUM, description=words)


PARTS = ("multiply", "matmul", "collective")
ALONE = {name: time_metric(f"{name}_time", f"time of the {name} alone") for name in PARTS}
TOGETHER = {name: time_metric(f"{name}_time_together", f"time of the {name} while the other runs") for name in PARTS}
SLOWDOWN = {name: _slowdown(name) for name in PARTS}
WHOLE_TIME = time_metric("together_time", "from the common begin until both have ended")
OVERLAP = Metric(
    name="overlap",
    unit="%",
    better=Better.HIGHER,
    merge=Merge.MINIMUM,
    description="part of the shorter one's time that was hidden behind the longer; below zero, one after the other "
    "would have been faster",
)


class ComputeDuringCollectiveParameters(MicroParameters):
    """A collective and the computations alongside it."""

    operation: OperationName = "all-reduce"
    """all-reduce, all-gather, broadcast, reduce, reduce-scatter, all-to-all"""
    size: Size | None = Field(default=None, ge=1)
    """Bytes of the collective's whole array and of each operand of the multiplication; unset is 256MiB, 4MiB on CPUs"""
    matmul_size: int | None = Field(default=None, ge=1)
    """Edge of the square matrices; unset is 2048, 384 on CPUs"""
    precision: FloatPrecision = "fp32"
    """Format of all data"""


class ComputeDuringCollective(TorchBenchmark[ComputeDuringCollectiveParameters]):
    """Each alone, then together; the computation is repeated until it is about as long as the collective."""

    name = "compute-during-collective"
    summary = "elementwise multiply and matmul while a collective runs: slow-down of each, overlap"
    category = "communication"
    metrics = (OVERLAP, *SLOWDOWN.values(), *ALONE.values(), *TOGETHER.values(), WHOLE_TIME)
    distributed = True

    @classmethod
    def describe(
        cls, record: Record, parameters: ComputeDuringCollectiveParameters, environment: Environment
    ) -> Description:
        keys = {
            "mul_time": ("multiply_time_together", _superbench.MS),
            "matmul_time": ("matmul_time_together", _superbench.MS),
        }
        group = "pytorch-computation-communication-overlap"
        aliases = _superbench.alias(record, group, _superbench.means(record, keys), gpu=True)
        return Description(aliases=aliases)

    def measure(self, parameters: ComputeDuringCollectiveParameters, context: Context) -> Result:
        if context.world_size == 1:
            remedy = "--ranks 2 or more" if context.target == "cpu" else "--target 'cuda:*' with several GPUs"
            raise Unsupported(f"a collective takes several ranks, but there is one: use {remedy}")
        device = open_device(context.target)
        with join(context, device.kind) as ranks, MicroSession(parameters, context, device, ranks) as session:
            trial = Trial(parameters, session)
            measurements = trial.measure()
        facts = {
            "operation": parameters.operation,
            "size": trial.exchange.payload.size,
            "matmul_size": trial.edge,
            "repeats": trial.repeats,
            "overlap": "(computation alone + collective alone - together) / the shorter of the two alone",
            "checked": "the collective's result, every element, alone and alongside each computation",
        }
        return session.result(measurements, facts)


class Trial:
    """The collective, the computations, and what is measured of them."""

    def __init__(self, parameters: ComputeDuringCollectiveParameters, session: MicroSession) -> None:
        self._parameters = parameters
        self._session, self._ranks, device = session, session.ranks, session.device
        operation = OPERATIONS[parameters.operation]
        size, edge = (GPU_SIZE, GPU_MATMUL) if device.kind.is_accelerator else (CPU_SIZE, CPU_MATMUL)
        self.edge = parameters.matmul_size or edge
        self.repeats: dict[str, int] = {}
        transfer = Transfer(operation, parameters.precision, operation.in_place(None, "torch"), parameters.seed)
        self.exchange = TorchExchange(transfer, session.ranks, parameters.size or size, device)
        self._run = DeviceRunner(device) if device.kind.is_accelerator else HostRunner()

    def measure(self) -> list[Measurement]:
        """All figures: each alone, each computation together with the collective, and what follows from them."""
        self.exchange.check(self._ranks)
        self.exchange.payload.prepare()
        collective = self._alone("collective", None)
        times, overlaps, slowdowns = [collective], [], []
        for name, once in self._computations().items():
            compute = self._as_long_as(collective.value, name, once)
            alone = self._alone(name, compute)
            at: At = {"compute": name}
            computing, moving, whole = self._together(name, compute, at)
            slowdowns.append(Measurement.of_value(SLOWDOWN["collective"], moving.value / collective.value, at=at))
            hidden = alone.value + collective.value - whole.value
            share = 100.0 * hidden / min(alone.value, collective.value)
            overlaps.append(Measurement.of_value(OVERLAP, share, at=at))
            slowdown = Measurement.of_value(SLOWDOWN[name], computing.value / alone.value)
            times += [alone, computing, slowdown, moving, whole]
        return [headline(overlaps), headline(slowdowns), *overlaps, *slowdowns, *times]

    def _computations(self) -> dict[str, Computation]:
        """The last one is the headline."""
        import torch

        precision, count = self._parameters.precision, self.exchange.payload.count
        generator = torch.Generator(self._session.device.torch()).manual_seed(self._parameters.seed)

        def operands(*shape: int) -> list[Any]:
            return [formats.random_operand(precision, shape, generator) for _ in range(3)]

        set_fp32_mode(precision)
        a, b, product = operands(count)
        left, right, result = operands(self.edge, self.edge)
        return {
            "multiply": lambda: torch.mul(a, b, out=product),
            "matmul": lambda: torch.mm(left, right, out=result),
        }

    def _as_long_as(self, seconds: float, name: str, once: Computation) -> Computation:
        """The computation so often that it takes about as long; the same number on every rank."""
        tries = [self._run(once, None).computed for _ in range(TRIALS + 1)]
        repeats = self.repeats[name] = self._ranks.smallest(max(1, round(seconds / median(tries[1:]))))
        return repeated(once, repeats)

    def _alone(self, name: str, compute: Computation | None) -> Measurement:
        def step() -> list[float]:
            self._ranks.meet()
            return [self._run(compute, None if compute else self.exchange.start).whole]

        return headline([self._session.time_reported(step, ALONE[name], self._run.how, at={"alone": name}).time])

    def _together(self, name: str, compute: Computation, at: At) -> tuple[Measurement, Measurement, Measurement]:
        """The times of the computation, of the collective, and of both; the collective is checked alongside it."""
        runs: list[EndTimes] = []

        def step() -> list[float]:
            self._ranks.meet()
            runs.append(self._run(compute, self.exchange.start))
            return [runs[-1].whole]

        def check() -> None:
            self.exchange.payload.prepare()
            step()
            self.exchange.verify(self._ranks)

        check()
        whole = self._session.time_reported(step, WHOLE_TIME, self._run.how, at=at)
        measured = runs[-whole.timed.executed :]
        check()
        computing = Measurement.of_samples(TOGETHER[name], [one.computed for one in measured])
        moving = Measurement.of_samples(TOGETHER["collective"], [one.arrived for one in measured], at=at)
        return computing, moving, whole.time
