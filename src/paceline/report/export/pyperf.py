"""The results as pyperf writes them, so that its `compare_to` and `stats` read them; and pyperf's own files as a run.

That format knows values in seconds and bytes: every metric in one of these is a benchmark there, and each repetition
of a case a run, as each of pyperf's processes is. Other figures are metadata of the time that stands for the case.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paceline.analysis.summary import unique_labels
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError
from paceline.core.grouping import group_by
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.text import parse_json
from paceline.report.export import Export
from paceline.report.export.csv import interval_columns, joined
from paceline.report.export.pytest_benchmark import time_of
from paceline.report.text import one_line

NAME = "pyperf"  # of the benchmark whose records its files become
OURS = "paceline_"  # how the names of metadata begin that pyperf does not know
LARGEST = 1 << 30  # bytes of a file to read
_UNITS = {"s": "second", "B": "byte"}
_METRICS = {
    "second": Metric(name="time", unit="s", better=Better.LOWER),
    "byte": Metric(name="memory", unit="B", better=Better.LOWER),
    "integer": Metric(name="value", unit=""),
}
_BEGINNING = re.compile(rb'\s*\{\s*"(benchmarks"\s*:\s*\[|metadata"\s*:|version"\s*:\s*"(0|1)\.)')


def render(records: RunRecords) -> str:
    """The whole file."""
    run, environment = records.run, records.run.environment
    ordered = sorted(records.records, key=lambda record: record.case.index)
    groups = list(group_by((one for one in ordered if one.outcome is Outcome.OK), lambda one: one.case.key).values())
    labels = unique_labels([group[0].case.model_copy(update={"repeat": 1}) for group in groups])
    benchmarks = [
        benchmark for group, label in zip(groups, labels, strict=True) for benchmark in _benchmarks(group, label)
    ]
    if not benchmarks:
        message = f"run '{run.id}' has no case with a time or a size, which is all that pyperf knows"
        raise InputError("no-time-or-size", message, value=run.id)
    about = {
        "hostname": environment.host_name,
        "cpu_model_name": environment.cpu.model,
        "cpu_count": environment.cpu.logical_cores,
        "python_version": environment.software.python,
        "python_implementation": environment.software.implementation,
        f"{OURS}run": run.id,
        f"{OURS}suite": run.name,
        f"{OURS}version": run.version,
    }
    document = {"version": "1.0", "metadata": _metadata(about), "benchmarks": benchmarks}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _benchmarks(repeats: list[Record], label: str) -> Iterator[dict[str, Any]]:
    """What pyperf knows of one case: the time that stands for it first, under the case's own name."""
    leading = time_of(repeats[0])
    names = {_identity(one): one for record in repeats for one in record.measurements if _is_known(one)}
    for identity, one in sorted(names.items(), key=lambda item: leading is None or item[0] != _identity(leading)):
        leads = leading is not None and identity == _identity(leading)
        place = f" {joined(one.at)}" if one.at else ""
        runs = [
            _run(record, again, leads)
            for record in repeats
            for again in record.measurements
            if _identity(again) == identity and _is_known(again)
        ]
        about = {
            "name": label if leads else f"{label} {one.metric.name}{place}",
            "unit": _UNITS[one.metric.unit],
            f"{OURS}metric": one.metric.name,
            f"{OURS}at": joined(one.at),
            f"{OURS}benchmark": repeats[0].case.benchmark,
            f"{OURS}target": repeats[0].case.target,
        }
        yield {"metadata": _metadata(about), "runs": runs}


def _run(record: Record, measurement: Measurement, leads: bool) -> dict[str, Any]:
    about: dict[str, Any] = {"date": record.started_at.astimezone(UTC).replace(tzinfo=None).isoformat(" ")}
    if leads:
        about |= {"duration": record.seconds, f"{OURS}warnings": ", ".join(one.kind for one in record.warnings)}
        for other in record.measurements:
            if other is not measurement and not other.scope and not other.at and not _is_known(other):
                name = f"{OURS}{other.metric.name}"
                about |= {name: other.value, f"{name}_unit": other.metric.unit} | _ends(name, other)
    about |= _ends(OURS.rstrip("_"), measurement)
    return {"metadata": _metadata(about), "values": list(measurement.samples)}


def _ends(name: str, measurement: Measurement) -> dict[str, Any]:
    return {f"{name}_{end}": value for end, value in interval_columns(measurement.interval).items()}


def _identity(measurement: Measurement) -> tuple[str, str, str]:
    return measurement.metric.name, joined(measurement.at), measurement.scope


