"""List benchmarks, models, suites, servers, exports or files, and what could not be loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.core.registry import Kind

KINDS = ("benchmarks", "models", "suites", "servers", "exports", "files")


@click.command()
@click.argument("kind", required=False, type=click.Choice(KINDS))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(kind: str | None, as_json: bool) -> None:
    """List what there is: all of it, or one KIND."""
    listed = {name: _rows(name) for name in ([kind] if kind else KINDS)}
    if as_json:
        document = {name: {"entries": rows, "disabled": broken} for name, (rows, broken) in listed.items()}
        click.echo(json.dumps(document, indent=2))
        return
    for name, (rows, broken) in listed.items():
        if kind is None:
            click.secho(f"{name}", bold=True)
        width = max((len(row["name"]) for row in rows), default=0)
        for row in rows:
            click.echo(f"  {row['name']:<{width}}  {row['summary']}")
        for failure in broken:
            click.secho(f"  disabled: {failure['module']}: {failure['reason']}", fg="red")
        if not rows and not broken:
            click.echo("  none yet")


def _rows(kind: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    if kind == "suites":
        from paceline.runner.suite_file import load_suite, shipped

        return [{"name": name, "summary": load_suite(name).description} for name in shipped()], []
    if kind == "files":
        from paceline.cli.show import FILES

        return [{"name": name, "summary": file.summary} for name, file in FILES.items()], []
    if kind == "exports":
        from paceline.report.export import EXPORTS, TRACKERS

        exports = EXPORTS.registry()
        both: list[Any] = [
            *sorted(exports.entries.values(), key=lambda one: one.order),
            *TRACKERS.registry().entries.values(),
        ]
        disabled = [{"module": failure.module, "reason": failure.reason} for failure in exports.broken]
        return [{"name": one.name, "summary": one.summary} for one in both], disabled
    from paceline.core.benchmark import BENCHMARKS
    from paceline.models import MODELS
    from paceline.servers import SERVERS

    kinds: dict[str, Kind[Any]] = {"benchmarks": BENCHMARKS, "models": MODELS, "servers": SERVERS}
    registry = kinds[kind].registry()
    rows = []
    for name, entry in registry.entries.items():
        missing = entry.missing() if kind == "servers" else ""
        rows.append({"name": name, "summary": f"{entry.summary} (not here: {missing})" if missing else entry.summary})
    return rows, [{"module": failure.module, "reason": failure.reason} for failure in registry.broken]
