"""What trackers of experiments are sent: a run in words, and each record's parameters, figures and units."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.analysis.summary import unique_labels
from paceline.analysis.trend.series import commit, fingerprint
from paceline.core.record import Measurement, Record
from paceline.core.run import Run, RunRecords


@dataclass(frozen=True)
class TrackedCase:
    """One record as a tracker knows runs."""

    record: Record
    label: str  # that no other record of the run has
    parameters: dict[str, Any]  # flat: the parts of a parameter have dots in their names
    figures: dict[str, float]  # finite values under their metric's name, their intervals' ends after _low and _high
    not_finite: dict[str, str]  # figures that are NaN or infinite, as text
    units: dict[str, str]  # by the name of a metric, where it has one
    better: dict[str, str]  # by the name of a metric: higher or lower


def about_run(run: Run) -> dict[str, str]:
    """A run in words; what is not known is left out."""
    sha, dirty = commit(run.environment)
    words = {
        "run": run.id,
        "suite": run.name,
        "status": run.status,
        "started": run.started_at.isoformat(),
        "ended": run.ended_at.isoformat() if run.ended_at else "",
        "command_line": shlex.join(run.command),
        "tags": ", ".join(run.tags),
        "version": run.version,
        "host": run.environment.host_name,
        "cpu": run.environment.cpu.model or "",
        "gpus": ", ".join(dict.fromkeys(gpu.name or "" for gpu in run.environment.gpus or ())),
        "commit": f"{sha}{' with changes' if dirty else ''}" if sha else "",
        "environment": fingerprint(run.environment),
    }
    return {name: word for name, word in words.items() if word}


def tracked_cases(records: RunRecords) -> Iterator[TrackedCase]:
    """Every record, in the order of the run."""
    ordered = sorted(records.records, key=lambda record: record.case.index)
    for record, label in zip(ordered, unique_labels([record.case for record in ordered]), strict=True):
        figures = {name: value for one in record.measurements for name, value in _figures(one)}
        metrics = {one.metric.name: one.metric for one in record.measurements}
        yield TrackedCase(
            record,
            label,
            dict(_flat(record.case.parameters)),
            {name: value for name, value in figures.items() if math.isfinite(value)},
            {name: str(value) for name, value in figures.items() if not math.isfinite(value)},
            {name: metric.unit for name, metric in metrics.items() if metric.unit},
            {name: metric.better.value for name, metric in metrics.items()},
        )


def about_case(case: TrackedCase) -> dict[str, str]:
    """A record in words, besides its parameters."""
    record = case.record
    words = {
        "benchmark": record.case.benchmark,
        "category": record.case.category,
        "case": case.label,
        "case_key": record.case.key,
        "target": record.case.target,
        "ranks": str(record.case.ranks),
        "repeat": str(record.case.repeat),
        "outcome": record.outcome.value,
        "cause": record.cause.message if record.cause else "",
        "warnings": "; ".join(f"{warning.kind}: {warning.message}" for warning in record.warnings),
        "device": record.subject.device or "",
        "engine": record.subject.engine or "",
    }
    return {name: word for name, word in words.items() if word}


def _figures(measurement: Measurement) -> Iterator[tuple[str, float]]:
    """The value, and its interval's ends and confidence, by names that say at which point and of which rank it is."""
    place = "".join(f" {key}:{value}" for key, value in measurement.at.items())
    place += f" {measurement.scope}" if measurement.scope else ""
    name, interval = measurement.metric.name, measurement.interval
    yield f"{name}{place}", measurement.value
    if interval is not None:
        yield f"{name}_low{place}", interval.low
        yield f"{name}_high{place}", interval.high
        yield f"{name}_confidence{place}", interval.confidence


def _flat(parameters: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in parameters.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value, default=str) if isinstance(value, list | Mapping) else value
