"""From the records of a run to the most that its devices can do: what each figure of a profile is taken from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.profile import Absent, Ceiling, CeilingKind
from paceline.core.record import Doubt, Measurement, Outcome, Record
from paceline.core.run import RunRecords

# Data that fill more of a cache than this share it with too much else; less than this many times the level below
# come partly from there.
FITS = 0.75
OUTGROWS = 2.0
PRECISE = 0.05  # half of an interval, as a part of its figure
MAIN_MEMORY = "main memory"
DEVICE_MEMORY = "device memory"
_COPIES = {
    "h2d": "host to device",
    "d2h": "device to host",
    "d2d": "copy within device memory",
    "h2h": "copy within main memory, one thread",
}


@dataclass(frozen=True)
class Level:
    """A level of the memory that a CPU sees."""

    name: str
    low: float  # bytes of data that no longer fit the level below
    high: float  # bytes that still fit this one


@dataclass(frozen=True)
class Found:
    """One figure of a record that is a ceiling."""

    kind: CeilingKind
    name: str
    measurement: Measurement


def ceilings_of(records: RunRecords) -> tuple[list[Ceiling], list[Absent]]:
    """Every ceiling that the run measured, in its order, and what it did not with the reason."""
    ceilings: list[Ceiling] = []
    absent: list[Absent] = []
    environment = records.run.environment
    for record in records.records:
        read = _READERS.get(record.case.benchmark)
        if read is None:
            continue
        if record.outcome is not Outcome.OK:
            reason = record.cause.message if record.cause else f"it ended as {record.outcome.value}"
            absent.append(Absent(what=_label(record), device=record.case.target, reason=reason))
            continue
        ceilings += [_ceiling(record, found, environment) for found in read(record, environment)]
    absent += [
        Absent(what=f"{case.benchmark} {case.title}".strip(), device=case.target, reason="it was not run")
        for case in records.missing
        if case.benchmark in _READERS and case.index not in {record.case.index for record in records.records}
    ]
    return _once_each(ceilings), absent


def levels(caches: Sequence[Mapping[str, Any]], cores: int, *, threads_per_core: float = 1.0) -> list[Level]:
    """The caches for data that `cores` cores reach together, and what lies behind them; empty where none is known.

    A cache is said to be shared by so many logical CPUs, of which a core may have several.
    """
    found: list[Level] = []
    below = 0.0
    data = [cache for cache in caches if cache.get("kind") != "Instruction" and cache.get("size")]
    for cache in sorted(data, key=lambda cache: int(cache["level"])):
        sharing_cores = max(1.0, (cache.get("shared_by") or 1) / threads_per_core)
        capacity = float(cache["size"]) * math.ceil(cores / sharing_cores)
        found.append(Level(f"L{cache['level']}", OUTGROWS * below, FITS * capacity))
        below = capacity
    return [*found, Level(MAIN_MEMORY, OUTGROWS * below, math.inf)] if found else []


def _ceiling(record: Record, found: Found, environment: Mapping[str, Any]) -> Ceiling:
    interval = found.measurement.interval
    target = record.case.target
    own_name = str(record.facts.get("device") or target)
    return Ceiling(
        device=target,
        device_name=(environment.get("cpu") or {}).get("model") or own_name if target == "cpu" else own_name,
        kind=found.kind,
        name=found.name,
        value=found.measurement.value,
        unit=found.measurement.metric.unit,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        doubts=tuple(doubt for doubt in record.doubts if not _is_foreign(doubt, found)),
    )


def _is_foreign(doubt: Doubt, found: Found) -> bool:
    """Whether a doubt of the case is about another of its points: this figure is precise, or meant to be a cache's."""
    interval = found.measurement.interval
    if doubt.kind == "imprecise":
        return interval is not None and interval.relative(found.measurement.value) <= PRECISE
    return doubt.kind == "cached" and found.name.startswith("L")


def _once_each(ceilings: list[Ceiling]) -> list[Ceiling]:
    """Of the repetitions of one case the best: a ceiling is the most that was reached."""
    best: dict[tuple[str, str, str], Ceiling] = {}
    for one in ceilings:
        key = (one.device, one.kind, one.name)
        other = best.get(key)
        less_is_better = one.unit == "s"
        if other is None or (one.value < other.value if less_is_better else one.value > other.value):
            best[key] = one
    return list(best.values())


def _label(record: Record) -> str:
    return f"{record.case.benchmark} {record.case.title}".strip()


def _whole(record: Record, metric: str, kind: CeilingKind, name: str) -> Iterator[Found]:
    """The figure of the whole case, if it has that metric."""
    measurement = record.measurement(metric)
    if measurement is not None and measurement.value > 0:
        yield Found(kind, name, measurement)


