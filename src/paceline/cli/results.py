"""List past runs, the newest first; or the history of a metric over them, with where it changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli._answers import Answer, format_options
from paceline.core.errors import InputError, unknown

if TYPE_CHECKING:
    from paceline.analysis.trend.series import History
    from paceline.core.run import RunRecords
    from paceline.store import RunRow

MOST_RUNS = 1000
LISTED = 20
MOST_REASONS = 3  # why lines of a spool were not imported: the first ones are enough
SHORTEST_NAME = 5  # of a suite, however little room there is
HEADERS = ("Run", "Suite", "Started, UTC", "Took", "Ok", "Not ok", "Status")


@click.command("results")
@click.option("--store", metavar="URL", help="Where results are stored.")
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
    help="First import records that could not be stored when they were measured.",
)
@click.option("--trend", metavar="METRIC", help="The history of this metric over runs, and where it changed.")
@click.option("--benchmark", default="", metavar="NAME", help="Of a history: only this benchmark.")
@click.option("--case", default="", metavar="TEXT", help="Of a history: only cases whose name has this in it.")
@click.option("--tag", default="", metavar="TAG", help="Of a history: only runs that carry this tag.")
@click.option(
    "--fail-on-regression", is_flag=True, help="Of a history: exit with 1 if a last level is worse than the best one."
)
@format_options()
def command(
    store: str | None,
    limit: int | None,
    spool: Path | None,
    trend: str | None,
    benchmark: str,
    case: str,
    tag: str,
    fail_on_regression: bool,
    answer: Answer,
) -> None:
    """List past runs, or with --trend the history of a metric over them."""
    from paceline.store import open_existing, open_store

    if trend is None:
        of_history = {
            "benchmark": benchmark,
            "case": case,
            "tag": tag,
            "fail-on-regression": fail_on_regression,
            str(answer.kind): answer.kind not in (None, "json"),
            "output": answer.output,
        }
        if misplaced := [name for name, is_given in of_history.items() if is_given]:
            raise click.UsageError(f"--{misplaced[0]} belongs to a history: name its metric with --trend METRIC")
    runs: list[RunRecords] = []
    rows: list[RunRow] = []
    left = 0
    with (open_existing if spool is None else open_store)(store) as opened:
        if spool is not None:
            imported, reasons = opened.import_spool(spool)
            left = len(reasons)
            shown = reasons[:MOST_REASONS] + ([f"{left - MOST_REASONS} more lines"] if left > MOST_REASONS else [])
            if reasons and not imported:
                message = f"no record could be imported: {'; '.join(shown)}"
                raise InputError("nothing-imported", message, value=str(spool))
            click.echo(f"{imported} records imported from {spool}", err=True)
            for reason in shown:
                click.echo(f"paceline: not imported: {reason}", err=True)
        if trend is None:
            rows = opened.runs(limit or LISTED)
        else:
            runs = opened.history(trend, tag=tag, limit=limit or MOST_RUNS)
    if trend is not None:
        if not runs:
            message = f"no run with the tag '{tag}' measured '{trend}'; `paceline results` lists runs"
            raise InputError("no-runs", message, key="--tag", value=tag)
        history = _history(runs, trend, benchmark, case)
        _show_history(history, answer)
        if fail_on_regression and history.worse:
            raise click.exceptions.Exit(1)
    elif answer.kind == "json":
        click.echo(json.dumps([row.model_dump() for row in rows], indent=2, default=datetime.isoformat))
    elif rows:
        _table(rows)
    else:
        click.echo("There are no runs yet; start one with 'paceline run'.")
    if left:
        raise click.exceptions.Exit(1)


def _history(runs: list[RunRecords], metric: str, benchmark: str, text: str) -> History:
    """The series of a benchmark and of the cases with a text in their name; InputError says what would give some."""
    from paceline.analysis.trend.series import history

    benchmarks = {record.case.benchmark for records in runs for record in records.records}
    if benchmark and benchmark not in benchmarks:
        raise unknown(f"benchmark in runs with '{metric}'", benchmark, benchmarks, key="--benchmark")
    titles = {f"{record.case.benchmark} {record.case.title}" for records in runs for record in records.records}
    if text and not any(text.casefold() in title.casefold() for title in titles):
        raise unknown(f"case in runs with '{metric}'", text, titles, key="--case")
    chosen = []
    for records in runs:
        matches = [
            record
            for record in records.records
            if benchmark in ("", record.case.benchmark)
            and text.casefold() in f"{record.case.benchmark} {record.case.title}".casefold()
        ]
        chosen.append(records.model_copy(update={"records": matches}))
    series = history(chosen, metric)
    if not series.series:
        message = (
            f"no case was measured for '{metric}' in two runs on the same machine; a history needs some, "
            f"{'with --benchmark and --case less narrow, or ' if benchmark or text else ''}"
            "by the same command at another time"
        )
        raise InputError("no-history", message, value=metric)
    return series


def _show_history(history: History, answer: Answer) -> None:
    from paceline.report import charts
    from paceline.report.render.terminal import open_console
    from paceline.report.trend import document as trend

    console = open_console()
    ascii_only = not console.is_terminal or console.options.ascii_only
    page = trend.document(history) if answer.kind == "html" else trend.text_document(history, ascii_only=ascii_only)
    data: dict[str, Callable[[], str | bytes]] = {
        "json": lambda: trend.to_json(history),
        "csv": lambda: trend.to_csv(history),
        "png": lambda: charts.draw_png(trend.picture(history)),
    }
    answer.give(page, f"paceline-trend-{history.metric}", data)


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
    columns = [n for n, header in enumerate(HEADERS) if header != "Not ok" or any(row.not_ok for row in rows)]
    widths = [max(len(HEADERS[n]), *(len(one_line(cells[n])) for cells in lines)) for n in columns]
    # Only a suite's name may be cut: half an id, a count or a status says something else.
    room = console.width - sum(widths) + widths[1] - 3 * (len(columns) - 1)
    for n, width in zip(columns, widths, strict=True):
        table.add_column(
            HEADERS[n],
            justify="right" if HEADERS[n] in ("Took", "Ok", "Not ok") else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=width if n != 1 else max(SHORTEST_NAME, min(width, room)),
        )
    for row, cells in zip(rows, lines, strict=True):
        styles = ["bold", "", "", "", "", "red" if row.not_ok else "", "yellow" if row.status != "finished" else ""]
        table.add_row(*(Text(one_line(cells[n]), styles[n]) for n in columns))
    console.print(table)
