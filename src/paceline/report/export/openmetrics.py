"""The results as OpenMetrics text, for Prometheus: every measurement a gauge in base units, with its interval.

Without timestamps, so that the textfile collector of a node exporter takes the file as it is; when the run was made is
a gauge of its own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from paceline.analysis.summary import unique_labels
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from paceline.report.export import Export

PREFIX = "paceline"
# What Prometheus calls a unit; percentages are ratios there.
_UNITS = {
    "s": "seconds", "B": "bytes", "%": "ratio", "J": "joules", "W": "watts", "g": "grams", "Hz": "hertz",
    "B/s": "bytes_per_second", "FLOP/s": "flop_per_second", "OP/s": "operations_per_second",
}  # fmt: skip
_RESERVED = ("total", "created", "bucket", "count", "sum", "info", "gcount", "gsum")  # endings with a meaning


@dataclass
class Family:
    """All samples of one name, each by its labels as text."""

    unit: str
    help: str
    samples: dict[str, float] = field(default_factory=dict)
    kind: str = "gauge"


def render(records: RunRecords) -> str:
    """The whole exposition; its last line is the end mark."""
    from paceline.analysis.trend.series import commit, fingerprint  # which other formats do without

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
    # A gauge, as readers of Prometheus' older format, such as the textfile collector, know no type `info`.
    info = Family("", "The run that all other values are of.", {labels_of(about): 1.0})
    return exposition({f"{PREFIX}_run_info": info, **_families(records)})


def exposition(families: Mapping[str, Family]) -> str:
    """All families, and the end mark."""
    lines: list[str] = []
    for name, family in families.items():
        lines += [f"# TYPE {name} {family.kind}"]
        lines += [f"# UNIT {name} {family.unit}"] if family.unit else []
        lines += [f"# HELP {name} {_escaped(family.help)}"]
        sample = f"{name}_total" if family.kind == "counter" else name
        lines += [f"{sample}{labels} {_number(value)}" for labels, value in family.samples.items()]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _families(records: RunRecords) -> dict[str, Family]:
    ordered = sorted(records.records, key=lambda record: record.case.index)
    run = records.run
    started = Family("seconds", "When the run started, in seconds since 1970.")
    started.samples[labels_of({"run": run.id})] = run.started_at.timestamp()
    success = Family("", "1 if the case succeeded, 0 if not.")
    families = {f"{PREFIX}_run_started_timestamp_seconds": started, f"{PREFIX}_case_success": success}
    for record, label in zip(ordered, unique_labels([record.case for record in ordered]), strict=True):
        labels = {"run": run.id, "benchmark": record.case.benchmark, "case": label, "target": record.case.target}
        success.samples[labels_of({**labels, "outcome": record.outcome.value})] = float(record.is_success)
        for measurement in record.measurements:
            _add(families, labels, measurement, record.case.repeat)
    return families


def _add(families: dict[str, Family], of_record: Mapping[str, str], measurement: Measurement, repeat: int) -> None:
    metric, interval = measurement.metric, measurement.interval
    unit = unit_word(metric.unit)
    scale = 0.01 if metric.unit == "%" else 1.0
    at = ",".join(f"{key}={value}" for key, value in measurement.at.items())
    labels = {**of_record, "scope": measurement.scope, "at": at, "repeat": str(repeat)}
    better = f"; {metric.better.value} is better" if metric.better is not Better.NEITHER else ""
    text = (metric.description or metric.name.replace("_", " ")) + better
    values = [("", text, measurement.value)]
    if interval is not None:
        values.append(("_low", f"lower end of the interval: {text}", interval.low))
        values.append(("_high", f"upper end of the interval: {text}", interval.high))
    for ending, help_text, value in values:
        samples = families.setdefault(sample_name(f"{metric.name}{ending}", unit), Family(unit, help_text)).samples
        key = labels_of(labels)
        # Two metrics whose names differ only in characters that are not allowed here stay two.
        samples[key if key not in samples else labels_of({**labels, "metric": metric.name})] = value * scale


def unit_word(unit: str) -> str:
    """What Prometheus calls a unit."""
    words = unit.replace("/s", " per second").replace("/", " per ")
    return _UNITS.get(unit) or re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")


def stem_of(metric: Metric) -> str:
    """What the names of a metric's values begin with, after the prefix."""
    return _word(metric.name, unit_word(metric.unit))


def _word(metric: str, unit: str) -> str:
    return (re.sub(r"[^a-zA-Z0-9]+", "_", metric).strip("_") or "metric").removesuffix(f"_{unit}")


def sample_name(metric: str, unit: str) -> str:
    """A legal name that ends with its unit, and with no ending that means something else."""
    word = _word(metric, unit)
    name = f"{PREFIX}_{word}_{unit}" if unit else f"{PREFIX}_{word}"
    return f"{name}_value" if not unit and name.rpartition("_")[2] in _RESERVED else name


def labels_of(labels: Mapping[str, str]) -> str:
    """Labels as a sample has them."""
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items() if value)
    return f"{{{text}}}" if text else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(float(value)) if math.isfinite(value) else "+Inf" if value > 0 else "-Inf"


EXPORT = Export("openmetrics", "OpenMetrics text, for Prometheus", render, suffixes=(".prom",), order=40)


_PLACEHOLDER = "UNITS"  # stands in the queries for what may follow the name of a metric


def dashboard(metrics: Iterable[Metric]) -> dict[str, Any]:
    """A dashboard on which one of these metrics is chosen; two rows, for results and for a leader."""
    known = list(metrics)
    text = (files("paceline.report") / "templates/grafana.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text.replace(_PLACEHOLDER, _units(known)))
    (choice,) = (one for one in document["templating"]["list"] if one["name"] == "metric")
    stems = sorted({stem_of(metric) for metric in known})
    first = "throughput" if "throughput" in stems else stems[0]
    choice["query"] = ",".join(stems)
    choice["options"] = [{"text": stem, "value": stem, "selected": stem == first} for stem in stems]
    choice["current"] = {"text": first, "value": first, "selected": True}
    return document


def queries(document: Mapping[str, Any]) -> list[str]:
    """Every query of a dashboard."""
    targets = (target for panel in document["panels"] for target in panel.get("targets", ()))
    return [target["expr"] for target in targets]


def _units(metrics: Iterable[Metric]) -> str:
    """What may follow the name of a metric: its unit; those of rates depend on what is measured."""
    words = {unit_word(metric.unit) for metric in metrics}
    fixed = sorted(word for word in words if word and not word.endswith("_per_second"))
    return f"(_({'|'.join([*fixed, 'value', '[a-z0-9]+_per_second'])}))?"
