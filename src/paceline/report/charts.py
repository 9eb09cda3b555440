"""How charts look, and their drawing: most are Vega-Lite specifications, drawn without a browser or a network."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from paceline.core.errors import InputError
from paceline.report import vega
from paceline.report.text import MS, clean, show_value

# Each role has a colour of its own, so that a style sheet can give it another one for a dark page.
INK, MUTED, GRID, ACCENT, WARNING, PAPER = "#1c2430", "#5b6675", "#e3e7ec", "#2a66c8", "#b45f06", "#ffffff"
FONT = "-apple-system, BlinkMacSystemFont, Segoe UI, Roboto, Helvetica Neue, Arial, Noto Sans, sans-serif"

Spec = dict[str, Any]
_Line = TypeVar("_Line")

CONFIG: Spec = {
    "background": None,
    "padding": {"left": 0, "top": 5, "right": 5, "bottom": 5},
    "font": FONT,
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "gridColor": GRID,
        "domainColor": GRID,
        "tickColor": GRID,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    },
    "axisY": {"minExtent": 50, "titleAnchor": "middle"},  # so that the charts of a page begin at one place
    "title": {"color": INK, "fontSize": 13, "fontWeight": 600, "subtitleColor": MUTED, "subtitleFontSize": 12},
}

# The style sheet gives each of them another shade on a dark page.
LINES = (ACCENT, "#b4451f", "#1d7a4a", "#7b3fb5", "#8a6d00", "#0d7f8c", "#b02a6b", "#6b4a2f")
COLUMN = 1040  # pixels of a page's column
PHONE = 354  # the same on a phone
WIDTH = 960  # of the plane of a chart with lines, next to which its axis stands

LEGEND: Spec = {
    "title": None,
    "orient": "bottom",
    "direction": "horizontal",
    "labelColor": INK,
    "labelFontSize": 12,
    "labelLimit": 230,
    "symbolType": "circle",
    "symbolStrokeWidth": 0,
    "symbolSize": 70,
    "symbolOpacity": 1,
    "columnPadding": 40,
    "offset": 10,
}


def parted(lines: Sequence[_Line]) -> list[tuple[Sequence[_Line], str]]:
    """Lines for several charts, in each as many as there are colours; with the words that tell the parts apart."""
    parts = [lines[start : start + len(LINES)] for start in range(0, len(lines), len(LINES))]
    return [(part, f" ({place} of {len(parts)})" * (len(parts) > 1)) for place, part in enumerate(parts, start=1)]


# Pixels that a letter takes at most in the fonts of a page, where that is not the width of a small letter.
_LETTER, _CAPITAL, _UNKNOWN = 6.9, 9.2, 13.0
_LETTERS = dict.fromkeys("fijlrt.,:;|!'()[]/- ", 4.7) | dict.fromkeys("mMwW%@…", 11.6) | dict.fromkeys("·–µ", 7.2)
_LETTERS |= dict.fromkeys("0123456789", 7.7) | dict.fromkeys("<>=+±×", 10.1)


def text_width(words: str) -> float:
    """Pixels that words take at most at the size of charts."""
    return sum(
        _LETTERS.get(letter) or (_UNKNOWN if not letter.isascii() else _CAPITAL if letter.isupper() else _LETTER)
        for letter in words
    )


LABEL_LIMIT = 340  # of a name beside a bar or in a legend: what tells it from the others is often at its end
LEAST_PLANE = 380  # pixels of bars, however long their names and texts are
WIDE_LATENCIES = 8.0  # from this ratio on, latencies of light loads would lie on the ground of a linear axis
_BETWEEN = 26  # pixels between charts that are stacked
_MARGIN = 18  # of a picture, on every side

TEXT: Spec = {"field": "text", "type": "nominal"}  # of a row that has a label


@dataclass(frozen=True)
class Chart:
    """A chart with what it shows in words, and what a reader must know about the drawing."""

    spec: Spec
    title: str
    description: str
    notes: tuple[str, ...] = ()
    svg: str = ""  # the drawing itself, of a chart that needs no specification
    narrow: str = ""  # the same for a phone, of a drawing that would be too small there
    rows: tuple[dict[str, Any], ...] = ()  # the data of such a drawing


def framed(title: str, *about: str, lines: bool = False, values: Sequence[Spec] | None = None, **spec: Any) -> Spec:
    """A chart under its title, and under that what it is about: on one line, or on one line each."""
    parts = [part for part in about if part]
    subtitle = parts if lines else "; ".join(parts)
    head = {"text": title, "subtitle": subtitle, "anchor": "start", "frame": "bounds", "offset": 12}
    return {"config": CONFIG, "title": head, **_data(values), **spec}


def layer(mark: str, encoding: Spec, values: Sequence[Spec] | None = None, *, where: str = "", **style: Any) -> Spec:
    """Marks of one type for rows of its own or, without any, for those rows of the chart for which `where` holds."""
    transform = {"transform": [{"filter": where}]} if where else {}
    return {**_data(values), **transform, "mark": {"type": mark, **style}, "encoding": encoding}


def _data(values: Sequence[Spec] | None) -> Spec:
    return {} if values is None else {"data": {"values": list(values)}}


def quantity(field: str, title: str | None = None, scale: Spec | None = None, **axis: Any) -> Spec:
    """A position by a number; without a title, scale and axis it takes those of the other layers."""
    made: Spec = {"field": field, "type": "quantitative"}
    if scale is not None:
        made["scale"] = scale
    return made | {"axis": {"title": title, **axis}} if title or axis else made


def slo_lines(limits: Sequence[float], percentile: str, *, upright_at: int | None = None) -> list[Spec]:
    """Latencies in milliseconds that an SLO allows: lines across, or upright ones with their labels at this height."""
    if not limits:
        return []
    name = f"{percentile} ≤ " if percentile else ""
    values = [{"latency": limit, "text": f"{name}{show_value(limit * MS, 's')}"} for limit in limits]
    line, label = {"y": quantity("latency")}, {"x": {"value": 0}}
    offset: Spec = {"dx": 6, "dy": -4}
    if upright_at is not None:
        line, label, offset = {"x": quantity("latency")}, {"y": {"value": upright_at}}, {"dx": 5, "dy": -6}
    style: Spec = {"color": INK, "fontSize": 12, "align": "left", "baseline": "bottom"}
    return [
        layer("rule", line, values, color=INK, strokeDash=[5, 4], opacity=0.75),
        layer("text", line | label | {"text": TEXT}, values, **style, **offset),
    ]


def coloured(
    names: Sequence[str], colours: Sequence[str] = LINES, *, field: str = "case", style: Spec | None = None
) -> Spec:
    """A colour for each name, with a legend where there are several: as many in a row as fit under the chart."""
    columns = max(1, min(len(names), WIDTH // (8 * max(map(len, names), default=0) + 60)))
    legend = LEGEND | {"labelLimit": LABEL_LIMIT} | (style or {}) | {"columns": columns}
    return {
        "field": field,
        "type": "nominal",
        "sort": None,
        "scale": {"domain": list(names), "range": list(colours[: len(names)])},
        "legend": legend if len(names) > 1 else None,
    }


def names_axis(field: str = "case", **style: Any) -> Spec:
    """A row for each name, in the order of the data; its name stands to the left."""
    axis = {"title": None, "domainColor": MUTED, "ticks": False, "labelColor": INK, "labelLimit": LABEL_LIMIT}
    return {"field": field, "type": "nominal", "sort": None, "axis": axis | {"labelPadding": 10} | style}


def words_beside(y: Spec, x: Spec, values: Sequence[Spec] | None = None, *, dx: int = 8) -> Spec:
    """The field `text` of each row, to the right of where x is."""
    style: Spec = {"align": "left", "baseline": "middle", "dx": dx, "color": INK, "fontSize": 12}
    return layer("text", {"y": y, "x": x, "text": TEXT}, values, **style)


def plane_beside(names: Sequence[str], texts: Sequence[str]) -> float:
    """How wide bars may be between their names and their texts, so that all three fill the column."""
    left, right = (max(map(text_width, words), default=0.0) for words in (names, texts))
    return max(LEAST_PLANE, COLUMN - min(left, LABEL_LIMIT) - right - 30)


def stacked_bars(rows: Sequence[Spec], ends: Sequence[Spec], x: Spec, colour: Spec, *, is_named: bool) -> list[Spec]:
    """A bar for each `case`: its parts by their `place`, each as long as its `value`, and its `text` at the `end`."""
    y = names_axis() | ({} if is_named else {"axis": None})
    x = {"type": "quantitative", "axis": None, **x}
    parts = {"y": y, "x": x | {"field": "value", "stack": "zero"}, "order": {"field": "place"}, "color": colour}
    return [layer("bar", parts, rows, height=16), words_beside(y, x | {"field": "end"}, ends)]


def matrix_places(x: str, y: str, columns: Sequence[str], rows: Sequence[str], *, titles: tuple[str, str]) -> Spec:
    """The places of a matrix: a column and a row for each name, the names of the columns above."""
    style: Spec = {"labelAngle": 0, "labelPadding": 8, "domain": False, "ticks": False, "labelOverlap": "greedy"}
    edge: Spec = {"type": "ordinal", "sort": None}
    across = {"scale": {"domain": list(columns)}, "axis": {"title": titles[0], "orient": "top", **style}}
    down = {"scale": {"domain": list(rows)}, "axis": {"title": titles[1], **style}}
    return {"x": edge | {"field": x} | across, "y": edge | {"field": y} | down}


def decades(smallest: float, largest: float) -> list[float]:
    """Powers of ten, with their doubles and fives where few decades are spanned."""
    first, last = math.floor(math.log10(smallest)), math.ceil(math.log10(largest))
    steps = (1.0, 2.0, 5.0) if last - first <= 3 else (1.0,)
    return [step * 10.0**power for power in range(first, last + 1) for step in steps]


def decades_within(low: float, high: float) -> list[float]:
    """Those of them that an axis has room for."""
    return [value for value in decades(low, high) if low <= value <= high]


def latency_scale(values: Sequence[float]) -> Spec:
    """An axis of latencies in milliseconds, logarithmic where they differ widely."""
    low, high = min(values), max(values)
    if low <= 0 or high < WIDE_LATENCIES * low:
        return {"scale": {"zero": True}, "axis": {}}
    return {"scale": {"type": "log", "nice": False, "padding": 10}, "axis": ticks(low, high)}


def ticks(low: float, high: float) -> Spec:
    """Round numbers for a logarithmic axis, closer where it spans little."""
    fine = [digit * 10.0**power for power in range(-6, 9) for digit in (1, 1.5, 2, 3, 4, 5, 6, 8)]
    for values in (decades(low, high), fine):
        inside = [value for value in values if low <= value <= high]
        if len(inside) > 1:
            return {"values": inside, "format": "~g"}
    return {"format": "~g"}


def stacked(charts: Sequence[Chart]) -> Chart:
    """Several charts as one drawing, each below the one before it."""
    drawn: list[str] = []
    width, height = 0.0, 0.0
    for place, chart in enumerate(charts):
        picture = chart.svg or _drawn_by_vega(chart, f"chart-{place}")
        sides = re.match(r'<svg[^>]*? width="([\d.]+)"[^>]*? height="([\d.]+)"', picture)
        if sides is None:
            raise ValueError("the chart could not be drawn: its picture has no size")
        top = height + _BETWEEN if drawn else 0.0
        drawn.append(picture.replace("<svg ", f'<svg y="{top:g}" ', 1))
        width, height = max(width, float(sides[1])), top + float(sides[2])
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return Chart(
        spec={},
        title="; ".join(chart.title for chart in charts),
        description="; ".join(chart.description for chart in charts),
        svg=f"<svg {size}>{''.join(drawn)}</svg>",
    )


def captioned(charts: Sequence[Chart], title: str, about: str) -> Chart:
    """Charts as one drawing that says of itself what it shows, of which machine and when: a picture goes alone."""
    lines = [(title, 17, 'font-size="16" font-weight="600"', INK), (about, 38, 'font-size="12"', MUTED)]
    texts = "".join(
        f'<text x="0" y="{y}" {style} fill="{colour}">{html.escape(clean(words))}</text>'
        for words, y, style, colour in lines
    )
    caption = f'<svg width="{COLUMN}" height="44" font-family="{html.escape(FONT)}">{texts}</svg>'
    return stacked([Chart({}, title, about, svg=caption), *charts])


def draw_svg(chart: Chart, name: str) -> str:
    """The chart for a page: no address of anything outside, and a name for what it has inside."""
    drawn = chart.svg or _drawn_by_vega(chart, name)
    outermost = re.match(r"<svg([^>]*)>", drawn)
    if outermost is None:
        raise ValueError("the chart could not be drawn: it is not an SVG picture")
    narrow = f'<div class="chart narrow" aria-hidden="true">{chart.narrow}</div>' if chart.narrow else ""
    return narrow + (
        f'<svg{outermost[1]} class="chart" role="img" aria-labelledby="{name}-title {name}-text"'
        f'><title id="{name}-title">{html.escape(chart.title)}</title>'
        f'<desc id="{name}-text">{html.escape(chart.description)}</desc>{drawn[outermost.end() :]}'
    )


def _drawn_by_vega(chart: Chart, name: str) -> str:
    drawn = vega.convert("vegalite_to_svg", _cleaned(chart.spec)).decode()
    drawn = re.sub(r'\s(?:xmlns(?::xlink)?|version)="[^"]*"', "", drawn, count=3)  # of the outermost element
    drawn = re.sub(r'\sclass="(?:mark|background|foreground)[^"]*"', "", drawn)
    drawn = re.sub(r'\bid="(clip\d+)"', rf'id="{name}-\1"', drawn)
    return re.sub(r"url\(#(clip\d+)\)", rf"url(#{name}-\1)", drawn)


def draw_png(chart: Chart, scale: float = 2.0) -> bytes:
    """The chart as a picture on white."""
    if chart.svg:
        width, height = (float(size) for size in re.findall(r' (?:width|height)="([\d.]+)"', chart.svg)[:2])
        box = f"{-_MARGIN} {-_MARGIN} {width + 2 * _MARGIN:g} {height + 2 * _MARGIN:g}"
        size = f'width="{width + 2 * _MARGIN:g}" height="{height + 2 * _MARGIN:g}" viewBox="{box}"'
        paper = f'<rect x="{-_MARGIN}" y="{-_MARGIN}" width="100%" height="100%" fill="{PAPER}"/>'
        page = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{paper}{clean(chart.svg)}</svg>'
        return vega.convert("svg_to_png", page, scale=scale)
    spec = {**chart.spec, "config": {**CONFIG, **chart.spec.get("config", {}), "background": PAPER}, "padding": _MARGIN}
    return vega.convert("vegalite_to_png", _cleaned(spec), scale=scale)


def _cleaned(part: Any) -> Any:
    """The same without control characters: one of them in any text makes the library abort the whole process."""
    if isinstance(part, str):
        return clean(part)
    if isinstance(part, dict):
        return {key: _cleaned(value) for key, value in part.items()}
    return [_cleaned(item) for item in part] if isinstance(part, list) else part


def draw_first(charts: Sequence[Chart]) -> bytes:
    """What a document draws first, as a picture."""
    if not charts:
        raise InputError("nothing-to-draw", "there is nothing to draw: no case has the figures for a chart")
    return draw_png(charts[0])
