"""A recommendation as a page: the answer, the chart, the best configurations, and what they rest on."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.analysis.figures import Reading
from paceline.analysis.recommend.choice import Option, OptionStanding, Recommendation
from paceline.analysis.recommend.question import ERRORS, USUAL_ERRORS
from paceline.core.quantity import show_count
from paceline.report.document import Block, Column, Document, Lines, Section, Table, Tone
from paceline.report.numbers import percent, show_usd, show_value
from paceline.report.recommend.charts import trade_off
from paceline.report.recommend.words import (
    at_load,
    capital,
    headline,
    lacks,
    listed,
    missed,
    one_of,
    promise,
    show_latency,
    what_if,
    why,
    with_warning,
)

MOST_REJECTED = 12
_KEEPS = {OptionStanding.SURE: "surely", OptionStanding.UNCERTAIN: "uncertain", OptionStanding.BROKEN: "no"}


def document(found: Sequence[Recommendation], top: int) -> Document:
    """All recommendations; of each the best `top` configurations."""
    blocks = tuple(_block(one, top) for one in found)
    return Document(title="Recommendation", blocks=blocks, answer=_lead(found) if len(found) > 1 else "")


def _block(found: Recommendation, top: int) -> Block:
    shown = found.ranking.options[:top]
    chart = trade_off(found)
    sections = [Section(items=(chart,))] if chart else []
    if shown:
        sections.append(Section("Best first", (Table(_columns(found, shown)),)))
    sections += [Section(title, (Lines(tuple(lines)),)) for title, lines in
                 (("Why", why(found)), ("What would change the choice", what_if(found))) if lines]  # fmt: skip
    warnings = _warnings(found)
    if warnings:
        sections.append(Section("Warnings", (Lines(tuple(warnings)),), Tone.WARNING))
    if found.ranking.rejected:
        sections.append(Section("Not recommended", (Lines(tuple(_rejected(found))),)))
    if found.left_out:
        sections.append(Section("Left out", (Lines(tuple(_left_out(found))),)))
    if found.points:
        sections.append(Section("What this rests on", (Lines(tuple(_basis(found))),), Tone.BASIS))
    about = "; ".join(part for part in (found.work, found.shared) if part)
    return Block(answer=headline(found), about=about, sections=tuple(sections))


def _lead(found: Sequence[Recommendation]) -> str:
    good = sum(one.best is not None for one in found)
    return f"{good} of {len(found)} pieces of work have a configuration that can be recommended."


def _columns(found: Recommendation, shown: Sequence[Option]) -> tuple[Column, ...]:
    question = found.question
    is_by = question.by
    name = question.percentile
    made = [
        Column.of("#", tuple(str(place) for place in range(1, len(shown) + 1))),
        Column.of("Configuration", tuple(option.label for option in shown), numeric=False),
    ]
    if found.is_served:
        made.append(Column.of("At /s", tuple(_load(option) for option in shown), widest=True))
    title = "Goodput /s" if found.is_served else f"{capital(found.unit)}"
    rates = tuple(with_warning(option.point.throughput, show_count) for option in shown)
    made.append(Column.of(title, rates, leads=is_by == "goodput"))
    if found.is_served or is_by == "latency" or question.bounds:
        cells = tuple(show_latency(option.point.readings.get(name)) for option in shown)
        made.append(Column.of(name, cells, leads=is_by == "latency"))
    if any(option.point.readings.get(ERRORS, Reading(0.0)).value for option in shown):
        made.append(Column.of("Failed", tuple(_percent(option.point.readings.get(ERRORS)) for option in shown)))
    if any(option.per_thousand for option in shown):
        cells = tuple(show_usd(option.per_thousand.value) if option.per_thousand else "" for option in shown)
        made.append(Column.of("USD /1000", cells, leads=is_by == "cost" and question.rate is None))
    if any(option.point.energy for option in shown):
        cells = tuple(show_value(one.point.energy.reading.value, "J") if one.point.energy else "" for one in shown)
        made.append(Column.of(f"J /{one_of(found)}", cells, leads=is_by == "energy"))
        if question.carbon is not None:
            made.append(Column.of(f"g CO2 /1000 {found.work_unit}", tuple(_co2(one, question.carbon) for one in shown)))
    if question.rate is not None:
        made.append(Column.of("Replicas", tuple(_replicas(option) for option in shown)))
        hourly = tuple(show_usd(option.per_hour.value) if option.per_hour else "" for option in shown)
        made += [Column.of("USD/h", hourly, leads=is_by == "cost")] if any(hourly) else []
    if promise(question):
        made.append(Column.of("Keeps it", tuple(_KEEPS[option.standing] for option in shown), numeric=False))
    if any(option.point.warnings for option in shown):
        made.append(
            Column.of("Warnings", tuple(", ".join(one.point.warnings) for one in shown), numeric=False, widest=True)
        )
    return tuple(made)


def _warnings(found: Recommendation) -> list[str]:
    lines = []
    best = found.best
    if best is not None and best.point.warnings and best.point.runs:
        kinds = ", ".join(best.point.warnings)
        lines.append(f"{best.label} was measured with warnings: {kinds}; see `paceline report {best.point.runs[-1]}`.")
    lines += [f"{option.label}{at_load(option)} is uncertain: {missed(miss)}." for option in found.uncertain
              for miss in option.misses]  # fmt: skip
    return lines


def _rejected(found: Recommendation) -> list[str]:
    shown = [f"{option.label}{at_load(option)}: {lacks(option, found)}." for option in found.ranking.rejected]
    more = len(shown) - MOST_REJECTED
    return shown[:MOST_REJECTED] + ([f"{more} more, which are further away."] if more > 0 else [])


def _left_out(found: Recommendation) -> list[str]:
    shown = [f"{entry.label}: {entry.reason}." for entry in found.left_out]
    more = len(shown) - MOST_REJECTED
    return shown[:MOST_REJECTED] + ([f"{more} more."] if more > 0 else [])


def _basis(found: Recommendation) -> list[str]:
    question = found.question
    runs = list(dict.fromkeys(run for point in found.points for run in point.runs))
    points = f"{len(found.points)} measured {'point' if len(found.points) == 1 else 'points'}"
    lines = [f"{points} of {listed(runs[:6])}{' and others' if len(runs) > 6 else ''}."]
    if found.is_served:
        lines.append("Goodput is the throughput of a load that keeps the promise; what was not tried is not guessed.")
        if question.origin:
            lines.append(f"The promise is {promise(question)}, {question.origin}.")
        if any(bound.metric == ERRORS and not bound.is_explicit for bound in question.bounds):
            lines.append(
                f"At most {100 * USUAL_ERRORS:g} % of the requests may fail or be declined; --slo error_rate sets it."
            )
    prices = dict.fromkeys((point.configuration.machine, point.price) for point in found.points if point.price)
    lines += [f"{machine}: {show_usd(price.usd)} USD/h, {price.basis}." for machine, price in prices]
    if question.by == "cost" or question.budget is not None or question.rate is not None:
        unknown = dict.fromkeys(point.no_price for point in found.points if point.no_price)
        lines += [f"{capital(reason)}." for reason in unknown]
    if question.carbon is not None:
        lines.append(f"CO2 is the energy of the device times {question.carbon:g} g/kWh, as you said.")
    return lines


def _co2(option: Option, carbon: float) -> str:
    energy = option.point.energy
    return f"{1000 * energy.reading.value / 3.6e6 * carbon:.3g}" if energy else ""


def _replicas(option: Option) -> str:
    if option.replicas is None or option.most_replicas in (None, option.replicas):
        return str(option.replicas or "")
    return f"{option.replicas} to {option.most_replicas}"


def _load(option: Option) -> str:
    return "searched" if option.point.is_capacity else show_count(option.point.load) if option.point.load else ""


def _percent(reading: Reading | None) -> str:
    return percent(reading.value) if reading else ""
