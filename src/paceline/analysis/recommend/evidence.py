"""What is asked of a recommendation: the SLO, the budget, the rate to serve, and what counts as better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Literal

from paceline.analysis.configuration import Configuration, configuration_of
from paceline.analysis.cost import Budget, Derived, HourlyPrice, Prices, energy_of
from paceline.analysis.summary import Reading
from paceline.core.case import Category
from paceline.core.errors import InputError, unknown
from paceline.core.grouping import group_by
from paceline.core.quantity import parse_fraction, parse_latency
from paceline.core.record import At, Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords, sessions_of
from paceline.core.stats import resolves
from paceline.core.tails import missing, tails
from paceline.core.uncertainty import SEPARATE, Part, estimates

Objective = Literal["goodput", "cost", "energy", "latency"]
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
ERRORS = "error_rate"
TOKENS = ("first_token", "between_tokens")  # of 99 % of the requests, or of as many as follows the name
TOKEN_BOUNDS = tuple(f"{name}_{tail}" for name in TOKENS for tail in PERCENTILES if tail != "p99.9")
USUAL_ERRORS = 0.01  # as a served case allows by default
_SPELLINGS = {"p99_9": "p99.9", "p999": "p99.9", "errors": ERRORS}
_SPELLINGS |= {name: f"{name}_p99" for name in TOKENS} | {"ttft": "first_token_p99", "itl": "between_tokens_p99"}


@dataclass(frozen=True)
class SloLimit:
    """The most that a metric may be: seconds, or a part of the requests."""

    metric: str
    limit: float
    is_explicit: bool = True  # a default one is judged without its uncertainty


@dataclass(frozen=True)
class Question:
    """All that is asked."""

    bounds: tuple[SloLimit, ...] = ()
    by: Objective = "goodput"
    rate: float | None = None  # requests/s that all replicas together must answer
    budget: Budget | None = None
    strict: bool = False
    carbon: float | None = None  # g/kWh
    origin: str = ""  # where the SLO is from, if it was not given

    def with_limit(self, metric: str, limit: float) -> Question:
        """The same with another bound on one metric."""
        bounds = [replace(bound, limit=limit) if bound.metric == metric else bound for bound in self.bounds]
        return replace(self, bounds=tuple(bounds))

    @property
    def percentile(self) -> str:
        """The latency that counts: the highest percentile of the SLO."""
        percentiles = [bound.metric for bound in self.bounds if bound.metric in PERCENTILES]
        return max(percentiles, key=lambda name: PERCENTILES[name], default="p99")


def read_bounds(texts: Iterable[str]) -> tuple[SloLimit, ...]:
    """Bounds as people write them: `p99=50ms`, `error_rate=0.1%`, several with commas."""
    limits: dict[str, float] = {}
    for text in chain.from_iterable(several.split(",") for several in texts):
        name, separator, value = (part.strip() for part in text.partition("="))
        metric = _SPELLINGS.get(name, name)
        if metric not in (*PERCENTILES, *TOKEN_BOUNDS, ERRORS):
            raise unknown("metric in --slo", name, [*PERCENTILES, *TOKENS, *TOKEN_BOUNDS, ERRORS], key="--slo")
        if not separator or not value:
            message = "give a bound, like p99=50ms or error_rate=0.1%"
            raise InputError("missing-bound", message, where=f"--slo '{text}'", key="--slo", value=text)
        if metric in limits:
            raise InputError("duplicate-key", f"--slo {metric} is given twice", key="--slo", value=metric)
        try:
            limit = parse_fraction(value) if metric == ERRORS else parse_latency(value)
        except ValueError as error:
            raise InputError("not-a-bound", str(error), where=f"--slo {name}", key="--slo", value=value) from None
        if metric != ERRORS and limit <= 0:
            message = "a latency must be above 0"
            raise InputError("out-of-range", message, where=f"--slo {name}={value}", key="--slo", value=value)
        limits[metric] = limit
    return bounds_of(limits)


def bounds_of(limits: Mapping[str, float]) -> tuple[SloLimit, ...]:
    """Percentiles from the lowest, then the errors; a higher percentile cannot come sooner than a lower one."""
    ordered = [SloLimit(name, limits[name]) for name in PERCENTILES if name in limits]
    for lower, higher in pairwise(ordered):
        if higher.limit < lower.limit:
            message = f"--slo {higher.metric} is shorter than {lower.metric}: a higher percentile is never sooner"
            raise InputError("conflicting-bounds", message, key="--slo", value=higher.metric)
    ordered += [SloLimit(name, limits[name]) for name in TOKEN_BOUNDS if name in limits]
    errors = limits.get(ERRORS)
    return (*ordered, SloLimit(ERRORS, USUAL_ERRORS, is_explicit=False) if errors is None else SloLimit(ERRORS, errors))


Z = 1.96  # of the normal distribution, for intervals of 95 %
UNSENT = {"saturated", "sockets", "unsent"}  # warnings of a load that the load generator itself did not manage
UNSURE = {"unconfirmed", "imprecise"}  # warnings of a search that did not end with a rate that surely holds
_OTHER_LOOPS = {
    "closed": "its users wait for their answers, so that it does not show what users get at a rate",
    "burst": "all its requests come at once, so that it does not show what users get at a rate",
}


@dataclass(frozen=True)
class MeasuredLoad:
    """One configuration under one load."""

    configuration: Configuration
    throughput: Reading
    readings: Mapping[str, Reading]  # what an SLO may bound: p99 in seconds, error_rate as a part
    load: float | None = None  # that was requested, requests/s
    is_capacity: bool = False  # the largest rate that met the SLO, as a search found it
    unit: str = "requests/s"
    price: HourlyPrice | None = None
    no_price: str = ""
    energy: Derived | None = None
    warnings: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    session: str = ""
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
    slos: list[dict[str, float]] = field(default_factory=list)  # of the served cases themselves


def evidence(sources: Iterable[RunRecords], prices: Prices, *, text: str = "") -> list[Evidence]:
    """What these runs say, by the work they did; `text` keeps the cases that have it in their name."""
    by_work: dict[str, Evidence] = {}
    read = list(sources)
    sessions = sessions_of(source.run for source in read)
    for source in read:
        for record in source.records:
            # A configuration of a model, not a single operation.
            is_of_a_model = bool(record.case.parameters.keys() & {"model", "case"})
            has_end = record.measurement("throughput") is not None or record.outcome is not Outcome.OK
            label = f"{record.case.benchmark} {record.case.title}"
            if not is_of_a_model or not has_end or text.casefold() not in label.casefold():
                continue
            configuration = configuration_of(record, source.run)
            is_served = record.load is not None
            has_users = is_served or record.case.category == Category.INFERENCE
            same = by_work.setdefault(configuration.work, Evidence(configuration.work, is_served, has_users))
            reason = _unusable(record)
            if reason:
                same.left_out.append(LeftOut(configuration, label, reason))
                continue
            points = _points(record, source.run, configuration, prices)
            same.points += (replace(point, session=sessions[source.run.id]) for point in points)
            if is_served:
                same.slos.append(_slo(record))
    for same in by_work.values():
        same.points = pooled(same.points)
    return list(by_work.values())


def pooled(points: Iterable[MeasuredLoad]) -> list[MeasuredLoad]:
    """Points of the same configuration under the same load as one."""

    def same(point: MeasuredLoad) -> tuple[object, ...]:
        load = None if point.load is None else round(point.load, 6)
        limits = tuple(sorted((name, one.value) for name, one in point.readings.items() if one.is_limit))
        return point.configuration.key, point.unit, load, point.is_capacity, limits, point.price

    return [_pool(members) for members in group_by(points, same).values()]


def hull(readings: list[Reading]) -> Reading:
    """Several readings of the same thing: their mean, and all that any of them allows."""
    lows = [one.low for one in readings if one.low is not None]
    highs = [one.high for one in readings if one.high is not None]
    return Reading(
        value=math.fsum(one.value for one in readings) / len(readings),
        low=min(lows) if len(lows) == len(readings) else None,
        high=max(highs) if len(highs) == len(readings) else None,
        is_limit=readings[0].is_limit,
        count=sum(one.count for one in readings),
        more=max(one.more for one in readings),
    )


def _together(readings: list[Reading], members: list[MeasuredLoad]) -> Reading:
    """One figure of several repeats; how far they scatter shows once there are enough of them."""
    if any(one.is_limit or one.value <= 0 for one in readings):
        return hull(readings)
    parts = [
        Part(member.session, "".join(member.runs), math.log(one.value), _own_variance(one))
        for one, member in zip(readings, members, strict=True)
    ]
    estimate = estimates([parts])
    if int(estimate.units[0]) < SEPARATE:
        return hull(readings)
    reading = Reading.of_logs(float(estimate.logs[0]), float(estimate.variances[0]), float(estimate.freedoms[0]))
    return replace(reading, count=sum(one.count for one in readings))


def _own_variance(reading: Reading) -> float:
    """Of the logarithm, as far as one repeat itself shows it."""
    if reading.low is None or reading.high is None or reading.low <= 0:
        return math.nan
    return (math.log(reading.high / reading.low) / (2.0 * Z)) ** 2


def _pool(members: list[MeasuredLoad]) -> MeasuredLoad:
    first = members[0]
    if len(members) == 1:
        return first
    names = [name for name in first.readings if all(name in one.readings for one in members)]
    energies = [one.energy for one in members if one.energy is not None]
    return replace(
        first,
        throughput=_together([one.throughput for one in members], members),
        readings={name: _together([one.readings[name] for one in members], members) for name in names},
        energy=Derived(hull([one.reading for one in energies]), energies[0].inputs) if energies else None,
        warnings=tuple(dict.fromkeys(kind for one in members for kind in one.warnings)),
        runs=tuple(dict.fromkeys(run for one in members for run in one.runs)),
        requests=sum(one.requests or 0 for one in members) or None,
    )


def _points(record: Record, run: Run, configuration: Configuration, prices: Prices) -> Iterator[MeasuredLoad]:
    price, throughput = prices.of(record, run), record.measurement("throughput")
    assert throughput is not None  # otherwise it is left out
    whole = MeasuredLoad(
        configuration=configuration,
        throughput=Reading.of(throughput),
        readings=_steps(record),
        unit=throughput.unit,
        price=price,
        no_price="" if price else prices.why_unknown(record, run),
        energy=energy_of(record),
        warnings=tuple(dict.fromkeys(warning.kind for warning in record.warnings)),
        runs=(record.run_id,),
    )
    if record.load is None:
        yield whole
        return
    offered = record.measurement("offered_rate")
    rate = float(record.load.rate) if record.load.rate else offered.value if offered else None
    readings, requests = _latencies(record, {})
    whole = replace(whole, readings=readings, requests=requests, load=rate, unit="requests/s")
    yield whole
    for measurement in record.measurements:
        if measurement.metric.name == "throughput" and set(measurement.at) == {"rate"} and not measurement.scope:
            readings, requests = _latencies(record, measurement.at)
            trial = float(measurement.at["rate"])
            reading = Reading.of(measurement)
            yield replace(whole, throughput=reading, readings=readings, requests=requests, energy=None, load=trial)
    capacity = record.measurement("capacity")
    if capacity is not None:
        reading, readings = Reading.of(capacity), _met(record)
        yield replace(whole, throughput=reading, readings=readings, requests=None, load=None, is_capacity=True)


def _latencies(record: Record, at: At) -> tuple[dict[str, Reading], int | None]:
    """What users got at one load, and how many requests that rests on."""
    latencies = {name: record.measurement(f"latency_{name}", at=at) for name in PERCENTILES}
    readings = {name: _latency(one) for name, one in latencies.items() if one is not None}
    requests = next((one.summary.count for one in latencies.values() if one is not None), None)
    tokens = {name: record.measurement(name, at=at) for name in TOKEN_BOUNDS}
    readings |= {name: _latency(one) for name, one in tokens.items() if one is not None}
    lost = [one.value for name in (ERRORS, "shed_rate") if (one := record.measurement(name, at=at)) is not None]
    if lost:
        readings[ERRORS] = _part(math.fsum(lost) / 100.0, requests)
    return readings, requests


def _latency(percentile: Measurement) -> Reading:
    reading, count = Reading.of(percentile), percentile.count
    more = missing(count, percentile.summary.effective_count) if percentile.interval is None else 0
    return replace(reading, count=count, more=more)


def _met(record: Record) -> dict[str, Reading]:
    """What the SLO of a search says of the largest rate that met it; of lower percentiles it says as much."""
    slo = _slo(record)
    is_sure = all(warning.kind not in UNSURE for warning in record.warnings)
    readings: dict[str, Reading] = {}
    for name, share in PERCENTILES.items():
        limits = [limit for other, limit in slo.items() if other in PERCENTILES and PERCENTILES[other] >= share]
        if limits:
            readings[name] = Reading(min(limits), None, min(limits) if is_sure else None, is_limit=True)
    readings |= {
        name: Reading(limit, None, limit if is_sure else None, is_limit=True)
        for name, limit in slo.items()
        if name in TOKEN_BOUNDS
    }
    measured, _ = _latencies(record, {})
    return readings | {name: one for name, one in measured.items() if name == ERRORS}


def _steps(record: Record) -> dict[str, Reading]:
    """The percentiles of a step's time, where the steps are enough for them."""
    times = record.measurement("step_time")
    readings: dict[str, Reading] = {}
    if times is None:
        return readings
    shares = {name: share for name, share in PERCENTILES.items() if resolves(times.summary.count, 100.0 * share)}
    for name, tail in zip(shares, tails(times.samples, shares.values()) if times.samples else (), strict=False):
        low, high = (tail.interval.low, tail.interval.high) if tail.interval is not None else (None, None)
        readings[name] = Reading(tail.value, low, high, count=tail.count, more=tail.more)
    for name, share in shares.items():  # what is left of a record whose samples were dropped
        if name not in readings and (value := times.summary.percentiles.get(f"{100.0 * share:g}")) is not None:
            readings[name] = Reading(value)
    return readings


