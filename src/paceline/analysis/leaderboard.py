"""Who is best at a piece of work: machines, software and choices side by side; what runs do not show is not ranked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.analysis.compare.significance import FLOOR, RepeatSamples, parts_of
from paceline.analysis.configuration import MACHINE, RANKS, TARGET, Configuration, configuration_of, labels
from paceline.analysis.cost import HourlyPrice, Prices, energy_of
from paceline.analysis.recommend.evidence import hull
from paceline.analysis.summary import Reading, headline_of
from paceline.core.errors import unknown
from paceline.core.grouping import group_by
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords, sessions_of
from paceline.core.stats import CONFIDENCE, student_upper
from paceline.core.uncertainty import Part, differences, estimates


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
    read = list(sources)
    for source in read:
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
    works = group_by(
        candidates, lambda one: (one.configuration.work, one.measurement.metric.name, one.measurement.metric.unit)
    )
    sessions = sessions_of(source.run for source in read)
    made = []
    for (work, _, _), members in works.items():
        groups = list(group_by(members, lambda one: (one.configuration.key, one.software)).values())
        repeats = [[RepeatSamples(one.measurement, (), one.run.id, sessions[one.run.id]) for one in g] for g in groups]
        made.append(_Unplaced(work, members[0].measurement.metric, groups, parts_of(repeats)))
    return sorted(_placed(made, prices), key=lambda board: (-len(board.entries), board.work))


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


@dataclass(frozen=True)
class _Unplaced:
    """The measurements of one board, by entry."""

    work: str
    metric: Metric
    groups: list[list[_Candidate]]
    parts: list[list[Part]]


def _placed(made: Sequence[_Unplaced], prices: Prices) -> Iterator[Board]:
    """The boards with places: what does not differ significantly from the first at a place shares it."""
    readings = _readings([pair for one in made for pair in zip(one.groups, one.parts, strict=True)])
    boards = []
    for one in made:
        entries = [_entry(group, one.metric, prices, next(readings)) for group in one.groups]
        boards.append(_ordered(one, entries))
    places = _places([parts for _, parts in boards])
    for (board, _), of_board in zip(boards, places, strict=True):
        placed = (replace(entry, place=place) for entry, place in zip(board.entries, of_board, strict=True))
        yield replace(board, entries=tuple(placed))


def _places(boards: Sequence[Sequence[Sequence[Part]]]) -> list[list[int]]:
    """The place of each entry, which come best first: a board's leader against the next, for all boards at a time."""
    places = [[1] for _ in boards]
    leaders = [0] * len(boards)
    for position in range(1, max(map(len, boards), default=0)):
        active = [number for number, entries in enumerate(boards) if position < len(entries)]
        compared = differences([boards[one][leaders[one]] for one in active], [boards[one][position] for one in active])
        for number, change, variance, freedom in zip(
            active, compared.changes, compared.variances, compared.freedoms, strict=True
        ):
            # Without a variance, as from one run each, nothing is decided.
            distance = abs(change) / math.sqrt(max(variance, 2 * FLOOR**2))
            if freedom >= 1 and student_upper(distance, freedom) <= (1.0 - CONFIDENCE) / 2.0:
                leaders[number] = position
            places[number].append(leaders[number] + 1)
    return places


def _readings(entries: Sequence[tuple[Sequence[_Candidate], Sequence[Part]]]) -> Iterator[Reading]:
    """The mean of each entry and its interval, from how its runs or sessions differ; a single one has its own."""
    estimate = estimates([parts for _, parts in entries])
    for place, (group, _) in enumerate(entries):
        log, variance = float(estimate.logs[place]), float(estimate.variances[place])
        if len(group) == 1:
            yield Reading.of(group[0].measurement)
        elif not math.isfinite(log):
            yield Reading(math.fsum(one.measurement.value for one in group) / len(group))
        else:
            yield Reading.of_logs(log, variance, float(estimate.freedoms[place]))


def _ordered(made: _Unplaced, entries: Sequence[Entry]) -> tuple[Board, list[list[Part]]]:
    """The board with its entries named, the best first, and the parts of each."""
    # The machine has a column of its own.
    choices = [
        {name: value for name, value in entry.configuration.choices.items() if name not in (MACHINE, TARGET, RANKS)}
        for entry in entries
    ]
    names = labels([Configuration(made.work, rest) for rest in choices])
    named = [replace(entry, label=name) for entry, name in zip(entries, names, strict=True)]
    sign = 1.0 if made.metric.better is Better.LOWER else -1.0
    pairs = sorted(
        zip(named, made.parts, strict=True),
        key=lambda pair: (sign * pair[0].reading.value, pair[0].machine, pair[0].label),
    )
    return Board(made.work, made.metric, tuple(entry for entry, _ in pairs)), [parts for _, parts in pairs]


def _entry(group: Sequence[_Candidate], metric: Metric, prices: Prices, reading: Reading) -> Entry:
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
