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
        click.echo(", ".join(f"{count} {state}" for state, count in sorted(page["counts"].items())))
    else:
        click.echo("There are no such jobs; submit one with 'paceline submit quick'.")


def _table(jobs: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from paceline.report.terminal import open_console
    from paceline.report.text import one_line

    console = open_console()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2, show_edge=False, pad_edge=False)
    for header in ("Job", "Suite", "State", "For", "By", "What"):
        # An id or a state that is cut short says something else.
        widest = {"Job": max(len(job["id"]) for job in jobs), "State": max(len(_state(job)) for job in jobs)}
        table.add_column(header, no_wrap=True, overflow="ellipsis", min_width=widest.get(header))
    now = datetime.now(UTC)
    for job in jobs:
        style = {"failed": "red", "running": "bold", "cancelled": "yellow"}.get(job["state"], "")
        cells = [job["id"], job["name"], _state(job), _since(job, now), job["submitted_by"], _what(job)]
        table.add_row(*(Text(one_line(cell), style if n == 2 else "") for n, cell in enumerate(cells)))
    console.print(table)


def _state(job: dict[str, Any]) -> str:
    return "stopping" if job["stop_asked"] and job["state"] in ("placed", "running") else str(job["state"])


def _since(job: dict[str, Any], now: datetime) -> str:
    from paceline.core.quantity import show_duration

    return show_duration(max(0, round((now - datetime.fromisoformat(job["state_at"])).total_seconds())))


def _what(job: dict[str, Any]) -> str:
    """What it is doing, or what came of it."""
    if job["failure"]:
        return str(job["failure"]["message"])
    if not job["followers"]:
        return str(job["run_id"] or "") if job["state"] != "queued" else str(job["waits_for"])
    progress = job["progress"]
    done = f"{progress['cases_done']} of {progress['cases']}" if progress["cases"] else ""
    told = ", ".join(words for words in (done, progress["title"]) if words)
    return f"on {', '.join(job['followers'])}" + (f": {told}" if told else "")
