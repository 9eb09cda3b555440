"""Say whether this machine is fit to be measured, and how to fix it."""

from __future__ import annotations

import json

import click

MARKS = {"ok": ("✓", "green"), "hint": ("·", "cyan"), "warning": ("!", "yellow"), "problem": ("✗", "red")}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings for programs.")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Check whether this machine is fit to be measured; exit code 1 if there is a problem."""
    from paceline.machine.fitness import check, worst
    from paceline.store import default_url, locate

    findings = check(store=locate(default_url()).spools[0].parent)
    if as_json:
        click.echo(json.dumps([finding.model_dump(mode="json") for finding in findings], indent=2))
    else:
        from rich.console import Console
        from rich.text import Text

        console = Console(soft_wrap=True)
        for finding in findings:
            mark, colour = MARKS[finding.level]
            console.print(Text(f"{mark} ", style=colour) + Text(f"{finding.subject}: {finding.message}"))
            if finding.remedy:
                console.print(Text(f"    {finding.remedy}", style="dim"))
        counts = {level: sum(finding.level == level for finding in findings) for level in ("problem", "warning")}
        summary = [f"{count} {level}{'s' if count != 1 else ''}" for level, count in counts.items() if count]
        console.print(Text(", ".join(summary) if summary else "fit to be measured", style="bold"))
    context.exit(1 if worst(findings) == "problem" else 0)
