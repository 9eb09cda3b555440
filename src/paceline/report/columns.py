"""The columns of the table that every report leads with; a column that no case fills is left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from paceline.analysis.summary import Row, RunSummary
from paceline.report.text import heading, humanize, one_line, show_relative, show_value


@dataclass(frozen=True)
class Cell:
    """What stands in one place of the table, and what it sorts by."""

    text: str = ""
    sort: float | str | None = None
    note: str = ""


@dataclass(frozen=True)
class Column:
    """One column, filled."""

    key: str
    header: str
    numeric: bool
    cells: tuple[Cell, ...]


def columns(summary: RunSummary) -> list[Column]:
    """The columns for the cases that were measured."""
    rows = summary.measured
    names = {row.headline.name for row in rows if row.headline}
    header = one_line(heading(humanize(names.pop()))) if len(names) == 1 else "Result"
    on_device = any(row.figure("peak_device_memory") for row in rows)

    def result(row: Row) -> Cell:
        if row.headline is None:
            return Cell()
        text = show_value(row.headline.value, row.headline.unit)
        if header == "Result" and row.headline.name != "throughput":
            text = f"{text} ({humanize(row.headline.name)})"
        return Cell(one_line(text), _sortable(row.headline.value))

    def memory(row: Row) -> Cell:
        device, host = row.figure("peak_device_memory"), row.figure("peak_host_memory")
        found = device or host
        if found is None:
            return Cell()
        text = show_value(found.value, found.unit)
        return Cell(text if device or not on_device else f"{text} host", _sortable(found.value))

    made: list[tuple[str, str, Callable[[Row], Cell]]] = [
        ("result", header, result),
        ("interval", "±", _interval),
        ("step", "Step time", lambda row: _of(row, "step_time", lambda figure: figure.summary.median)),
        ("p99", "p99", _slowest),
        ("memory", "Device memory" if on_device else "Host memory", memory),
        ("mfu", "MFU", lambda row: _of(row, "mfu", lambda figure: figure.value)),
        (
            "samples",
            "Samples",
            lambda row: Cell(f"{row.headline.count:,}", row.headline.count) if row.headline else Cell(),
        ),
    ]
    table = [Column("case", "Case", False, tuple(Cell(one_line(row.label), one_line(row.label)) for row in rows))]
    table += [Column(key, title, True, tuple(cell(row) for row in rows)) for key, title, cell in made]
    table.append(Column("doubts", "Doubts", False, tuple(_doubts(summary, row) for row in rows)))
    return [column for column in table if any(cell.text for cell in column.cells)]


def _of(row: Row, name: str, pick: Callable[..., float]) -> Cell:
    figure = row.figure(name)
    if figure is None or figure is row.headline:
        return Cell()
    value = pick(figure)
    return Cell(show_value(value, figure.unit), _sortable(value))


def _interval(row: Row) -> Cell:
    if row.headline is None or row.headline.interval is None or row.headline.relative is None:
        return Cell()
    interval, unit = row.headline.interval, row.headline.unit
    note = (
        f"{show_value(interval.low, unit)} to {show_value(interval.high, unit)}, {interval.confidence:.0%} confidence"
    )
    return Cell(show_relative(row.headline.relative).removeprefix("± "), row.headline.relative, note)


def _slowest(row: Row) -> Cell:
    """The tail of an inference step, where the samples can tell it."""
    figure = row.figure("step_time") if row.case.benchmark == "inference" else None
    value = figure.percentile("99") if figure else None
    return Cell(show_value(value, "s"), _sortable(value)) if value is not None else Cell()


def _doubts(summary: RunSummary, row: Row) -> Cell:
    marks = summary.marks(row)
    return Cell(marks, marks, "; ".join(one_line(f"{doubt.kind}: {doubt.message}") for doubt in row.doubts))


def _sortable(value: float) -> float | None:
    return value if math.isfinite(value) else None
