"""The chart of a recommendation: how much each configuration answers and how late, with the SLO and the choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.analysis.recommend.choice import Option, OptionStanding, Recommendation
from paceline.core.quantity import show_count
from paceline.report.bars import Bar, bars
from paceline.report.charts import TEXT, Chart, coloured, framed, latency_scale, layer, quantity, slo_lines
from paceline.report.numbers import MS, show_usd, show_value
from paceline.report.recommend.words import score_name, score_text
from paceline.report.style import INK, LINES, MUTED, WIDTH, Spec
from paceline.report.text import one_line

HEIGHT = 290
ROOM = 1.14  # to the right of the highest throughput, for its label
OTHERS = "others"
CHOSEN = "chosen"
LETTER, LINE = 6.6, 15.0  # pixels of a label: of a letter, and of the line
BESIDE, BELOW = 12, 14  # pixels from a point to its label


def trade_off(advice: Recommendation) -> Chart | None:
    """Latency over throughput for served models, else bars of what was asked for."""
    if advice.is_served and len(advice.points) > 1 and (chart := _scattered(advice)):
        return chart
    return _ranked(advice) if len(advice.ranking.options) > 1 else None


def _scattered(advice: Recommendation) -> Chart | None:
    percentile, best = advice.question.percentile, advice.best
    options = [
        replace(option, label=one_line(option.label))
        for option in advice.weighed
        if percentile in option.point.readings
    ]
    if not options:
        return None
    # The best configurations have a colour of their own.
    ranked = [one_line(option.label) for option in (*advice.ranking.options, *advice.ranking.rejected)]
    coloured_names = ranked if len(ranked) <= len(LINES) else ranked[: len(LINES) - 1]
    chosen = best.point if best is not None else None
    labelled = {id(option.point) for option in advice.ranking.options}
    values = [_value(option, percentile, coloured_names, is_chosen=option.point is chosen) for option in options]
    limits = [bound.limit / MS for bound in advice.question.bounds if bound.metric == percentile]
    heights = [value["latency"] for value in values] + limits
    scale = latency_scale(heights)
    is_log = "type" in scale["scale"]
    span = (0.75 * min(heights), 1.35 * max(heights)) if is_log else (0.0, 1.12 * max(heights))
    right = ROOM * max(value["throughput"] for value in values)
    width: Spec = {"domain": [0, right], "nice": False}
    height: Spec = {"type": scale["scale"].get("type", "linear"), "domain": list(span), "nice": False}
    place: Spec = {
        "x": quantity("throughput", f"throughput, {advice.unit}", width, grid=False, tickCount=8),
        "y": quantity("latency", f"{percentile}, ms", height, **{"tickCount": 5} | scale["axis"]),
    }
    pairs = [(option, value) for option, value in zip(options, values, strict=True) if id(option.point) in labelled]
    texts = _placed(pairs, limits, right, lambda latency: _height(latency, span, is_log=is_log))
    drawn = list(dict.fromkeys(value["case"] for value in values))
    order = [name for name in coloured_names if name in drawn] + [OTHERS] * (OTHERS in drawn)
    # Hollow points alone leave the legend without a filled symbol.
    hollow = None if any(value["sure"] for value in values) else {"symbolStrokeWidth": 2}
    colours = [MUTED if name == OTHERS else LINES[at] for at, name in enumerate(order)]
    colour = coloured(order, colours, style=hollow)
    line = place | {"color": colour, "detail": {"field": "configuration"}, "order": {"field": "load"}}
    loads = [value for value in values if value["load"] is not None]
    point = place | {
        "color": colour,
        "shape": {"condition": {"test": "datum.chosen", "value": "diamond"}, "value": "circle"},
        "size": {"condition": {"test": "datum.chosen", "value": 230}, "value": 55},
    }
    style: Spec = {"align": "left", "baseline": "middle", "color": INK, "fontSize": 12}
    layers = [*slo_lines(limits, percentile), layer("line", line, loads, strokeWidth=1.5, opacity=0.55)]
    for is_sure in (True, False):
        some = [value for value in values if value["sure"] is is_sure]
        layers += [layer("point", point, some, filled=is_sure, opacity=1, strokeWidth=2)] if some else []
    for is_below in (False, True):
        some = [text for text in texts if text["below"] is is_below]
        offset: Spec = {"dx": 2, "dy": BELOW} if is_below else {"dx": BESIDE, "dy": 0}
        layers.append(layer("text", place | {"text": TEXT}, some, **style, **offset))
    title = f"{percentile} over throughput"
    diamond = "a diamond is the choice, " if any(value["chosen"] for value in values) else ""
    about = f"further right and lower is better; {diamond}hollow ones do not surely meet the SLO"
    notes = (
        ["What is labelled costs so many US dollars for 1,000."] if any("USD" in one["text"] for one in texts) else []
    )
    unknown = sum(percentile not in option.point.readings for option in advice.weighed)
    if unknown:
        points = "1 load is" if unknown == 1 else f"{unknown} loads are"
        notes.append(f"{points} not drawn: {percentile} is not known there.")
    return Chart(
        spec=framed(title, about, width=WIDTH, height=HEIGHT, layer=layers),
        title=f"{title}: {advice.work}",
        description="; ".join(_described(option, percentile, is_chosen=option.point is chosen) for option in options),
        notes=tuple(notes),
    )


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


def _placed(
    pairs: Sequence[tuple[Option, Spec]], limits: Sequence[float], right: float, height_of: Callable[[float], float]
) -> list[Spec]:
    """The labels that find room: that of the choice next to it unless the line of the SLO is there, others below."""
    lines = [height_of(limit) for limit in limits]
    taken: list[tuple[float, float, float]] = []
    texts = []
    for option, value in sorted(pairs, key=lambda pair: not pair[1]["chosen"]):
        cost = f"{show_usd(option.per_thousand.value)} USD" if option.per_thousand else ""
        text = ", ".join(part for part in (CHOSEN if value["chosen"] else "", cost) if part)
        height = height_of(value["latency"])
        is_below = not value["chosen"] or any(abs(height - line) < LINE / 2 for line in lines)
        left = value["throughput"] / right * WIDTH + (2 if is_below else BESIDE)
        end, middle = left + len(text) * LETTER, height + (BELOW if is_below else 0)
        is_free = all(abs(middle - top) > LINE or left > stop or end < start for start, stop, top in taken)
        if text and is_free and end < WIDTH + 70 and middle < HEIGHT - 6:
            taken.append((left, end, middle))
            place = {"throughput": value["throughput"], "latency": value["latency"]}
            texts.append(place | {"text": text, "below": is_below})
    return texts


def _height(value: float, span: tuple[float, float], *, is_log: bool) -> float:
    low, high = span
    part = math.log(value / low) / math.log(high / low) if is_log else (value - low) / (high - low)
    return HEIGHT * (1.0 - part)


def _described(option: Option, percentile: str, *, is_chosen: bool) -> str:
    point = option.point
    text = f"{option.label}: {show_count(point.throughput.value)} {point.unit}, {percentile} "
    text += show_value(point.readings[percentile].value, "s")
    cost = f", {show_usd(option.per_thousand.value)} USD for 1,000" if option.per_thousand else ""
    return text + cost + (", chosen" if is_chosen else "")


def _ranked(advice: Recommendation) -> Chart:
    """A bar for each configuration by what was asked, the choice named as such."""
    scores = [(one_line(option.label), option.score) for option in advice.ranking.options if option.score][:20]
    (name, best), *others = scores
    chosen = Bar(name, best, f"{score_text(best, advice)}, {CHOSEN}")
    rest = [Bar(label, score, score_text(score, advice), MUTED) for label, score in others]
    better = "higher" if advice.question.by == "goodput" else "lower"
    return bars(score_name(advice), f"{better} is better", [chosen, *rest])
