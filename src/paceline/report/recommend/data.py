"""Recommendations for programs: JSON with every figure and its ends, and the points as comma-separated values."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from paceline.analysis.configuration import MACHINE
from paceline.analysis.cost import co2_of
from paceline.analysis.figures import Reading
from paceline.analysis.recommend.choice import Flip, Option, Recommendation
from paceline.analysis.recommend.question import ERRORS, PERCENTILES
from paceline.report.export.csv import csv_text
from paceline.report.recommend.words import headline, what_if, why

_FIGURES = ("throughput", *PERCENTILES, ERRORS, "usd_per_1000", "usd_per_hour", "joules", "co2_grams")
COLUMNS = (
    "work", "rank", "configuration", "machine", "load", "searched", "keeps", "unit", "replicas",
    *(f"{name}{end}" for name in _FIGURES for end in ("", "_low", "_high")),
    "warnings", "price_basis", "energy_basis", "runs", "choices",
)  # fmt: skip


def to_json(recommendations: Sequence[Recommendation], top: int) -> str:
    """Each recommendation as an object."""
    return json.dumps([_document(one, top) for one in recommendations], indent=2, allow_nan=False) + "\n"


def _document(advice: Recommendation, top: int) -> dict[str, Any]:
    """All of one recommendation, in words and in figures."""
    question, changes = advice.question, advice.changes
    rival = changes.rival
    return {
        "work": advice.work,
        "answer": headline(advice),
        "by": question.by,
        "slo": {bound.metric: bound.limit for bound in question.bounds},
        "rate": question.rate,
        "budget": {"usd": question.budget.usd, "per": question.budget.per} if question.budget else None,
        "strict": question.strict,
        "recommended": _option(advice.best, advice) if advice.best else None,
        "options": [_option(option, advice) for option in advice.ranking.options[:top]],
        "rejected": [_option(option, advice) for option in advice.ranking.rejected],
        "left_out": [{"configuration": entry.label, "reason": entry.reason} for entry in advice.left_out],
        "why": why(advice),
        "what_would_change_it": what_if(advice),
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
            }
            for miss in option.misses
        ],
        "warnings": list(point.warnings),
        "price": {"usd_per_hour": point.price.usd, "basis": point.price.basis} if point.price else None,
        "energy_basis": list(point.energy.inputs) if point.energy else None,
        "runs": list(point.runs),
    }


def _row(option: Option, advice: Recommendation) -> dict[str, Any]:
    point = option.point
    row: dict[str, Any] = {
        "work": advice.work,
        "configuration": option.label,
        "machine": option.point.configuration.choices[MACHINE],
        "load": point.load,
        "searched": point.is_capacity,
        "keeps": option.standing.name.lower(),
        "unit": point.unit,
        "replicas": option.replicas,
        "warnings": ";".join(point.warnings),
        "price_basis": point.price.basis if point.price else point.no_price,
        "energy_basis": "; ".join(point.energy.inputs) if point.energy else None,
        "runs": ";".join(point.runs),
        "choices": json.dumps(dict(option.point.configuration.choices), sort_keys=True),
    }
    for name, reading in _figures(option, advice).items():
        if reading is not None:
            row |= {f"{name}_{end}".removesuffix("_value"): value for end, value in _reading(reading).items()}
    return row


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
