"""List past runs, the newest first; or the history of a metric over them, with where it changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli._answers import chosen_format, format_options
from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.analysis.trend.series import History
    from paceline.core.run import RunRecords
    from paceline.store import RunRow, Store


MOST_RUNS = 1000


@dataclass(frozen=True)
class Asked:
    """Which series."""

    metric: str
    benchmark: str = ""
    case: str = ""  # a part of its name
    tag: str = ""
    limit: int = MOST_RUNS


def read_history(asked: Asked, store: str | None) -> History:
    """The series that were asked for; InputError says what would give some."""
    from paceline.analysis.trend.series import history
    from paceline.store import open_existing

    with open_existing(store) as opened:
        runs = opened.history(asked.metric, tag=asked.tag, limit=asked.limit)
    if not runs:
        message = f"no run with the tag '{asked.tag}' measured '{asked.metric}'; `paceline results` lists runs"
        raise InputError("no-runs", message, key="--tag", value=asked.tag)
    found = history(_chosen(runs, asked), asked.metric)
    if not found.series:
        raise InputError(
            "no-history",
            f"no case was measured for '{asked.metric}' in two runs on the same machine; a history needs some, "
            f"{'with --benchmark and --case less narrow, or ' if asked.benchmark or asked.case else ''}"
            "by the same command at another time",
            value=asked.metric,
        )
    return found


def tell(history: History, kind: str | None, output: str | None) -> None:
    """Show the history, or write it in the format that was asked for."""
    from paceline.cli._answers import give
    from paceline.report.render.terminal import open_console
    from paceline.report.trend import document as trend

    if kind == "png":
        _draw(history, output)
        return
    console = open_console()
    ascii_only = not console.is_terminal or console.options.ascii_only
    page = trend.document(history) if kind == "html" else trend.text_document(history, ascii_only=ascii_only)
    data = {"json": lambda: trend.to_json(history), "csv": lambda: trend.to_csv(history)}
    give(page, kind, output, f"paceline-trend-{history.metric}", data)


def _draw(history: History, output: str | None) -> None:
    from paceline.cli._answers import write
    from paceline.report import charts
    from paceline.report.trend import document as trend

    write(charts.draw_png(trend.picture(history)), output or f"paceline-trend-{history.metric}.png")


def _chosen(runs: list[RunRecords], asked: Asked) -> list[RunRecords]:
    """The runs with the records of the cases that were asked for."""
    from paceline.core.errors import unknown

    known = {record.case.benchmark for records in runs for record in records.records}
    if asked.benchmark and asked.benchmark not in known:
        raise unknown(f"benchmark in runs with '{asked.metric}'", asked.benchmark, known, key="--benchmark")
    wanted = asked.case.casefold()
    titles = {f"{record.case.benchmark} {record.case.title}" for records in runs for record in records.records}
    if wanted and not any(wanted in title.casefold() for title in titles):
        raise unknown(f"case in runs with '{asked.metric}'", asked.case, titles, key="--case")
    chosen = []
    for records in runs:
        mine = [
            record
            for record in records.records
            if asked.benchmark in ("", record.case.benchmark)
            and wanted in f"{record.case.benchmark} {record.case.title}".casefold()
        ]
        chosen.append(records.model_copy(update={"records": mine}))
    return chosen


LISTED = 20
MOST_REASONS = 3  # why lines of a spool were not taken: the first ones tell
SHORTEST_NAME = 5  # of a suite, however little room there is


@click.command("results")
@click.option("--store", metavar="URL", help="Where results are kept.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help=f"How many runs at most, the newest: {LISTED} in a list, {MOST_RUNS} in a history.",
)
@click.option(
    "--import",
    "spool",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="First take in records that could not be stored when they were measured.",
)
@click.option("--trend", metavar="METRIC", help="The history of this metric over runs, and where it changed.")
@click.option("--benchmark", metavar="NAME", help="Of a history: only this benchmark.")
@click.option("--case", metavar="TEXT", help="Of a history: only cases whose name has this in it.")
@click.option("--tag", metavar="TAG", help="Of a history: only runs that carry this tag.")
@click.option(
    "--fail-on-regression", is_flag=True, help="Of a history: exit with 1 if a last level is worse than the one before."
)
@format_options
def command(
    store: str | None,
    limit: int | None,
    spool: Path | None,
    output: str | None,
    fail_on_regression: bool,
    **chosen: Any,
) -> None:
    """List past runs, or with --trend the history of a metric over them."""
    from paceline.store import open_existing, open_store

    trend = chosen["trend"]
    kind = chosen_format(chosen, output)
    only = [name for name in ("benchmark", "case", "tag") if chosen[name]] + ["fail-on-regression"] * fail_on_regression
    only += [kind] if kind not in (None, "json") else ["output"] if output else []
    if trend is None and only:
        raise click.UsageError(f"--{only[0]} belongs to a history: name its metric with --trend METRIC")
    left = 0
    with (open_existing if spool is None else open_store)(store) as opened:
        if spool is not None:
            left = _import(opened, spool)
        rows = opened.runs(limit or LISTED) if trend is None else []
    if trend is not None:
        words = {name: chosen[name] or "" for name in ("benchmark", "case", "tag")}
        _trend(Asked(trend, **words, limit=limit or MOST_RUNS), store, kind, output, fail=fail_on_regression)
    elif kind == "json":
        click.echo(json.dumps([_plain(row) for row in rows], indent=2))
    elif rows:
        _table(rows)
    else:
        click.echo("There are no runs yet; start one with 'paceline run'.")
    if left:
        raise click.exceptions.Exit(1)


def _import(store: Store, spool: Path) -> int:
    """Take in what a file holds; how many lines stay there. A file of which nothing can be taken is refused."""
    from paceline.core.errors import InputError

    taken, reasons = store.import_spool(spool)
    shown = [*reasons[:MOST_REASONS], *([f"{len(reasons) - MOST_REASONS} more lines"] * (len(reasons) > MOST_REASONS))]
    if reasons and not taken:
        raise InputError("nothing-imported", f"no record could be taken: {'; '.join(shown)}", value=str(spool))
    click.echo(f"{taken} records taken from {spool}", err=True)
    for reason in shown:
        click.echo(f"paceline: not taken: {reason}", err=True)
    return len(reasons)


def _trend(asked: Asked, store: str | None, kind: str | None, output: str | None, *, fail: bool) -> None:
    history = read_history(asked, store)
    tell(history, kind, output)
    if fail and history.worse:
        raise click.exceptions.Exit(1)


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
    from paceline.report.render.terminal import open_console
    from paceline.report.text import one_line, when

    console = open_console()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2, show_edge=False, pad_edge=False)
    lines = []
    for row in rows:
        took = show_duration((row.ended_at - row.started_at).total_seconds()) if row.ended_at else ""
        started = when(row.started_at).removesuffix(" UTC")
        lines.append([row.id, row.name, started, took, f"{row.ok} of {row.cases}", str(row.not_ok or ""), row.status])
    told = [place for place, header in enumerate(_HEADERS) if header != "Not ok" or any(row.not_ok for row in rows)]
    widths = [max(len(_HEADERS[place]), *(len(one_line(cells[place])) for cells in lines)) for place in told]
    # Only a suite's name may be cut: half an id, a count or a status says something else.
    room = console.width - sum(widths) + widths[1] - 3 * (len(told) - 1)
    for place, width in zip(told, widths, strict=True):
        table.add_column(
            _HEADERS[place],
            justify="right" if _HEADERS[place] in ("Took", "Ok", "Not ok") else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=width if place != 1 else max(SHORTEST_NAME, min(width, room)),
        )
    for row, cells in zip(rows, lines, strict=True):
        styles = ["bold", "", "", "", "", "red" if row.not_ok else "", "yellow" if row.status != "finished" else ""]
        table.add_row(*(Text(one_line(cells[place]), styles[place]) for place in told))
    console.print(table)


_HEADERS = ("Run", "Suite", "Started, UTC", "Took", "Ok", "Not ok", "Status")
