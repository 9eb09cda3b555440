"""The measurements as Parquet: one row each, typed, with its samples as a list; for many runs in one data frame."""

from __future__ import annotations

import io
import json
from typing import Any

from paceline.analysis.trend.series import commit, fingerprint
from paceline.core.errors import MissingDependency
from paceline.core.record import Measurement, Record
from paceline.core.run import Run, RunRecords
from paceline.core.stats import PERCENTILES
from paceline.report.export import Export

_SPREAD = ("mean", "median", "minimum", "maximum", "deviation")
_LEVELS = {f"p{name:g}".replace(".", "_"): f"{name:g}" for name in PERCENTILES}


def render(records: RunRecords) -> bytes:
    """The whole file; a case without any measurement has one row, so that none is missed."""
    pyarrow, parquet = _library()
    schema = _schema(pyarrow)
    about = _about_run(records.run)
    rows = []
    for record in sorted(records.records, key=lambda record: record.case.index):
        own = about | _about_record(record)
        rows += [own | _figures(measurement) for measurement in record.measurements] or [own]
    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns, schema=schema), file, compression="zstd")
    return file.getvalue()


def _library() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependency("pyarrow, which writes Parquet,", "pip install 'paceline[exports]'") from None
    return pyarrow, pyarrow.parquet


def _schema(pyarrow: Any) -> Any:
    text, whole, number = pyarrow.string(), pyarrow.int64(), pyarrow.float64()
    moment = pyarrow.timestamp("us", tz="UTC")
    word = pyarrow.dictionary(pyarrow.int32(), text)  # of few values, repeated in every row
    fields = {
        "run_id": word, "run_name": word, "run_started_at": moment, "version": word, "tags": pyarrow.list_(text),
        "host": word, "commit": word, "dirty": pyarrow.bool_(), "environment_id": word,
        "case_index": whole, "case_key": word, "benchmark": word, "category": word, "title": word, "target": word,
        "ranks": whole, "repeat": whole, "attempt": whole, "outcome": word, "cause": word, "started_at": moment,
        "seconds": number, "parameters": word, "facts": text, "warnings": pyarrow.list_(text),
        "metric": word, "scope": word, "at": text, "unit": word, "better": word, "statistic": word, "value": number,
        "low": number, "high": number, "confidence": number, "count": whole, "effective_count": number,
        **dict.fromkeys(_SPREAD, number), **dict.fromkeys(_LEVELS, number), "outliers": whole,
        "derived_from": word, "work": number, "samples": pyarrow.list_(number),
    }  # fmt: skip
    return pyarrow.schema(list(fields.items()))


def _about_run(run: Run) -> dict[str, Any]:
    sha, dirty = commit(run.environment)
    return {
        "run_id": run.id,
        "run_name": run.name,
        "run_started_at": run.started_at,
        "version": run.version,
        "tags": run.tags,
        "host": run.environment.host_name,
        "commit": sha,
        "dirty": dirty,
        "environment_id": fingerprint(run.environment),
    }


def _about_record(record: Record) -> dict[str, Any]:
    case = record.case
    return {
        "case_index": case.index,
        "case_key": case.key,
        "benchmark": case.benchmark,
        "category": case.category,
        "title": case.title,
        "target": case.target,
        "ranks": case.ranks,
        "repeat": case.repeat,
        "attempt": record.attempt,
        "outcome": record.outcome.value,
        "cause": record.cause.kind.value if record.cause else None,
        "started_at": record.started_at,
        "seconds": record.seconds,
        "parameters": json.dumps(case.parameters, sort_keys=True, default=str),
        "facts": json.dumps(record.facts, sort_keys=True, default=str),
        "warnings": [warning.kind for warning in record.warnings],
    }


def _figures(measurement: Measurement) -> dict[str, Any]:
    metric, summary, interval = measurement.metric, measurement.summary, measurement.interval
    return {
        "metric": metric.name,
        "scope": measurement.scope,
        "at": json.dumps(measurement.at, default=str) if measurement.at else None,
        "unit": metric.unit,
        "better": metric.better.value,
        "statistic": measurement.statistic,
        "value": measurement.value,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "confidence": interval.confidence if interval else None,
        "count": summary.count,
        "effective_count": summary.effective_count,
        **{name: getattr(summary, name) for name in _SPREAD},
        **{column: summary.percentiles.get(name) for column, name in _LEVELS.items()},
        "outliers": summary.outliers,
        "derived_from": measurement.derived_from or None,
        "work": measurement.work,
        "samples": measurement.samples,
    }


EXPORT = Export(
    "parquet",
    "one row per measurement, with every sample, typed",
    render,
    suffixes=(".parquet",),
    file="paceline-report-{run}.parquet",
    order=30,
)
