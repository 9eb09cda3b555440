"""The report on a terminal: the answer, one row per case, the warnings, and what did not succeed or cannot."""

from __future__ import annotations

from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table

from paceline.analysis.roofline import KnownCeilings
from paceline.analysis.summary import CaseRow, RunSummary, summarize_run
from paceline.core.run import RunRecords
from paceline.report.render.terminal import Printer, open_console
from paceline.report.run.columns import Column, Section, sections
from paceline.report.run.section import report_sections
from paceline.report.run.words import answer
from paceline.report.text import one_line

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
_SHORT = {"Device memory": "Memory", "Host memory": "Memory", "Warnings": "?", "Step time": "Step"}


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
    summary = summarize_run(records, ceilings)
    listed = summary.rows if every else summary.telling(LISTED)
    _Printer(console or open_console()).show_run(summary, listed)


LISTED = 100  # cases at most, unless all are asked for


class _Printer(Printer):
    def show_run(self, summary: RunSummary, listed: tuple[CaseRow, ...]) -> None:
        self.console.print(self.text(answer(summary), "bold"))
        for section in sections(replace(summary, rows=listed)):
            self.console.print()
            if section.title:
                self.console.print(self.text(section.title, "bold"))
            if section.shared:
                self.item(section.shared, indent=0, style="dim")
            self.console.print(self.cases(section))
        if len(listed) < len(summary.rows):
            more = len(summary.rows) - len(listed)
            self.item(
                f"{more:,} more cases were measured; --all, --md and --csv list all of them", indent=0, style="dim"
            )
        for told in report_sections(summary):
            self.section(told)
        if summary.warnings:
            self.warnings(summary)
        if summary.failed:
            self.causes("Did not succeed", "bold red", summary.failed)
        if summary.impossible:
            self.causes("Not possible here", "bold yellow", summary.impossible)
        if summary.not_run:
            titles = ", ".join(one_line(case.title or case.benchmark) for case in summary.not_run)
            self.console.print()
            self.console.print(self.text(f"Not run: {titles}", "yellow"))

    def cases(self, section: Section) -> Table:
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
                style={"result": "bold", "warnings": "yellow"}.get(column.key, ""),
            )
        for index in range(len(section.rows)):
            cells = [column.cells[index] for column in shown]
            table.add_row(*(self.text(cell.text, "bold" if cell.leads else "") for cell in cells))
        return table

    def warnings(self, summary: RunSummary) -> None:
        self.console.print()
        self.console.print(self.text("Warnings, and what to do", "bold yellow"))
        for kind in summary.warnings:
            remedies = "; or ".join(one_line(remedy) for remedy in kind.remedies)
            self.item(f"{kind.mark}  {one_line(kind.kind)}: {remedies}")

    def causes(self, title: str, style: str, rows: tuple[CaseRow, ...]) -> None:
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


def _is_told(column: Column) -> bool:
    """Whether it is worth its width: figures that lead are, and that no request failed goes without saying."""
    if column.key == "failed":
        return any(cell.sort for cell in column.cells)
    return column.key not in _FULL or any(cell.leads for cell in column.cells)
