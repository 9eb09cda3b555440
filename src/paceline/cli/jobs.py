"""List the jobs of a leader, the newest first."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from paceline.cli._client import leader_options, open_client

STATES = ("queued", "placed", "running", "succeeded", "failed", "cancelled")
_PAGE = 500
_NAMES = 20  # letters of a name that are shown
_BETWEEN = 3  # letters between two columns


@click.command()
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these; may be given twice.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many at most.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@leader_options
def command(states: tuple[str, ...], limit: int, as_json: bool, leader: str | None, token_file: Path | None) -> None:
    """List the jobs of a leader."""
    client = open_client(leader, token_file)
    jobs: list[dict[str, Any]] = []
    cursor: str | None = None
    while len(jobs) < limit:
        page = client.get("/jobs", state=states, cursor=cursor, limit=min(_PAGE, limit - len(jobs)))
        jobs += page["jobs"]
        cursor = page["next"]
        if cursor is None:
            break
    if as_json:
        click.echo(json.dumps(jobs, indent=2))
    elif jobs:
        _table(jobs)
        for kind, remedy in sorted(_remedies(jobs)):
            click.echo(f"{kind}: {remedy}")
        click.echo(", ".join(f"{count} {state}" for state, count in sorted(page["counts"].items())))
    else:
        click.echo("There are no such jobs; submit one with 'paceline submit quick'.")


def _table(jobs: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from paceline.report.render.terminal import open_console
    from paceline.report.text import one_line

    console = open_console()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2, show_edge=False, pad_edge=False)
    now = datetime.now(UTC)
    rows = [[job["id"], job["name"], _state(job), _since(job, now), job["submitted_by"], _what(job)] for job in jobs]
    headers = ("Job", "Suite", "State", "For", "By", "What")
    widths = [max(len(header), *(len(row[place]) for row in rows)) for place, header in enumerate(headers)]
    widths = [
        min(width, _NAMES) if header in ("Suite", "By") else width
        for header, width in zip(headers, widths, strict=True)
    ]
    # What is too wide is cut off its last column: an id, a state or a time that is cut short says something else.
    widths[-1] = max(len(headers[-1]), console.width - sum(widths[:-1]) - _BETWEEN * (len(headers) - 1))
    for header, width in zip(headers, widths, strict=True):
        table.add_column(header, no_wrap=True, overflow="ellipsis", max_width=width)
    for job, row in zip(jobs, rows, strict=True):
        style = {"failed": "red", "running": "bold", "cancelled": "yellow"}.get(job["state"], "")
        table.add_row(*(Text(one_line(cell), style if n == 2 else "") for n, cell in enumerate(row)))
    console.print(table)


def _remedies(jobs: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """What helps against each kind of failure among these jobs."""
    failures = [job["failure"] for job in jobs if job["failure"]]
    return {(failure["kind"], failure["remedy"]) for failure in failures}


def _state(job: dict[str, Any]) -> str:
    return "stopping" if job["stop_asked"] and job["state"] in ("placed", "running") else str(job["state"])


def _since(job: dict[str, Any], now: datetime) -> str:
    from paceline.core.quantity import show_duration

    return show_duration(max(0, round((now - datetime.fromisoformat(job["state_at"])).total_seconds())))


def _what(job: dict[str, Any]) -> str:
    """What it is doing, or what came of it."""
    if job["failure"]:
        return f"{job['failure']['kind']}: {job['failure']['message']}"
    if not job["followers"]:
        return str(job["run_id"] or "") if job["state"] != "queued" else str(job["waits_for"])
    progress = job["progress"]
    done = f"{progress['cases_done']} of {progress['cases']}" if progress["cases"] else ""
    told = ", ".join(words for words in (done, progress["title"]) if words)
    return f"on {', '.join(job['followers'])}" + (f": {told}" if told else "")
