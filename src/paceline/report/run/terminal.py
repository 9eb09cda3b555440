"""The report on a terminal: the answer, one row per case, what to doubt, and what did not succeed or cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paceline.analysis.published import PublishedTable, published_tables
from paceline.analysis.roofline import KnownCeilings
from paceline.analysis.summary import Row, RunSummary, summarize_run
from paceline.core.run import RunRecords
from paceline.report.render.terminal import open_console
from paceline.report.run.columns import Column, Section, sections
from paceline.report.run.insight import Insight
from paceline.report.run.insights import insights
from paceline.report.run.words import answer
from paceline.report.text import clean, one_line, plain

_FULL = {
    "samples",
    "offered",
    "goodput",
    "p95",
    "batch",
    "cpu",
    "gpu",
    "energy",
    "cost",
}  # columns that only wider reports have
_SHORT = {"Device memory": "Memory", "Host memory": "Memory", "Doubts": "?", "Step time": "Step"}


def render(
    records: RunRecords,
    console: Console | None = None,
    *,
    ceilings: KnownCeilings | None = None,
    every: bool = False,
) -> None:
    """Show a run on a terminal or in a pipe; `ceilings` are what is known of the machine beside the run.

    Of very many cases those that say the most are listed, or `every` one.
    """
    summary = summarize_run(records)
    listed = summary.rows if every else summary.telling(LISTED)
    _Printer(console or open_console()).show(summary, listed, insights(summary, ceilings))


PUBLISHED_WIDTH = 200
LISTED = 100  # cases at most, unless all are asked for
MOST_LINES = 8  # below the sentence of an insight


class _Printer:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.ascii = not console.is_terminal or console.options.ascii_only

    def text(self, content: str, style: str = "") -> Text:
        """Text that is never read as markup, in signs that this terminal has."""
        content = clean(plain(content) if self.ascii else content)
        return Text(content.encode(self.console.encoding, "backslashreplace").decode(self.console.encoding), style)

    def show(self, summary: RunSummary, listed: tuple[Row, ...], found: list[Insight]) -> None:
        self.console.print(self.text(answer(summary), "bold"))
        for section in sections(replace(summary, rows=listed)):
            self.console.print()
            if section.title:
                self.console.print(self.text(section.title, "bold"))
            if section.shared:
                self.item(section.shared, indent=0, style="dim")
            self.console.print(self.table(section))
        if len(listed) < len(summary.rows):
            more = len(summary.rows) - len(listed)
            self.item(
                f"{more:,} more cases were measured; --all, --md and --csv list all of them", indent=0, style="dim"
            )
        for insight in found:
            self.insight(insight)
        for table in published_tables(summary.source):
            self.published(table)
        if summary.doubts:
            self.doubts(summary)
        if summary.failed:
            self.causes("Did not succeed", "bold red", summary.failed)
        if summary.impossible:
            self.causes("Not possible here", "bold yellow", summary.impossible)
        if summary.not_run:
            titles = ", ".join(one_line(case.title or case.benchmark) for case in summary.not_run)
            self.console.print()
            self.console.print(self.text(f"Not run: {titles}", "yellow"))

    def table(self, section: Section) -> Table:
        if self.ascii:
            table = Table(box=box.ASCII2, show_edge=False, pad_edge=False, padding=(0, 1))
        else:
            table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        shown = [column for column in section.columns if _is_told(column)]
        for column in shown:
            header = self.text(_SHORT.get(column.header, column.header))
            case = column.key == "case"
            table.add_column(
                header,
                justify="right" if column.numeric else "left",
                no_wrap=not case,
                overflow="fold",
                min_width=14 if case else None,
                style={"result": "bold", "doubts": "yellow"}.get(column.key, ""),
            )
        for index in range(len(section.rows)):
            cells = [column.cells[index] for column in shown]
            table.add_row(*(self.text(cell.text, "bold" if cell.leads else "") for cell in cells))
        return table

    def published(self, published: PublishedTable) -> None:
        self.console.print()
        self.console.print(self.text(published.title, "bold"))
        table = Table(box=box.ASCII2 if self.ascii else box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        filled = published.filled()
        for place, header in enumerate(filled.headers):
            justify: Literal["left", "right"] = "left" if place < filled.named else "right"
            table.add_column(self.text(header), justify=justify, overflow="fold")
        for line in filled.lines:
            table.add_row(*map(self.text, line))
        if self.console.is_terminal:
            self.console.print(table)
        else:  # a pipe has no width: a table that is wide stays whole
            Console(file=self.console.file, highlight=False, width=PUBLISHED_WIDTH).print(table)
        if published.source:
            self.item(published.source, indent=0, style="dim")

    def insight(self, insight: Insight) -> None:
        self.console.print()
        self.console.print(self.text(insight.title, "bold"))
        for part in insight.parts:
            self.item(part.sentence)
            for line in part.lines[:MOST_LINES] if len(part.lines) > 1 else ():
                self.item(line, indent=4, style="dim")
            if len(part.lines) > MOST_LINES:
                self.item(f"and {len(part.lines) - MOST_LINES} more: see the HTML report", indent=4, style="dim")
            if part.source:
                self.item(part.source, indent=4, style="dim")
            for text in part.todo if not part.lines or len(part.todo) == 1 else ():
                self.item(f"To do: {text}", indent=4)

    def doubts(self, summary: RunSummary) -> None:
        self.console.print()
        self.console.print(self.text("Doubts, and what to do", "bold yellow"))
        for kind in summary.doubts:
            remedies = "; or ".join(one_line(remedy) for remedy in kind.remedies)
            self.item(f"{kind.mark}  {one_line(kind.kind)}: {remedies}")

    def causes(self, title: str, style: str, rows: tuple[Row, ...]) -> None:
        self.console.print()
        self.console.print(self.text(title, style))
        for row in rows:
            cause = one_line(row.cause.message) if row.cause else "no cause was recorded"
            where = f" (rank {row.cause.rank})" if row.cause and row.cause.rank is not None else ""
            ended = f": {row.outcome.value}{where}" if row.failed else ""
            self.item(f"{one_line(row.label)}{ended}", style="bold")
            self.item(cause, indent=4)
            if row.remedy and row.failed:
                self.item(f"To do: {row.remedy}", indent=4)
        # What a machine cannot do has few remedies; they are told once.
        for remedy in dict.fromkeys(row.remedy for row in rows if row.remedy and not row.failed):
            self.item(f"To do: {remedy}")

    def item(self, content: str, *, indent: int = 2, style: str = "") -> None:
        self.console.print(Padding(self.text(content, style), (0, 0, 0, indent), expand=False))


def _is_told(column: Column) -> bool:
    """Whether it is worth its width: figures that lead are, and that no request failed goes without saying."""
    if column.key == "failed":
        return any(cell.sort for cell in column.cells)
    return column.key not in _FULL or any(cell.leads for cell in column.cells)
