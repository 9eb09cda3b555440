"""Prints past runs as a list: a line each, never cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paceline.core.quantity import show_duration
from paceline.report.run_list import ListedRun
from paceline.report.text import one_line, when

if TYPE_CHECKING:
    from rich.console import Console

_BETWEEN = 2  # characters between two columns
_NUMERIC = ("Took", "Ok", "Not ok")
_DETAILS = ("Figure", "Machine", "Tags", "Warnings", "Note")  # below the others where there is little room
_BELOW = {"Tags": "tagged ", "Warnings": "warnings: ", "Note": "note: "}


def show(runs: Sequence[ListedRun]) -> None:
    """Print them, a line each; where a terminal is too narrow, what was measured goes below. Nothing is ever cut."""
    from rich.cells import cell_len

    from paceline.report.render.terminal import open_console

    console = open_console()
    lines = [_cells(run) for run in runs]
    names = [name for name in lines[0] if any(line[name] for line in lines)]
    widths = {name: max(cell_len(name), *(cell_len(line[name]) for line in lines)) for name in names}
    needed = sum(widths.values()) + _BETWEEN * (len(names) - 1)
    if not console.is_terminal:
        console.width = needed  # a pipe has no width of its own
    below = [name for name in names if name in _DETAILS] if needed > console.width else []
    _table(console, {name: width for name, width in widths.items() if name not in below}, lines, below)


def _cells(run: ListedRun) -> dict[str, str]:
    """Its texts by column."""
    row = run.row
    texts = {
        "Run": row.id,
        "Suite": row.name,
        "Started, UTC": when(row.started_at).removesuffix(" UTC"),
        "Took": show_duration((row.ended_at - row.started_at).total_seconds()) if row.ended_at else "",
        "Ok": f"{row.ok} of {row.cases}",
        "Not ok": str(row.not_ok or ""),
        "Status": row.status,
        "Figure": run.figure,
        "Machine": run.machine,
        "Tags": ", ".join(row.tags),
        "Warnings": ", ".join(f"{kind} {count}" for kind, count in run.warnings.items()),
        "Note": ": ".join(filter(None, ("pinned" if row.pinned else "", row.note))),
    }
    return {name: one_line(text) for name, text in texts.items()}


def _table(console: Console, widths: dict[str, int], lines: Sequence[dict[str, str]], below: Sequence[str]) -> None:
    from rich.cells import set_cell_size
    from rich.padding import Padding
    from rich.text import Text

    def row(texts: dict[str, str]) -> Iterator[Text]:
        for place, (name, width) in enumerate(widths.items()):
            text = texts[name].rjust(width) if name in _NUMERIC else set_cell_size(texts[name], width)
            yield Text(" " * _BETWEEN * bool(place) + text, _style(name, texts))

    console.print(Text.assemble(*row({name: name for name in widths})), style="bold", overflow="fold")
    for line in lines:
        console.print(Text.assemble(*row(line)), overflow="fold")
        if details := " · ".join(_BELOW.get(name, "") + line[name] for name in below if line[name]):
            console.print(Padding(Text(details, "dim"), (0, 0, 0, 2)))


def _style(name: str, texts: dict[str, str]) -> str:
    if name == "Status":
        return "" if texts[name] in ("finished", name) else "yellow"
    return {"Run": "bold", "Not ok": "red"}.get(name, "")
