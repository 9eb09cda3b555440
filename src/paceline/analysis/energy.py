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

SLOWER = 0.05  # than the fastest limit, at most: the SLO of a sweep that states none


@dataclass(frozen=True)
class LimitPoint:
    """The work at one limit; of repetitions the median."""

    limit: str  # empty for what was set before
    rate: float  # work in a second
    joules: float | None  # for one piece of work; None where nothing counted them
    keeps: float  # its rate as a part of the fastest one
    meets_slo: bool

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
        """What takes the least energy of those that meet the SLO; None where no energy is known."""
        known = [(one.joules, one) for one in self.points if one.meets_slo and one.joules is not None]
        return min(known, key=lambda pair: pair[0])[1] if known else None


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
            joules = [one for row in same if (one := joules_of(row)) is not None]
            keeps = rates[limit] / fastest
            fast_enough = keeps >= 1.0 - SLOWER and not any(_misses(row) for row in same)
            points.append(LimitPoint(limit, rates[limit], median(joules) if joules else None, keeps, fast_enough))
        first = alike[0]
        work = f"{first.case.benchmark} {first.case.title}".removesuffix(f" at {first.case.limits}")
        source = first.record.economy.energy_source if energy_of(first.record) else "the power that its driver reports"
        yield LimitSweep(work, _unit(first), source, tuple(points))


def joules_of(row: CaseRow) -> float | None:
    """For one piece of work: as a counter had it, or the power under this load over the rate."""
    energy, power = energy_of(row.record), row.figure("power")
    if energy is not None:
        return energy.reading.value
    return power.value / _rate(row) if power is not None and power.metric.unit == "W" else None


def _rate_of(row: CaseRow) -> Measurement:
    found = row.figure("throughput") or row.headline
    assert found is not None
    return found


def _rate(row: CaseRow) -> float:
    found = _rate_of(row)
    return 1.0 / found.value if found.metric.better is Better.LOWER else found.value


def _unit(row: CaseRow) -> str:
    unit = _rate_of(row).metric.unit
    return unit.removesuffix("/s") if unit.endswith("/s") else "calls"


def _misses(row: CaseRow) -> bool:
    """Whether a served case has missed the SLO that it was given."""
    return any(load.slo.startswith("missed") for load in (row.record.load.loads if row.record.load else ()))
