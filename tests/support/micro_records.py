"""Records that look like a run of micro benchmarks: sweeps, a matrix of pairs, and what a machine cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.core.case import Case
from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import At, Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.core.run import RunRecords
from support.records import CONDITIONS, case, record, run_of

TIME = Metric(name="time", unit="s", better=Better.LOWER, merge=Merge.SLOWEST)
PEAK_SHARE = Metric(name="peak_share", unit="%", better=Better.HIGHER, merge=Merge.MEAN)
SIZES = tuple(1024 << (2 * step) for step in range(10))  # 1 KiB to 256 MiB


def rate(name: str, unit: str = "B/s") -> Metric:
    """Work over time."""
    return Metric(name=name, unit=unit, better=Better.HIGHER, merge=Merge.SUM)


def latency(name: str = "latency") -> Metric:
    """A time that is no call's."""
    return Metric(name=name, unit="s", better=Better.LOWER, merge=Merge.SLOWEST)


def micro(index: int, category: str, benchmark: str, title: str, **parameters: Any) -> Case:
    """A case of a category."""
    return case(index, benchmark, title, **parameters).model_copy(update={"category": category})


def times(seconds: float, *, at: At | None = None, metric: Metric = TIME, noise: float = 0.01) -> Measurement:
    """Forty samples around this time; the same ones every time."""
    spread = 1 + noise * np.random.default_rng(int(seconds * 1e12) % 2**32).standard_normal(40)
    return Measurement.of_samples(metric, seconds * spread, at=at)


def whole(measurement: Measurement) -> Measurement:
    """A point's measurement as the figure of the whole case."""
    return replace(measurement, at={})


def gemm(index: int, precision: str, flops: float, share: float | None, **more: Any) -> Record:
    """A matrix product in one format; a device without a datasheet has no share of its peak."""
    parameters = {"precision": precision, "size": None, "batch": 1, "tensor_cores": "auto"} | more
    work = 2.0 * 8192**3
    took = times(work / flops)
    unit = "OP/s" if precision == "int8" else "FLOP/s"
    found = [Measurement.of_rate(rate("compute_rate", unit), work, took), took]
    if share is not None:
        found.insert(1, Measurement.of_rate(PEAK_SHARE, share * took.value, took))
    facts = {"device": "NVIDIA H200", "shape": {"m": 8192, "n": 8192, "k": 8192, "batch": 1}}
    return record(micro(index, "compute", "gemm", precision, **parameters), found, facts=facts, conditions=CONDITIONS)


def copy(index: int, direction: str, limit: float, **more: Any) -> Record:
    """A sweep over sizes towards a limit, in bytes per second."""
    bandwidth = rate("bandwidth")
    found: list[Measurement] = []
    for size in SIZES:
        took = times(4e-6 + size / limit, at={"size": size}, noise=0.02 if size < 65536 else 0.002)
        found += [took, Measurement.of_rate(bandwidth, size, took)]
    last = [m for m in found if m.at == {"size": SIZES[-1]}]
    parameters = {"direction": direction, "sizes": list(SIZES)} | more
    where = micro(index, "memory", "copy", direction, **parameters)
    return record(where, [whole(last[1]), whole(last[0]), *found], facts={"device": "NVIDIA H200"})


