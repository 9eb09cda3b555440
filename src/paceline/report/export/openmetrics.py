"""The results as OpenMetrics text, for Prometheus: every measurement a gauge in base units, with its interval.

Without timestamps, so that the textfile collector of a node exporter takes the file as it is; when the run was made is
a gauge of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.analysis.figures import unique_labels
from paceline.analysis.trend.series import commit, fingerprint
from paceline.core.metric import Better
from paceline.core.record import Measurement, Record
from paceline.core.run import RunRecords
from paceline.report.export import Export

PREFIX = "paceline"
# What Prometheus calls a unit, and what to multiply by.
_UNITS: dict[str, tuple[str, float]] = {
    "s": ("seconds", 1.0),
    "B": ("bytes", 1.0),
    "%": ("ratio", 0.01),
    "J": ("joules", 1.0),
    "W": ("watts", 1.0),
    "g": ("grams", 1.0),
    "Hz": ("hertz", 1.0),
    "B/s": ("bytes_per_second", 1.0),
    "FLOP/s": ("flop_per_second", 1.0),
    "OP/s": ("operations_per_second", 1.0),
}
_RESERVED = ("total", "created", "bucket", "count", "sum", "info", "gcount", "gsum")  # endings with a meaning


@dataclass
class Family:
    """All samples of one name."""

    unit: str
    help: str
    samples: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)


def render(records: RunRecords) -> str:
    """The whole exposition; its last line is the end mark."""
    run = records.run
    sha, _ = commit(run.environment)
    about = {
        "run": run.id,
        "suite": run.name,
        "host": run.environment.host_name,
        "version": run.version,
        "commit": sha,
        "environment": fingerprint(run.environment),
        "tags": ",".join(run.tags),
    }
    lines = [
        f"# TYPE {PREFIX}_run info",
        f"# HELP {PREFIX}_run The run that all other values are of.",
        f"{PREFIX}_run_info{_labels(about)} 1",
    ]
    families = _families(records)
    for name, family in families.items():
        lines += [f"# TYPE {name} gauge"]
        lines += [f"# UNIT {name} {family.unit}"] if family.unit else []
        lines += [f"# HELP {name} {_escaped(family.help)}"]
        lines += [f"{name}{_labels(dict(labels))} {_number(value)}" for labels, value in family.samples.items()]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _families(records: RunRecords) -> dict[str, Family]:
    ordered = sorted(records.records, key=lambda record: record.case.index)
    found: dict[str, Family] = {}
    run = records.run
    started = Family("seconds", "When the run started, in seconds since 1970.")
    started.samples[(("run", run.id),)] = run.started_at.timestamp()
    found[f"{PREFIX}_run_started_timestamp_seconds"] = started
    success = found.setdefault(f"{PREFIX}_case_success", Family("", "1 if the case succeeded, 0 if not."))
    for record, label in zip(ordered, unique_labels([record.case for record in ordered]), strict=True):
        own = {"run": run.id, "benchmark": record.case.benchmark, "case": label, "target": record.case.target}
        success.samples[_key({**own, "outcome": record.outcome.value})] = float(record.is_success)
        for measurement in record.measurements:
            _add(found, own, measurement, record)
    return found


def _add(found: dict[str, Family], own: Mapping[str, str], measurement: Measurement, record: Record) -> None:
    metric = measurement.metric
    unit, scale = _unit(metric.unit)
    place = ",".join(f"{key}={value}" for key, value in measurement.at.items())
    labels = {**own, "scope": measurement.scope, "at": place, "repeat": str(record.case.repeat)}
    interval = measurement.interval
    better = f"; {metric.better.value} is better" if metric.better is not Better.NEITHER else ""
    told = (metric.description or metric.name.replace("_", " ")) + better
    values = {"": measurement.value}
    if interval is not None:
        values |= {"_low": interval.low, "_high": interval.high}
    for ending, value in values.items():
        name = _name(f"{metric.name}{ending}", unit)
        about = {"": "", "_low": "lower end of the interval: ", "_high": "upper end of the interval: "}[ending]
        family = found.setdefault(name, Family(unit, about + told))
        key = _key(labels)
        # Two metrics whose names differ only in signs that are not allowed here stay two.
        family.samples[key if key not in family.samples else _key({**labels, "metric": metric.name})] = value * scale


def _unit(unit: str) -> tuple[str, float]:
    if unit in _UNITS:
        return _UNITS[unit]
    words = unit.replace("/s", " per second").replace("/", " per ")
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_"), 1.0


def _name(metric: str, unit: str) -> str:
    """A legal name that ends with its unit, and with no ending that means something else."""
    word = re.sub(r"[^a-zA-Z0-9]+", "_", metric).strip("_") or "metric"
    if unit and word.endswith(f"_{unit}"):
        word = word.removesuffix(f"_{unit}")
    name = f"{PREFIX}_{word}_{unit}" if unit else f"{PREFIX}_{word}"
    return f"{name}_value" if not unit and name.rpartition("_")[2] in _RESERVED else name


def _key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in labels.items() if value)


def _labels(labels: Mapping[str, Any]) -> str:
    told = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items() if value)
    return f"{{{told}}}" if told else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(float(value)) if math.isfinite(value) else "+Inf" if value > 0 else "-Inf"


EXPORT = Export("openmetrics", "OpenMetrics text, for Prometheus", render, suffixes=(".prom",), order=40)
