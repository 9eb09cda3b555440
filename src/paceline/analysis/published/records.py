"""Published figures as records, so that a run can be compared with them; they have no samples, hence no intervals."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from paceline.analysis.published.flashlight import GPUS, METRICS, NAMES
from paceline.analysis.published.libai import libai_rows
from paceline.analysis.published.table import published_rows
from paceline.core.case import Case, Category
from paceline.core.errors import unknown
from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.subject import Subject

_PUBLISHED_AT = datetime(2022, 1, 1, tzinfo=UTC)  # the tables do not say when they were measured
_PRECISIONS = {"FP32": "fp32", "AMP": "fp16"}
_TABLES = ("libai", "megatron", "flashlight")


def published_records(name: str) -> RunRecords:
    """The figures of one published table; those of `megatron` are in LiBai's."""
    if name not in _TABLES:
        raise unknown("published figures", name, _TABLES)
    made = _flashlight() if name == "flashlight" else _layouts(name)
    records = [_record(name, index, *told) for index, told in enumerate(made)]
    run = Run(
        id=f"published-{name}",
        name=name,
        status="finished",
        started_at=_PUBLISHED_AT,
        ended_at=_PUBLISHED_AT,
        version="",
        cases=[record.case for record in records],
    )
    return RunRecords(run=run, records=records)


_Told = tuple[
    str, str, dict[str, Any], Subject, int, str, str, float
]  # benchmark, title, parameters, what was measured, ranks, metric, unit, value


def _layouts(name: str) -> Iterator[_Told]:
    """Each layout once: a few rows stand in two tables."""
    seen = set()
    for row in libai_rows():
        word = str(row.layout)
        if word not in seen:
            seen.add(word)
            value = float(row.libai if name == "libai" else row.megatron)
            subject, ranks = Subject(layout=word), row.layout.world_size
            yield row.benchmark, word, {"case": word}, subject, ranks, "throughput", "sequences/s", value


def _flashlight() -> Iterator[_Told]:
    models = {name: model for model, name in NAMES.items()}
    for row in published_rows("flashlight_v100"):
        precision, batch = _PRECISIONS[row["precision"]], int(row["input"].rpartition("x")[2])
        model = models[row["model"]]
        parameters = {"model": model, "precision": precision, "batch_size": batch, "scale": "full"}
        subject = Subject.model_validate({"model": model, "precision": precision, "scale": "full"})
        for ranks in GPUS:
            title = f"{model} {precision}" + (f" x{ranks}" if ranks > 1 else "")
            value = float(row[f"gpus_{ranks}"])
            yield row["benchmark"], title, parameters, subject, ranks, METRICS[row["unit"]], row["unit"], value


def _record(
    name: str,
    index: int,
    benchmark: str,
    title: str,
    parameters: dict[str, Any],
    subject: Subject,
    ranks: int,
    metric: str,
    unit: str,
    value: float,
) -> Record:
    case = Case(
        index=index,
        benchmark=benchmark,
        parameters=parameters,
        title=title,
        target="cuda:*" if ranks > 1 else "cuda:0",
        ranks=ranks,
        category=Category.TRAINING,
    )
    told = Metric(name=metric, unit=unit, better=Better.HIGHER, merge=Merge.SUM)
    return Record(
        run_id=f"published-{name}",
        case=case,
        outcome=Outcome.OK,
        started_at=_PUBLISHED_AT,
        seconds=0.0,
        measurements=[Measurement.of_value(told, value)],
        primary=metric,
        subject=subject,
    )