def collective(index: int, operation: str, limit: float, *, backend: str = "nccl", ranks: int = 8) -> Record:
    """A collective over sizes: time, algorithm bandwidth and bus bandwidth, for the whole and for each rank."""
    factor = {"all-reduce": 2.0, "broadcast": 1.0, "reduce": 1.0}.get(operation, 1.0) * (ranks - 1) / ranks
    found: list[Measurement] = []
    for size in SIZES:
        took = times(18e-6 + size * factor / limit, at={"size": size}, noise=0.03)
        found += [
            took,
            Measurement.of_rate(rate("algorithm_bandwidth"), size, took),
            Measurement.of_rate(rate("bus_bandwidth"), size * factor, took),
        ]
    last = [m for m in found if m.at == {"size": SIZES[-1]}]
    per_rank = [replace(m, scope=f"rank {rank}") for rank in range(ranks) for m in found]
    parameters = {"operation": operation, "backend": backend, "sizes": list(SIZES)}
    target = "cuda:*" if backend == "nccl" else "cpu"
    where = micro(index, "communication", "collective", f"{operation} {backend} x{ranks}", target=target, ranks=ranks,
                  **parameters)  # fmt: skip
    return record(where, [whole(last[2]), whole(last[1]), whole(last[0]), *found, *per_rank])


def memory_latency(index: int) -> Record:
    """Nanoseconds of one dependent load, over the size of what is loaded from."""
    steps = ((32 << 10, 1.1e-9), (1 << 20, 3.4e-9), (32 << 20, 14e-9), (1 << 40, 96e-9))
    found = []
    for size in (4096 << (2 * step) for step in range(9)):
        seconds = next(value for limit, value in steps if size <= limit)
        found.append(times(seconds, at={"size": size}, metric=latency(), noise=0.01))
    where = micro(index, "memory", "memory-latency", "", target="cpu", sizes=[4096])
    return record(where, [whole(found[-1]), *found])


def pairs(index: int, devices: int, *, slow: tuple[int, int] | None = None) -> Record:
    """Bandwidth from each device to each other."""
    bandwidth = rate("bandwidth")
    found = []
    for source in range(devices):
        for target in range(devices):
            if source != target:
                limit = 96e9 if (source, target) == slow else 372e9
                took = times((64 << 20) / limit, at={"from": source, "to": target})
                found.append(Measurement.of_rate(bandwidth, 64 << 20, took))
    lowest = min(found, key=lambda m: m.value)
    where = micro(index, "communication", "peer-to-peer", f"{devices} devices", target="cuda:*")
    return record(where, [whole(lowest), *found])


def cannot(index: int, *, require: bool = False, kind: CauseKind = CauseKind.UNSUPPORTED) -> Record:
    """A case that this machine cannot do."""
    where = micro(index, "communication", "ib-loopback", "write").model_copy(update={"require": require})
    message = "ib_write_bw, which measures InfiniBand, is missing; install it (apt install perftest)"
    return record(where, outcome=Outcome.UNSUPPORTED, cause=Cause(kind=kind, message=message), seconds=0.1)


def micro_run(*, more: Sequence[Record] = ()) -> RunRecords:
    """Products, copies, latencies, collectives of two backends, pairs of devices, files; one cannot be done here."""
    warning = RecordWarning(kind="unsteady", message="at 1 KiB: it still drifted", remedy="raise 'warm_up'")
    records = [
        gemm(0, "fp64", 58.3e12, 87.0),
        gemm(1, "tf32", 391.0e12, 79.1),
        gemm(2, "bf16", 789.4e12, 79.8),
        gemm(3, "int8", 1.61e15, 81.3),
        record(micro(4, "compute", "kernel-launch", "1000 launches"),
               [times(2.31e-6, metric=latency("wall_time")), times(2.27e-6, metric=latency("event_time"))]),
        copy(5, "h2d", 55.2e9),
        copy(6, "d2h", 54.7e9),
        copy(7, "d2d", 2.05e12).model_copy(update={"warnings": [warning]}),
        memory_latency(8),
        *(collective(9 + place, operation, limit) for place, (operation, limit) in enumerate(
            {"all-reduce": 478e9, "all-gather": 365e9, "reduce-scatter": 362e9, "broadcast": 340e9,
             "all-to-all": 331e9}.items())),
        collective(14, "all-reduce", 3.1e9, backend="gloo", ranks=2),
        pairs(15, 8, slow=(2, 5)),
        cannot(16),
        *more,
    ]  # fmt: skip
    return run_of(records)
