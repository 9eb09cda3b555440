"""A simulation on a terminal: the answer, how policies compare, and what it assumes."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paceline.analysis.simulation import Study
from paceline.report.simulation import SimulationTable, answer, assumptions, show_setting, tables
from paceline.report.terminal import open_console
from paceline.report.text import plain


def render(study: Study, console: Console | None = None) -> None:
    """Show it."""
    console = console or open_console()
    _Printer(console).show(study)


class _Printer:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.ascii = not console.is_terminal or console.options.ascii_only

    def text(self, content: str, style: str = "") -> Text:
        return Text(plain(content) if self.ascii else content, style)

    def show(self, study: Study) -> None:
        self.console.print(self.text(answer(study), "bold"))
        self.console.print(self.text(f"{show_setting(study.settings)}; took {study.seconds:.1f} s", "dim"))
        for table in tables(study):
            self.console.print()
            self.console.print(self.text(table.title))
            self.console.print(self.table(table))
            if table.note:
                self.console.print(self.text(table.note, "dim"))
        self.console.print()
        for line in assumptions(study):
            self.console.print(Padding(self.text(line, "dim"), (0, 0, 0, 2), expand=False))

    def table(self, table: SimulationTable) -> Table:
        """Workload and load share a column, or a line above their policies, so that it fits into 100 columns."""
        drawn = Table(box=box.SIMPLE_HEAD if not self.ascii else box.ASCII2, show_edge=False, pad_edge=False)
        headers = table.headers[table.named :]
        is_grouped = table.named > 2
        for place, header in enumerate(("Workload, load" if not is_grouped else "Policy", *headers)):
            drawn.add_column(header, justify="right" if place else "left", no_wrap=True)
        last = ""
        for line in table.lines:
            cell = f"{line[0]}, {line[1]}"
            if is_grouped and cell != last:
                drawn.add_section()
                drawn.add_row(self.text(cell, "bold"))
            last = cell
            name = f"  {line[2]}" if is_grouped else cell
            drawn.add_row(*(self.text(part) for part in (name, *line[table.named :])))
        return drawn
