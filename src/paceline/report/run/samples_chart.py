"""The samples of one case as a picture: a report holds hundreds, so these are written as SVG directly.

A general chart library takes some fifty milliseconds for each; this takes one.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline.core.record import Measurement
from paceline.core.stats import resolves
from paceline.report.charts import ACCENT, FONT, GRID, INK, MUTED, Chart
from paceline.report.text import axis_scale, heading, humanize, show_at, show_value

_LEFT, _TOP, _WIDTH, _HEIGHT, _GAP, _BARS, _RIGHT, _BOTTOM = 62, 8, 720, 190, 26, 180, 36, 42
_TOTAL = (_LEFT + _WIDTH + _GAP + _BARS + _RIGHT, _TOP + _HEIGHT + _BOTTOM)
_BASE = _TOP + _HEIGHT  # where the lower axis lies
PLOTTED = 2000  # samples at most; more would only make the file larger

Values = NDArray[np.float64]


def distribution(measurement: Measurement) -> Chart | None:
    """The samples in the order they were taken, and beside them how often each size came."""
    samples = np.asarray(measurement.samples, dtype=np.float64)
    if samples.size < 2 or not np.isfinite(samples).all():
        return None
    metric, summary = measurement.metric, measurement.summary
    scale, label = axis_scale(metric.unit, summary.median)
    values = samples / scale
    domain = low, high = _domain(values)
    clipped = int(((values < low) | (values > high)).sum())
    places = thinned(values)
    where = f" at {show_at(measurement.at)}" if measurement.at else ""
    title = humanize(metric.name) + where + (f", {label}" if label else "")
    notes = []
    if len(places) < samples.size:
        notes.append(
            f"{len(places):,} of {samples.size:,} samples are drawn over time: "
            "the lowest and the highest of each stretch."
        )
    if clipped:
        notes.append(
            f"{clipped} {'sample lies' if clipped == 1 else 'samples lie'} beyond the axis, drawn at its edge."
        )
    parts = [
        *_vertical_axis(domain, title),
        *_interval(measurement, scale, domain),
        *_dots(values, places, domain),
        *_lower_axis(8, values.size + 1, _LEFT, _WIDTH, "sample, in the order taken"),
        *_bars(values, domain),
        *_percentiles(measurement, scale, domain),
    ]
    width, height = _TOTAL
    style = f'font-family="{html.escape(FONT)}" font-size="12"'
    return Chart(
        spec={},
        svg=f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" {style}>{"".join(parts)}</svg>',
        title=f"{heading(humanize(metric.name))}{where} over time, and its distribution",
        description=(
            f"{summary.count} samples; median {show_value(summary.median, metric.unit)}, "
            f"from {show_value(summary.minimum, metric.unit)} to {show_value(summary.maximum, metric.unit)}"
        ),
        notes=tuple(notes),
    )


def thinned(values: Values) -> list[int]:
    """Places of the samples to draw: all, or the lowest and highest of each stretch so that no spike is lost."""
    if values.size <= PLOTTED:
        return list(range(values.size))
    places: set[int] = set()
    for stretch in np.array_split(np.arange(values.size), PLOTTED // 2):
        places |= {int(stretch[values[stretch].argmin()]), int(stretch[values[stretch].argmax()])}
    return sorted(places)


def _vertical_axis(domain: tuple[float, float], title: str) -> Iterator[str]:
    for tick in ticks(*domain, 5):
        y = _heights(tick, domain)
        yield f'<path d="M{_LEFT} {y:.1f}h{_WIDTH}" stroke="{GRID}"/>'
        yield f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end" fill="{MUTED}">{_number(tick)}</text>'
    x, middle = 12, _TOP + _HEIGHT / 2
    turned = f'transform="rotate(-90 {x} {middle})"'
    yield f'<text x="{x}" y="{middle}" {turned} text-anchor="middle" fill="{MUTED}">{html.escape(title)}</text>'


def _interval(measurement: Measurement, scale: float, domain: tuple[float, float]) -> Iterator[str]:
    """The interval of the median as a band behind the samples."""
    interval = measurement.summary.median_interval
    if interval is not None:
        top, bottom = _heights([interval.high / scale, interval.low / scale], domain)
        size = f'width="{_WIDTH}" height="{max(bottom - top, 0.5):.1f}"'
        yield f'<rect x="{_LEFT}" y="{top:.1f}" {size} fill="{ACCENT}" opacity="0.16"/>'
    y = _heights(measurement.summary.median / scale, domain)
    yield f'<path d="M{_LEFT} {y:.1f}h{_WIDTH}" stroke="{INK}" stroke-dasharray="4 3" opacity="0.7"/>'


def _dots(values: Values, places: list[int], domain: tuple[float, float]) -> Iterator[str]:
    """All samples as one path: a line of no length with round ends is a dot."""
    across = _LEFT + (np.asarray(places) + 1) / (values.size + 1) * _WIDTH
    down = _heights(values[places], domain)
    path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in zip(across.tolist(), down.tolist(), strict=True))
    size = 5 if len(places) < 60 else 3 if len(places) < 600 else 2
    stroke = f'stroke="{ACCENT}" stroke-linecap="round" stroke-width="{size}"'
    yield f'<path d="{path}" fill="none" {stroke} opacity="0.75"/>'


def _bars(values: Values, domain: tuple[float, float]) -> Iterator[str]:
    """How many samples lie in each stretch of the vertical axis."""
    counts, edges = np.histogram(np.clip(values, *domain), bins=min(40, max(8, values.size // 4)), range=domain)
    left, most = _LEFT + _WIDTH + _GAP, int(counts.max())
    tops = _heights(edges, domain)
    for place, count in enumerate(counts.tolist()):
        if count:
            height = tops[place] - tops[place + 1]
            size = f'width="{count / most * _BARS:.1f}" height="{height * 0.84:.1f}"'
            yield f'<rect x="{left}" y="{tops[place + 1] + height * 0.08:.1f}" {size} fill="{ACCENT}" opacity="0.75"/>'
    yield from _lower_axis(3, most, left, _BARS, "samples")


def _percentiles(measurement: Measurement, scale: float, domain: tuple[float, float]) -> Iterator[str]:
    summary = measurement.summary
    lines = [
        (f"p{name}", summary.percentiles[name] / scale)
        for name in ("50", "99")
        if name in summary.percentiles and resolves(summary.count, float(name))
    ]
    if len(lines) == 2 and lines[1][1] - lines[0][1] < 0.07 * (domain[1] - domain[0]):
        lines.pop()  # their names would cover each other
    left = _LEFT + _WIDTH + _GAP
    for name, value in lines:
        y = _heights(value, domain)
        yield f'<path d="M{left} {y:.1f}h{_BARS}" stroke="{INK}" stroke-dasharray="4 3" opacity="0.7"/>'
        yield f'<text x="{left + _BARS + 5}" y="{y + 4:.1f}" fill="{INK}">{name}</text>'


def _lower_axis(wanted: int, most: float, left: float, width: float, title: str) -> Iterator[str]:
    yield f'<path d="M{left} {_BASE}h{width}" stroke="{GRID}"/>'
    for mark in ticks(0, most, wanted, whole=True):
        x = left + mark / most * width
        yield f'<path d="M{x:.1f} {_BASE}v5" stroke="{GRID}"/>'
        yield f'<text x="{x:.1f}" y="{_BASE + 17}" text-anchor="middle" fill="{MUTED}">{_number(mark)}</text>'
    middle = left + width / 2
    yield f'<text x="{middle:.1f}" y="{_BASE + 36}" text-anchor="middle" fill="{MUTED}">{title}</text>'


def ticks(low: float, high: float, wanted: int, *, whole: bool = False) -> list[float]:
    """About so many round numbers within a range: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    # The nearest of them on a logarithmic scale.
    step = power * next((factor for factor, below in ((1, 2), (2, 10), (5, 50)) if (rough / power) ** 2 < below), 10)
    if whole:
        step = max(step, 1.0)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [place * step for place in range(first, last + 1)]


def _number(value: float) -> str:
    """A tick as text: no more digits than a round number has."""
    shown = f"{value:.6g}"
    return f"{float(shown):,.0f}" if abs(value) >= 1000 and float(shown).is_integer() else shown


def _heights(values: ArrayLike, domain: tuple[float, float]) -> Values:
    low, high = domain
    return np.asarray(_BASE - (np.clip(values, low, high) - low) / (high - low) * _HEIGHT)


def _domain(values: Values) -> tuple[float, float]:
    """What the axis spans: all of it, unless a few far outliers would flatten everything else."""
    low, high = float(values.min()), float(values.max())
    inner_low, inner_high = (float(edge) for edge in np.percentile(values, (1, 99)))
    reach = 4.0 * (inner_high - inner_low)
    if reach > 0:
        low, high = max(low, inner_low - reach), min(high, inner_high + reach)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - pad, high + pad
