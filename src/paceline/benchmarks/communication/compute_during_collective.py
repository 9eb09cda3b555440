"""Computation while a collective runs: how much each slows the other down, and how much of the time is hidden."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Protocol

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import MicroParameters
from paceline.benchmarks._micro.session import MicroSession, headline
from paceline.benchmarks.communication._exchange import TorchExchange
from paceline.benchmarks.communication._operations import OPERATIONS, OperationName
from paceline.benchmarks.ranks import Ranks, join
from paceline.core.benchmark import Benchmark, Context, Progress
from paceline.core.environment import Environment
from paceline.core.errors import Unsupported
from paceline.core.metric import Better, Merge, Metric
from paceline.core.quantity import Size
from paceline.core.record import At, Measurement, Record, Result
from paceline.core.subject import Description, FloatPrecision
from paceline.devices import Device, open_device
from paceline.devices.timeline import monotonic
from paceline.models.base import set_fp32_mode


@dataclass(frozen=True)
class Seen:
    """Seconds from the common begin to the end of each; zero for what did not run."""

    computed: float
    arrived: float

    @property
    def whole(self) -> float:
        """Until both had ended."""
        return max(self.computed, self.arrived)


class Runner(Protocol):
    """Runs a computation, a collective, or both; returns when they have ended."""

    how: str  # for the record: how the time is taken

    def __call__(self, compute: Callable[[], object] | None, start: Callable[[], Any] | None) -> Seen:
        """`compute` issues the computation; `start` begins the collective and returns its handle."""


def runner_on(device: Device) -> Runner:
    """How it is done on this device."""
    return DeviceRunner(device) if device.kind.is_accelerator else HostRunner()


class HostRunner:
    """The collective runs in the backend's threads while this thread computes."""

    how = "host monotonic clock; the collective's end is noted by the thread that carried it out"

    def __call__(self, compute: Callable[[], object] | None, start: Callable[[], Any] | None) -> Seen:
        begun = monotonic()
        ended = start().get_future().then(lambda _: monotonic()) if start else None
        if compute:
            compute()
        computed = monotonic() - begun if compute else 0.0
        return Seen(computed, ended.wait() - begun if ended else 0.0)


class DeviceRunner:
    """The collective runs on the backend's stream while the computation runs on the current one.

    Issuing takes microseconds and returns long before the work is done: the events are read after the device was
    synchronised, never a clock before it.
    """

    how = "device events on the stream of each, read after the device was synchronised"

    def __init__(self, device: Device) -> None:
        self._device = device
        self._beside = device.stream()
        self._begun, self._computed, self._arrived = device.event(), device.event(), device.event()

    def __call__(self, compute: Callable[[], object] | None, start: Callable[[], Any] | None) -> Seen:
        self._device.synchronize()
        self._begun.record()
        if start:
            handle = start()
            with self._device.on_stream(self._beside):
                handle.wait()  # makes this stream wait, neither the host nor the computation
                self._arrived.record()
        if compute:
            compute()
            self._computed.record()
        self._device.synchronize()
        return Seen(
            self._begun.elapsed_time(self._computed) * 1e-3 if compute else 0.0,
            self._begun.elapsed_time(self._arrived) * 1e-3 if start else 0.0,
        )


Computation = Callable[[], object]

GPU_SIZE, CPU_SIZE = 256 * 1024**2, 4 * 1024**2
GPU_MATMUL, CPU_MATMUL = 2048, 384
TRIALS = 5


def _time(name: str, description: str) -> Metric:
    return Metric(name=name, unit="s", better=Better.LOWER, merge=Merge.SLOWEST, description=description)


def _slowdown(name: str) -> Metric:
    words = f"time of the {name} beside the other over its time alone, on the rank where it is worst"
    return Metric(name=f"{name}_slowdown", unit="x", better=Better.LOWER, merge=Merge.MAXIMUM, description=words)


