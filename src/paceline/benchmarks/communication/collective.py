"""Collective operations among ranks: how fast data moves, from a few bytes to gigabytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.parameters import (
    TIME,
    MicroParameters,
    Sizes,
    TorchBenchmark,
    join_words,
    rate_metric,
    show_sizes,
)
from paceline.benchmarks._micro.session import MicroSession, headline
from paceline.benchmarks.communication import _mpi
from paceline.benchmarks.communication._exchange import (
    OPERATIONS,
    Library,
    Operation,
    OperationName,
    TorchExchange,
    Transfer,
)
from paceline.benchmarks.ranks import join
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, Unsupported
from paceline.core.metric import Merge
from paceline.core.network import FromNetwork
from paceline.core.quantity import Duration
from paceline.core.record import Measurement, Record, Result
from paceline.core.subject import BYTES, Description, FloatPrecision, ShownCeiling, key_word
from paceline.devices import DeviceKind, kind_of, open_device

# Each eight times the one before.
GPU_SIZES = [8**power for power in range(1, 11)]  # 8 B to 1 GiB
CPU_SIZES = [32 * 8**power for power in range(8)]  # 32 B to 64 MiB

ALGORITHM_BANDWIDTH = rate_metric(
    "algorithm_bandwidth", "size of the whole array over the time of the slowest rank", Merge.MEAN
)
BUS_BANDWIDTH = rate_metric(
    "bus_bandwidth",
    "algorithm bandwidth times the part that must pass each rank's link; compares with the link's speed",
    Merge.MEAN,
)


class CollectiveParameters(MicroParameters):
    """An operation, who carries it out, and at which sizes."""

    operation: OperationName = "all-reduce"
    """all-reduce, all-gather, broadcast, reduce, reduce-scatter, all-to-all"""
    backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    """Who moves the data; auto takes nccl between GPUs and gloo between CPUs"""
    sizes: Sizes | None = None
    """Sizes of the whole array, the largest being the headline; unset is 8B to 1GiB (32B to 64MiB on CPUs)"""
    precision: FloatPrecision = "fp32"
    """Format of the elements"""
    in_place: bool | None = None
    """Send from and receive into one buffer; unset is what the operation is usually done like"""
    hostfile: Annotated[str | None, FromNetwork(never="names hosts, which the leader chooses")] = None
    """With backend mpi: a file that lists the hosts, as mpirun reads it; unset stays on this machine"""
    budget: Duration = Field(default=0.5, gt=0)
    """Time to spend on measuring each size, at most"""
    warm_up: Duration = 0.25
    """Time to spend on warming up each size, at most; it ends sooner when the time is steady"""

    def transfer(self, library: Library) -> Transfer:
        """What is moved; a way that the library does not have is unsupported."""
        operation = OPERATIONS[self.operation]
        return Transfer(operation, self.precision, operation.in_place(self.in_place, library), self.seed)


class Collective(TorchBenchmark[CollectiveParameters]):
    """One collective operation over a sweep of sizes, every element of its results checked."""

    name = "collective"
    summary = "collective operation between ranks (nccl, gloo, mpi): bus bandwidth by size, results checked"
    category = "communication"
    metrics = (BUS_BANDWIDTH, ALGORITHM_BANDWIDTH, TIME)
    distributed = True
    without_torch = ("backend", "mpi")
    exchange: ClassVar[type[TorchExchange]] = TorchExchange  # what carries out the operation

    @classmethod
    def title(cls, parameters: CollectiveParameters) -> str:
        return join_words(
            parameters.operation,
            parameters.backend if parameters.backend != "auto" else "",
            parameters.precision if parameters.precision != "fp32" else "",
            {None: "", True: "in place", False: "out of place"}[parameters.in_place],
            show_sizes(parameters.sizes),
        )

    @classmethod
    def check(cls, parameters: CollectiveParameters, case: Case) -> None:
        if parameters.hostfile is not None and parameters.backend != "mpi":
            message = f"hostfile = {parameters.hostfile} goes with backend = mpi alone, not {parameters.backend}"
            raise InputError("key-does-not-apply", message, key="hostfile", value=parameters.hostfile)
        if parameters.hostfile is not None and case.origin == "local":
            _mpi.check_hosts(parameters.hostfile)

    @classmethod
    def describe(cls, record: Record, parameters: CollectiveParameters, environment: Environment) -> Description:
        rank = "processes" if record.case.target == "cpu" else "GPUs"
        name = f"{parameters.operation}, {record.case.ranks} {rank}"
        shown = [ShownCeiling(kind="link", name=name, metric="bus_bandwidth")]
        sizes = [m.at for m in record.measurements if m.metric.name == "time" and not m.scope and "size" in m.at]
        if sizes:
            smallest = min(sizes, key=lambda at: float(at["size"]))
            shown.append(ShownCeiling(kind="latency", name=name, metric="time", at=smallest))
        backend: str = parameters.backend
        if backend == "auto":
            backend = kind_of(record.case.target).collective_backend
        operation = _superbench.joined(parameters.operation)
        keys = {
            f"{operation}_{{size}}_time": ("time", _superbench.US),
            f"{operation}_{{size}}_algbw": ("algorithm_bandwidth", _superbench.GIGA),
            f"{operation}_{{size}}_busbw": ("bus_bandwidth", _superbench.GIGA),
        }
        values = _superbench.means_at(record, keys, "size")
        aliases = _superbench.alias(record, f"{key_word(backend)}-bw", values, part=operation)
        return Description(ceilings=tuple(shown), aliases=aliases)

    def measure(self, parameters: CollectiveParameters, context: Context) -> Result:
        if context.world_size == 1:
            if context.target == "cpu":
                raise Unsupported("a collective takes several ranks, but there is one: use --ranks 2 or more")
            raise Unsupported(
                "a collective takes several ranks, and each needs a GPU of its own: use --target 'cuda:*' where there "
                "are several GPUs, torchrun over several machines, or --target cpu --ranks 2"
            )
        if parameters.backend == "mpi":
            return _measure_over_mpi(parameters, context)
        device = open_device(context.target)
        backend = device.kind.collective_backend
        if parameters.backend not in ("auto", backend):
            other = {"nccl": "--target 'cuda:*' with several GPUs", "gloo": "--target cpu --ranks 2"}
            raise Unsupported(
                f"{parameters.backend} is not measured on {device.name}: use backend = {backend}, or "
                f"{other[parameters.backend]}"
            )
        transfer = parameters.transfer("torch")
        with join(context, device.kind, backend) as ranks, MicroSession(parameters, context, device, ranks) as session:
            factor = transfer.operation.factor(ranks.world_size)
            times = []
            for size in sizes_of(parameters, transfer.operation, device.kind, ranks.world_size):
                exchange = self.exchange(transfer, ranks, size, device)
                times.append(exchange.time(session, work=factor * size).time)
        facts = facts_of(transfer, ranks.world_size)
        facts |= {"backend": backend, "library": device.kind.collective_library()}
        return session.result(figures(times, factor), facts)


def _measure_over_mpi(parameters: CollectiveParameters, context: Context) -> Result:
    if context.target != "cpu":
        raise Unsupported("backend = mpi moves data of the host's memory: use --target cpu")
    if parameters.precision != "fp32":
        raise Unsupported(f"MPI has no {parameters.precision}: use fp32")
    transfer = parameters.transfer("mpi")
    if context.rank > 0:
        return Result()  # mpirun starts ranks of its own, and the first rank reports what they measured
    sweep = _mpi.run(context, parameters.hostfile)
    facts = sweep.facts | facts_of(transfer, context.world_size)
    facts |= {"backend": "mpi", "library": sweep.library}
    times = [Measurement.of_samples(TIME, point.samples, at={"size": point.size}) for point in sweep.points]
    measurements = [
        replace(figure, metric=figure.metric.model_copy(update={"merge": Merge.FIRST}))
        for figure in figures(times, transfer.operation.factor(context.world_size))
    ]
    return Result(measurements=measurements, facts=facts, warnings=sweep.warnings)


def sizes_of(parameters: CollectiveParameters, operation: Operation, kind: DeviceKind, ranks: int) -> list[int]:
    """The sizes to measure, smallest first, in whole elements with the same share for every rank, none twice."""
    sizes = parameters.sizes or (GPU_SIZES if kind.is_accelerator else CPU_SIZES)
    element = BYTES[parameters.precision]
    return sorted({operation.count(size, element, ranks) * element for size in sizes})


def figures(times: Sequence[Measurement], factor: float) -> list[Measurement]:
    """What the times of a sweep say: three metrics of the largest size for the case, and of every size."""
    bus = [Measurement.of_rate(BUS_BANDWIDTH, factor * float(time.at["size"]), time) for time in times]
    algorithm = [Measurement.of_rate(ALGORITHM_BANDWIDTH, float(time.at["size"]), time) for time in times]
    return [*map(headline, (bus, algorithm, times)), *bus, *algorithm, *times]


def facts_of(transfer: Transfer, ranks: int) -> dict[str, Any]:
    """What one needs to know to read the figures."""
    operation, in_place = transfer.operation, transfer.in_place
    grows = "; sums in place grow without bound while they are timed" if in_place and operation.sums else ""
    return {
        "bus_bandwidth": f"algorithm bandwidth times {operation.formula} = {operation.factor(ranks):.4g}, n = {ranks}",
        "size": "of the whole array, rounded up to whole elements and equal shares",
        "place": "in place" if in_place else "out of place",
        "data": f"{transfer.precision}, small integers{grows}",
        "checked": "every element on every rank, before and after timing, at every size",
    }
