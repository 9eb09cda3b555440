"""What records say of each configuration: one point for every load, or for the steps of a model without a server."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.analysis.configuration import Configuration, configuration_of
from paceline.analysis.cost import Derived, HourlyPrice, Prices, energy_of
from paceline.analysis.figures import Reading
from paceline.analysis.recommend.question import ERRORS, PERCENTILES
from paceline.core.case import Category
from paceline.core.record import At, Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.stats import resolves

Z = 1.96  # of the normal distribution, for intervals of 95 %
UNSENT = {"saturated", "sockets", "unsent"}  # warnings of a load that the load generator itself did not manage
UNCONFIRMED = "unconfirmed"
_OTHER_LOOPS = {
    "closed": "its users wait for their answers, so that it does not tell what users get at a rate",
    "burst": "all its requests come at once, so that it does not tell what users get at a rate",
}


@dataclass(frozen=True)
class MeasuredLoad:
    """One configuration under one load."""

    configuration: Configuration
    throughput: Reading
    readings: Mapping[str, Reading]  # what a promise may bound: p99 in seconds, error_rate as a part
    load: float | None = None  # that was asked for, requests/s
    is_capacity: bool = False  # the largest rate that kept a promise, as a search found it
    unit: str = "requests/s"
    price: HourlyPrice | None = None
    no_price: str = ""
    energy: Derived | None = None
    warnings: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    requests: int | None = None


@dataclass(frozen=True)
class LeftOut:
    """A case that no recommendation can rest on, and why."""

    configuration: Configuration
    label: str
    reason: str


@dataclass
class Evidence:
    """All that is known of one piece of work."""

    work: str
    is_served: bool
    has_users: bool = True  # who wait for answers; nobody waits for a step of training
    points: list[MeasuredLoad] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    promises: list[dict[str, float]] = field(default_factory=list)  # of the served cases themselves


def evidence(sources: Iterable[RunRecords], prices: Prices, *, text: str = "") -> list[Evidence]:
    """What these runs say, by the work they did; `text` keeps the cases that have it in their name."""
    found: dict[str, Evidence] = {}
    for source in sources:
        for record in source.records:
            label = f"{record.case.benchmark} {record.case.title}"
            if not _is_of_a_model(record) or text.casefold() not in label.casefold():
                continue
            configuration = configuration_of(record, source.run)
            served = _is_served(record)
            has_users = served or record.case.category == Category.INFERENCE
            kept = found.setdefault(configuration.work, Evidence(configuration.work, served, has_users))
            reason = _unusable(record)
            if reason:
                kept.left_out.append(LeftOut(configuration, label, reason))
                continue
            kept.points += _points(record, source.run, configuration, prices)
            if served:
                kept.promises.append(_promise(record))
    for kept in found.values():
        kept.points = pooled(kept.points)
    return list(found.values())


def pooled(points: Iterable[MeasuredLoad]) -> list[MeasuredLoad]:
    """Points of the same configuration under the same load as one, whose interval holds those of all."""
    together: dict[tuple[object, ...], list[MeasuredLoad]] = {}
    for point in points:
        load = None if point.load is None else round(point.load, 6)
        limits = tuple(sorted((name, one.value) for name, one in point.readings.items() if one.is_limit))
        key = (point.configuration.key, point.unit, load, point.is_capacity, limits, point.price)
        together.setdefault(key, []).append(point)
    return [_pool(members) for members in together.values()]


def hull(readings: list[Reading]) -> Reading:
    """Several readings of the same thing: their mean, and all that any of them allows."""
    lows, highs = [one.low for one in readings], [one.high for one in readings]
    return Reading(
        value=math.fsum(one.value for one in readings) / len(readings),
        low=None if any(low is None for low in lows) else min(low for low in lows if low is not None),
        high=None if any(high is None for high in highs) else max(high for high in highs if high is not None),
        is_limit=readings[0].is_limit,
    )


def _pool(members: list[MeasuredLoad]) -> MeasuredLoad:
    first = members[0]
    if len(members) == 1:
        return first
    names = [name for name in first.readings if all(name in one.readings for one in members)]
    energies = [one.energy for one in members if one.energy is not None]
    return MeasuredLoad(
        configuration=first.configuration,
        throughput=hull([one.throughput for one in members]),
        readings={name: hull([one.readings[name] for one in members]) for name in names},
        load=first.load,
        is_capacity=first.is_capacity,
        unit=first.unit,
        price=first.price,
        no_price=first.no_price,
        energy=Derived(hull([one.reading for one in energies]), "J", energies[0].inputs) if energies else None,
        warnings=tuple(dict.fromkeys(kind for one in members for kind in one.warnings)),
        runs=tuple(dict.fromkeys(run for one in members for run in one.runs)),
        requests=sum(one.requests or 0 for one in members) or None,
    )


def _points(record: Record, run: Run, configuration: Configuration, prices: Prices) -> Iterator[MeasuredLoad]:
    price = prices.of(record, run)
    shared: dict[str, Any] = {
        "configuration": configuration,
        "price": price,
        "no_price": "" if price else prices.why_unknown(record, run),
        "warnings": tuple(dict.fromkeys(warning.kind for warning in record.warnings)),
        "runs": (record.run_id,),
    }
    throughput = record.measurement("throughput")
    if throughput is None:
        return
    energy = energy_of(record)
    if not _is_served(record):
        readings = _steps(record)
        yield MeasuredLoad(
            throughput=Reading.of(throughput), readings=readings, unit=throughput.metric.unit, energy=energy, **shared
        )
        return
    offered = record.measurement("offered_rate")
    asked = record.load.rate if record.load is not None else None
    readings, requests = _latencies(record, {})
    yield MeasuredLoad(
        throughput=Reading.of(throughput),
        readings=readings,
        requests=requests,
        energy=energy,
        load=float(asked) if asked else offered.value if offered else None,
        **shared,
    )
    for measurement in record.measurements:
        if measurement.metric.name == "throughput" and set(measurement.at) == {"rate"} and not measurement.scope:
            readings, requests = _latencies(record, measurement.at)
            yield MeasuredLoad(
                throughput=Reading.of(measurement),
                readings=readings,
                requests=requests,
                load=float(measurement.at["rate"]),
                **shared,
            )
    capacity = record.measurement("capacity")
    if capacity is not None:
        readings = _kept(record)
        yield MeasuredLoad(
            throughput=Reading.of(capacity), readings=readings, is_capacity=True, energy=energy, **shared
        )


def _latencies(record: Record, at: At) -> tuple[dict[str, Reading], int | None]:
    """What users saw of one load, and how many requests that rests on."""
    told = {name: record.measurement(f"latency_{name}", at=at) for name in PERCENTILES}
    found = {name: Reading.of(one) for name, one in told.items() if one is not None}
    requests = next((one.summary.count for one in told.values() if one is not None), None)
    parts = [record.measurement(name, at=at) for name in (ERRORS, "shed_rate")]
    known = [one.value for one in parts if one is not None]
    if known:
        found[ERRORS] = _part(math.fsum(known) / 100.0, requests)
    return found, requests


def _kept(record: Record) -> dict[str, Reading]:
    """What the promise of a search says of the largest rate that kept it; of lower percentiles it says as much."""
    promised = _promise(record)
    is_sure = all(warning.kind != UNCONFIRMED for warning in record.warnings)
    found: dict[str, Reading] = {}
    for name, share in PERCENTILES.items():
        limits = [limit for other, limit in promised.items() if other in PERCENTILES and PERCENTILES[other] >= share]
        if limits:
            limit = min(limits)
            found[name] = Reading(limit, None, limit if is_sure else None, is_limit=True)
    readings, _ = _latencies(record, {})
    return found | {name: one for name, one in readings.items() if name == ERRORS}


def _steps(record: Record) -> dict[str, Reading]:
    """The percentiles of a step's time, where the steps are enough to tell them."""
    times = record.measurement("step_time")
    if times is None:
        return {}
    return {
        name: reading
        for name, share in PERCENTILES.items()
        if resolves(times.summary.count, 100.0 * share) and (reading := _quantile(times, share)) is not None
    }