def _is_known(measurement: Measurement) -> bool:
    """Whether pyperf can say it: positive seconds or bytes, as they were sampled, of the case as a whole."""
    is_sampled = bool(measurement.samples) and not measurement.scope and measurement.metric.unit in _UNITS
    return is_sampled and all(math.isfinite(sample) and sample > 0 for sample in measurement.samples)


def _metadata(values: Mapping[str, Any]) -> dict[str, Any]:
    """As pyperf takes it: numbers that are finite, and text of one line that is not empty."""
    lines = {name: one_line(value).strip() if isinstance(value, str) else value for name, value in values.items()}
    return {
        name: value
        for name, value in lines.items()
        if value not in (None, "") and not (isinstance(value, float) and not math.isfinite(value))
    }


def is_theirs(path: Path) -> bool:
    """Whether a file looks like one of pyperf's, by how it begins."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            return _BEGINNING.match(file.read(200)) is not None
    except (OSError, EOFError):
        return False


def read(path: Path) -> RunRecords:
    """A file of pyperf as a run: a case for each benchmark, repeated in each process that gave values."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            content = file.read(LARGEST + 1)
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (OSError, EOFError) as error:
        message = f"cannot read '{path}': {getattr(error, 'strerror', None) or error}"
        raise InputError("unreadable-file", message, value=str(path)) from None
    if len(content) > LARGEST:
        raise InputError("file-too-large", f"'{path}' is larger than {LARGEST >> 30} GiB", value=str(path))
    try:
        return _run_of(parse_json(content), hashlib.sha256(content).hexdigest()[:4], written)
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        message = f"'{path}' is not a file of pyperf 1.0 or later: {reason}"
        raise InputError("not-a-pyperf-file", message, value=str(path)) from None


def _run_of(document: dict[str, Any], mark: str, written: datetime) -> RunRecords:
    of_all = document.get("metadata", {})
    records: list[Record] = []
    for benchmark in document["benchmarks"]:
        shared = {**of_all, **benchmark.get("metadata", {})}
        measured = [run for run in benchmark["runs"] if run.get("values")]  # the others calibrate
        for repeat, run in enumerate(measured, start=1):
            records.append(_record(len(records), repeat, shared, run, written))
    if not records:
        raise ValueError("no benchmark has values")
    started = min(record.started_at for record in records)
    run_id = f"{started:%Y%m%d-%H%M%S}-{mark}"
    records = [record.model_copy(update={"run_id": run_id}) for record in records]
    software = {
        "python": of_all.get("python_version"),
        "implementation": of_all.get("python_implementation"),
        "packages": {NAME: str(of_all.get("perf_version", "unknown"))},
    }
    cpu = {"model": of_all.get("cpu_model_name"), "logical_cores": of_all.get("cpu_count")}
    run = Run(
        id=run_id,
        name=NAME,
        status="finished",
        started_at=started,
        ended_at=max(record.started_at + timedelta(seconds=record.seconds) for record in records),
        version="unknown",
        environment=Environment.read({"host": of_all.get("hostname"), "cpu": cpu, "software": software}),
        cases=[record.case for record in records],
    )
    return RunRecords(run=run, records=records)


def _record(index: int, repeat: int, shared: Mapping[str, Any], run: Mapping[str, Any], written: datetime) -> Record:
    about = {**shared, **run.get("metadata", {})}
    values = run["values"]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) and value > 0 for value in values):
        raise ValueError(f"benchmark '{about.get('name')}' has a value that is not a number above 0")
    unit = about.get("unit", "second")
    if unit not in _METRICS:
        raise ValueError(f"benchmark '{about.get('name')}' has the unknown unit '{unit}'")
    metric = _METRICS[unit].model_copy(update={"name": about.get(f"{OURS}metric", _METRICS[unit].name)})
    name = str(about.get("name", "unnamed"))
    seconds = about.get("duration", sum(values) * about.get("loops", 1) if unit == "second" else 0.0)
    case = Case(index=index, benchmark=NAME, parameters={"name": name}, title=name, repeat=repeat, category="other")
    date = about.get("date")
    return Record(
        run_id="",
        case=case,
        outcome=Outcome.OK,
        started_at=datetime.fromisoformat(date).replace(tzinfo=UTC) if date else written,  # it says no time zone
        seconds=seconds,
        measurements=[Measurement.of_samples(metric, values, statistic="mean")],
        facts=about | ({"warm_ups": run["warmups"]} if run.get("warmups") else {}),
        primary=metric.name,
    )


EXPORT = Export("pyperf", "the JSON of pyperf", render, order=55)
