"""Show one benchmark, model or suite, or print a file for another tool: a schema, a dashboard."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from paceline.core.errors import InputError, nearest
from paceline.core.parameters import REQUIRED, UNSET, show_default, show_values


@click.command()
@click.argument("name")
def command(name: str) -> None:
    """Show what NAME is."""
    from paceline.core.benchmark import BENCHMARKS
    from paceline.models import MODELS
    from paceline.models.generated import PREFIX
    from paceline.models.sources import find_model
    from paceline.runner.suite_file import shipped

    if name in BENCHMARKS.registry().entries:
        benchmark = BENCHMARKS.registry().get(name)
        click.secho(name, bold=True)
        click.echo(f"  {benchmark.summary}\n")
        click.secho("Parameters", bold=True)
        for key, field in benchmark.Parameters.model_fields.items():
            default = show_default(field)
            words = default if default in (REQUIRED, UNSET) else f"default {default}"
            description = (field.description or "").replace("\n", " ")
            click.echo(f"  {key:<16} {description} [{words}; {show_values(field)}]")
        click.secho("\nMetrics", bold=True)
        for metric in benchmark.metrics:
            better = f", {metric.better} is better" if metric.better != "neither" else ""
            click.echo(f"  {metric.name:<22} [{metric.unit or '-'}{better}] {metric.description}")
    elif name in MODELS.registry().entries or name.startswith(PREFIX):
        spec = find_model(name, allow_import=False)
        click.secho(spec.name, bold=True)
        click.echo(f"  {spec.summary}")
        if spec.parameters:
            click.echo(f"  {spec.parameters:,} parameters")
        click.echo(f"  task: {spec.task}; default batch: {spec.batch_size} {spec.sample}s")
        for key, value in spec.settings.items():
            click.echo(f"  {key}: {value}")
    elif name in FILES:
        click.echo(json.dumps(FILES[name].make(), indent=1))
    elif name in shipped():
        click.echo(shipped()[name].read_text(encoding="utf-8").rstrip())
    else:
        guess = nearest(name, [*BENCHMARKS.registry().entries, *MODELS.registry().entries, *shipped(), *FILES])
        message = f"nothing is called '{name}'" + (f": did you mean '{guess}'?" if guess else "; see paceline list")
        raise InputError("unknown-name", message, value=name, suggestion=guess)


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
    from paceline.report.export.openmetrics import dashboard

    return dashboard(metric for one in BENCHMARKS.registry().entries.values() for metric in one.metrics)


FILES = {
    "suite-schema": ToolFile("a JSON schema of suites, for completion in editors", _suite_schema),
    "record-schema": ToolFile("a JSON schema of the lines of `report --jsonl`", _record_schema),
    "grafana-dashboard": ToolFile("a dashboard for `report --openmetrics` and a leader's metrics", _grafana_dashboard),
}
