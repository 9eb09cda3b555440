"""From the records of a run to the most that its devices can do."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.environment import Environment
from paceline.core.profile import Absent, Ceiling
from paceline.core.record import Doubt, Measurement, Outcome, Record
from paceline.core.run import RunRecords

PRECISE = 0.05  # half of an interval, as a part of its figure


def ceilings_of(records: RunRecords) -> tuple[list[Ceiling], list[Absent]]:
    """Every ceiling that the run measured, in its order, and what it did not with the reason."""
    ceilings: list[Ceiling] = []
    absent: list[Absent] = []
    for record in records.records:
        if record.outcome is Outcome.OK:
            ceilings += shown_by(record, records.run.environment)
        else:
            reason = record.cause.message if record.cause else f"it ended as {record.outcome.value}"
            absent.append(Absent(what=_label(record), device=record.case.target, reason=reason))
    absent += [
        Absent(what=f"{case.benchmark} {case.title}".strip(), device=case.target, reason="it was not run")
        for case in records.missing
        if case.index not in {record.case.index for record in records.records}
    ]
    return _once_each(ceilings), absent


def shown_by(record: Record, environment: Environment) -> Iterator[Ceiling]:
    """What one record shows that its device can do at most."""
    target = record.case.target
    own_name = record.subject.device or target
    for shown in record.ceilings:
        measurement = record.measurement(shown.metric, at=shown.at)
        if measurement is None or not measurement.value > 0:
            continue
        interval = measurement.interval
        yield Ceiling(
            device=target,
            device_name=environment.cpu.model or own_name if target == "cpu" else own_name,
            kind=shown.kind,
            name=shown.name,
            value=measurement.value,
            unit=measurement.metric.unit,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            doubts=tuple(doubt for doubt in record.doubts if not _is_foreign(doubt, measurement, shown.name)),
        )


def _is_foreign(doubt: Doubt, measurement: Measurement, name: str) -> bool:
    """Whether a doubt of the case is about another of its points: this figure is precise, or meant to be a cache's."""
    interval = measurement.interval
    if doubt.kind == "imprecise":
        return interval is not None and interval.relative(measurement.value) <= PRECISE
    return doubt.kind == "cached" and name.startswith("L")


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
