"""The part of a machine's page that shows micro benchmarks: a section per category, tables of results and of sweeps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hardware_marks import marks

from paceline.analysis.summary import CaseRow, summarize_run
from paceline.core import case as categories
from paceline.core.benchmark import BENCHMARKS
from paceline.core.metric import Metric
from paceline.core.record import Measurement, Record
from paceline.core.run import Run, RunRecords
from paceline.report.run.sweeps import leading_metric
from paceline.report.text import half_width, heading, humanize, show_at, show_coordinate, show_value

LEGEND = (
    "Micro benchmarks: each figure with the half-width of its 95 % interval. Percent of peak is of what the datasheet "
    "promises (of the PCIe link for copies between host and GPU), and has the interval of the figure it is a part of. "
    "*single* marks a figure that is one value by nature, a sum, a ratio or a count: the tables have the intervals of "
    "its parts. *± unknown* marks samples that followed one another so closely that they tell no interval. In a sweep, "
    "a letter says that at least one point has the warning."
)
HINTS = {
    "dnn-functions": "Work is counted by the definition of a convolution. Libraries may need fewer operations for it, "
    "so that a rate above the peak is no error.",
    "copy": "Copies within the device count each byte once, though memory reads it and writes it; percent of peak "
    "counts both. Sizes that fit the GPU's cache are faster than its memory.",
}
PEAK_SHARE = "peak_share"
NOTED = ("loop_share", "operations", "library_call", "counted", "bus_bandwidth", "source", "distinct")
Place = tuple[int | float | str, ...]  # the coordinates of a point

_SIZES = re.compile(r"(?:(?:^| )(?:to )?[\d.]+ [KMGT]?i?B)+$")  # what a title says of sizes stands in the tables


def micro_sections(runs: Sequence[RunRecords]) -> list[str]:
    """Everything that was measured of single operations, as Markdown paragraphs."""
    rows = _rows(runs)
    parts: list[str] = []
    known = dict.fromkeys(row.case.category for row in rows)
    for category in sorted(known, key=categories.section_order):
        here = [row for row in rows if row.case.category == category]
        parts += [f"## {heading(category)}"] if here else []
        for benchmark in dict.fromkeys(row.case.benchmark for row in here):
            own = [row for row in here if row.case.benchmark == benchmark]
            parts += _benchmark(benchmark, own)
    return parts


def is_micro(record: Record) -> bool:
    """Whether the record is one of a single operation."""
    return categories.is_micro(record.case.category)


def _rows(runs: Sequence[RunRecords]) -> list[CaseRow]:
    """The successful cases of all runs, named so that no two are called the same."""
    found = [record for run in runs for record in run.records if is_micro(record)]
    if not found:
        return []
    numbered = [
        record.model_copy(update={"case": record.case.model_copy(update={"index": index})})
        for index, record in enumerate(found)
    ]
    first = runs[0].run
    run = Run(id=first.id, name=first.name, started_at=first.started_at, version=first.version)
    return list(summarize_run(RunRecords(run=run, records=numbered)).measured)


def _benchmark(benchmark: str, rows: Sequence[CaseRow]) -> list[str]:
    known = BENCHMARKS.registry().entries.get(benchmark)
    parts = [f"### {benchmark}"]
    said = [f"{heading(known.summary)}." if known else "", HINTS.get(benchmark, "")]
    parts += [" ".join(filter(None, said))] if any(said) else []
    names = _names(rows)
    parts += _one_case(rows[0], names[0]) if len(rows) == 1 else [_cases(rows, names)]
    parts += [table for axes in _axes(rows) for table in _sweep(rows, names, axes)]
    parts += _notes(rows, names)
    return parts


def _one_case(row: CaseRow, name: str) -> list[str]:
    """A single case: a line for each thing that was measured."""
    lines = [
        [
            heading(humanize(m.metric.name)),
            _peak(row) if m.metric.name == PEAK_SHARE else _cell(m),
            m.metric.description,
        ]
        for m in _told(row, [m for m in row.record.measurements if not m.scope and not m.at])
    ]
    warnings = f" **{marks(row.record)}**" if row.record.warnings else ""
    point = f" at {show_at(row.point.at)}" if row.point else ""
    return [f"{name}{point}{warnings}:", _table(["", "result", "meaning"], lines, numeric=(1,))]


def _cases(rows: Sequence[CaseRow], names: Sequence[str]) -> str:
    """Several cases: a line for each, a column for each thing that was measured."""
    told = [_told(row, [m for m in row.record.measurements if not m.scope and not m.at]) for row in rows]
    metrics = list(dict.fromkeys(m.metric.name for measured in told for m in measured if m.metric.name != PEAK_SHARE))
    has_peak, has_point = any(_peak(row) for row in rows), any(row.point for row in rows)
    headers = ["case", *(["at"] if has_point else []), *map(humanize, metrics), *(["of peak"] if has_peak else [])]
    lines = []
    for row, name, measured in zip(rows, names, told, strict=True):
        by_name = {m.metric.name: m for m in measured}
        lines.append(
            [
                name,
                *([show_at(row.point.at) if row.point else ""] if has_point else []),
                *(_cell(by_name.get(metric)) for metric in metrics),
                *([_peak(row)] if has_peak else []),
                marks(row.record),
            ]
        )
    return _table([*headers, "warnings"], lines, numeric=range(1, len(headers)))


def _axes(rows: Sequence[CaseRow]) -> list[tuple[str, ...]]:
    return list(dict.fromkeys(sweep.axes for row in rows for sweep in row.sweeps))


def _sweep(rows: Sequence[CaseRow], names: Sequence[str], axes: tuple[str, ...]) -> list[str]:
    """A line for each point; a column for each case, or of a single case for each thing that was measured."""
    columns: list[tuple[str, dict[Place, Measurement]]] = []
    for row, short in zip(rows, _shortened(names), strict=True):
        for metric in _swept(row, axes, alone=len(rows) == 1):
            points = {
                tuple(m.at.values()): m
                for m in row.record.measurements
                if tuple(m.at) == axes and not m.scope and m.metric.name == metric.name
            }
            columns.append((short if len(rows) > 1 else humanize(metric.name), points))
    places = _ordered(dict.fromkeys(place for _, points in columns for place in points))
    if not places:
        return []
    lines = [
        [
            *(show_coordinate(axis, value) for axis, value in zip(axes, place, strict=True)),
            *(_cell(points.get(place)) for _, points in columns),
        ]
        for place in places
    ]
    headers = [*map(humanize, axes), *(name for name, _ in columns)]
    what = f"{heading(humanize(_leading_name(rows, axes)))} by {' and '.join(map(humanize, axes))}:"
    return [what, _table(headers, lines, numeric=range(len(axes), len(headers)))]


def _swept(row: CaseRow, axes: tuple[str, ...], *, alone: bool) -> list[Metric]:
    sweep = next((sweep for sweep in row.sweeps if sweep.axes == axes), None)
    if sweep is None:
        return []
    if alone:
        at_points = [m for m in row.record.measurements if tuple(m.at) == axes and not m.scope]
        return list({m.metric.name: m.metric for m in _told(row, at_points)}.values())
    leading = leading_metric(row, sweep)
    return [leading] if leading else []


def _leading_name(rows: Sequence[CaseRow], axes: tuple[str, ...]) -> str:
    found = (_swept(row, axes, alone=len(rows) == 1) for row in rows)
    return next((metrics[0].name for metrics in found if metrics), "result")


def _ordered(places: Iterable[Place]) -> list[Place]:
    """Numbers in their order; names in the order they were measured in."""
    listed = list(places)
    are_numbers = all(isinstance(value, int | float) for place in listed for value in place)
    return sorted(listed) if are_numbers else listed


def _told(row: CaseRow, measurements: Sequence[Measurement]) -> list[Measurement]:
    """Without times that say no more than the rates that were computed from them."""
    sources = {m.derived_from for m in measurements}
    primary = row.headline.name if row.headline else ""
    return [m for m in measurements if m.metric.name not in sources or m.metric.name == primary]


def _cell(figure: Measurement | None) -> str:
    """A value with its interval, or the word that it can have none."""
    if figure is None:
        return ""
    shown = show_value(figure.value, figure.unit)
    if figure.relative is not None:
        return f"{shown} {half_width(figure.relative)}"
    return f"{shown} *single*" if figure.count == 1 else f"{shown} ± unknown"


def _peak(row: CaseRow) -> str:
    """The share of the peak, and what the peak is."""
    share, peak = row.figure(PEAK_SHARE), row.record.facts.get("peak")
    if share is None:
        return ""
    rate = next((m for m in row.record.measurements if m.derived_from and m.metric.name != PEAK_SHARE), None)
    of = f" of {show_value(peak, rate.metric.unit)}" if isinstance(peak, int | float) and rate else ""
    return show_value(share.value, share.unit) + of


def _notes(rows: Sequence[CaseRow], names: Sequence[str]) -> list[str]:
    """What one must know to read the figures, each thing once."""
    lines = []
    for key in NOTED:
        said: dict[str, list[str]] = {}
        for row, name in zip(rows, names, strict=True):
            fact = row.record.facts.get(key)
            if isinstance(fact, str):
                said.setdefault(fact, []).append(name)
        for fact, whom in said.items():
            whose = "" if len(whom) == len(rows) else f" ({', '.join(whom)})"
            lines.append(f"- {heading(humanize(key))}{whose}: {fact}")
    return ["\n".join(lines)] if lines else []


def _names(rows: Sequence[CaseRow]) -> list[str]:
    """What tells the cases of one benchmark apart; sizes only where nothing else does, for the tables have them."""
    benchmark = rows[0].case.benchmark
    titles = [row.label.removeprefix(benchmark).strip() or benchmark for row in rows]
    shorter = [_SIZES.sub("", title).strip() or benchmark for title in titles]
    return shorter if len(set(shorter)) == len(rows) else titles


def _shortened(names: Sequence[str]) -> list[str]:
    """The names without the words that all of them end in."""
    words = [name.split() for name in names]
    while all(len(each) > 1 for each in words) and len({each[-1] for each in words}) == 1:
        words = [each[:-1] for each in words]
    return [" ".join(each) for each in words]


def _table(headers: Sequence[str], lines: Sequence[Sequence[str]], numeric: Iterable[int]) -> str:
    right = set(numeric)
    ruler = ["---:" if place in right else "---" for place in range(len(headers))]
    return "\n".join([_line(headers), f"|{'|'.join(ruler)}|", *(_line(line) for line in lines)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
