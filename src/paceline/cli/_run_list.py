"""Past runs as a list: what each measured and where, its warnings, and which of them somebody looks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.analysis.figures import plain_label
from paceline.analysis.summary import headline_of
from paceline.core.case import is_micro
from paceline.core.quantity import show_duration
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import RunRecords
from paceline.report.numbers import show_figure
from paceline.report.text import one_line, when
from paceline.store.reader import Reader, RunRow

if TYPE_CHECKING:
    from rich.console import Console

_AT_ONCE = 100  # runs that are read together
_BETWEEN = 2  # characters between two columns
_NUMERIC = ("Took", "Ok", "Not ok")
_DETAILS = ("Figure", "Machine", "Tags", "Warnings", "Note")  # below the others where there is little room
_BELOW = {"Tags": "tagged ", "Warnings": "warnings: ", "Note": "note: "}


@dataclass(frozen=True)
class ListedRun:
    """A run with what a list shows of it."""

    row: RunRow
    records: RunRecords

    @property
    def machine(self) -> str:
        """Its host, and its GPUs or its processor."""
        environment = self.records.run.environment
        gpus = Counter(gpu.name or "unknown GPU" for gpu in environment.gpus)
        devices = [f"{count} x {name}" if count > 1 else name for name, count in gpus.items()]
        return ", ".join(filter(None, (environment.host_name, *(devices or [environment.cpu.model or ""]))))

    @property
    def headline(self) -> tuple[Record, Measurement] | None:
        """The figure that it is known by: of the first model if there is one, otherwise of the first case."""
        good = [record for record in self.records.records if record.outcome is Outcome.OK]
        good.sort(key=lambda record: (is_micro(record.case.category), record.case.index))
        return next(((record, figure) for record in good if (figure := headline_of(record)) is not None), None)

    @property
    def figure(self) -> str:
        """The headline in words, and how many other cases there are."""
        if self.headline is None:
            return ""
        record, figure = self.headline
        others = self.row.ok - 1
        return f"{plain_label(record.case)}: {show_figure(figure)}" + (f" and {others} more" if others > 0 else "")

    @property
    def warnings(self) -> dict[str, int]:
        """In how many cases there is a warning of each kind."""
        kinds = Counter(kind for one in self.records.records for kind in {warning.kind for warning in one.warnings})
        return dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))

    def matches(self, words: Sequence[str], machine: str) -> bool:
        """Whether it has all of the words in its names, tags, note or cases, and runs on such a machine."""
        if machine.casefold() not in self.machine.casefold():
            return False
        row, cases = self.row, (f"{one.case.benchmark} {one.case.title}" for one in self.records.records)
        text = " ".join((row.id, row.name, row.status, row.note, self.machine, *row.tags, *self.warnings, *cases))
        return all(word in text.casefold() for word in words)

    def document(self) -> dict[str, Any]:
        """For programs."""
        figure = None
        if self.headline is not None:
            record, lead = self.headline
            figure = {"case": plain_label(record.case), "metric": lead.name, "value": lead.value, "unit": lead.unit}
        return self.row.model_dump() | {"machine": self.machine, "figure": figure, "warnings": self.warnings}

    def cells(self) -> dict[str, str]:
        """Its texts by column."""
        row = self.row
        texts = {
            "Run": row.id,
            "Suite": row.name,
            "Started, UTC": when(row.started_at).removesuffix(" UTC"),
            "Took": show_duration((row.ended_at - row.started_at).total_seconds()) if row.ended_at else "",
            "Ok": f"{row.ok} of {row.cases}",
            "Not ok": str(row.not_ok or ""),
            "Status": row.status,
            "Figure": self.figure,
            "Machine": self.machine,
            "Tags": ", ".join(row.tags),
            "Warnings": ", ".join(f"{kind} {count}" for kind, count in self.warnings.items()),
            "Note": ": ".join(filter(None, ("pinned" if row.pinned else "", row.note))),
        }
        return {name: one_line(text) for name, text in texts.items()}


def listed(reader: Reader, limit: int, *, tag: str, machine: str, status: str, search: str) -> list[ListedRun]:
    """The newest runs that somebody looks for, so many of them at most."""
    is_filtered = bool(tag or machine or status or search)
    rows = [
        row
        for row in reader.runs(None if is_filtered else limit)
        if (not tag or tag in row.tags) and (not status or status == row.status)
    ]
    words = search.casefold().split()
    runs: list[ListedRun] = []
    for run in _looked_at(reader, rows):
        if len(runs) == limit:
            break
        if run.matches(words, machine):
            runs.append(run)
    return runs


def _looked_at(reader: Reader, rows: Sequence[RunRow]) -> Iterator[ListedRun]:
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        records = reader.glances([row.id for row in some])
        yield from (ListedRun(row, records[row.id]) for row in some if row.id in records)


def show(runs: Sequence[ListedRun]) -> None:
    """Print them, a line each; where a terminal is too narrow, what was measured goes below. Nothing is ever cut."""
    from rich.cells import cell_len

    from paceline.report.render.terminal import open_console

    console = open_console()
    lines = [run.cells() for run in runs]
    names = [name for name in lines[0] if any(line[name] for line in lines)]
    widths = {name: max(cell_len(name), *(cell_len(line[name]) for line in lines)) for name in names}
    needed = sum(widths.values()) + _BETWEEN * (len(names) - 1)
    if not console.is_terminal:
        console.width = needed  # a pipe has no width of its own
    below = [name for name in names if name in _DETAILS] if needed > console.width else []
    _table(console, {name: width for name, width in widths.items() if name not in below}, lines, below)


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
