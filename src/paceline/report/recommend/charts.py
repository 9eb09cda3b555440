"""The chart of a recommendation: how much each configuration answers and how late, with the SLO and the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.figures import Reading
from paceline.analysis.recommend.choice import (
    Option,
    OptionStanding,
    Recommendation,
    grouped,
    name_configurations,
    option_of,
)
from paceline.core.quantity import show_count
from paceline.report.charts import (
    ACCENT,
    INK,
    LINES,
    MS,
    MUTED,
    WARNING,
    WIDTH,
    Chart,
    Spec,
    coloured,
    framed,
    interval_bars,
    latency_scale,
    names_axis,
)
from paceline.report.numbers import show_usd, show_value
from paceline.report.recommend.words import score_name, score_text
from paceline.report.text import one_line

BAR_WIDTH = 440
LABEL_LIMIT = 300


@dataclass(frozen=True)
class Bar:
    """One bar."""

    name: str
    reading: Reading
    text: str
    is_marked: bool = False
    has_warnings: bool = False


def bars(title: str, subtitle: str, shown: Sequence[Bar], *, mark: str = "") -> Chart | None:
    """Horizontal bars; the marked one says so in words, uncertain ones have another colour and say so too."""
    if not shown:
        return None
    names = _unique([bar.name for bar in shown])
    values = [
        {
            "name": name,
            "value": bar.reading.value,
            "low": bar.reading.low if bar.reading.low is not None else bar.reading.value,
            "high": bar.reading.high if bar.reading.high is not None else bar.reading.value,
            "text": ", ".join(part for part in (bar.text, mark if bar.is_marked else "") if part),
            "colour": WARNING if bar.has_warnings else ACCENT if bar.is_marked or not mark else MUTED,
        }
        for name, bar in zip(names, shown, strict=True)
    ]
    colour: Spec = {"field": "colour", "type": "nominal", "scale": None}
    layers = interval_bars(names_axis("name", labelLimit=LABEL_LIMIT), colour)
    spec = {"data": {"values": values}, "width": BAR_WIDTH, "height": {"step": 30}, "layer": layers}
    return Chart(
        spec=framed(title, subtitle, spec),
        title=title,
        description="; ".join(f"{value['name']}: {value['text']}" for value in values),
    )


def _unique(names: Sequence[str]) -> list[str]:
    """Bars of the same name would be one: the later ones get a number."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return made


HEIGHT = 290
ROOM = 1.14  # to the right of the highest throughput, for its label
OTHERS = "others"
CHOSEN = "chosen"
LETTER, LINE = 6.6, 15.0  # pixels of a label: of a letter, and of the line
BESIDE, BELOW = 12, 14  # pixels from a point to its label


def trade_off(found: Recommendation) -> Chart | None:
    """Latency over throughput for served models, else bars of what was asked for."""
    if found.is_served and len(found.points) > 1:
        chart = _scattered(found)
        if chart is not None:
            return chart
    return _ranked(found) if len(found.ranking.options) > 1 else None


def _scattered(found: Recommendation) -> Chart | None:
    percentile, best = found.question.percentile, found.best
    names = name_configurations(found.points)
    options = [
        option_of(point, group, found.question, one_line(names[key]))
        for key, group in grouped(found.points).items()
        for point in group
        if percentile in point.readings
    ]
    if not options:
        return None
    coloured_names = _most_telling(found)
    chosen = best.point if best is not None else None
    labelled = {id(option.point) for option in found.ranking.options}
    values = [_value(option, percentile, coloured_names, is_chosen=option.point is chosen) for option in options]
    limits = [bound.limit / MS for bound in found.question.bounds if bound.metric == percentile]
    heights = [value["latency"] for value in values] + limits
    scale = latency_scale(heights)
    right = ROOM * max(value["throughput"] for value in values)
    x: Spec = {
        "field": "throughput", "type": "quantitative", "scale": {"domain": [0, right], "nice": False},
        "axis": {"title": f"throughput, {found.unit}", "grid": False, "tickCount": 8},
    }  # fmt: skip
    low, high = _span(heights, is_log="type" in scale["scale"])
    y: Spec = {"field": "latency", "type": "quantitative"}
    y["axis"] = {"title": f"{percentile}, ms", "tickCount": 5} | scale["axis"]
    y["scale"] = {"type": scale["scale"].get("type", "linear"), "domain": [low, high], "nice": False}
    pairs = [(option, value) for option, value in zip(options, values, strict=True) if id(option.point) in labelled]
    texts = _placed(pairs, limits, right, (low, high), is_log="type" in scale["scale"])
    drawn = list(dict.fromkeys(value["case"] for value in values))
    order = [name for name in coloured_names if name in drawn] + [OTHERS] * (OTHERS in drawn)
    colour = coloured(order, [MUTED if name == OTHERS else LINES[at] for at, name in enumerate(order)])
    title = f"{percentile} over throughput"
    told = "further right and lower is better; a diamond is the choice, hollow ones do not surely meet the SLO"
    notes = ["What is labelled costs so many US dollars for 1,000."] if any(one.per_thousand for one in options) else []
    return Chart(
        spec=framed(title, told, {
            "width": WIDTH,
            "height": HEIGHT,
            "layer": [
                *_slo_lines(limits, percentile),
                {
                    "data": {"values": [value for value in values if value["load"] is not None]},
                    "mark": {"type": "line", "strokeWidth": 1.5, "opacity": 0.55},
                    "encoding": {"x": x, "y": y, "color": colour, "detail": {"field": "configuration"},
                                 "order": {"field": "load"}},
                },
                *(_marks(values, x, y, colour)),
                *(_labels(texts, x, y)),
            ],
        }),
        title=f"{title}: {found.work}",
        description="; ".join(_described(option, percentile, is_chosen=option.point is chosen) for option in options),
        notes=tuple(notes),
    )  # fmt: skip


