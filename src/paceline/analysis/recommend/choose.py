"""Ranks configurations by what is asked: first those that surely meet the SLO, never one that breaks it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from paceline.analysis.configuration import Configuration, labels
from paceline.analysis.cost import THOUSAND, thousand
from paceline.analysis.figures import Reading
from paceline.analysis.recommend.evidence import MeasuredLoad
from paceline.analysis.recommend.question import Question, SloLimit

COST_HOUR, COST_THOUSAND = "USD per hour", "USD per 1,000"
WHOLE = 1e-9  # a rate is a whole number of replicas' if it is so but for floating point


class OptionStanding(IntEnum):
    """Whether a point meets the SLO; less is better."""

    SURE = 0
    UNCERTAIN = 1  # its interval reaches beyond a bound
    BROKEN = 2


@dataclass(frozen=True)
class Miss:
    """A bound that is broken, may be broken, or cannot be judged."""

    metric: str
    limit: float
    reading: Reading | None  # None where it was not measured
    standing: OptionStanding
    lighter: float | None = None  # a lighter load that broke it although this one did not
    why: str = ""

    @property
    def excess(self) -> float:
        """By which factor it lies above the bound."""
        if self.reading is None:
            return math.inf
        return self.reading.value / self.limit if self.limit > 0 else math.inf


@dataclass(frozen=True)
class Option:
    """The best that one configuration has to offer, or the nearest that it came."""

    configuration: Configuration
    label: str
    point: MeasuredLoad
    standing: OptionStanding
    misses: tuple[Miss, ...]
    score: Reading | None  # by what it is ranked
    replicas: int | None
    most_replicas: int | None  # if its throughput is at the low end of its interval
    per_hour: Reading | None  # USD, of all replicas
    per_thousand: Reading | None
    is_heaviest: bool  # no heavier load was tried

    @property
    def qualifies(self) -> bool:
        """Whether it may be recommended at all."""
        return self.standing is not OptionStanding.BROKEN and self.score is not None


@dataclass(frozen=True)
class Ranking:
    """All configurations: those that may be recommended, best first, and those that may not, nearest first."""

    options: tuple[Option, ...]
    rejected: tuple[Option, ...]

    @property
    def best(self) -> Option | None:
        """The recommendation."""
        return self.options[0] if self.options else None


def rank(points: Sequence[MeasuredLoad], question: Question, names: Mapping[str, str] | None = None) -> Ranking:
    """The best point of each configuration, in order."""
    names = names or name_configurations(points)
    good, bad = [], []
    for key, group in grouped(points).items():
        options = [option_of(point, group, question, names[key]) for point in group]
        allowed = [option for option in options if _is_allowed(option, question)]
        if allowed:
            good.append(min(allowed, key=lambda option: (order(option, question)[:2], option.point.load or 0.0)))
        else:
            bad.append(min(options, key=_nearness))
    good.sort(key=lambda option: order(option, question))
    return Ranking(options=tuple(good), rejected=tuple(sorted(bad, key=_nearness)))


def grouped(points: Iterable[MeasuredLoad]) -> dict[str, list[MeasuredLoad]]:
    """The points of each configuration, by its key."""
    groups: dict[str, list[MeasuredLoad]] = {}
    for point in points:
        groups.setdefault(point.configuration.key, []).append(point)
    return groups


def name_configurations(points: Iterable[MeasuredLoad]) -> dict[str, str]:
    """A name for each configuration, by its key."""
    configurations = {point.configuration.key: point.configuration for point in points}
    return dict(zip(configurations, labels(list(configurations.values())), strict=True))


def order(option: Option, question: Question) -> tuple[int, float, str]:
    """What sorts options, best first."""
    assert option.score is not None
    sign = -1.0 if question.by == "goodput" else 1.0
    return (int(option.standing), sign * option.score.value, option.label)


def score(point: MeasuredLoad, question: Question) -> Reading | None:
    """What a point is ranked by; None where it is not known."""
    if question.by == "goodput":
        return point.throughput
    if question.by == "energy":
        return point.energy.reading if point.energy else None
    if question.by == "latency":
        return point.readings.get(question.percentile)
    return per_hour(point, question) if question.rate is not None else per_thousand(point, question)


def per_hour(point: MeasuredLoad, question: Question) -> Reading | None:
    """What an hour costs: of one replica, or of as many as the rate needs."""
    if point.price is None:
        return None
    if question.rate is None:
        return Reading(point.price.usd, point.price.usd, point.price.usd)
    throughput = point.throughput  # whose high end has the low cost
    counts = [replicas(question.rate, rate) for rate in (throughput.value, throughput.high, throughput.low)]
    value, low, high = (None if count is None else count * point.price.usd for count in counts)
    return None if value is None else Reading(value, low, high)


def per_thousand(point: MeasuredLoad, question: Question) -> Reading | None:
    """What a thousand cost; where a rate is to be served, idle replicas are paid for as well."""
    if point.price is None:
        return None
    if question.rate is None:
        return thousand(point.throughput, point.price)
    hourly = per_hour(point, question)
    return hourly.times(THOUSAND / (question.rate * 3600.0)) if hourly else None


def replicas(rate: float, throughput: float | None) -> int | None:
    """How many are needed, each with its part of the rate."""
    if throughput is None or throughput <= 0:
        return None
    return max(1, math.ceil(rate / throughput - WHOLE))


def judge(
    point: MeasuredLoad, group: Sequence[MeasuredLoad], question: Question
) -> tuple[OptionStanding, tuple[Miss, ...]]:
    """Whether a point meets every bound; a lighter load of the same configuration that broke one makes it unsure."""
    candidates = [_against(bound, point, group) for bound in question.bounds] + [_afforded(point, question)]
    misses = tuple(miss for miss in candidates if miss is not None)
    return max((miss.standing for miss in misses), default=OptionStanding.SURE), misses


def holds_from(point: MeasuredLoad, metric: str) -> float:
    """The smallest bound that a point meets."""
    reading = point.readings.get(metric)
    return reading.value if reading is not None else math.inf


def surely_from(point: MeasuredLoad, group: Sequence[MeasuredLoad], bound: SloLimit) -> float:
    """The smallest bound that a point meets with its uncertainty, and that no lighter load broke."""
    reading = point.readings.get(bound.metric)
    if reading is None:
        return math.inf
    if not bound.is_asked:
        return reading.value
    high = reading.high if reading.high is not None else math.inf
    return max([high, *(holds_from(other, bound.metric) for other in _lighter(point, group, bound.metric))])


def _against(bound: SloLimit, point: MeasuredLoad, group: Sequence[MeasuredLoad]) -> Miss | None:
    reading = point.readings.get(bound.metric)
    if reading is None:
        if not bound.is_asked:
            return None
        too_few = f"{point.requests:,} requests are too few to tell it" if point.requests else "it was not measured"
        return Miss(bound.metric, bound.limit, None, OptionStanding.BROKEN, why=too_few)
    if reading.value > bound.limit:
        return Miss(bound.metric, bound.limit, reading, OptionStanding.BROKEN)
    if surely_from(point, group, bound) <= bound.limit:
        return None
    broke = [one.load for one in _lighter(point, group, bound.metric) if holds_from(one, bound.metric) > bound.limit]
    lighter = min((load for load in broke if load is not None), default=None)
    return Miss(bound.metric, bound.limit, reading, OptionStanding.UNCERTAIN, lighter)


def _lighter(point: MeasuredLoad, group: Sequence[MeasuredLoad], metric: str) -> list[MeasuredLoad]:
    """Lighter loads of the same configuration; a search has weighed its own trials already."""
    if point.load is None or point.is_capacity:
        return []
    return [
        other
        for other in group
        if other.load is not None and other.load < point.load and metric in other.readings and not other.is_capacity
    ]


def _afforded(point: MeasuredLoad, question: Question) -> Miss | None:
    budget = question.budget
    if budget is None:
        return None
    name = COST_HOUR if budget.per == "hour" else COST_THOUSAND
    cost = per_hour(point, question) if budget.per == "hour" else per_thousand(point, question)
    if cost is None:
        return Miss(name, budget.usd, None, OptionStanding.BROKEN, why=point.no_price)
    if cost.value > budget.usd * (1 + WHOLE):
        return Miss(name, budget.usd, cost, OptionStanding.BROKEN)
    is_sure = cost.high is not None and cost.high <= budget.usd * (1 + WHOLE)
    return None if is_sure else Miss(name, budget.usd, cost, OptionStanding.UNCERTAIN)


def option_of(point: MeasuredLoad, group: Sequence[MeasuredLoad], question: Question, label: str) -> Option:
    """A point with all that follows from what is asked."""
    standing, misses = judge(point, group, question)
    rate = question.rate
    loads = [other.load for other in group if other.load is not None]
    return Option(
        configuration=point.configuration,
        label=label,
        point=point,
        standing=standing,
        misses=misses,
        score=score(point, question),
        replicas=replicas(rate, point.throughput.value) if rate is not None else None,
        most_replicas=replicas(rate, point.throughput.low) if rate is not None else None,
        per_hour=per_hour(point, question),
        per_thousand=per_thousand(point, question),
        is_heaviest=point.load is not None and point.load >= max(loads) and not any(p.is_capacity for p in group),
    )


def _is_allowed(option: Option, question: Question) -> bool:
    return option.qualifies and not (question.strict and option.standing is not OptionStanding.SURE)


def _nearness(option: Option) -> tuple[bool, float, str]:
    excess = max((miss.excess for miss in option.misses), default=0.0)
    return (option.score is None, excess, option.label)