COMPUTATIONS = ("multiply", "matmul")  # the last one is the headline
ALONE = {name: _time(f"{name}_time", f"time of the {name} alone") for name in (*COMPUTATIONS, "collective")}
TOGETHER = {
    name: _time(f"{name}_time_together", f"time of the {name} while the other runs")
    for name in (*COMPUTATIONS, "collective")
}
SLOWDOWN = {name: _slowdown(name) for name in (*COMPUTATIONS, "collective")}
WHOLE_TIME = _time("together_time", "from the common begin until both have ended")
OVERLAP = Metric(
    name="overlap",
    unit="%",
    better=Better.HIGHER,
    merge=Merge.MINIMUM,
    description="part of the shorter one's time that was hidden behind the longer; below zero, one after the other "
    "would have been faster",
)


class ComputeDuringCollectiveParameters(MicroParameters):
    """A collective and the computations beside it."""

    operation: OperationName = "all-reduce"
    """all-reduce, all-gather, broadcast, reduce, reduce-scatter, all-to-all"""
    size: Size | None = Field(default=None, ge=1)
    """Bytes of the collective's whole array and of each operand of the multiplication; unset is 256MiB, 4MiB on CPUs"""
    matmul_size: int | None = Field(default=None, ge=1)
    """Edge of the square matrices; unset is 2048, 384 on CPUs"""
    precision: FloatPrecision = "fp32"
    """Format of all data"""


class ComputeDuringCollective(Benchmark[ComputeDuringCollectiveParameters]):
    """Each alone, then together; the computation is repeated until it is about as long as the collective."""

    name = "compute-during-collective"
    summary = "elementwise multiply and matmul while a collective runs: slow-down of each, overlap"
    category = "communication"
    Parameters = ComputeDuringCollectiveParameters
    metrics = (OVERLAP, *SLOWDOWN.values(), *ALONE.values(), *TOGETHER.values(), WHOLE_TIME)
    primary = "overlap"
    distributed = True

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        return ("torch",)

    @classmethod
    def describe(
        cls, record: Record, parameters: ComputeDuringCollectiveParameters, environment: Environment
    ) -> Description:
        said = super().describe(record, parameters, environment)
        keys = {
            "mul_time": ("multiply_time_together", _superbench.MS),
            "matmul_time": ("matmul_time_together", _superbench.MS),
        }
        group, note = "pytorch-computation-communication-overlap", _superbench.cpu_note(record.case)
        aliases = _superbench.alias(record, group, _superbench.means(record, keys), note=note)
        return said.model_copy(update={"aliases": aliases})

    def measure(self, parameters: ComputeDuringCollectiveParameters, context: Context) -> Result:
        if context.world_size == 1:
            remedy = "--ranks 2 or more" if context.target == "cpu" else "--target 'cuda:*' with several GPUs"
            raise Unsupported(f"a collective takes several ranks, but there is one: use {remedy}")
        device = open_device(context.target)
        context.report(Progress(phase="preparing"))
        with join(context, device.kind) as ranks, MicroSession(parameters, context, device, ranks) as session:
            trial = Trial(parameters, session, ranks)
            found = trial.measure()
        operation = OPERATIONS[parameters.operation]
        facts = {
            "operation": operation.name,
            "size": trial.exchange.payload.size,
            "matmul_size": trial.edge,
            "repeats": trial.repeats,
            "overlap": "(computation alone + collective alone - together) / the shorter of the two alone",
            "checked": "the collective's result, every element, alone and beside each computation",
        }
        return session.result(found, facts)


