"""A case in full: its figures and samples, its parameters and facts, and what the machine did meanwhile."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.analysis.summary import CaseRow, sampled
from paceline.core.benchmark import size_parameters
from paceline.core.kept_output import FACT as KEPT_OUTPUT
from paceline.core.quantity import show_duration, show_interval, with_interval
from paceline.core.record import Measurement
from paceline.core.stats import Interval
from paceline.core.watch import Watched, WatchSeries, read_watched
from paceline.report.charts import ACCENT, FONT, GRID, INK, MUTED, Chart
from paceline.report.document import (
    Badge,
    Cell,
    Details,
    Finding,
    Item,
    Lines,
    Pairs,
    Table,
    Tone,
)
from paceline.report.render.html import is_table, show_fact
from paceline.report.run.columns import warning_badges
from paceline.report.run.samples_chart import distribution
from paceline.report.run.sweeps import sweep_tables
from paceline.report.text import humanize, one_line, percent, show_value, when

_LEFT, _PLANE, _RIGHT, _ROW, _LINE, _FOOT = 210, 560, 190, 34, 24, 24
MOST_LINES = 40
_SHARES = ("throttled", "power_capped", "busy", "steal")
_FIGURES = {"max": "at most", "mean": "on average", "new": "new"}


def watched_items(watched: Sequence[Watched]) -> Iterator[Item]:
    """A chart for each host, and below it every figure."""
    for seen in watched:
        where = f" on {seen.host}" if seen.host else ""
        moving = [one for one in seen.series if len(one.values) == len(seen.times) and len({*one.values} - {None}) > 1]
        if moving:
            yield _chart(seen, moving[:MOST_LINES], where)
        lines = [(one.of, humanize(one.name), _shown(one), _FIGURES[one.figure]) for one in seen.series]
        if lines:
            title = f"The machine meanwhile{where}: every figure"
            yield Table.of_lines(("Of", "What", "Figure", ""), lines, 2, title, is_folded=True)


def _shown(series: WatchSeries, value: float | None = None) -> str:
    value = series.value if value is None else value
    return percent(value) if series.name in _SHARES else show_value(value, series.unit)


def _chart(seen: Watched, moving: Sequence[WatchSeries], where: str) -> Chart:
    width, height = _LEFT + _PLANE + _RIGHT, _ROW * len(moving) + _FOOT
    rows = "".join(part for place, one in enumerate(moving) for part in _row(one, seen.times, place * _ROW))
    end = f'<text x="{_LEFT + _PLANE}" y="{height - 6}" text-anchor="end" fill="{MUTED}">{seen.times[-1]:.3g} s</text>'
    start = f'<text x="{_LEFT}" y="{height - 6}" fill="{MUTED}">0 s</text>'
    style = f'font-family="{html.escape(FONT)}" font-size="12"'
    box = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    spent = f"; watching took {seen.cpu_seconds * 1e3:.3g} ms of a core" if seen.cpu_seconds else ""
    return Chart(
        spec={},
        svg=f"<svg {box} {style}>{rows}{start}{end}</svg>",
        title=f"The machine meanwhile{where}",
        description="; ".join(f"{one.of} {humanize(one.name)} {_shown(one)} {_FIGURES[one.figure]}" for one in moving),
        notes=(f"{len(seen.times)} looks in {seen.times[-1]:.3g} s, start-up included{spent}.",),
    )


def _row(series: WatchSeries, times: Sequence[float], top: float) -> Iterator[str]:
    """One series: its name, its line between its lowest and highest value, and its figure."""
    known = [value for value in series.values if value is not None]
    low, high, base = min(known), max(known), top + _LINE + 4
    span, last = (high - low) or 1.0, times[-1] or 1.0
    path, pen = "", "M"
    for at, value in zip(times, series.values, strict=True):
        if value is not None:
            path += f"{pen}{_LEFT + at / last * _PLANE:.1f} {base - (value - low) / span * _LINE:.1f}"
        pen = "M" if value is None else "L"
    name = html.escape(f"{series.of} {humanize(series.name)}")
    figure = html.escape(f"{_shown(series)} {_FIGURES[series.figure]}")
    span_text = html.escape(f"{_shown(series, low)} to {_shown(series, high)}")
    yield f'<path d="M{_LEFT} {base:.1f}h{_PLANE}" stroke="{GRID}"/>'
    yield f'<text x="{_LEFT - 10}" y="{base - 6:.1f}" text-anchor="end" fill="{INK}">{name}</text>'
    yield f'<path d="{path}" fill="none" stroke="{ACCENT}" stroke-width="1.5"><title>{span_text}</title></path>'
    yield f'<text x="{_LEFT + _PLANE + 10}" y="{base - 6:.1f}" fill="{INK}">{figure}</text>'


PERCENTILES = ("90", "95", "99", "99.9")
_NOTE = (
    "The headline is bold. Percentile p of a rate is the rate at percentile p of the time, so p99 is slow. A dash "
    "stands for a percentile that the samples are too few to tell."
)


def case_key(row: CaseRow) -> str:
    """By what the page links to a case."""
    return f"case-{row.case.index}"


def case_details(row: CaseRow, *, is_open: bool) -> Details:
    """Everything that the page has of one case."""
    badges = list(warning_badges(row))
    if row.failed:
        badges.append(Badge(row.record.outcome.value, Tone.BAD))
    elif not row.ok:
        badges.append(Badge("not possible here", Tone.PLAIN))
    return Details(
        name=row.label,
        items=tuple(_items(row)),
        badges=tuple(badges),
        right=show_value(row.headline.value, row.headline.unit) if row.headline else "",
        key=case_key(row),
        is_open=is_open,
    )


def _items(row: CaseRow) -> Iterator[Item]:
    case, record = row.case, row.record
    if record.cause:
        yield Lines((record.cause.message,), Tone.TEXT)
        if record.cause.detail:
            yield Lines((record.cause.detail,), Tone.CODE)
    yield from (Finding(warning.kind, (warning.message,), (warning.remedy,)) for warning in row.warnings)
    source = sampled(record, row.headline)
    if chart := distribution(source) if source else None:
        yield chart
    yield from _figures(row.figures)
    yield from (replace(table, is_folded=True) for table in sweep_tables(row, every=True))
    attempt = {
        "started": when(record.started_at),
        "took, start-up included": show_duration(record.seconds),
        "attempt": record.attempt,
        "repetition": case.repeat,
        **({"measured as number": case.position + 1} if case.position is not None else {}),
        "timeout": show_duration(case.timeout),
    }
    drawn = ("trace", "series", "loads")  # in sections, tables and charts of their own
    unread = (*drawn, KEPT_OUTPUT)  # the last is for comparing records
    facts = {name: value for name, value in record.facts.items() if name not in unread}
    blocks: dict[str, Any] = {
        "Parameters, after defaults": {"benchmark": case.benchmark, "target": case.target, "ranks": case.ranks}
        | {name: _parameter(case.benchmark, name, value) for name, value in case.parameters.items()},
        "The attempt": attempt,
    }
    yield Pairs(blocks | ({"Facts": facts} if facts else {}), is_blocks=True)
    yield from watched_items(read_watched(record.conditions))
    if lines := changes(record.conditions):
        yield Table.of_lines(("What", "Before", "After"), lines, 1, "Conditions before and after", is_folded=True)


def _parameter(benchmark: str, name: str, value: Any) -> Any:
    """A number that is called a size is one in bytes only where the benchmark says so: an edge of a matrix is not."""
    is_count = name in ("size", "sizes") and isinstance(value, int | list) and name not in size_parameters(benchmark)
    return show_fact(value) if is_count else value


def changes(conditions: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Every condition on a line, before and after; what was recorded neither before nor after is left out."""
    before, after = dict(_flat(conditions.get("before"))), dict(_flat(conditions.get("after")))
    lines = []
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) is not None or after.get(name) is not None:
            key = name.rpartition(", ")[2]  # which says the unit
            lines.append((humanize(name), show_fact(before.get(name), key), show_fact(after.get(name), key)))
    return lines


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What nested mappings and lists of them hold, with joined names."""
    if is_table(value):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}, {key}" if prefix else str(key))
    elif prefix and value != []:
        yield prefix, value


def _figures(figures: Sequence[Measurement]) -> Iterator[Item]:
    estimates: list[list[str | Cell]] = []
    repeated: list[list[str | Cell]] = []
    single = {}
    for figure in figures:
        name, unit, count = one_line(f"{humanize(figure.name)} {figure.scope}"), figure.unit, f"{figure.count:,}"
        summary, interval, value = figure.summary, figure.interval, show_value(figure.value, figure.unit)
        if figure.is_estimate:
            texts = ["–", "–", "–"]
            if interval:
                texts = [bare(interval.low, unit), bare(interval.high, unit), f"{interval.confidence:.0%}"]
            estimates.append([name, Cell(value, leads=True), *texts, count])
        elif figure.count > 1:
            averages = ((summary.mean, summary.mean_interval), (summary.median, summary.median_interval))
            leading = [Cell(_with_interval(one, unit, its), leads=figure.value == one) for one, its in averages]
            tails = [figure.percentile(percentile) for percentile in PERCENTILES]
            texts = [bare(value, unit) if value is not None else "–" for value in (summary.minimum, *tails)]
            repeated.append([name, *leading, *texts, bare(summary.maximum, unit), count, str(summary.outliers)])
        else:
            single[name] = value
    if estimates:
        headers = ["Metric", "Value", "From", "To", "Confidence", "Observations"]
        yield Table.of_lines(headers, estimates, 1, "Estimated from many observations")
    if repeated:
        headers = ["Metric", "Mean", "Median", "Lowest", *(f"p{name}" for name in PERCENTILES)]
        yield Table.of_lines([*headers, "Highest", "Samples", "Outliers"], repeated, 1, "Measured repeatedly")
        yield Lines((_NOTE,), Tone.NOTE)
    if single:
        yield Pairs(single, "Measured once")


def _with_interval(value: float, unit: str, interval: Interval | None) -> str:
    return with_interval(show_value(value, unit), show_interval(value, interval, partial(show_value, unit=unit)))


def bare(value: float, unit: str) -> str:
    """A value next to one that says the unit already, unless its scale is its own."""
    shown = show_value(value, unit)
    return shown.removesuffix(f" {unit}") if unit not in ("s", "B", "%") else shown
