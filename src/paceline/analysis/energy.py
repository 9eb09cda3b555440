"""The same work at several power limits or clocks: what a joule and an hour give, and the best that is fast enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.analysis.cost import energy_of
from paceline.analysis.summary import CaseRow
from paceline.core.grouping import group_by
from paceline.core.metric import Better
from paceline.core.record import Measurement
from paceline.core.stats import median_interval

SLOWER = 0.05  # than the fastest limit, at most: the SLO of a sweep that states none
LEAST_SAVED = 0.01  # of the energy: counters are not exacter, however little the rates vary


@dataclass(frozen=True)
class LimitPoint:
    """The work at one limit; of repetitions the median."""

    limit: str  # empty for what was set before
    rate: float  # work in a second
    joules: float | None  # for one piece of work; None where nothing counted them
    keeps: float  # its rate as a part of the fastest one
    meets_slo: bool
    relative: float = 0.0  # the interval of the rate as a part of it; 0 where there is none

    @property
    def per_joule(self) -> float | None:
        return 1.0 / self.joules if self.joules else None


@dataclass(frozen=True)
class LimitSweep:
    """One piece of work at several limits, in their order."""

    work: str
    unit: str  # of one piece of work: image, FLOP
    source: str  # what counted the energy
    points: tuple[LimitPoint, ...]

    @property
    def best(self) -> LimitPoint | None:
        """What takes the least energy of those that meet the SLO; None where no energy is known, or none meets it."""
        return min(self._judged, key=lambda one: one.joules or 0.0, default=None)

    @property
    def fastest(self) -> LimitPoint | None:
        """The fastest of the same."""
        return max(self._judged, key=lambda one: one.rate, default=None)

    @property
    def saved(self) -> float | None:
        """What the best takes less than the fastest, as a part; None where that is not more than the figures vary."""
        best, fastest = self.best, self.fastest
        if not (best and best.joules and fastest and fastest.joules):
            return None
        saved = 1.0 - best.joules / fastest.joules
        return saved if saved >= max(LEAST_SAVED, best.relative, fastest.relative) else None

    @property
    def _judged(self) -> list[LimitPoint]:
        return [one for one in self.points if one.meets_slo and one.joules]


def limit_sweeps(rows: Sequence[CaseRow]) -> Iterator[LimitSweep]:
    """Every piece of work that was measured at two limits or more."""
    measured = [row for row in rows if row.ok and row.headline is not None]
    unlimited = {"power_limit": None, "clock_limit": None}
    for alike in group_by(measured, lambda row: row.case.model_copy(update=unlimited).key).values():
        by_limit = group_by(alike, lambda row: row.case.limits)
        if len(by_limit) < 2:
            continue
        rates = {limit: median(_rate(row) for row in same) for limit, same in by_limit.items()}
        fastest, points = max(rates.values()), []
        for limit, same in by_limit.items():
            rate, joules = rates[limit], [one for row in same if (one := joules_of(row)) is not None]
            keeps, energy = rate / fastest if fastest else 0.0, median(joules) if joules else None
            fast_enough = keeps >= 1.0 - SLOWER and not any(_misses(row) for row in same)
            points.append(LimitPoint(limit, rate, energy, keeps, fast_enough, _relative(same, rate)))
        first = alike[0]
        work = f"{first.case.benchmark} {first.case.title}".removesuffix(f" at {first.case.limits}")
        source = first.record.economy.energy_source if energy_of(first.record) else "the power that its driver reports"
        yield LimitSweep(work, _unit(first), source, tuple(points))


def joules_of(row: CaseRow) -> float | None:
    """For one piece of work: as a counter had it, or the power under this load over the rate."""
    energy, power = energy_of(row.record), row.figure("power")
    if energy is not None:
        return energy.reading.value
    rate = _rate(row)
    return power.value / rate if rate and power is not None and power.metric.unit == "W" else None


def _rate_of(row: CaseRow) -> Measurement:
    found = row.figure("throughput") or row.headline
    assert found is not None
    return found


def _rate(row: CaseRow) -> float:
    found = _rate_of(row)
    return 1.0 / found.value if found.value and found.metric.better is Better.LOWER else found.value


def _relative(same: Sequence[CaseRow], rate: float) -> float:
    """By the repetitions, or by the samples of the only one."""
    interval = median_interval([_rate(row) for row in same], independent=True)
    return interval.relative(rate) if interval else _rate_of(same[0]).relative or 0.0


def _unit(row: CaseRow) -> str:
    unit = _rate_of(row).metric.unit
    return unit.removesuffix("/s") if unit.endswith("/s") else "calls"


def _misses(row: CaseRow) -> bool:
    """Whether a served case has missed the SLO that it was given; of a sweep of loads, the one of its figures."""
    return row.record.load is not None and row.record.load.slo_met is False
