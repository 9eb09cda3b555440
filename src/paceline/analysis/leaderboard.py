"""Who is best at a piece of work: machines, software and choices side by side; overlapping intervals are level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.analysis.configuration import MACHINE, RANKS, TARGET, Configuration, configuration_of, labels
from paceline.analysis.cost import HourlyPrice, Prices, energy_of
from paceline.analysis.figures import Reading
from paceline.analysis.recommend.evidence import hull
from paceline.analysis.summary import headline_of
from paceline.core.errors import unknown
from paceline.core.grouping import group_by
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords


@dataclass(frozen=True)
class Entry:
    """One machine with one software and one set of choices, over all its measurements."""

    place: int
    machine: str
    software: Mapping[str, str]
    label: str  # the choices that distinguish it from others on the board
    reading: Reading
    count: int  # measurements behind it
    warnings: tuple[str, ...]
    per_joule: Reading | None  # work for a joule, which is the rate for a watt
    per_usd: Reading | None  # work for a dollar
    price: HourlyPrice | None
    energy_basis: tuple[str, ...]
    runs: tuple[str, ...]
    configuration: Configuration


@dataclass(frozen=True)
class Board:
    """All that did the same work, best first."""

    work: str
    metric: Metric
    entries: tuple[Entry, ...]

    @property
    def leaders(self) -> tuple[Entry, ...]:
        """Those in first place."""
        return tuple(entry for entry in self.entries if entry.place == 1)

    @property
    def work_unit(self) -> str:
        """What is done, where the metric is a rate."""
        return self.metric.unit.removesuffix("/s") if is_rate(self.metric) else ""


@dataclass(frozen=True)
class _Candidate:
    record: Record
    run: Run
    configuration: Configuration
    software: tuple[tuple[str, str], ...]
    measurement: Measurement


def boards(sources: Iterable[RunRecords], prices: Prices, *, metric: str | None = None, text: str = "") -> list[Board]:
    """A board for each piece of work, the largest first; without a metric, by the one that leads each benchmark."""
    candidates: list[_Candidate] = []
    metrics: set[str] = set()
    for source in sources:
        for record in source.records:
            if record.outcome is not Outcome.OK:
                continue
            configuration = configuration_of(record, source.run, with_load=True)
            name = f"{record.case.benchmark} {record.case.title} {configuration.work}".casefold()
            if text.casefold() not in name:
                continue
            metrics |= {one.metric.name for one in record.measurements if one.metric.better is not Better.NEITHER}
            value = record.measurement(metric) if metric else headline_of(record)
            if value is None or value.metric.better is Better.NEITHER or not math.isfinite(value.value):
                continue
            software = tuple(software_of(source.run).items())
            candidates.append(_Candidate(record, source.run, configuration, software, value))
    if metric is not None and not candidates and metrics:
        raise unknown("metric", metric, metrics)
    same = group_by(
        candidates, lambda one: (one.configuration.work, one.measurement.metric.name, one.measurement.metric.unit)
    )
    made = [_board(work, members, prices) for (work, _, _), members in same.items()]
    return sorted(made, key=lambda board: (-len(board.entries), board.work))


def software_of(run: Run) -> dict[str, str]:
    """The versions that matter to a number."""
    environment = run.environment
    versions = {
        "torch": environment.software.packages.get("torch"),
        "driver": environment.driver.version if environment.driver else None,
    }
    return {name: version for name, version in versions.items() if version} | {"Paceline": run.version}


def is_rate(metric: Metric) -> bool:
    """Whether it counts work over time."""
    return metric.unit.endswith("/s") and metric.better is Better.HIGHER


def _board(work: str, members: Sequence[_Candidate], prices: Prices) -> Board:
    metric = members[0].measurement.metric
    sign = 1.0 if metric.better is Better.LOWER else -1.0
    groups = group_by(members, lambda member: (member.configuration.key, member.software))
    entries = [_entry(group, metric, prices) for group in groups.values()]
    # The machine has a column of its own.
    choices = [
        {name: value for name, value in entry.configuration.choices.items() if name not in (MACHINE, TARGET, RANKS)}
        for entry in entries
    ]
    names = labels([Configuration(work, rest) for rest in choices])
    named = [replace(entry, label=name) for entry, name in zip(entries, names, strict=True)]
    ordered = sorted(named, key=lambda entry: (sign * entry.reading.value, entry.machine, entry.label))
    placed: list[Entry] = []
    leader, place = ordered[0].reading, 1
    for position, entry in enumerate(ordered, start=1):
        # What does not differ significantly from the first at a place shares it; without an interval, equal values do.
        if not leader.overlaps(entry.reading) and leader.value != entry.reading.value:
            leader, place = entry.reading, position
        placed.append(replace(entry, place=place))
    return Board(work, metric, tuple(placed))


def _entry(group: Sequence[_Candidate], metric: Metric, prices: Prices) -> Entry:
    reading = hull([Reading.of(one.measurement) for one in group])
    energies = [energy for one in group if (energy := energy_of(one.record)) is not None]
    hourly = [price for one in group if (price := prices.of(one.record, one.run)) is not None]
    price = hourly[-1] if len({one.usd for one in hourly}) == 1 else None
    first = group[0]
    return Entry(
        place=0,
        machine=first.configuration.machine,
        software=dict(first.software),
        label="",
        reading=reading,
        count=len(group),
        warnings=tuple(dict.fromkeys(warning.kind for one in group for warning in one.record.warnings)),
        per_joule=hull([one.reading for one in energies]).over(1.0) if energies and is_rate(metric) else None,
        per_usd=reading.times(3600.0 / price.usd) if price is not None and is_rate(metric) else None,
        price=price,
        energy_basis=energies[0].inputs if energies else (),
        runs=tuple(dict.fromkeys(one.record.run_id for one in group)),
        configuration=first.configuration,
    )
