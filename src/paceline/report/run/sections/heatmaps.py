"""Maps over two parameters: a shade and the figure itself in every cell, and why a cell has none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from paceline.analysis.heatmap import ENDS, NO_CASE, NOT_RUN, Coordinate, HeatMap, HeatmapCell, heat_maps, pair_maps
from paceline.analysis.summary import RunSummary
from paceline.core.benchmark import size_parameters
from paceline.core.metric import Better
from paceline.core.quantity import show_count
from paceline.core.record import Outcome
from paceline.report.charts import ACCENT, GRID, INK, MUTED, TEXT, Chart, Spec, framed, layer, matrix_places
from paceline.report.document import Section, Table
from paceline.report.run.sections import MOST_LINES, ReportSection, SectionAnswer, section_of, with_note
from paceline.report.text import axis_scale, heading, humanize, one_line, show_coordinate, show_value, told_apart

MOST_MAPS = 6
MOST_COLUMNS = 14  # with a figure in each cell
MOST_ROWS = 40
MOST_CELLS = 2500  # drawn: more would make the page slow, and are seen no better
MOST_CAUSES = 4
MOST_READ = 200  # names, to see what they share
WIDE = 12.0  # from this ratio on, shades follow the logarithm
PALE, DARK = 0.05, 0.5  # never so strong that a figure on it is lost
_SHORT = {Outcome.OUT_OF_MEMORY.value: "no memory", Outcome.UNSUPPORTED.value: "cannot", NO_CASE: "–"}


def heat_map_parts(maps: Sequence[HeatMap]) -> list[SectionAnswer]:
    """A part for each map, the first few of them."""
    parts = [
        SectionAnswer(_sentence(one), _chart(one) if _is_drawn(one) else None, _table(one), notes=tuple(_notes(one)))
        for one in maps[:MOST_MAPS]
    ]
    more = len(maps) - MOST_MAPS
    return with_note(parts, f"{more} more maps of this kind are left out.") if more > 0 else parts


def _is_drawn(one: HeatMap) -> bool:
    """Whether a chart shows all that the table has."""
    return len(one.cells) <= MOST_CELLS


def _sentence(one: HeatMap) -> str:
    best, worst = one.measured[0], one.measured[-1]
    assert best.figure is not None and worst.figure is not None
    values = sorted((abs(best.figure.value), abs(worst.figure.value)))
    factor = f", {values[1] / values[0]:.3g} times as good as at {_place(one, worst)}" if values[0] > 0 else ""
    missing = [cell for cell in one.missing if cell.missing != NO_CASE]
    blank = sum(cell.row is not None and cell.row.ok for cell in missing)
    failed, metric = len(missing) - blank, humanize(one.metric.name)
    lost = f"; {failed} of {len(one.cells)} places did not succeed" if failed else ""
    lost += f"; {blank} of {len(one.cells)} {'has' if blank == 1 else 'have'} no {metric}" if blank else ""
    what = f"{heading(humanize(one.metric.name))} of {_work(one)}{_same(one)}"
    figure = show_value(best.figure.value, one.metric.unit)
    return one_line(f"{what} is best at {_place(one, best)}: {figure}{factor}{lost}.")


def _work(one: HeatMap) -> str:
    """What all its cases are called."""
    named = [cell.row for cell in one.cells if cell.row]
    shared, _ = told_apart([one_line(row.label) for row in named[:: max(1, len(named) // MOST_READ)]])
    return shared or one.benchmark


def _same(one: HeatMap) -> str:
    settings = ", ".join(f"{_axis(name)} {value}" for name, value in one.same)
    return f" ({one_line(settings)})" if settings else ""


def _place(one: HeatMap, cell: HeatmapCell) -> str:
    if (one.x, one.y) in ENDS:
        return f"{cell.y} to {cell.x}" if ENDS[one.x, one.y] else f"{cell.x} - {cell.y}"
    return f"{_axis(one.x)} {_shown_x(one, cell.x)}, {_axis(one.y)} {_shown_y(one, cell.y)}"


def _axis(name: str) -> str:
    return humanize(name.rpartition(".")[2])


def _shown_x(one: HeatMap, value: Coordinate) -> str:
    return _shown(one.benchmark, one.x, value)


def _shown_y(one: HeatMap, value: Coordinate) -> str:
    return _shown(one.benchmark, one.y, value)


def _shown(benchmark: str, axis: str, value: Coordinate) -> str:
    is_size = axis == "size" and axis in size_parameters(benchmark)
    return show_coordinate(axis, value) if is_size or isinstance(value, str) else f"{value:g}"


def _notes(one: HeatMap) -> Iterator[str]:
    """What is not listed, why cells are empty (each cause once with its places), and the warnings."""
    if len(one.ys) > MOST_LINES:
        yield f"The first {MOST_LINES} of {len(one.ys):,} rows are listed."
    causes: dict[str, list[str]] = {}
    for cell in one.missing:
        if cell.missing != NO_CASE:
            cause = f"{cell.missing}: {cell.cause}" if cell.cause else cell.missing
            causes.setdefault(one_line(cause), []).append(_place(one, cell))
    for cause, places in list(causes.items())[:MOST_CAUSES]:
        more = f" and {len(places) - MOST_CAUSES} more" if len(places) > MOST_CAUSES else ""
        yield f"{heading('; '.join(places[:MOST_CAUSES]))}{more}: {cause}."
    if any(cell.missing == NO_CASE for cell in one.missing):
        yield "A dash marks a place that no case of the run has."
    if rows := [cell.row for cell in one.measured if cell.row and cell.row.warnings]:
        kinds = dict.fromkeys(one_line(warning.kind) for row in rows for warning in row.warnings)
        yield f"{len(rows)} of {len(one.measured)} figures have warnings: {', '.join(kinds)}."


def _table(one: HeatMap) -> Table:
    headers = (f"{_axis(one.y)} \\ {_axis(one.x)}", *(_shown_x(one, value) for value in one.xs))
    width = len(one.xs)
    lines = []
    for index, y in enumerate(one.ys[:MOST_LINES]):
        cells = one.cells[index * width : (index + 1) * width]
        texts = (show_value(cell.figure.value, one.metric.unit) if cell.figure else cell.missing for cell in cells)
        lines.append((_shown_y(one, y), *texts))
    title = f"{heading(humanize(one.metric.name))}, every place"
    return Table.of_lines(headers, lines, 1, title if _is_drawn(one) else "", is_folded=_is_drawn(one))


def _chart(one: HeatMap) -> Chart:
    numbers = [cell.figure.value for cell in one.cells if cell.figure]
    scale, unit = axis_scale(one.metric.unit, sorted(numbers)[len(numbers) // 2])
    span = (min(numbers), max(numbers))
    is_labelled = len(one.xs) <= MOST_COLUMNS and len(one.ys) <= MOST_ROWS
    best = one.measured[0]
    values = [
        {
            "x": _shown_x(one, cell.x),
            "y": _shown_y(one, cell.y),
            "shade": _shade(cell, span, one.metric.better),
            "text": show_count(cell.figure.value / scale) if cell.figure else _SHORT.get(cell.missing, cell.missing),
            "missing": cell.figure is None,
            "best": cell is best,
        }
        for cell in one.cells
    ]
    columns, rows = [_shown_x(one, value) for value in one.xs], [_shown_y(one, value) for value in one.ys]
    place = matrix_places("x", "y", columns, rows, titles=(_axis(one.x), _axis(one.y)))
    shaded = place | {"fillOpacity": {"field": "shade", "type": "quantitative", "scale": None}}
    empty: Spec = {"fillOpacity": 0, "color": MUTED, "stroke": MUTED, "strokeDash": [3, 3], "strokeOpacity": 0.6}
    layers = [
        layer("rect", shaded, where="!datum.missing", color=ACCENT, stroke=GRID, strokeOpacity=1),
        layer("rect", place, where="datum.missing", **empty),
        layer("rect", place, where="datum.best", fillOpacity=0, color=INK, stroke=INK, strokeWidth=2),
    ]
    if is_labelled:
        text = place | {"text": TEXT}
        layers += [
            layer("text", text, where="!datum.missing", color=INK, fontSize=12),
            layer("text", text, where="datum.missing", color=MUTED, fontSize=11),
        ]
    title = f"{heading(humanize(one.metric.name))} of {_work(one)} over {_axis(one.x)} and {_axis(one.y)}"
    step = max(52, min(84, 720 // len(one.xs))) if is_labelled else max(6, min(40, 700 // len(one.xs)))
    height = 34 if is_labelled else max(6, min(20, 640 // len(one.ys)))
    size: Spec = {"width": {"step": step}, "height": {"step": height}}
    head = (title + (f", {unit}" if unit else ""), _same(one).strip(" ()"))
    hint = "stronger is better, the best is framed, dashed: no figure"
    return Chart(
        spec=framed(*head, hint, values=values, layer=layers, **size),
        title=title + _same(one),
        description=_description(one),
        notes=() if is_labelled else ("The figures of so many places are in the table below.",),
    )


def _shade(cell: HeatmapCell, span: tuple[float, float], better: Better) -> float:
    """From pale to dark, as the figure gets better; by the logarithm where figures differ widely."""
    if cell.figure is None:
        return 0.0
    (low, high), value = span, cell.figure.value
    if low > 0 and high > WIDE * low:
        low, high, value = math.log(low), math.log(high), math.log(value)
    part = (value - low) / (high - low) if high > low else 0.5
    return PALE + (DARK - PALE) * (1 - part if better is Better.LOWER else part)


def _description(one: HeatMap) -> str:
    figures = [
        f"{_place(one, cell)}: "
        + (show_value(cell.figure.value, one.metric.unit) if cell.figure else cell.missing or NOT_RUN)
        for cell in one.cells[:60]
    ]
    rest = len(one.cells) - len(figures)
    return "; ".join(figures) + (f"; and {rest} more" if rest else "")


def _build(summary: RunSummary) -> Section | None:
    maps = [*heat_maps(summary.rows, summary.not_run), *pair_maps(summary.rows)]
    return section_of("heatmap", "Over two parameters", heat_map_parts(maps))


SECTION = ReportSection("heatmaps", 40, _build)
