"""A page that answers a question: a sentence, the chart that shows it, tables and reasons, in any format for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from paceline.report import charts
from paceline.report.charts import Chart
from paceline.report.terminal import open_console
from paceline.report.text import clean, escape, one_line, plain
from paceline.version import VERSION


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    header: str
    cells: tuple[str, ...]
    numeric: bool = True
    leads: bool = False  # what the rows are sorted by
    widest: bool = False  # only where there is room: not on a terminal


@dataclass(frozen=True)
class Section:
    """A part of the page: a chart, a table or some lines."""

    title: str = ""
    chart: Chart | None = None
    columns: tuple[Column, ...] = ()
    lines: tuple[str, ...] = ()
    is_doubt: bool = False
    is_basis: bool = False  # what it all rests on, said last and quietly


@dataclass(frozen=True)
class Block:
    """The answer to one question."""

    answer: str
    about: str  # what it is about
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Page:
    """Everything; the first answer leads unless there is one for all."""

    title: str
    blocks: tuple[Block, ...]
    answer: str = ""

    @property
    def lead(self) -> str:
        """The sentence to read first."""
        return self.answer or (self.blocks[0].answer if self.blocks else "")


def show(page: Page, console: Console | None = None) -> None:
    """The page on a terminal or in a pipe."""
    _Printer(console or open_console()).show(page)


def markdown(page: Page) -> str:
    """The page as Markdown."""
    parts = [f"**{escape(page.answer)}**"] if page.answer else []
    for block in page.blocks:
        parts += [f"**{escape(block.answer)}**", escape(block.about)]
        for section in block.sections:
            if section.chart is not None and not (section.columns or section.lines):
                continue
            parts += [f"## {escape(section.title)}"] if section.title else []
            parts += [_markdown_table(section.columns)] if section.columns else []
            parts += ["\n".join(f"- {_markdown_line(line)}" for line in section.lines)] if section.lines else []
    return "\n\n".join(parts) + "\n"


def html(page: Page) -> str:
    """The page as one file that needs nothing else."""
    from paceline.report.html import Drawing, render_page  # a terminal needs no templates, and they take a while

    drawn = charts.available()
    drawings = {
        (place, at): Drawing(Markup(charts.draw_svg(section.chart, f"chart-{place}-{at}")), section.chart.notes)
        for place, block in enumerate(page.blocks)
        for at, section in enumerate(block.sections)
        if drawn and section.chart is not None
    }
    return render_page(
        "answer.html",
        answer=page.lead,
        version=VERSION,
        page=page,
        drawings=drawings,
        with_code=_html_line,
        charts_missing=not drawn and any(section.chart for block in page.blocks for section in block.sections),
    )


def first_chart(page: Page) -> Chart | None:
    """The chart to draw alone."""
    return next((section.chart for block in page.blocks for section in block.sections if section.chart), None)


class _Printer:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.ascii = not console.is_terminal or console.options.ascii_only

    def text(self, content: str, style: str = "") -> Text:
        """Text that is never read as markup, in signs that this terminal has."""
        content = clean(plain(content) if self.ascii else content)
        return Text(content.encode(self.console.encoding, "backslashreplace").decode(self.console.encoding), style)

    def show(self, page: Page) -> None:
        if page.answer:
            self.console.print(self.text(page.answer, "bold"))
        for place, block in enumerate(page.blocks):
            if place or page.answer:
                self.console.print()
            self.console.print(self.text(block.answer, "bold"))
            self.console.print(self.text(block.about, "dim"))
            for section in block.sections:
                if section.columns or section.lines:
                    self.section(section)

    def section(self, section: Section) -> None:
        self.console.print()
        if section.title:
            self.console.print(self.text(section.title, "bold yellow" if section.is_doubt else "bold"))
        if section.columns:
            self.console.print(self.table([column for column in section.columns if not column.widest]))
        for line in section.lines:
            style = "dim" if section.is_basis else ""
            self.console.print(Padding(self.text(line, style), (0, 0, 0, 2), expand=False))

    def table(self, columns: Sequence[Column]) -> RichTable:
        padding = (0, 1) if self.ascii else (0, 1, 0, 0)
        table = RichTable(
            box=box.ASCII2 if self.ascii else box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding
        )
        for column in columns:
            table.add_column(
                self.text(column.header),
                justify="right" if column.numeric else "left",
                no_wrap=column.numeric,
                overflow="fold",
                style="bold" if column.leads else "",
            )
        for cells in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*(self.text(one_line(cell)) for cell in cells))
        return table


def _markdown_line(text: str) -> str:
    """A line whose commands, between backticks, stay commands."""
    parts = one_line(text).split("`")
    return "".join(f"`{part}`" if place % 2 else escape(part) for place, part in enumerate(parts))


def _html_line(text: str) -> Markup:
    parts = one_line(text).replace("± ", "±\u00a0").replace(" %", "\u00a0%").split("`")
    made = [Markup("<code>{}</code>").format(part) if place % 2 else Markup("{}").format(part)
            for place, part in enumerate(parts)]  # fmt: skip
    return Markup("").join(made)


def _markdown_table(columns: Sequence[Column]) -> str:
    ruler = "|" + "|".join("---:" if column.numeric else "---" for column in columns) + "|"
    lines = [[column.header for column in columns], *zip(*(column.cells for column in columns), strict=True)]
    made = ["| " + " | ".join(escape(cell) for cell in line) + " |" for line in lines]
    return "\n".join([made[0], ruler, *made[1:]])