def _quantile(times: Measurement, share: float) -> Reading | None:
    """A percentile, and its interval from order statistics; samples that resemble their neighbours count less."""
    value = times.summary.percentiles.get(f"{100.0 * share:g}")
    if value is None:
        return None
    if not times.samples:
        return Reading(value)
    ordered = np.sort(np.asarray(times.samples, dtype=np.float64))
    reach = Z * math.sqrt(share * (1.0 - share) / max(1.0, times.summary.effective_count))
    places = [min(max(math.ceil((share + way * reach) * ordered.size) - 1, 0), ordered.size - 1) for way in (-1, 1)]
    is_known = (share + reach) * ordered.size <= ordered.size
    low, high = (float(ordered[place]) for place in places)
    return Reading(value, min(low, value), max(high, value) if is_known else None)


def _part(part: float, count: int | None) -> Reading:
    """A part of so many, with Wilson's interval: that none of a few failed does not mean that none will."""
    if not count:
        return Reading(part)
    spread = Z * math.sqrt(part * (1.0 - part) / count + Z * Z / (4.0 * count * count))
    middle, scale = part + Z * Z / (2.0 * count), 1.0 + Z * Z / count
    return Reading(part, max(0.0, min(part, (middle - spread) / scale)), max(part, (middle + spread) / scale))


def _promise(record: Record) -> dict[str, float]:
    load = record.load
    if load is None:
        return {}
    errors = {} if load.slo_errors is None else {ERRORS: load.slo_errors}
    return {name: limit for name, limit in load.slo.items() if name in PERCENTILES} | errors


def _unusable(record: Record) -> str:
    """Why nothing can rest on this record, if that is so."""
    if record.outcome is not Outcome.OK:
        why = record.cause.message if record.cause else "no cause was recorded"
        return f"{record.outcome.value}: {why}"
    throughput = record.measurement("throughput")
    if throughput is None or not (math.isfinite(throughput.value) and throughput.value > 0):
        return "it has no throughput"
    if not _is_served(record):
        return ""
    lost = next((warning for warning in record.warnings if warning.kind in UNSENT), None)
    if lost is not None:
        return f"{lost.kind}: {lost.message}"
    return _OTHER_LOOPS.get(record.load.loop, "") if record.load is not None else ""


def _is_served(record: Record) -> bool:
    return record.load is not None


def _is_of_a_model(record: Record) -> bool:
    """Whether a configuration of a model was measured, not a single operation."""
    named = record.case.parameters.keys() & {"model", "case"}
    told = record.measurement("throughput") is not None or record.outcome is not Outcome.OK
    return bool(named) and told
