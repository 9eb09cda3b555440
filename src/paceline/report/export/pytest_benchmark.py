"""The results as pytest-benchmark writes them, so that its `compare` and the tools around it read them.

That format knows times alone: a case is the time of one step, call or request, in seconds, as it was sampled. A case
without such a time is left out. What else it measured is under `extra_info`.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from paceline.analysis.summary import headline_of, unique_labels
from paceline.analysis.trend.series import commit
from paceline.core.environment import Environment
from paceline.core.errors import InputError
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import RunRecords
from paceline.report.export import Export
from paceline.report.text import one_line


def render(records: RunRecords) -> str:
    """The whole file."""
    run = records.run
    ordered = [record for record in records.records if record.outcome is Outcome.OK]
    ordered.sort(key=lambda record: record.case.index)
    labels = unique_labels([record.case for record in ordered])
    benchmarks = [
        _benchmark(record, one_line(label), times)
        for record, label in zip(ordered, labels, strict=True)
        if (times := time_of(record)) is not None
    ]
    if not benchmarks:
        message = f"run '{run.id}' has no case with samples of a time, which is all that pytest-benchmark knows"
        raise InputError("no-samples-of-time", message, value=run.id)
    sha, dirty = commit(run.environment)
    document = {
        "machine_info": _machine(run.environment),
        "commit_info": {
            "id": sha or "unknown",
            "time": None,
            "author_time": None,
            "dirty": dirty,
            "project": run.name,
            "branch": "",
        },
        "benchmarks": benchmarks,
        "datetime": run.started_at.isoformat(),
        "version": "5.1.0",  # of pytest-benchmark, whose format this is
    }
    return json.dumps(document, indent=4, allow_nan=False, default=str) + "\n"


def time_of(record: Record) -> Measurement | None:
    """The time that stands for the case: what its headline was computed from, otherwise the first that was sampled."""
    headline = headline_of(record)
    names = [headline.derived_from, headline.metric.name] if headline is not None else []
    sampled = [m for m in record.measurements if m.metric.unit == "s" and len(m.samples) > 1 and not m.scope]
    sampled = [m for m in sampled if np.isfinite(m.samples).all()]
    preferred = [m for name in (*names, "step_time", "time", "latency") for m in sampled if m.metric.name == name]
    return next(iter([*preferred, *sampled]), None)


def _benchmark(record: Record, label: str, times: Measurement) -> dict[str, Any]:
    others = {m.metric.name: m.value for m in record.measurements if not m.scope and not m.at and m is not times}
    name = label.replace("/", "_")
    return {
        "group": record.case.benchmark,
        "name": name,
        "fullname": f"paceline/{record.case.benchmark}::{name}",
        "params": record.case.parameters or None,
        "param": None,
        "extra_info": {
            "metric": times.metric.name,
            "at": times.at,
            "target": record.case.target,
            "ranks": record.case.ranks,
            "warnings": [warning.kind for warning in record.warnings],
            "units": {m.metric.name: m.metric.unit for m in record.measurements if m.metric.name in others},
            "measured": {key: value for key, value in others.items() if math.isfinite(value)},
        },
        "options": {
            "disable_gc": False,
            "timer": record.timing or "paceline",
            "min_rounds": 1,
            "max_time": float(record.case.timeout),
            "min_time": 0.0,
            "warmup": True,
        },
        "stats": _stats(np.asarray(times.samples, dtype=np.float64)),
    }


def _stats(samples: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    """The figures by pytest-benchmark's rules: quartiles of the halves, Tukey's fences, deviations around the mean."""
    ordered = np.sort(samples)
    count, middle = ordered.size, ordered.size // 2
    mean, deviation = float(ordered.mean()), float(ordered.std(ddof=1))
    # Of an odd number, the one in the middle belongs half to either half.
    low = float(np.median(ordered[:middle]) + np.median(ordered[: middle + count % 2])) / 2.0
    high = float(np.median(ordered[middle + count % 2 :]) + np.median(ordered[middle:])) / 2.0
    fences = (low - 1.5 * (high - low), high + 1.5 * (high - low))
    inside = ordered[(ordered >= fences[0]) & (ordered <= fences[1])]
    beyond = int(((ordered < mean - deviation) | (ordered > mean + deviation)).sum())
    outside = count - inside.size
    return {
        "min": float(ordered[0]),
        "max": float(ordered[-1]),
        "mean": mean,
        "stddev": deviation,
        "rounds": int(count),
        "median": float(np.median(ordered)),
        "iqr": high - low,
        "q1": low,
        "q3": high,
        "iqr_outliers": int(outside),
        "stddev_outliers": beyond,
        "outliers": f"{beyond};{outside}",
        "ld15iqr": float(inside[0]),
        "hd15iqr": float(inside[-1]),
        "ops": 1.0 / mean if mean else 0.0,
        "total": float(math.fsum(ordered)),
        "iterations": 1,
        "data": samples.tolist(),
    }


def _machine(environment: Environment) -> dict[str, Any]:
    software, cpu = environment.software, environment.cpu
    return {
        "node": environment.host_name,
        "processor": cpu.architecture or "",
        "machine": environment.architecture or cpu.architecture or "",
        "python_compiler": "",
        "python_implementation": software.implementation or "CPython",
        "python_implementation_version": software.python or "",
        "python_version": software.python or "",
        "python_build": ["", ""],
        "release": environment.kernel or "",
        "system": environment.system or "",
        "cpu": {"brand_raw": cpu.model or "", "count": cpu.logical_cores},
    }


EXPORT = Export("pytest-benchmark", "the JSON of pytest-benchmark", render, order=50)
