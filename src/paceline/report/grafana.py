"""A dashboard for Grafana: what `report --openmetrics` and a leader's `/metrics` have told Prometheus.

Its panels are in `templates/grafana.json`, as Grafana saves them; which metrics there are to choose from is filled in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from paceline.core.metric import Metric
from paceline.report.export.openmetrics import stem_of, unit_word

_UNITS = "UNITS"  # stands in the queries for what may follow the name of a metric


def dashboard(metrics: Iterable[Metric]) -> dict[str, Any]:
    """A dashboard on which one of these metrics is chosen; two rows, for results and for a leader."""
    known = list(metrics)
    text = (files("paceline.report") / "templates/grafana.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text.replace(_UNITS, _units(known)))
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
