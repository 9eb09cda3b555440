"""The chart of a recommendation: how much each configuration answers and how late, with the SLO and the choice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from paceline.analysis.configuration import MACHINE
from paceline.analysis.cost import co2_of
from paceline.analysis.recommend.choice import Flip, Option, OptionStanding, Recommendation
from paceline.analysis.recommend.evidence import ERRORS, PERCENTILES, USUAL_ERRORS
from paceline.analysis.summary import Reading
from paceline.core.quantity import show_count
from paceline.report.bars import Bar, bars
from paceline.report.charts import (
    INK,
    LINES,
    MUTED,
    TEXT,
    WIDTH,
    Chart,
    Spec,
    coloured,
    framed,
    latency_scale,
    layer,
    quantity,
    slo_lines,
)
from paceline.report.document import Block, Column, Document, Lines, Section, Table, Tone
from paceline.report.export.csv import csv_text
from paceline.report.recommend import words
from paceline.report.recommend.words import (
    at_load,
    lacks,
    missed,
    score_name,
    score_text,
    show_latency,
    slo_text,
    with_warning,
)
from paceline.report.text import MS, heading, listed, one_line, percent, show_usd, show_value

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
    about = f"further right and lower is better; {diamond}hollow ones do not meet the SLO with 95 % confidence"
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


MOST_REJECTED = 12
_MEETS = {
    OptionStanding.SURE: "yes",
    OptionStanding.UNCERTAIN: "uncertain",
    OptionStanding.DOUBTFUL: "doubtful",
    OptionStanding.BROKEN: "no",
}
_FIGURES = ("throughput", *PERCENTILES, ERRORS, "usd_per_1000", "usd_per_hour", "joules", "co2_grams")
COLUMNS = (
    "work", "rank", "configuration", "machine", "load", "searched", "keeps", "unit", "replicas",
    *(f"{name}{end}" for name in _FIGURES for end in ("", "_low", "_high")),
    "warnings", "price_basis", "energy_basis", "runs", "choices",
)  # fmt: skip


def document(recommendations: Sequence[Recommendation], top: int) -> Document:
    """All recommendations; of each the best `top` configurations."""
    answer = ""
    if len(recommendations) > 1:
        good = sum(one.best is not None for one in recommendations)
        answer = f"{good} of {len(recommendations)} pieces of work have a configuration that can be recommended."
    blocks = tuple(_block(one, top) for one in recommendations)
    return Document(title="Recommendation", blocks=blocks, answer=answer)


def _block(advice: Recommendation, top: int) -> Block:
    shown, best = advice.ranking.options[:top], advice.best
    chart = trade_off(advice)
    warnings = []
    if best is not None and best.point.warnings and best.point.runs:
        kinds, run = ", ".join(best.point.warnings), best.point.runs[-1]
        warnings.append(f"{best.label} was measured with warnings: {kinds}; see `paceline report {run}`.")
    for option in advice.uncertain:
        warnings += [
            f"{option.label}{at_load(option)} is {_MEETS[option.standing]}: {missed(miss)}." for miss in option.misses
        ]
    rejected = [f"{option.label}{at_load(option)}: {lacks(option, advice)}." for option in advice.ranking.rejected]
    left_out = [f"{entry.label}: {entry.reason}." for entry in advice.left_out]
    texts = (
        ("Why", words.why(advice), Tone.PLAIN),
        ("What would change the choice", words.what_if(advice), Tone.PLAIN),
        ("Warnings", warnings, Tone.WARNING),
        ("Not recommended", _first(rejected, ", which are further away"), Tone.PLAIN),
        ("Left out", _first(left_out), Tone.PLAIN),
        ("What this rests on", _basis(advice) if advice.points else [], Tone.BASIS),
    )
    sections = [Section(items=(chart,))] if chart else []
    if shown:
        sections.append(Section("Best first", (Table(_columns(advice, shown)),)))
    sections += [Section(title, (Lines(tuple(lines)),), tone) for title, lines, tone in texts if lines]
    about = "; ".join(part for part in (advice.work, advice.shared) if part)
    return Block(answer=words.headline(advice), about=about, sections=tuple(sections))


def _first(lines: list[str], why_these: str = "") -> list[str]:
    more = len(lines) - MOST_REJECTED
    return lines[:MOST_REJECTED] + ([f"{more} more{why_these}."] if more > 0 else [])


def _columns(advice: Recommendation, shown: Sequence[Option]) -> tuple[Column, ...]:
    question = advice.question
    by, name = question.by, question.percentile
    columns = [
        Column.of("#", [str(rank) for rank in range(1, len(shown) + 1)]),
        Column.of("Configuration", [option.label for option in shown], numeric=False),
    ]
    if advice.is_served:
        loads = [show_count(option.point.load) if option.point.load else "" for option in shown]
        cells = ["searched" if option.point.is_capacity else load for option, load in zip(shown, loads, strict=True)]
        columns.append(Column.of("At /s", cells, widest=True))
    title = "Goodput /s" if advice.is_served else heading(advice.unit)
    rates = [with_warning(option.point.throughput, show_count) for option in shown]
    columns.append(Column.of(title, rates, leads=by == "goodput"))
    if advice.is_served or by == "latency" or question.bounds:
        cells = [show_latency(option.point.readings.get(name)) for option in shown]
        columns.append(Column.of(name, cells, leads=by == "latency"))
    errors = [option.point.readings.get(ERRORS) for option in shown]
    if any(reading and reading.value for reading in errors):
        columns.append(Column.of("Failed", [percent(reading.value) if reading else "" for reading in errors]))
    if any(option.per_thousand for option in shown):
        cells = [show_usd(option.per_thousand.value) if option.per_thousand else "" for option in shown]
        is_of_rate = question.rate is not None  # then the cost of an hour says it
        columns.append(Column.of("USD /1000", cells, leads=by == "cost" and not is_of_rate, widest=is_of_rate))
    joules = [option.point.energy.reading.value if option.point.energy else None for option in shown]
    if any(value is not None for value in joules):
        cells = [show_value(value, "J") if value is not None else "" for value in joules]
        columns.append(Column.of(f"J /{words.one_of(advice)}", cells, leads=by == "energy"))
        if question.carbon is not None:
            grams = [f"{1000 * value / 3.6e6 * question.carbon:.3g}" if value is not None else "" for value in joules]
            columns.append(Column.of(f"g CO2 /1000 {advice.work_unit}", grams))
    if question.rate is not None:
        columns.append(Column.of("Replicas", [_replicas(option) for option in shown]))
        hourly = [show_usd(option.per_hour.value) if option.per_hour else "" for option in shown]
        columns += [Column.of("USD/h", hourly, leads=by == "cost")] if any(hourly) else []
    if slo_text(question):
        columns.append(Column.of("Meets it", [_MEETS[option.standing] for option in shown], numeric=False))
    if any(option.point.warnings for option in shown):
        kinds = [", ".join(option.point.warnings) for option in shown]
        columns.append(Column.of("Warnings", kinds, numeric=False, widest=True))
    return tuple(columns)


def _basis(advice: Recommendation) -> list[str]:
    question = advice.question
    runs = list(dict.fromkeys(run for point in advice.points for run in point.runs))
    points = f"{len(advice.points)} measured {'point' if len(advice.points) == 1 else 'points'}"
    lines = [f"{points} of {listed(runs[:6])}{' and others' if len(runs) > 6 else ''}."]
    if advice.is_served:
        lines.append("Goodput is the throughput of a load that meets the SLO; what was not tried is not guessed.")
        if question.origin:
            lines.append(f"The SLO is {slo_text(question)}, {question.origin}.")
        if any(bound.metric == ERRORS and not bound.is_explicit for bound in question.bounds):
            lines.append(
                f"At most {100 * USUAL_ERRORS:g} % of the requests may fail or be declined; --slo error_rate sets it."
            )
    prices = dict.fromkeys((point.configuration.machine, point.price) for point in advice.points if point.price)
    lines += [f"{machine}: {show_usd(price.usd)} USD/h, {price.basis}." for machine, price in prices]
    if question.by == "cost" or question.budget is not None or question.rate is not None:
        unknown = dict.fromkeys(point.no_price for point in advice.points if point.no_price)
        lines += [f"{heading(reason)}." for reason in unknown]
    if question.carbon is not None:
        lines.append(f"CO2 is the energy of the device times {question.carbon:g} g/kWh, as you said.")
    return lines


def _replicas(option: Option) -> str:
    if option.replicas is None or option.most_replicas in (None, option.replicas):
        return str(option.replicas or "")
    return f"{option.replicas} to {option.most_replicas}"


def to_json(recommendations: Sequence[Recommendation], top: int) -> str:
    """Each recommendation as an object."""
    return json.dumps([_document(one, top) for one in recommendations], indent=2, allow_nan=False) + "\n"


def _document(advice: Recommendation, top: int) -> dict[str, Any]:
    """All of one recommendation, in words and in figures."""
    question, changes = advice.question, advice.changes
    rival = changes.rival
    return {
        "work": advice.work,
        "answer": words.headline(advice),
        "by": question.by,
        "slo": {bound.metric: bound.limit for bound in question.bounds},
        "rate": question.rate,
        "budget": {"usd": question.budget.usd, "per": question.budget.per} if question.budget else None,
        "strict": question.strict,
        "recommended": _option(advice.best, advice) if advice.best else None,
        "options": [_option(option, advice) for option in advice.ranking.options[:top]],
        "rejected": [_option(option, advice) for option in advice.ranking.rejected],
        "left_out": [{"configuration": entry.label, "reason": entry.reason} for entry in advice.left_out],
        "why": words.why(advice),
        "what_would_change_it": words.what_if(advice),
        "tied": list(changes.tied),
        "next": {
            "configuration": rival.option.label,
            "relation": rival.relation,
            "wins_below_usd_per_hour": rival.price,
            "wins_above_throughput": rival.throughput,
        }
        if rival
        else None,
        "tighter": [_flip(flip) for flip in changes.tighter],
        "looser": [_flip(flip) for flip in changes.looser],
    }


def to_csv(recommendations: Sequence[Recommendation]) -> str:
    """Every point that was weighed, as a row; those that are an option have their rank."""
    rows = []
    for one in recommendations:
        ranks = {id(option.point): rank for rank, option in enumerate(one.ranking.options, start=1)}
        rows += [_row(option, one) | {"rank": ranks.get(id(option.point))} for option in one.weighed]
    return csv_text(COLUMNS, rows)


def _figures(option: Option, advice: Recommendation) -> dict[str, Reading | None]:
    point = option.point
    co2 = co2_of(point.energy, advice.question.carbon)
    return {
        "throughput": point.throughput,
        **{name: point.readings.get(name) for name in (*PERCENTILES, ERRORS)},
        "usd_per_1000": option.per_thousand,
        "usd_per_hour": option.per_hour,
        "joules": point.energy.reading if point.energy else None,
        "co2_grams": co2.reading if co2 else None,
    }


def _option(option: Option, advice: Recommendation) -> dict[str, Any]:
    point = option.point
    return {
        "configuration": option.label,
        "choices": dict(option.point.configuration.choices),
        "keeps": option.standing.name.lower(),
        "load": point.load,
        "searched": point.is_capacity,
        "unit": point.unit,
        "figures": {name: _reading(one) for name, one in _figures(option, advice).items() if one is not None},
        "replicas": option.replicas,
        "replicas_at_most": option.most_replicas,
        "misses": [
            {
                "metric": miss.metric,
                "limit": miss.limit,
                "standing": miss.standing.name.lower(),
                "reading": _reading(miss.reading) if miss.reading else None,
                "lighter_load": miss.lighter,
                "would_decide": miss.undecided or None,
            }
            for miss in option.misses
        ],
        "warnings": list(point.warnings),
        "price": {"usd_per_hour": point.price.usd, "basis": point.price.basis} if point.price else None,
        "energy_basis": list(point.energy.inputs) if point.energy else None,
        "runs": list(point.runs),
    }


def _row(option: Option, advice: Recommendation) -> dict[str, Any]:
    """The same as `_option` in the cells of one row."""
    point, row = option.point, _option(option, advice)
    for name, ends in row["figures"].items():
        row |= {f"{name}_{end}".removesuffix("_value"): value for end, value in ends.items()}
    return row | {
        "work": advice.work,
        "machine": option.point.configuration.choices[MACHINE],
        "warnings": ";".join(point.warnings),
        "price_basis": point.price.basis if point.price else point.no_price,
        "energy_basis": "; ".join(point.energy.inputs) if point.energy else None,
        "runs": ";".join(point.runs),
        "choices": json.dumps(row["choices"], sort_keys=True),
    }


def _reading(reading: Reading) -> dict[str, Any]:
    ends = {"value": reading.value, "low": reading.low, "high": reading.high}
    return {name: end if end is not None and math.isfinite(end) else None for name, end in ends.items()}


def _flip(flip: Flip) -> dict[str, Any]:
    return {
        "metric": flip.metric,
        "limit": flip.limit,
        "choice": flip.label or None,
        "keeps": flip.standing.name.lower(),
    }
