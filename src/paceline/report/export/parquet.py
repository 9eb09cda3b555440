"""The measurements as Parquet: one row each, typed, with its samples as a list; for many runs in one data frame."""

from __future__ import annotations

import io
import json
from typing import Any

from paceline.analysis.trend.series import commit, fingerprint
from paceline.core.errors import MissingDependency
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from paceline.core.stats import PERCENTILES
from paceline.report.export import Export
from paceline.report.export.csv import measurement_columns, record_columns

_LEVELS = {f"p{name:g}".replace(".", "_"): f"{name:g}" for name in PERCENTILES}


def render(records: RunRecords) -> bytes:
    """The whole file; a case without any measurement has one row, so that none is missed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingDependency("pyarrow, which writes Parquet,", "pip install '.[exports]'") from None
    run, schema = records.run, _schema(pyarrow)
    sha, dirty = commit(run.environment)
    of_run = {
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
    rows: list[dict[str, Any]] = []
    for record in sorted(records.records, key=lambda record: record.case.index):
        shared = {
            **of_run,
            **record_columns(record),
            "case_index": record.case.index,
            "case_key": record.case.key,
            "category": record.case.category,
            "started_at": record.started_at,
            "seconds": record.seconds,
            "facts": json.dumps(record.facts, sort_keys=True, default=str),
            "warnings": [warning.kind for warning in record.warnings],
        }
        rows += [shared | _figures(measurement) for measurement in record.measurements] or [shared]
    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns, schema=schema), file, compression="zstd")
    return file.getvalue()


def _figures(measurement: Measurement) -> dict[str, Any]:
    summary = measurement.summary
    return measurement_columns(measurement) | {
        "at": json.dumps(measurement.at, default=str) if measurement.at else None,
        "effective_count": summary.effective_count,
        **{column: summary.percentiles.get(name) for column, name in _LEVELS.items()},
        "derived_from": measurement.derived_from or None,
        "work": measurement.work,
        "samples": measurement.samples,
    }


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
        "mean": number, "median": number, "minimum": number, "maximum": number, "deviation": number,
        **dict.fromkeys(_LEVELS, number), "outliers": whole, "derived_from": word, "work": number,
        "samples": pyarrow.list_(number),
    }  # fmt: skip
    return pyarrow.schema(list(fields.items()))


EXPORT = Export(
    "parquet",
    "one row per measurement, with every sample, typed",
    render,
    suffixes=(".parquet",),
    file="paceline-report-{run}.parquet",
    order=30,
)
