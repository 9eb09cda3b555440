"""Files for other tools, which `paceline show NAME` prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolFile:
    """A file of JSON that another tool reads."""

    summary: str
    make: Callable[[], dict[str, Any]]


def _suite_schema() -> dict[str, Any]:
    from paceline.core.benchmark import BENCHMARKS
    from paceline.core.json_schemas import suite_schema

    return suite_schema(BENCHMARKS.registry().entries)


def _record_schema() -> dict[str, Any]:
    from paceline.core.json_schemas import record_schema

    return record_schema()


def _grafana_dashboard() -> dict[str, Any]:
    from paceline.core.benchmark import BENCHMARKS
    from paceline.report.grafana import dashboard

    return dashboard(metric for one in BENCHMARKS.registry().entries.values() for metric in one.metrics)


FILES = {
    "suite-schema": ToolFile("a JSON schema of suites, for completion in editors", _suite_schema),
    "record-schema": ToolFile("a JSON schema of the lines of `report --jsonl`", _record_schema),
    "grafana-dashboard": ToolFile("a dashboard for `report --openmetrics` and a leader's metrics", _grafana_dashboard),
}
