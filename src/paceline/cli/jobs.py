"""List the jobs of a leader, the newest first."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click

from paceline.api.client import Client
from paceline.cli._client import leader_options
from paceline.core.quantity import show_duration
from paceline.report.text import one_line

STATES = ("queued", "placed", "running", "succeeded", "failed", "cancelled")
_PAGE = 500
_NAMES = 20  # characters of a name that are shown
_BETWEEN = 3  # characters between two columns


@click.command()
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these; may be given twice.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many at most.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@leader_options
def command(states: tuple[str, ...], limit: int, as_json: bool, client: Client) -> None:
    """List the jobs of a leader."""

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
        failures = [job["failure"] for job in jobs if job["failure"]]
        for kind, remedy in sorted({(failure["kind"], failure["remedy"]) for failure in failures}):
            click.echo(f"{kind}: {remedy}")
        click.echo(", ".join(f"{count} {state}" for state, count in sorted(page["counts"].items())))
    else:
        click.echo("There are no such jobs; submit one with 'paceline submit quick'.")
    if as_json:
        return
    for follower, why in page["refused"].items():
        click.echo(one_line(f"follower {follower} is refused: {why}"))
    if count := page["quarantined"]:
        what = "1 item" if count == 1 else f"{count} items"
        click.echo(f"{what} that followers reported could not be stored: `paceline quarantine` shows what and why")


def _table(jobs: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from paceline.report.render.terminal import open_console

    console = open_console()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2, show_edge=False, pad_edge=False)
    now = datetime.now(UTC)
    rows = []
    for job in jobs:
        is_stopping = job["stop_asked"] and job["state"] in ("placed", "running")
        since = show_duration(max(0, round((now - datetime.fromisoformat(job["state_at"])).total_seconds())))
        state = "stopping" if is_stopping else job["state"]
        rows.append([job["id"], job["name"], state, since, job["submitted_by"], _what(job)])
    headers = ("Job", "Suite", "State", "For", "By", "What")
    widths = [max(len(header), *(len(row[n]) for row in rows)) for n, header in enumerate(headers)]
    for n in (headers.index("Suite"), headers.index("By")):
        widths[n] = min(widths[n], _NAMES)
    # What is too wide is cut off its last column: an id, a state or a time that is cut short says something else.
    widths[-1] = max(len(headers[-1]), console.width - sum(widths[:-1]) - _BETWEEN * (len(headers) - 1))
    for header, width in zip(headers, widths, strict=True):
        table.add_column(header, no_wrap=True, overflow="ellipsis", max_width=width)
    for job, row in zip(jobs, rows, strict=True):
        style = {"failed": "red", "running": "bold", "cancelled": "yellow"}.get(job["state"], "")
        table.add_row(*(Text(one_line(cell), style if n == 2 else "") for n, cell in enumerate(row)))
    console.print(table)


def _what(job: dict[str, Any]) -> str:
    """What it is doing, or what came of it."""
    if job["failure"]:
        return f"{job['failure']['kind']}: {job['failure']['message']}"
    if not job["followers"]:
        return str(job["run_id"] or "") if job["state"] != "queued" else str(job["waits_for"])
    progress = job["progress"]
    done = f"{progress['cases_done']} of {progress['cases']}" if progress["cases"] else ""
    doing = ", ".join(words for words in (done, progress["title"]) if words)
    return f"on {', '.join(job['followers'])}" + (f": {doing}" if doing else "")