def _marks(values: Sequence[Spec], x: Spec, y: Spec, colour: Spec) -> list[Spec]:
    """Points: filled where they surely meet the SLO, and a large diamond for the choice."""
    made: list[Spec] = []
    for filled in (True, False):
        own = [value for value in values if value["sure"] is filled]
        if own:
            shape: Spec = {"condition": {"test": "datum.chosen", "value": "diamond"}, "value": "circle"}
            size: Spec = {"condition": {"test": "datum.chosen", "value": 230}, "value": 55}
            made.append({
                "data": {"values": own},
                "mark": {"type": "point", "filled": filled, "opacity": 1, "strokeWidth": 2},
                "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "size": size},
            })  # fmt: skip
    return made


def _labels(texts: Sequence[Spec], x: Spec, y: Spec) -> list[Spec]:
    """Labels beside or below their points."""
    style: Spec = {"type": "text", "align": "left", "baseline": "middle", "color": INK, "fontSize": 12}
    encoding: Spec = {"x": x, "y": y, "text": {"field": "text", "type": "nominal"}}
    return [
        {
            "data": {"values": [text for text in texts if text["below"] is is_below]},
            "mark": style | {"dx": 2 if is_below else BESIDE, "dy": BELOW if is_below else 0},
            "encoding": encoding,
        }
        for is_below in (False, True)
    ]


def _most_telling(found: Recommendation) -> list[str]:
    """The configurations that have a colour of their own: the best ones."""
    ordered = [one_line(option.label) for option in (*found.ranking.options, *found.ranking.rejected)]
    return ordered if len(ordered) <= len(LINES) else ordered[: len(LINES) - 1]


def _value(option: Option, percentile: str, names: Sequence[str], *, is_chosen: bool) -> Spec:
    point = option.point
    return {
        "throughput": point.throughput.value,
        "latency": point.readings[percentile].value / MS,
        "case": option.label if option.label in names else OTHERS,
        "configuration": option.label,
        "load": point.load,
        "sure": option.standing is OptionStanding.SURE,
        "chosen": is_chosen,
    }


def _span(values: Sequence[float], *, is_log: bool) -> tuple[float, float]:
    if is_log:
        return 0.75 * min(values), 1.35 * max(values)
    return 0.0, 1.12 * max(values)


def _placed(
    pairs: Sequence[tuple[Option, Spec]],
    limits: Sequence[float],
    right: float,
    span: tuple[float, float],
    *,
    is_log: bool,
) -> list[Spec]:
    """The labels that find room: that of the choice next to it unless the line of the SLO is there, others below."""
    lines = [_height(limit, span, is_log=is_log) for limit in limits]
    taken: list[tuple[float, float, float]] = []
    texts = []
    for option, value in sorted(pairs, key=lambda pair: not pair[1]["chosen"]):
        cost = f"{show_usd(option.per_thousand.value)} USD" if option.per_thousand else ""
        text = ", ".join(part for part in (CHOSEN if value["chosen"] else "", cost) if part)
        height = _height(value["latency"], span, is_log=is_log)
        is_below = not value["chosen"] or any(abs(height - line) < LINE / 2 for line in lines)
        left = value["throughput"] / right * WIDTH + (2 if is_below else BESIDE)
        end, middle = left + len(text) * LETTER, height + (BELOW if is_below else 0)
        is_free = all(abs(middle - top) > LINE or left > stop or end < start for start, stop, top in taken)
        if text and is_free and end < WIDTH + 70 and middle < HEIGHT - 6:
            taken.append((left, end, middle))
            texts.append({"throughput": value["throughput"], "latency": value["latency"], "text": text,
                          "below": is_below})  # fmt: skip
    return texts


def _height(value: float, span: tuple[float, float], *, is_log: bool) -> float:
    low, high = span
    part = math.log(value / low) / math.log(high / low) if is_log else (value - low) / (high - low)
    return HEIGHT * (1.0 - part)


def _slo_lines(limits: Sequence[float], percentile: str) -> list[Spec]:
    if not limits:
        return []
    values = [{"latency": limit, "text": f"{percentile} ≤ {show_value(limit * MS, 's')}"} for limit in limits]
    y: Spec = {"field": "latency", "type": "quantitative"}
    return [
        {
            "data": {"values": values},
            "mark": {"type": "rule", "color": INK, "strokeDash": [5, 4], "opacity": 0.75},
            "encoding": {"y": y},
        },
        {
            "data": {"values": values},
            "mark": {"type": "text", "color": INK, "fontSize": 12, "align": "left", "baseline": "bottom", "dy": -4,
                     "dx": 6},
            "encoding": {"y": y, "x": {"value": 0}, "text": {"field": "text", "type": "nominal"}},
        },
    ]  # fmt: skip


def _described(option: Option, percentile: str, *, is_chosen: bool) -> str:
    point = option.point
    told = f"{option.label}: {show_count(point.throughput.value)} {point.unit}, {percentile} "
    told += show_value(point.readings[percentile].value, "s")
    cost = f", {show_usd(option.per_thousand.value)} USD for 1,000" if option.per_thousand else ""
    return told + cost + (", chosen" if is_chosen else "")


def _ranked(found: Recommendation) -> Chart | None:
    """A bar for each configuration by what was asked, the choice named as such."""
    shown = [option for option in found.ranking.options if option.score is not None][:20]
    made = [
        Bar(one_line(option.label), option.score, score_text(option.score, found), is_marked=place == 0)
        for place, option in enumerate(shown)
        if option.score is not None
    ]
    better = "higher" if found.question.by == "goodput" else "lower"
    return bars(score_name(found), f"{better} is better", made, mark=CHOSEN)
