"""What was seen of the machine while a case ran: a small line for each series that moved, and all figures."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from paceline.core.watch import Watched, WatchSeries
from paceline.report.charts import Chart
from paceline.report.document import Item, Table
from paceline.report.numbers import percent, show_value
from paceline.report.style import ACCENT, FONT, GRID, INK, MUTED
from paceline.report.text import humanize

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
