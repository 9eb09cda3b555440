"""Loads of configurations as literals, and questions about them, for tests of recommendations."""

from __future__ import annotations

from typing import Any

from paceline.analysis.configuration import Configuration
from paceline.analysis.cost import HourlyPrice
from paceline.analysis.recommend.choice import Recommendation, recommend
from paceline.analysis.recommend.evidence import Evidence, MeasuredLoad, Question, read_bounds
from paceline.analysis.summary import Reading


def point(name: str, load: float, rate: float, p99: float, high: float | None = None, **more: Any) -> MeasuredLoad:
    """A load of a configuration; p99 in milliseconds."""
    price = more.pop("price", None)
    errors = more.pop("errors", 0.0)
    return MeasuredLoad(
        configuration=Configuration("serve m", {"machine": name, "target": "cpu"}),
        throughput=Reading(rate, 0.98 * rate, 1.02 * rate),
        readings={
            "p99": Reading(p99 / 1000, 0.95 * p99 / 1000, (high or 1.05 * p99) / 1000),
            "error_rate": Reading(errors, max(0.0, errors - 0.002), errors + 0.002),
        },
        load=load,
        price=HourlyPrice(price, "stated") if price else None,
        no_price="" if price else "its price is not known",
        **more,
    )


def asked(*slo: str, **more: Any) -> Question:
    return Question(bounds=read_bounds(slo), **more)


def answered(points: list[MeasuredLoad], *slo: str, **more: Any) -> Recommendation:
    question = Question(bounds=read_bounds(slo or ("p99=50ms",)), **more)
    return recommend(Evidence("serve m", True, points=points), question)
