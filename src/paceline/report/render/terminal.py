"""A document on a terminal or in a pipe."""

from __future__ import annotations

import sys
from typing import TextIO

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from paceline.report.document import Cell, Column, Document, Finding, Lines, Medium, Section, Table, Tone, shown
from paceline.report.text import clean, one_line, plain

WIDTH = 100
WIDE = 200
LONGEST_WORD = 13  # letters that a table does not break
LEAST = 80  # a narrower terminal breaks long lines by itself: ugly, but a table loses no column and no half of a number
_COLOURS = {Tone.WARNING: "bold yellow", Tone.BAD: "bold red"}
_LINES = {  # indent and style
    Tone.NOTE: (0, "dim"),
    Tone.BASIS: (2, "dim"),
    Tone.DETAIL: (4, "dim"),
    Tone.TODO: (4, ""),
    Tone.TEXT: (0, ""),
    Tone.WARNING: (0, "yellow"),
}


def open_console(file: TextIO | None = None) -> Console:
    """A console that fits its terminal; a pipe gets a fixed width, so that no table is squeezed."""
    file = file or sys.stdout
    console = Console(file=file, highlight=False, width=None if file.isatty() else WIDTH)
    if console.width < LEAST:
        console.width = LEAST
    return console


def show(document: Document, console: Console | None = None) -> None:
    """Print the document."""
    Printer(console or open_console()).show(document)


class Printer:
    """Prints parts of documents on one console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.ascii = not console.is_terminal or console.options.ascii_only

    def text(self, content: str, style: str = "") -> Text:
        """Text that is never read as markup, in signs that this terminal has."""
        content = clean(plain(content) if self.ascii else content)
        return Text(content.encode(self.console.encoding, "backslashreplace").decode(self.console.encoding), style)

    def item(self, content: str, indent: int = 2, style: str = "") -> None:
        """One line, indented."""
        self.console.print(Padding(self.text(content, style), (0, 0, 0, indent), expand=False))

    def show(self, document: Document) -> None:
        """All of it."""
        if document.answer:
            self.console.print(self.text(document.answer, "bold"))
        for place, block in enumerate(document.blocks):
            if place or document.answer:
                self.console.print()
            self.console.print(self.text(block.answer, "bold"))
            if block.about:
                self.console.print(self.text(block.about, "dim"))
            for section in block.sections:
                self.section(section)

    def section(self, section: Section) -> None:
        """A heading and what stands below it; nothing where this medium has nothing of it."""
        items = shown(section, Medium.TERMINAL)
        if not items:
            return
        self.console.print()
        if section.title:
            self.console.print(self.text(section.title, _COLOURS.get(section.tone, "bold")))
        for item in items:
            if isinstance(item, Table):
                self.show_table(item)
            elif isinstance(item, Lines):
                self.lines(item, section.tone)
            elif isinstance(item, Finding):
                self.finding(item)

    def lines(self, lines: Lines, tone: Tone) -> None:
        """Each on a line of its own."""
        is_basis = tone is Tone.BASIS and lines.tone is Tone.PLAIN
        indent, style = _LINES.get(Tone.BASIS if is_basis else lines.tone, (2, ""))
        for text in lines.texts:
            self.item(f"To do: {text}" if lines.tone is Tone.TODO else text, indent, style)

    def finding(self, finding: Finding) -> None:
        """What is wrong, and what to do."""
        texts = [one_line(text) for text in (finding.status, *finding.texts) if text]
        # How a case ended, or what its kind means, is on the line of its head; why it ended so is below.
        inline = texts[: not finding.link or bool(finding.status)]
        head = Text.assemble(self.text(finding.head, "bold"), self.text("".join(f": {text}" for text in inline)))
        self.console.print(Padding(head, (0, 0, 0, 2), expand=False))
        for text in (*texts[len(inline) :], *(f"To do: {text}" for text in finding.todo)):
            self.item(text, 4)

    def show_table(self, table: Table) -> None:
        """A table on this console; a pipe has no width, and one that is wide stays whole there."""
        if table.is_wide and not self.console.is_terminal:
            Console(file=self.console.file, highlight=False, width=WIDE).print(self.table(table))
        else:
            self.console.print(self.table(table))

    def table(self, table: Table) -> RichTable:
        """The columns that fit; those that name a group share a column, or stand above the rows of their group."""
        padding = (0, 1) if self.ascii else (0, 1, 0, 0)
        style = box.ASCII2 if self.ascii else box.SIMPLE_HEAD
        drawn = RichTable(box=style, show_edge=False, pad_edge=False, padding=padding)
        groups, columns = table.columns[: table.grouped], table.columns[table.grouped :]
        columns = self.fitting(tuple(column for column in columns if not column.widest))
        is_shared = bool(groups) and all(column.numeric for column in columns)
        if is_shared:
            drawn.add_column(", ".join((groups[0].header, *(one.header.lower() for one in groups[1:]))), no_wrap=True)
        least = [self.least_width(column) for column in columns]
        has_room = sum(least) + 3 * (len(least) - 1) <= self.console.width
        for column, width in zip(columns, least, strict=True):
            drawn.add_column(
                self.text(column.short or column.header),
                justify="right" if column.numeric else "left",
                no_wrap=column.numeric or bool(groups),
                overflow="fold",
                min_width=width if has_room and not column.numeric else None,
                style="bold" if column.leads else "",
            )
        last = ""
        for cells in zip(*(column.cells for column in (*groups, *columns)), strict=True):
            group = ", ".join(one_line(cell.text) for cell in cells[: len(groups)])
            row = [self.cell(cell) for cell in cells[len(groups) :]]
            if is_shared:
                row.insert(0, self.text(group))
            elif groups:
                if group != last:
                    drawn.add_section()
                    drawn.add_row(self.text(group, "bold"))
                row[0] = Text("  ") + row[0]
            last = group
            drawn.add_row(*row)
        return drawn

    def fitting(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        """The columns without those that can be spared, as many as it takes for names to stay on one line."""
        while spare := max(columns, key=lambda column: column.spare, default=None):
            widths = [max(map(len, (one.short or one.header, *self.texts(one)))) for one in columns]
            if not spare.spare or sum(widths) + 3 * (len(widths) - 1) <= self.console.width:
                break
            columns = tuple(column for column in columns if column is not spare)
        return columns

    def least_width(self, column: Column) -> int:
        """Letters that a column takes: numbers stay whole, and so do words of usual length."""
        texts = [column.short or column.header, *self.texts(column)]
        if column.numeric:
            return max(map(len, texts))
        return max((len(word) for text in texts for word in text.split() if len(word) <= LONGEST_WORD), default=1)

    def texts(self, column: Column) -> list[str]:
        """Each line of its cells."""
        return [line for cell in column.cells for line in self.cell(cell).plain.split("\n")]

    def cell(self, cell: Cell) -> Text:
        """One cell in its style."""
        style = "bold" if cell.leads else _COLOURS.get(cell.badges[0].tone, "") if cell.badges else ""
        below = self.text(f"\n{one_line(cell.below)}", "dim") if cell.below else ""
        return Text.assemble(self.text(one_line(cell.text), style), below)
