"""What served cases say: latency over load, where the time went, which batches formed, and which setting is best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.analysis.summary import TAILS, CaseRow, headline_of
from paceline.core.grouping import group_by
from paceline.core.metric import Better
from paceline.core.quantity import show_count
from paceline.core.record import Measurement
from paceline.core.subject import REQUEST_STAGES

DRAWN = 400  # points of a distribution at most
TAIL_DRAWN = 120  # of them, those beyond the 98th percentile, where a request has a step of its own
FEWEST_SETTINGS = 3  # between two, each is on the front or one is simply better
BURST = "burst"  # a load that comes at once: its latencies show how long the queue was


@dataclass(frozen=True)
class Load:
    """One load, and how it was answered."""

    offered: float
    throughput: float
    percentiles: Mapping[str, float]  # p99 -> seconds; only those that the requests were enough for
    row: CaseRow
    is_trial: bool  # of a search


@dataclass(frozen=True)
class Curve:
    """One server with one model, under several loads of the same kind, the lightest first."""

    rows: tuple[CaseRow, ...]
    loads: tuple[Load, ...]

    @property
    def capacity(self) -> Measurement | None:
        """The largest rate that met the SLO, where it was searched."""
        return next((figure for row in self.rows if (figure := row.figure("capacity"))), None)


@dataclass(frozen=True)
class Offer:
    """What one setting offers its users, and at which cost."""

    row: CaseRow
    latency: float
    throughput: float
    cost: float
    on_front: bool  # no other is better in one of the three and no worse in the rest


@dataclass(frozen=True)
class Distribution:
    """Which part of all requests was answered within which time; those without an answer are in no part."""

    seconds: tuple[float, ...]
    parts: tuple[float, ...]


def by_model(rows: Sequence[CaseRow]) -> list[list[CaseRow]]:
    """Served cases that may share a chart: those of one model."""
    served = (row for row in rows if row.ok and row.record.load is not None)
    subjects = group_by(served, lambda row: (row.case.benchmark, row.record.subject.model, row.record.subject.scale))
    return list(subjects.values())


def slo(row: CaseRow) -> dict[str, float]:
    """The bounds on latency of the SLO, in seconds: {"p99": 0.1}."""
    limits = row.record.load.slo if row.record.load is not None else {}
    return {name: limit for name, limit in limits.items() if name.startswith("p")}  # not those on tokens


def slo_met(row: CaseRow) -> bool | None:
    """Whether the SLO was met; None if there was none, or if that is open."""
    return row.record.load.slo_met if row.record.load is not None else None


def slo_undecided(row: CaseRow) -> str:
    """What would decide whether the SLO is met, where its requests leave that open."""
    return row.record.load.slo_undecided if row.record.load is not None else ""


def distribution(row: CaseRow) -> Distribution | None:
    """How latencies are distributed, thinned for drawing; the part of all requests, answered or not."""
    latency = row.record.measurement("latency")
    samples = np.sort(np.asarray(latency.samples if latency else [], dtype=np.float64))
    samples = samples[np.isfinite(samples) & (samples > 0)]
    if samples.size < 2:
        return None
    # Any percentile counts all requests; where most failed there is none.
    middle = row.figure("latency_p50")
    lost = sum(figure.value for name in ("error_rate", "shed_rate") if (figure := row.figure(name)))
    if middle is not None and middle.count:
        requests: float = middle.count
    else:
        requests = samples.size / (1.0 - lost / 100.0) if lost < 100.0 else samples.size
    indices = np.arange(samples.size)
    if samples.size > DRAWN:
        tail = int(0.98 * samples.size)
        body = np.linspace(0, tail, DRAWN - TAIL_DRAWN).astype(int)
        indices = np.unique(np.concatenate([body, np.linspace(tail, samples.size - 1, TAIL_DRAWN).astype(int)]))
    parts = (indices + 1) / max(samples.size, requests)
    return Distribution(tuple(samples[indices].tolist()), tuple(parts.tolist()))


def stages(row: CaseRow) -> dict[str, Measurement]:
    """The mean time of each part of a request, in the order that a request meets them; unknown ones follow."""
    times = _along(row, "stage", "stage_time")
    order = {name: number for number, name in enumerate(REQUEST_STAGES)}
    return dict(sorted(times.items(), key=lambda item: order.get(item[0], len(order))))


def batches(row: CaseRow) -> dict[int, float]:
    """The part of the batches that had each size, in percent."""
    shares = _along(row, "batch", "batch_share")
    return dict(sorted((int(float(size)), figure.value) for size, figure in shares.items()))


def cold_start(row: CaseRow) -> dict[str, Measurement]:
    """The time of each part of the start, in its order."""
    return _along(row, "part", "cold_start")


def curves(rows: Sequence[CaseRow]) -> list[Curve]:
    """Servers that were measured under two loads or more: in several cases, or in the trials of a search."""
    settings: dict[str, list[CaseRow]] = {}
    for row in rows:
        load = row.record.load
        if row.ok and load is not None and load.loop != BURST:
            settings.setdefault(load.setting, []).append(row)
    made = [Curve(tuple(members), _loads(members)) for members in settings.values()]
    return [curve for curve in made if len({load.throughput for load in curve.loads}) > 1]


def shared_tail(loads: Sequence[Load], slo: Sequence[str] = ()) -> str:
    """The percentile to look at: one of the SLO, otherwise the highest that most of the loads have."""
    for name in dict.fromkeys((*slo, *TAILS)):
        if 2 * sum(name in load.percentiles for load in loads) > len(loads):
            return name
    return TAILS[-1]


def offers(rows: Sequence[CaseRow]) -> tuple[str, list[Offer]]:
    """Settings of one model by latency, throughput and cost, and the percentile that their latency is."""
    priced = []
    for row in rows:
        figures = [row.figure(name) for name in ("cost_per_thousand", "throughput")]
        if all(figure is not None and math.isfinite(figure.value) for figure in figures):
            priced.append(row)
    name = next((name for name in TAILS if priced and all(row.figure(f"latency_{name}") for row in priced)), "")
    if not name or len({row.case.key for row in priced}) < FEWEST_SETTINGS:
        return name, []
    names = (f"latency_{name}", "throughput", "cost_per_thousand")
    axes = [[figure for one in names if (figure := row.figure(one))] for row in priced]
    values = [(latency.value, -throughput.value, cost.value) for latency, throughput, cost in axes]
    # The cost follows from the throughput, and is as uncertain as that.
    margins = [
        (_margin(latency, latency), _margin(throughput, throughput), _margin(cost, throughput))
        for latency, throughput, cost in axes
    ]
    front = pareto(values, margins)
    return name, [
        Offer(row, latency, -throughput, cost, best)
        for row, (latency, throughput, cost), best in zip(priced, values, front, strict=True)
    ]


def pareto(points: Sequence[Sequence[float]], margins: Sequence[Sequence[float]] | None = None) -> list[bool]:
    """Which points no other one beats: less is better in every direction, and what lies within a margin is equal."""
    count = range(len(points))
    reach = margins or [[0.0] * len(point) for point in points]

    def beats(one: int, other: int) -> bool:
        gains = [b - a for a, b in zip(points[one], points[other], strict=True)]
        within = [max(pair) for pair in zip(reach[one], reach[other], strict=True)]
        pairs = list(zip(gains, within, strict=True))
        # What is not known is neither a gain nor an excuse.
        is_no_worse = all(gain >= (-margin if math.isfinite(margin) else 0.0) for gain, margin in pairs)
        return is_no_worse and any(gain > margin for gain, margin in pairs)

    front = [not any(beats(other, one) for other in count) for one in count]
    # Equal within margins is not transitive: in a ring each would beat the next.
    return front if any(front) or margins is None else pareto(points)


def _margin(figure: Measurement, basis: Measurement) -> float:
    """How far a figure may be off; without an interval nobody knows, so that no other is better or worse by it."""
    return math.inf if basis.relative is None else abs(figure.value) * basis.relative


def _loads(rows: Sequence[CaseRow]) -> tuple[Load, ...]:
    loads = []
    for row in rows:
        whole = [figure for figure in row.figures if not figure.scope and not figure.at]
        trials = [point.figures for sweep in row.sweeps if sweep.axes == ("rate",) for point in sweep.points]
        for index, figures in enumerate((whole, *trials)):
            by_name = {figure.name: figure for figure in figures}
            throughput = by_name.get("throughput")
            latencies = {name: figure.value for name in TAILS if (figure := by_name.get(f"latency_{name}"))}
            if throughput is not None and latencies:
                offered = by_name.get("offered_rate", throughput)
                loads.append(Load(offered.value, throughput.value, latencies, row, is_trial=index > 0))
    return tuple(sorted(loads, key=lambda load: load.offered))


def _along(row: CaseRow, axis: str, name: str) -> dict[str, Measurement]:
    """A metric at the points of one axis."""
    points = [point for sweep in row.sweeps if sweep.axes == (axis,) for point in sweep.points]
    return {str(point.at[axis]): figure for point in points if (figure := point.figure(name)) is not None}


TOTAL, PER_USER = "token_throughput", "tokens_per_user"
FIRST, BETWEEN = "first_token", "between_tokens"  # the beginnings of the names of their percentiles
JOULES, USD = "energy_per_token", "cost_per_million_tokens"


def load_name(amount: float, *, is_users: bool) -> str:
    """A load in words: `8 users`, `12.5/s`."""
    return f"{amount:.0f} {'user' if amount == 1 else 'users'}" if is_users else f"{show_count(amount)}/s"


@dataclass(frozen=True)
class TokenLoad:
    """One load of a language model."""

    row: CaseRow
    is_users: bool  # whether it is so many users; otherwise so many requests/s
    amount: float
    on_front: bool = False  # no other load of the same kind gives more in total and to each user

    @property
    def name(self) -> str:
        return load_name(self.amount, is_users=self.is_users)

    def value(self, name: str) -> float | None:
        """A figure, where it was measured."""
        figure = self.row.figure(name)
        return figure.value if figure is not None and math.isfinite(figure.value) else None

    @property
    def per_device(self) -> float | None:
        """Tokens/s of one device, or of the server where it is not known how many it has."""
        load, total = self.row.record.load, self.value(TOTAL)
        return None if total is None else total / ((load.devices if load is not None else None) or 1)


TokenCurve = tuple[TokenLoad, ...]  # one server with one model under loads of the same kind, the lightest first


def makes_tokens(row: CaseRow) -> bool:
    """Whether it is a language model whose tokens were counted."""
    return row.record.load is not None and row.figure(TOTAL) is not None


def each_load(rows: Sequence[CaseRow]) -> list[CaseRow]:
    """The same rows, with a row for each load of a sweep instead of one for all of them."""
    return [one for row in rows for one in _of_sweep(row)]


def _of_sweep(row: CaseRow) -> list[CaseRow]:
    load = row.record.load
    if load is None or not load.sweep or not row.ok:
        return [row]
    verdicts = {one.at: one.slo for one in load.loads}
    rows = []
    for sweep in row.sweeps:
        for point in sweep.points if sweep.axes == (load.sweep,) else ():
            amount = float(point.at[load.sweep])
            slo = verdicts.get(amount, "")
            is_met = True if slo == "held" else False if slo.startswith("missed") else None
            own = load.model_copy(
                update={
                    load.sweep: int(amount) if load.sweep == "users" else amount,
                    "slo_met": is_met,
                    "slo_missed_because": slo.removeprefix("missed: ") if is_met is False else "",
                    "slo_undecided": slo if is_met is None else "",
                }
            )
            measured = [replace(figure, at={}) for figure in point.figures]
            record = row.record.model_copy(update={"measurements": measured, "load": own})
            rows.append(CaseRow(record, f"{row.label} {load.sweep}={show_count(amount)}", headline_of(record)))
    return rows or [row]


def token_curves(rows: Sequence[CaseRow]) -> list[TokenCurve]:
    """Language models under their loads, by what else was the same, with what no other load beats."""
    served = [row for row in each_load(rows) if row.ok and makes_tokens(row)]
    settings = group_by(served, lambda row: row.record.load.setting if row.record.load else "").values()
    curves = ([load for row in members if (load := load_of(row)) is not None] for members in settings)
    return [tuple(sorted(_with_front(loads), key=lambda load: load.amount)) for loads in curves if loads]


def load_of(row: CaseRow) -> TokenLoad | None:
    """How much load it was: users who wait for their answers, or requests/s; a burst is neither."""
    load = row.record.load
    if load is None or load.loop == BURST:
        return None
    if load.loop == "closed":
        return TokenLoad(row, True, float(load.users or 1))
    offered = row.figure("offered_rate")
    rate = load.rate or (offered.value if offered is not None else None)
    return TokenLoad(row, False, rate) if rate is not None else None


def _with_front(loads: Sequence[TokenLoad]) -> list[TokenLoad]:
    pairs = [(load.value(PER_USER), load.per_device) for load in loads]
    known = [place for place, pair in enumerate(pairs) if None not in pair]
    front = pareto([[-value for value in pairs[place] if value is not None] for place in known])
    best = {place for place, is_best in zip(known, front, strict=True) if is_best}
    return [replace(load, on_front=place in best) for place, load in enumerate(loads)]


def tail_of(rows: Sequence[CaseRow], kind: str = FIRST) -> str:
    """The highest percentile that most of the loads have; they may all be too short for any."""
    for tail in TAILS:
        if 2 * sum(row.figure(f"{kind}_{tail}") is not None for row in rows) > len(rows):
            return tail
    return TAILS[-1]


def best_load(loads: Sequence[TokenLoad], name: str) -> tuple[TokenLoad, Measurement] | None:
    """The load that is best in something, and its figure."""
    found = [(load, figure) for load in loads if (figure := load.row.figure(name)) is not None]
    sign = -1.0 if found and found[0][1].metric.better is Better.LOWER else 1.0
    return max(found, key=lambda pair: sign * pair[1].value, default=None)