@dataclass
class Trial:
    """The collective, the computations, and what is measured of them."""

    parameters: ComputeDuringCollectiveParameters
    session: MicroSession
    ranks: Ranks
    repeats: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parameters, device = self.parameters, self.session.device
        operation = OPERATIONS[parameters.operation]
        size, edge = (GPU_SIZE, GPU_MATMUL) if device.kind.is_accelerator else (CPU_SIZE, CPU_MATMUL)
        self.edge = parameters.matmul_size or edge
        self.exchange = TorchExchange(
            operation,
            self.ranks,
            parameters.size or size,
            device,
            precision=parameters.precision,
            in_place=operation.in_place(None, "torch"),
            seed=parameters.seed,
        )
        self._run: Runner = runner_on(device)

    def measure(self) -> list[Measurement]:
        """All figures: each alone, each computation together with the collective, and what follows from them."""
        self.exchange.check()
        self.exchange.payload.prepare()
        collective = self._alone("collective", None)
        found, overlaps, slowdowns = [collective], [], []
        for name, once in _computations(self.parameters, self.edge, self.exchange.payload.count, self.session.device):
            compute = self._as_long_as(collective.value, name, once)
            alone = self._alone(name, compute)
            at: At = {"compute": name}
            computing, moving, whole = self._together(name, compute, at)
            slowdowns.append(_ratio(SLOWDOWN["collective"], moving, collective, at))
            overlaps.append(_overlap(alone, collective, whole, at))
            found += [alone, computing, _ratio(SLOWDOWN[name], computing, alone, {}), moving, whole]
        return [headline(overlaps), headline(slowdowns), *overlaps, *slowdowns, *found]

    def _as_long_as(self, seconds: float, name: str, once: Computation) -> Computation:
        """The computation so often that it takes about as long; the same number on every rank."""
        tries = [self._run(once, None).computed for _ in range(TRIALS + 1)]
        repeats = self.ranks.smallest(max(1, round(seconds / median(tries[1:]))))
        self.repeats[name] = repeats

        def compute() -> None:
            for _ in range(repeats):
                once()

        return compute

    def _alone(self, name: str, compute: Computation | None) -> Measurement:
        start = None if compute else self.exchange.start

        def step() -> list[float]:
            self.ranks.meet()
            seen = self._run(compute, start)
            return [seen.computed if compute else seen.arrived]

        timed = self.session.time_reported(step, ALONE[name], self._run.how, at={"alone": name})
        return replace(timed.time, at={})

    def _together(self, name: str, compute: Computation, at: At) -> tuple[Measurement, Measurement, Measurement]:
        """The times of the computation, of the collective, and of both; the collective is checked beside it."""
        seen: list[Seen] = []

        def step() -> list[float]:
            self.ranks.meet()
            seen.append(self._run(compute, self.exchange.start))
            return [seen[-1].whole]

        def check() -> None:
            self.exchange.payload.prepare()
            step()
            self.exchange.verify()

        check()
        whole = self.session.time_reported(step, WHOLE_TIME, self._run.how, at=at)
        measured = seen[-whole.timed.executed :]
        check()
        computing = Measurement.of_samples(TOGETHER[name], [one.computed for one in measured])
        moving = Measurement.of_samples(TOGETHER["collective"], [one.arrived for one in measured], at=at)
        return computing, moving, whole.time


def _computations(
    parameters: ComputeDuringCollectiveParameters, edge: int, count: int, device: Device
) -> list[tuple[str, Computation]]:
    import torch

    generator = torch.Generator(device.torch()).manual_seed(parameters.seed)

    def operand(*shape: int) -> Any:
        return formats.random_operand(parameters.precision, shape, generator)

    set_fp32_mode(parameters.precision)
    a, b, product = operand(count), operand(count), operand(count)
    left, right, result = operand(edge, edge), operand(edge, edge), operand(edge, edge)
    return [
        ("multiply", lambda: torch.mul(a, b, out=product)),
        ("matmul", lambda: torch.mm(left, right, out=result)),
    ]


def _ratio(metric: Metric, together: Measurement, alone: Measurement, at: At) -> Measurement:
    return Measurement.of_value(metric, together.value / alone.value, at=at)


def _overlap(computation: Measurement, collective: Measurement, whole: Measurement, at: At) -> Measurement:
    hidden = computation.value + collective.value - whole.value
    return Measurement.of_value(OVERLAP, 100.0 * hidden / min(computation.value, collective.value), at=at)
