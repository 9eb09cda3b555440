"""Tables of sweeps: a row for each point, or a matrix where the points are pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paceline.analysis import serving
from paceline.analysis.figures import Sweep
from paceline.analysis.summary import CaseRow
from paceline.core.case import Category
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement
from paceline.report.document import Table
from paceline.report.numbers import half_width, show_coordinate, show_value
from paceline.report.text import heading, humanize, one_line, told_apart


def sweep_tables(row: CaseRow) -> list[Table]:
    """The tables of one case: one for each of its sweeps, of pairs only what leads; served cases share theirs."""
    tables = []
    for sweep in row.sweeps if row.case.category != Category.SERVING else ():
        leading = leading_metric(row, sweep)
        if not sweep.is_matrix:
            tables.append(_list(sweep, leading))
        elif leading is not None:
            tables.append(_matrix(sweep, leading))
    return tables


def all_tables(row: CaseRow) -> list[Table]:
    """Everything that was measured at points: of pairs, a matrix for each metric."""
    tables = []
    for sweep in row.sweeps:
        if sweep.is_matrix:
            tables += [_matrix(sweep, metric) for metric in sweep.metrics]
        else:
            tables.append(_list(sweep, leading_metric(row, sweep)))
    return tables


def stage_table(rows: Sequence[CaseRow]) -> Table | None:
    """Where the time of a request went: a line for each served case."""
    return _side_by_side("Where the time of a request goes, on average", rows, serving.stages)


def cold_start_table(rows: Sequence[CaseRow]) -> Table | None:
    """How long each server took to start: a line for each served case."""
    most = max((len(serving.cold_start(row)) for row in rows), default=0)  # answers may not become steady in time
    return _side_by_side("Cold start", rows, serving.cold_start, most)


def _side_by_side(
    title: str, rows: Sequence[CaseRow], parts: Callable[[CaseRow], Mapping[str, Measurement]], whole_from: int = 0
) -> Table | None:
    """A line for each case with its parts; their sum where it has at least `whole_from` of them."""
    served = [(row, figures) for row in rows if row.case.category == Category.SERVING and (figures := parts(row))]
    if not served:
        return None
    names = list(dict.fromkeys(name for _, figures in served for name in figures))
    headers = ("Case", *(one_line(heading(name)) for name in names), "Together")
    _, labels = told_apart([one_line(row.label) for row, _ in served])
    lines = []
    for label, (_, figures) in zip(labels, served, strict=True):
        times = [show_value(figures[name].value, "s") if name in figures else "" for name in names]
        whole = sum(figure.value for figure in figures.values())
        lines.append((label, *times, show_value(whole, "s") if len(figures) >= whole_from else ""))
    return Table.of_lines(headers, lines, 1, title)


def leading_metric(row: CaseRow, sweep: Sweep) -> Metric | None:
    """The metric that a sweep is about: the headline's, otherwise the first rate, or the first with a direction."""
    name = row.headline.name if row.headline else ""
    directed = [metric for metric in sweep.metrics if metric.better is not Better.NEITHER]
    rates = [metric for metric in directed if metric.unit.endswith("/s")]
    headlines = [metric for metric in directed if metric.name == name]
    return next(iter((*headlines, *rates, *directed)), None)


def _list(sweep: Sweep, leading: Metric | None) -> Table:
    # A rate follows the time that it was computed from, with its interval next to it.
    metrics = sorted(sweep.metrics, key=lambda metric: metric.unit != "s")
    axes = tuple(one_line(heading(humanize(axis))) for axis in sweep.axes)
    headers = [*axes]
    for metric in metrics:
        headers += [one_line(heading(humanize(metric.name)))] + (["±"] if metric == leading else [])
    lines = []
    for point in sweep.points:
        cells = [one_line(show_coordinate(axis, point.at[axis])) for axis in sweep.axes]
        for metric in metrics:
            figure = point.figure(metric.name)
            cells.append(show_value(figure.value, figure.unit) if figure else "")
            if metric == leading:
                cells.append(half_width(figure.relative).removeprefix("± ") if figure else "")
        lines.append(tuple(cells))
    title = f"Over {humanize(' and '.join(sweep.axes))}: {_count(sweep)}"
    return Table.of_lines(headers, lines, len(axes), one_line(title))


def _matrix(sweep: Sweep, metric: Metric) -> Table:
    sources = list(dict.fromkeys(point.at["from"] for point in sweep.points))
    targets = sorted(dict.fromkeys(point.at["to"] for point in sweep.points), key=_sort_key)
    figures = {(point.at["from"], point.at["to"]): point.figure(metric.name) for point in sweep.points}
    lines = []
    for source in sorted(sources, key=_sort_key):
        row = [figures.get((source, target)) for target in targets]
        texts = (show_value(figure.value, figure.unit) if figure else "" for figure in row)
        lines.append((one_line(f"from {source}"), *texts))
    title = f"{heading(humanize(metric.name))} from one to another: {_count(sweep)}"
    headers = ("", *(one_line(f"to {target}") for target in targets))
    return Table.of_lines(headers, lines, 1, one_line(title))


def _sort_key(value: float | str) -> tuple[bool, float, str]:
    """Numbers in their order, then names in theirs."""
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")


def _count(sweep: Sweep) -> str:
    return f"{len(sweep.points)} {'point' if len(sweep.points) == 1 else 'points'}"