def _gemm(record: Record, _environment: Mapping[str, Any]) -> Iterator[Found]:
    units = " plain units" if record.case.parameters.get("tensor_cores") == "off" else ""
    yield from _whole(record, "compute_rate", "compute", f"{record.case.parameters['precision']}{units}")


def _per_level(
    record: Record, metric: str, kind: CeilingKind, known: Sequence[Level], *, arrays: int
) -> Iterator[Found]:
    """Of a sweep over the sizes of so many arrays: for each level of memory, the largest data that belong to it."""
    points = [m for m in record.measurements if m.metric.name == metric and not m.scope and "size" in m.at]
    for level in known:
        inside = [point for point in points if level.low <= arrays * float(point.at["size"]) <= level.high]
        if inside:
            yield Found(kind, level.name, max(inside, key=lambda point: float(point.at["size"])))


def _stream(record: Record, environment: Mapping[str, Any]) -> Iterator[Found]:
    if record.case.target != "cpu":
        yield from _whole(record, "triad_bandwidth", "memory", DEVICE_MEMORY)
    elif record.case.parameters.get("sizes"):
        caches = _levels(environment, cores=int(record.facts.get("threads") or 1))[:-1]
        yield from _per_level(record, "triad_bandwidth", "memory", caches, arrays=3)
    else:
        yield from _whole(record, "triad_bandwidth", "memory", MAIN_MEMORY)


def _memory_latency(record: Record, environment: Mapping[str, Any]) -> Iterator[Found]:
    known = _levels(environment, cores=1)
    if known:
        yield from _per_level(record, "latency", "latency", known, arrays=1)
    else:
        yield from _whole(record, "latency", "latency", MAIN_MEMORY)


def _levels(environment: Mapping[str, Any], cores: int) -> list[Level]:
    cpu = environment.get("cpu") or {}
    physical, logical = cpu.get("physical_cores"), cpu.get("logical_cores")
    threads_per_core = max(1.0, logical / physical) if physical and logical else 1.0
    return levels(cpu.get("caches") or [], min(cores, physical or cores), threads_per_core=threads_per_core)


def _copy(record: Record, _environment: Mapping[str, Any]) -> Iterator[Found]:
    name = _COPIES.get(str(record.facts.get("direction")))
    if name is None:
        return
    pages = record.facts.get("host_memory")
    yield from _whole(record, "bandwidth", "link" if pages else "memory", f"{name}, {pages}" if pages else name)


def _kernel_launch(record: Record, _environment: Mapping[str, Any]) -> Iterator[Found]:
    yield from _whole(record, "issue_time", "launch", "issuing a kernel")
    yield from _whole(record, "event_time", "launch", "kernel after kernel")
    yield from _whole(record, "single_launch_latency", "launch", "one kernel, awaited")


def _collective(record: Record, _environment: Mapping[str, Any]) -> Iterator[Found]:
    what = str(record.case.parameters.get("operation", "collective")).replace("_", "-")
    between = "GPUs" if record.case.target.startswith("cuda") else "processes"
    name = f"{what}, {record.case.ranks} {between}"
    yield from _whole(record, "bus_bandwidth", "link", name)
    times = [m for m in record.measurements if m.metric.name == "time" and not m.scope and "size" in m.at]
    if times:
        yield Found("latency", name, min(times, key=lambda point: float(point.at["size"])))


def _p2p(record: Record, _environment: Mapping[str, Any]) -> Iterator[Found]:
    yield from _whole(record, "maximum_bandwidth", "link", "GPU to GPU, fastest pair")
    yield from _whole(record, "minimum_bandwidth", "link", "GPU to GPU, slowest pair")


def _tcp(record: Record, _environment: Mapping[str, Any]) -> Iterator[Found]:
    yield from _whole(record, "bandwidth", "link", "tcp loopback")
    yield from _whole(record, "round_trip_time", "latency", "tcp loopback")


def _disk(record: Record, _environment: Mapping[str, Any]) -> Iterator[Found]:
    yield from _whole(record, "bandwidth", "storage", f"disk {record.case.parameters['pattern']}")


_READERS: dict[str, Callable[[Record, Mapping[str, Any]], Iterator[Found]]] = {
    "gemm": _gemm,
    "stream": _stream,
    "copy": _copy,
    "memory-latency": _memory_latency,
    "kernel-launch": _kernel_launch,
    "collective": _collective,
    "p2p": _p2p,
    "tcp": _tcp,
    "disk": _disk,
}
