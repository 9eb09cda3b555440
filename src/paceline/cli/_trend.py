"""The history of a metric over runs: read from the store, told on the terminal or written, and an exit code for CI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.analysis.trend import History
    from paceline.core.run import RunRecords

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
    from paceline.analysis.trend import history
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