def _part(part: float, count: int | None) -> Reading:
    """A part of so many, with Wilson's interval: that none of a few failed does not mean that none will."""
    if not count:
        return Reading(part)
    spread = Z * math.sqrt(part * (1.0 - part) / count + Z * Z / (4.0 * count * count))
    middle, scale = part + Z * Z / (2.0 * count), 1.0 + Z * Z / count
    low, high = max(0.0, min(part, (middle - spread) / scale)), max(part, (middle + spread) / scale)
    return Reading(part, low, high, count=count)


def _slo(record: Record) -> dict[str, float]:
    load = record.load
    if load is None:
        return {}
    errors = {} if load.slo_errors is None else {ERRORS: load.slo_errors}
    limits = {name: limit for name, limit in load.slo.items() if name in PERCENTILES}
    # Bounds on tokens hold for as many requests as the highest percentile says.
    tail = max(limits, key=lambda name: PERCENTILES[name], default="p99")
    tail = "p99" if tail == "p99.9" else tail
    return limits | {f"{name}_{tail}": load.slo[name] for name in TOKENS if name in load.slo} | errors


def _unusable(record: Record) -> str:
    """Why nothing can rest on this record, if that is so."""
    if record.outcome is not Outcome.OK:
        why = record.cause.message if record.cause else "no cause was recorded"
        return f"{record.outcome.value}: {why}"
    throughput = record.measurement("throughput")
    if throughput is None or not (math.isfinite(throughput.value) and throughput.value > 0):
        return "it has no throughput"
    if record.load is None:
        return ""
    lost = next((warning for warning in record.warnings if warning.kind in UNSENT), None)
    return f"{lost.kind}: {lost.message}" if lost else _OTHER_LOOPS.get(record.load.loop, "")
