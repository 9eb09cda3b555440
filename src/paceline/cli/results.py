"""List past runs, the newest first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from paceline.store import RunRow


@click.command("results")
@click.option("--store", metavar="URL", help="Where results are kept.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many runs at most.")
@click.option(
    "--import",
    "spool",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="First take in records that could not be stored when they were measured.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
def command(store: str | None, limit: int, spool: Path | None, as_json: bool) -> None:
    """List past runs."""
    from paceline.store import open_store

    with open_store(store) as opened:
        if spool is not None:
            taken, reasons = opened.import_spool(spool)
            click.echo(f"{taken} records taken from {spool}", err=True)
            for reason in reasons:
                click.echo(f"paceline: {reason}", err=True)
        rows = opened.runs(limit)
    if as_json:
        click.echo(json.dumps([_plain(row) for row in rows], indent=2))
    elif rows:
        _table(rows)
    else:
        click.echo("There are no runs yet; start one with 'paceline run'.")


def _plain(row: RunRow) -> dict[str, object]:
    return {
        "id": row.id,
        "name": row.name,
        "status": row.status,
        "started_at": row.started_at.isoformat(),
        "ended_at": row.ended_at.isoformat() if row.ended_at else None,
        "cases": row.cases,
        "ok": row.ok,
        "not_ok": row.not_ok,
        "tags": list(row.tags),
    }


def _table(rows: list[RunRow]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from paceline.core.quantity import show_duration
    from paceline.report.console import open_console
    from paceline.report.text import one_line, when

    console = open_console()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2, show_edge=False, pad_edge=False)
    for header, justify in _HEADERS:
        # An id or a status that is cut short says something else; a suite's name or a date does not.
        widest = {"Run": max(len(row.id) for row in rows), "Status": max(len(row.status) for row in rows)}.get(header)
        table.add_column(
            header,
            justify="right" if justify else "left",
            no_wrap=True,
            overflow="ellipsis" if header in ("Suite", "Started") else "fold",
            min_width=widest,
        )
    for row in rows:
        took = show_duration((row.ended_at - row.started_at).total_seconds()) if row.ended_at else ""
        ok, not_ok = f"{row.ok} of {row.cases}", str(row.not_ok or "")
        cells = [row.id, row.name, when(row.started_at), took, ok, not_ok, row.status]
        styles = ["bold", "", "", "", "", "red" if row.not_ok else "", "yellow" if row.status != "finished" else ""]
        table.add_row(*(Text(one_line(cell), style) for cell, style in zip(cells, styles, strict=True)))
    console.print(table)


_HEADERS = (
    ("Run", False),
    ("Suite", False),
    ("Started", False),
    ("Took", True),
    ("Ok", True),
    ("Not ok", True),
    ("Status", False),
)
