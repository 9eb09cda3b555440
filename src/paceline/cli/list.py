"""List benchmarks, models, suites or servers, and what could not be loaded."""

from __future__ import annotations

import json

import click

KINDS = ("benchmarks", "models", "suites", "servers")


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
    if kind == "benchmarks":
        from paceline.benchmarks import registry

        entries = {name: entry.summary for name, entry in registry().entries.items()}
        broken = registry().broken
    elif kind == "models":
        from paceline.models import registry as models

        entries = {name: spec.summary for name, spec in models().entries.items()}
        broken = models().broken
    else:
        from paceline.servers import registry as servers

        entries = {}
        for name, server in servers().entries.items():
            missing = server.missing()
            entries[name] = f"{server.summary} (not here: {missing})" if missing else server.summary
        broken = servers().broken
    rows = [{"name": name, "summary": summary} for name, summary in entries.items()]
    return rows, [{"module": failure.module, "reason": failure.reason} for failure in broken]
