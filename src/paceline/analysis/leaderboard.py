"""Who is best at a piece of work: machines, software and choices side by side; what cannot be told apart is level."""

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
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords


@dataclass(frozen=True)
class Entry:
    """One machine with one software and one set of choices, over all its measurements."""

    place: int
    machine: str
    software: Mapping[str, str]
    label: str  # the choices that tell it from others on the board
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
        """Those on the first place."""
        return tuple(entry for entry in self.entries if entry.place == 1)

    @property
    def work_unit(self) -> str:
        """What is done, where the metric is a rate."""
        return self.metric.unit.removesuffix("/s") if is_rate(self.metric) else ""


@dataclass(frozen=True)
class _Found:
    record: Record
    run: Run
    configuration: Configuration
    software: tuple[tuple[str, str], ...]
    measurement: Measurement


def boards(
    sources: Iterable[RunRecords],
    prices: Prices,
    *,
    metric: str | None = None,
    text: str = "",
) -> list[Board]:
    """A board for each piece of work, the largest first; without a metric, by the one that leads each benchmark."""
    together: dict[tuple[str, str, str], list[_Found]] = {}
    known: set[str] = set()
    for source in sources:
        for record in source.records:
            if record.outcome is not Outcome.OK:
                continue
            configuration = configuration_of(record, source.run, with_load=True)
            name = f"{record.case.benchmark} {record.case.title} {configuration.work}".casefold()
            if text.casefold() not in name:
                continue
            known |= {one.metric.name for one in record.measurements if one.metric.better is not Better.NEITHER}
            found = record.measurement(metric) if metric else headline_of(record)
            if found is None or found.metric.better is Better.NEITHER or not math.isfinite(found.value):
                continue
            key = (configuration.work, found.metric.name, found.metric.unit)
            entry = _Found(record, source.run, configuration, tuple(software_of(source.run).items()), found)
            together.setdefault(key, []).append(entry)
    if metric is not None and not together and known:
        raise unknown("metric", metric, known)
    made = [_board(work, members, prices) for (work, _, _), members in together.items()]
    return sorted(made, key=lambda board: (-len(board.entries), board.work))


def software_of(run: Run) -> dict[str, str]:
    """The versions that matter to a number."""
    environment = run.environment
    known = {
        "torch": environment.software.packages.get("torch"),
        "driver": environment.driver.version if environment.driver else None,
    }
    return {name: version for name, version in known.items() if version} | {"Paceline": run.version}


def is_rate(metric: Metric) -> bool:
    """Whether it counts work over time."""
    return metric.unit.endswith("/s") and metric.better is Better.HIGHER


def _board(work: str, members: Sequence[_Found], prices: Prices) -> Board:
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[_Found]] = {}
    for member in members:
        groups.setdefault((member.configuration.key, member.software), []).append(member)
    metric = members[0].measurement.metric
    sign = 1.0 if metric.better is Better.LOWER else -1.0
    found = [_entry(group, metric, prices) for group in groups.values()]
    names = labels([_without_machine(entry.configuration) for entry in found])
    named = [replace(entry, label=name) for entry, name in zip(found, names, strict=True)]
    ordered = sorted(named, key=lambda entry: (sign * entry.reading.value, entry.machine, entry.label))
    return Board(work, metric, tuple(_placed(ordered)))


def _entry(group: Sequence[_Found], metric: Metric, prices: Prices) -> Entry:
    reading = hull([Reading.of(one.measurement) for one in group])
    energies = [found for one in group if (found := energy_of(one.record)) is not None]
    known = [price for one in group if (price := prices.of(one.record, one.run)) is not None]
    price = known[-1] if len({one.usd for one in known}) == 1 else None
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


def _placed(ordered: Sequence[Entry]) -> list[Entry]:
    """Places; who cannot be told apart from the first on a place shares it."""
    made: list[Entry] = []
    leader: Entry | None = None
    for position, entry in enumerate(ordered, start=1):
        if leader is None or not _is_level(leader, entry):
            leader = replace(entry, place=position)
        made.append(replace(entry, place=leader.place))
    return made


def _is_level(leader: Entry, entry: Entry) -> bool:
    """Without an interval nothing but the same value is known to be level."""
    return leader.reading.overlaps(entry.reading) is True or leader.reading.value == entry.reading.value


def _without_machine(configuration: Configuration) -> Configuration:
    """The machine has a column of its own."""
    kept = {name: value for name, value in configuration.choices.items() if name not in (MACHINE, TARGET, RANKS)}
    return Configuration(configuration.work, kept)
