"""Past runs as a list: what each measured and where, its warnings, and which of them somebody looks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.analysis.serving import TOTAL
from paceline.analysis.summary import headline_of, plain_label
from paceline.core.case import is_micro
from paceline.core.environment import Environment
from paceline.core.quantity import with_interval
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import RunRecords, RunRow
from paceline.report.run.lead import token_sentence
from paceline.report.text import figure_interval, show_value

PINNED = "pinned"  # a state to look for, besides those of a run
_AT_ONCE = 100  # runs that are read together


class RunSource(Protocol):
    """Where runs are read from; a store is one."""

    def runs(self, limit: int | None = 20) -> list[RunRow]:
        """The latest runs, the newest first."""

    def glances(self, run_ids: Sequence[str]) -> dict[str, RunRecords]:
        """These runs with the figures of their cases."""


@dataclass(frozen=True)
class Headline:
    """The figure that a run is known by."""

    case: str
    metric: str
    value: float
    unit: str
    text: str  # the value in its unit
    interval: str
    more: str = ""  # what else it is known by

    @property
    def shown(self) -> str:
        """The value with its interval."""
        return with_interval(self.text, self.interval)


@dataclass(frozen=True)
class RunGlance:
    """What a list shows of what a run measured; the records themselves are not kept."""

    machine: str
    devices: str
    headline: Headline | None
    warnings: Mapping[str, int]  # in how many cases there is one of each kind
    benchmarks: tuple[str, ...]
    text: str  # that a search looks through

    @classmethod
    def of(cls, records: RunRecords) -> RunGlance:
        """What these records come to."""
        environment, found = records.run.environment, records.records
        kinds = Counter(kind for one in found for kind in {warning.kind for warning in one.warnings})
        devices = devices_of(environment)
        machine = ", ".join(filter(None, (environment.host_name, devices)))
        words = (machine, *kinds, *(f"{one.case.benchmark} {one.case.title}" for one in found))
        return cls(
            machine=machine,
            devices=devices,
            headline=_headline(found),
            warnings=dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0]))),
            benchmarks=tuple(dict.fromkeys(one.case.benchmark for one in found)),
            text=" ".join(words).casefold(),
        )


@dataclass(frozen=True)
class ListedRun:
    """A run with what a list shows of it."""

    row: RunRow
    glance: RunGlance

    @property
    def machine(self) -> str:
        """Its host, and its GPUs or its processor."""
        return self.glance.machine

    @property
    def warnings(self) -> Mapping[str, int]:
        """In how many cases there is a warning of each kind."""
        return self.glance.warnings

    @property
    def figure(self) -> str:
        """The headline in words, and how many other cases there are."""
        lead, others = self.glance.headline, self.row.ok - 1
        if lead is None:
            return ""
        return f"{lead.case}: {lead.shown}" + (f" and {others} more" if others > 0 else "")

    def matches(self, words: Sequence[str], machine: str, benchmark: str = "") -> bool:
        """Whether it has all of the words in its names, tags, note or cases, on such a machine, with this benchmark."""
        row, glance = self.row, self.glance
        if machine.casefold() not in glance.machine.casefold() or (benchmark and benchmark not in glance.benchmarks):
            return False
        text = " ".join((row.id, row.name, row.status, row.note, *row.tags)).casefold()
        return all(word in text or word in glance.text for word in words)

    def document(self) -> dict[str, Any]:
        """For programs."""
        lead = self.glance.headline
        figure = {"case": lead.case, "metric": lead.metric, "value": lead.value, "unit": lead.unit} if lead else None
        return self.row.model_dump() | {"machine": self.machine, "figure": figure, "warnings": dict(self.warnings)}


class RunGlances:
    """Looks at runs, a batch at a time; what finished runs came to is kept for the next who asks."""

    def __init__(self, source: RunSource, most_kept: int = 0) -> None:
        self.source = source
        self._most = most_kept
        self._kept: dict[tuple[object, ...], RunGlance] = {}

    def look(self, rows: Sequence[RunRow]) -> Iterator[ListedRun]:
        """Each of these runs; one that was deleted meanwhile is left out."""
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            known = {row.id: self._kept[key] for row in some if (key := _edition(row)) in self._kept}
            missing = [row.id for row in some if row.id not in known]
            read = self.source.glances(missing) if missing else {}
            known |= {run_id: RunGlance.of(records) for run_id, records in read.items()}
            for row in some:
                if row.id in read and row.status != "running" and self._most:
                    while len(self._kept) >= self._most:
                        del self._kept[next(iter(self._kept))]
                    self._kept[_edition(row)] = known[row.id]
            yield from (ListedRun(row, known[row.id]) for row in some if row.id in known)


def listed(
    glances: RunGlances,
    limit: int,
    *,
    tag: str = "",
    machine: str = "",
    status: str = "",
    search: str = "",
    benchmark: str = "",
) -> list[ListedRun]:
    """The newest runs that somebody looks for, so many of them at most."""
    is_filtered = bool(tag or machine or status or search or benchmark)
    rows = [
        row
        for row in glances.source.runs(None if is_filtered else limit)
        if (not tag or tag in row.tags) and (status in ("", row.status) or (status == PINNED and row.pinned))
    ]
    words = search.casefold().split()
    runs: list[ListedRun] = []
    for run in glances.look(rows):
        if len(runs) == limit:
            break
        if run.matches(words, machine, benchmark):
            runs.append(run)
    return runs


def devices_of(environment: Environment) -> str:
    """What a machine computes with: its GPUs, otherwise its processor."""
    gpus = Counter(gpu.name or "unknown GPU" for gpu in environment.gpus)
    names = [f"{count} x {name}" if count > 1 else name for name, count in gpus.items()]
    return ", ".join(names) or environment.cpu.model or ""


def _headline(records: Sequence[Record]) -> Headline | None:
    """Of the first model if there is one, otherwise of the first case."""
    good = [record for record in records if record.outcome is Outcome.OK]
    good.sort(key=lambda record: (is_micro(record.case.category), record.case.index))
    leads = ((record, figure) for record in good if (figure := _lead(record)) is not None)
    lead: tuple[Record, Measurement] | None = next(leads, None)
    if lead is None:
        return None
    record, figure = lead
    texts = show_value(figure.value, figure.unit), figure_interval(figure)
    more = token_sentence(record).removeprefix(with_interval(*texts)).lstrip(", ")
    return Headline(plain_label(record.case), figure.name, figure.value, figure.unit, *texts, more)


def _lead(record: Record) -> Measurement | None:
    """Of a served language model, always its tokens: next to other runs, a time without its name says nothing."""
    return (record.measurement(TOTAL) if record.load is not None else None) or headline_of(record)


def _edition(row: RunRow) -> tuple[object, ...]:
    return row.id, row.status, row.ended_at, row.ok, row.not_ok
