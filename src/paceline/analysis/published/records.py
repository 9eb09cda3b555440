"""Figures that others published: tables that put a run next to them, and records to compare it with.

The records have no samples, hence no intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from typing import Any

from paceline.analysis.published import PublishedTable, published_rows
from paceline.analysis.published.flashlight import GPUS, METRICS, NAMES, flashlight_tables
from paceline.analysis.published.inferbench import inferbench_tables
from paceline.analysis.published.libai import PublishedRow, libai_rows, libai_tables
from paceline.core.case import Case, Category
from paceline.core.errors import unknown
from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.subject import Subject

_PUBLISHED_AT = datetime(2022, 1, 1, tzinfo=UTC)  # the tables do not say when they were measured
_PRECISIONS = {"FP32": "fp32", "AMP": "fp16"}
_OF_SUITE = {"flashlight": flashlight_tables, "libai": libai_tables, "serving-batches": inferbench_tables}
_TABLES = ("libai", "megatron", "flashlight")
_RUN = "published-"  # how the names of runs begin that nobody here made


def published_tables(records: RunRecords) -> tuple[PublishedTable, ...]:
    """The tables that belong to the suite that was run; a run that measured nothing has none."""
    make = _OF_SUITE.get(records.run.name)
    return make(records) if make else ()


def published_records(name: str) -> RunRecords:
    """The figures of one published table; those of `megatron` are in LiBai's."""
    if name not in _TABLES:
        raise unknown("published figures", name, _TABLES)
    records = list(_flashlight() if name == "flashlight" else _layouts(name))
    run = Run(
        id=f"{_RUN}{name}",
        name=name,
        status="finished",
        started_at=_PUBLISHED_AT,
        ended_at=_PUBLISHED_AT,
        version="",
        cases=[record.case for record in records],
    )
    return RunRecords(run=run, records=records)


def is_published(record: Record) -> bool:
    """Whether it is a figure that others published, which cannot be measured again."""
    return record.run_id.startswith(_RUN)


def _layouts(name: str) -> Iterator[Record]:
    """Each layout once: a few rows are in two tables."""
    rows: dict[str, PublishedRow] = {}
    for row in libai_rows():
        rows.setdefault(str(row.layout), row)
    for index, (word, row) in enumerate(rows.items()):
        value = float(row.libai if name == "libai" else row.megatron)
        case = {"index": index, "benchmark": row.benchmark, "title": word, "parameters": {"case": word}}
        yield _record(name, Subject(layout=word), "throughput", "sequences/s", value, row.layout.world_size, case)


def _flashlight() -> Iterator[Record]:
    models = {name: model for model, name in NAMES.items()}
    for index, (row, ranks) in enumerate(product(published_rows("flashlight_v100"), GPUS)):
        model, precision = models[row["model"]], _PRECISIONS[row["precision"]]
        what = {"model": model, "precision": precision, "scale": "full"}
        case = {
            "index": index,
            "benchmark": row["benchmark"],
            "title": f"{model} {precision}" + (f" x{ranks}" if ranks > 1 else ""),
            "parameters": what | {"batch_size": int(row["input"].rpartition("x")[2])},
        }
        subject, value = Subject.model_validate(what), float(row[f"gpus_{ranks}"])
        yield _record("flashlight", subject, METRICS[row["unit"]], row["unit"], value, ranks, case)


def _record(
    name: str, subject: Subject, metric: str, unit: str, value: float, ranks: int, case: dict[str, Any]
) -> Record:
    rate = Metric(name=metric, unit=unit, better=Better.HIGHER, merge=Merge.SUM)
    target = "cuda:*" if ranks > 1 else "cuda:0"
    return Record(
        run_id=f"{_RUN}{name}",
        case=Case(**case, target=target, ranks=ranks, category=Category.TRAINING),
        outcome=Outcome.OK,
        started_at=_PUBLISHED_AT,
        seconds=0.0,
        measurements=[Measurement.of_value(rate, value)],
        primary=metric,
        subject=subject,
    )
