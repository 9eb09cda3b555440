"""Ranks configurations by what is asked, those that surely meet the SLO first; recommends one for each piece of work.

A recommendation also says what would change it: the next best, another bound, or a surer measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain
from typing import Literal

from paceline.analysis.configuration import Configuration, labels, shared_choices
from paceline.analysis.cost import THOUSAND, thousand
from paceline.analysis.recommend.evidence import (
    ERRORS,
    PERCENTILES,
    Evidence,
    LeftOut,
    MeasuredLoad,
    Question,
    SloLimit,
    bounds_of,
)
from paceline.analysis.summary import Reading
from paceline.core.errors import InputError
from paceline.core.grouping import group_by
from paceline.core.stats import CONFIDENCE, Interval
from paceline.core.tails import CLEARLY, NOT_DECIDABLE, fewest, not_decidable, to_decide

COSTS = COST_HOUR, COST_THOUSAND = "USD per hour", "USD per 1,000"
WHOLE = 1e-9  # a rate is a whole number of replicas' if it is so but for floating point
AGAIN = f"{NOT_DECIDABLE}: measure it again with --repeat 5"
SEARCH_AGAIN = f"{NOT_DECIDABLE}: search again with a larger --search-budget"


class OptionStanding(IntEnum):
    """Whether a point meets the SLO; less is better."""

    SURE = 0
    UNCERTAIN = 1  # within every bound, but an interval reaches beyond one
    DOUBTFUL = 2  # beyond a bound, but an interval reaches within it
    BROKEN = 3

    @property
    def is_open(self) -> bool:
        """Whether what was measured leaves it undecided."""
        return self in (OptionStanding.UNCERTAIN, OptionStanding.DOUBTFUL)


@dataclass(frozen=True)
class Miss:
    """A bound that is broken, may be broken, or cannot be judged."""

    metric: str
    limit: float
    reading: Reading | None  # None where it was not measured
    standing: OptionStanding
    lighter: float | None = None  # a lighter load that broke it although this one did not
    why: str = ""
    undecided: str = ""  # what would decide it, where that is open

    @property
    def excess(self) -> float:
        """By which factor it lies above the bound."""
        if self.reading is None:
            return math.inf
        return self.reading.value / self.limit if self.limit > 0 else math.inf


@dataclass(frozen=True)
class Option:
    """The best that one configuration has to offer, or the nearest that it came."""

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
    def key(self) -> str:
        """That of its configuration."""
        return self.point.configuration.key

    @property
    def worst(self) -> Miss | None:
        """The bound that decides how it stands."""
        return max(self.misses, key=lambda miss: (miss.standing, miss.excess), default=None)

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
        return self.options[0] if self.options else None


def rank(points: Sequence[MeasuredLoad], question: Question) -> Ranking:
    """The best point of each configuration, in order."""
    good, bad = [], []
    for options in weighed(points, question):
        allowed = [option for option in options if _is_allowed(option, question)]
        if allowed:
            good.append(min(allowed, key=lambda option: (order(option, question), option.point.load or 0.0)))
        else:
            bad.append(min(options, key=_nearness))
    good.sort(key=lambda option: order(option, question))
    return Ranking(options=tuple(good), rejected=tuple(sorted(bad, key=_nearness)))


def _is_allowed(option: Option, question: Question) -> bool:
    return option.qualifies and (option.standing is OptionStanding.SURE or not question.strict)


def weighed(points: Sequence[MeasuredLoad], question: Question) -> list[list[Option]]:
    """Every point as an option, those of one configuration together."""
    names = _names(point.configuration for point in points)
    groups = group_by(points, lambda point: point.configuration.key).items()
    return [[option_of(point, group, question, names[key]) for point in group] for key, group in groups]


def _names(configurations: Iterable[Configuration]) -> dict[str, str]:
    """A name for each configuration, by its key."""
    unique = {one.key: one for one in configurations}
    return dict(zip(unique, labels(list(unique.values())), strict=True))


def order(option: Option, question: Question) -> tuple[float, float, str]:
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


def perhaps_from(point: MeasuredLoad, metric: str) -> float:
    """The smallest bound that a point does not surely break; a percentile is no less than a lower one."""
    reading = point.readings.get(metric)
    if reading is not None and reading.is_limit:
        return reading.value  # a search tells nothing of less than it was for
    ends = [reading.low] if reading is not None and reading.low is not None else []
    share = PERCENTILES.get(metric, 0.0)
    for name, lower in ((name, point.readings.get(name)) for name, part in PERCENTILES.items() if part < share):
        if lower is None or lower.is_limit:
            continue
        # Without an interval, what has many times as many requests beyond it as may be late is beyond doubt.
        is_far = 1.0 - PERCENTILES[name] >= CLEARLY * (1.0 - share) - WHOLE
        end = lower.low if lower.low is not None else lower.value if is_far else None
        ends += [end] if end is not None else []
    return max(ends, default=-math.inf)


def holds_from(point: MeasuredLoad, metric: str) -> float:
    """The smallest bound that a point's figure is within."""
    reading = point.readings.get(metric)
    return max(reading.value, perhaps_from(point, metric)) if reading is not None else math.inf


def surely_from(point: MeasuredLoad, group: Sequence[MeasuredLoad], bound: SloLimit) -> float:
    """The smallest bound that a point meets with its uncertainty, and that no lighter load surely broke."""
    reading, holds = point.readings.get(bound.metric), holds_from(point, bound.metric)
    if reading is None or not bound.is_explicit:
        return holds
    high = reading.high if reading.high is not None else math.inf
    return max([holds, high, *(perhaps_from(other, bound.metric) for other in _lighter(point, group, bound.metric))])


def _edges(point: MeasuredLoad, group: Sequence[MeasuredLoad], bound: SloLimit) -> tuple[float, float, float]:
    """The bounds from which a point stands better."""
    metric = bound.metric
    return perhaps_from(point, metric), holds_from(point, metric), surely_from(point, group, bound)


def _against(bound: SloLimit, point: MeasuredLoad, group: Sequence[MeasuredLoad]) -> Miss | None:
    """How a point falls short of a bound: broken if all of its interval is beyond it, open if a part of it is."""
    metric, limit, reading = bound.metric, bound.limit, point.readings.get(bound.metric)
    if surely_from(point, group, bound) <= limit or (reading is None and not bound.is_explicit):
        return None
    if perhaps_from(point, metric) > limit:
        # Where the percentile itself is not known, a lower one shows it.
        shown = next(
            name for name in (metric, *PERCENTILES) if holds_from(point, name) > limit and name in point.readings
        )
        return Miss(shown, limit, point.readings[shown], OptionStanding.BROKEN)
    if reading is None:
        more = fewest(PERCENTILES[metric]) - point.requests if point.requests and metric in PERCENTILES else 0
        if more <= 0:
            return Miss(metric, limit, None, OptionStanding.BROKEN, why="it was not measured")
        return Miss(metric, limit, None, OptionStanding.DOUBTFUL, undecided=not_decidable(more))
    if reading.value > limit:
        return Miss(metric, limit, reading, OptionStanding.DOUBTFUL, undecided=_deciding(reading, limit, point))
    lighter = _lighter(point, group, metric)
    broke = min((one.load for one in lighter if one.load and perhaps_from(one, metric) > limit), default=None)
    both = f"{NOT_DECIDABLE}: measure {broke or 0:g}/s and {point.load or 0:g}/s again"
    undecided = _deciding(reading, limit, point) if broke is None else both
    return Miss(metric, limit, reading, OptionStanding.UNCERTAIN, broke, undecided=undecided)


def _deciding(reading: Reading, limit: float, point: MeasuredLoad) -> str:
    """What would show on which side of a limit a figure is."""
    if reading.is_limit:
        return SEARCH_AGAIN
    if reading.low is None or reading.high is None:
        return not_decidable(reading.more, _counted(point)) if reading.more else AGAIN
    if limit <= 0:
        return f"{NOT_DECIDABLE}: no count shows that it never happens"
    ends = Interval(low=reading.low, high=reading.high, confidence=CONFIDENCE)
    more = to_decide(reading.value, ends, reading.count, limit) if reading.count else 0
    return not_decidable(more, _counted(point)) if more else AGAIN


def _counted(point: MeasuredLoad) -> str:
    return "requests" if point.requests else "steps"


def _lighter(point: MeasuredLoad, group: Sequence[MeasuredLoad], metric: str) -> list[MeasuredLoad]:
    """Lighter loads of the same configuration; the rate of a search is no load, and its trials were weighed already."""
    if point.load is None:
        return []
    return [one for one in group if one.load is not None and one.load < point.load and metric in one.readings]


def _afforded(point: MeasuredLoad, question: Question) -> Miss | None:
    budget = question.budget
    if budget is None:
        return None
    name = COST_HOUR if budget.per == "hour" else COST_THOUSAND
    cost = per_hour(point, question) if budget.per == "hour" else per_thousand(point, question)
    if cost is None:
        return Miss(name, budget.usd, None, OptionStanding.BROKEN, why=point.no_price)
    most = budget.usd * (1 + WHOLE)
    if cost.high is not None and cost.high <= most:
        return None
    if cost.low is not None and cost.low > most:
        return Miss(name, budget.usd, cost, OptionStanding.BROKEN)
    standing = OptionStanding.UNCERTAIN if cost.value <= most else OptionStanding.DOUBTFUL
    return Miss(name, budget.usd, cost, standing, undecided=AGAIN)


def option_of(point: MeasuredLoad, group: Sequence[MeasuredLoad], question: Question, label: str) -> Option:
    """A point with all that follows from what is asked."""
    standing, misses = judge(point, group, question)
    rate = question.rate
    loads = [other.load for other in group if other.load is not None]
    return Option(
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


def _nearness(option: Option) -> tuple[bool, float, str]:
    excess = max((miss.excess for miss in option.misses), default=0.0)
    return (option.score is None, excess, option.label)


Relation = Literal["apart", "tied", "unknown"]


@dataclass(frozen=True)
class Flip:
    """A bound at which another configuration is recommended; an empty label means none."""

    metric: str
    limit: float
    label: str
    standing: OptionStanding
    is_tied: bool = False  # what both are ranked by does not differ significantly


@dataclass(frozen=True)
class Rival:
    """The next best, and what it lacks."""

    option: Option
    relation: Relation  # of what both are ranked by
    price: float | None  # USD/h of one replica below which it would win
    throughput: float | None  # above which it would win
    score: float  # what it would have to reach


@dataclass(frozen=True)
class Changes:
    """All that would change the choice."""

    rival: Rival | None
    tied: tuple[str, ...]  # all that do not differ significantly from the best
    tighter: tuple[Flip, ...]
    looser: tuple[Flip, ...]
    unsure: Option | None  # what would win if it surely met the SLO


def changes(points: Sequence[MeasuredLoad], ranking: Ranking, question: Question) -> Changes:
    """What lies around the choice."""
    bounds = [bound for bound in question.bounds if bound.is_explicit]
    best = ranking.best
    looser = [flip for bound in bounds if (flip := _looser(points, best, question, bound))]
    if best is None:
        return Changes(None, (), (), tuple(looser), None)
    tighter = [flip for bound in bounds if (flip := _tighter(points, best, question, bound.metric))]
    equals = [one for one in ranking.options[1:] if one.standing is best.standing]
    tied = [one.label for one in equals if relation(best, one) == "tied"]
    # What is better at what is asked, but not sure to meet the SLO.
    unsure = [
        option
        for option in chain.from_iterable(weighed(points, question))
        if option.standing.is_open
        and option.score is not None
        and order(option, question)[1] < order(best, question)[1]
        and relation(best, option) != "tied"
    ]
    return Changes(
        rival=_rival(best, ranking.options[1], question) if len(ranking.options) > 1 else None,
        tied=tuple(tied),
        tighter=tuple(tighter),
        looser=tuple(looser),
        unsure=min(unsure, key=lambda one: order(one, question), default=None),
    )


def relation(one: Option, other: Option) -> Relation:
    """Whether what two options are ranked by differs beyond its uncertainty."""
    if one.score is None or other.score is None or (same := one.score.overlaps(other.score)) is None:
        return "unknown"
    return "tied" if same else "apart"


def _rival(best: Option, other: Option, question: Question) -> Rival:
    assert best.score is not None and other.score is not None
    mine, theirs = best.score.value, other.score.value
    price = throughput = None
    if question.by == "goodput":
        throughput = mine
    elif question.by == "cost" and other.point.price is not None:
        is_another = other.point.configuration.machine != best.point.configuration.machine
        price = other.point.price.usd * mine / theirs if is_another else None  # one machine has one price
        # The throughput at which the rival would cost less; None where no throughput would do.
        if question.rate is None:
            throughput = other.point.throughput.value * theirs / mine
        else:
            fewer = math.ceil(mine / other.point.price.usd - 1e-9) - 1  # replicas that cost less
            throughput = question.rate / fewer if fewer >= 1 else None
    return Rival(other, relation(best, other), price, throughput, mine)


def _tighter(points: Sequence[MeasuredLoad], best: Option, question: Question, metric: str) -> Flip | None:
    """The bound below which the choice is another; a tighter one only takes points away."""
    group = [point for point in points if point.configuration.key == best.key]
    choice, now = best, question
    while True:
        bound = next(bound for bound in now.bounds if bound.metric == metric)
        edge = max(edge for edge in _edges(choice.point, group, bound) if edge <= bound.limit)
        if edge <= 0:
            return None
        now = now.with_limit(metric, math.nextafter(edge, -math.inf))
        next_choice = rank(points, now).best
        if next_choice is None:
            return Flip(metric, edge, "", OptionStanding.BROKEN)
        if next_choice.key != best.key:
            return Flip(metric, edge, next_choice.label, next_choice.standing)
        choice = next_choice


def _looser(points: Sequence[MeasuredLoad], best: Option | None, question: Question, bound: SloLimit) -> Flip | None:
    """The smallest bound beyond the present one at which the choice is another."""
    events: list[tuple[float, tuple[float, float, str], Option]] = []
    for options in weighed(points, question):
        group = [option.point for option in options]
        for option in options:
            for edge in _edges(option.point, group, bound):
                if option.score is not None and bound.limit < edge < math.inf:
                    standing, misses = judge(option.point, group, question.with_limit(bound.metric, edge))
                    reached = replace(option, standing=standing, misses=misses)
                    events += [(edge, order(reached, question), reached)] if _is_allowed(reached, question) else []
    leader = order(best, question) if best else (math.inf, math.inf, "")
    for edge, position, option in sorted(events, key=lambda event: event[:2]):
        if position < leader:
            leader = position
            if best is None or option.key != best.key:
                is_tied = best is not None and relation(best, option) == "tied"
                return Flip(bound.metric, edge, option.label, option.standing, is_tied)
    return None


@dataclass(frozen=True)
class Recommendation:
    """The answer for one piece of work."""

    work: str
    is_served: bool
    question: Question
    unit: str  # of the throughput
    shared: str  # what all configurations have in common
    points: tuple[MeasuredLoad, ...]
    ranking: Ranking
    left_out: tuple[LeftOut, ...]
    changes: Changes

    @property
    def best(self) -> Option | None:
        return self.ranking.best

    @property
    def sure(self) -> tuple[Option, ...]:
        """Those that meet the SLO beyond their uncertainty."""
        return tuple(option for option in self.ranking.options if option.standing is OptionStanding.SURE)

    @property
    def uncertain(self) -> tuple[Option, ...]:
        """Those of which that is open."""
        return tuple(option for option in self.ranking.options if option.standing.is_open)

    @property
    def weighed(self) -> list[Option]:
        """Every point that was measured as an option, not only the best of each configuration."""
        return list(chain.from_iterable(weighed(self.points, self.question)))

    @property
    def work_unit(self) -> str:
        """What is counted: requests, images."""
        return self.unit.removesuffix("/s") or "samples"


def with_users(evidence: Sequence[Evidence], question: Question) -> list[Evidence]:
    """What an SLO may be about: if there is one, work that users wait for."""
    if not any(bound.is_explicit for bound in question.bounds):
        return list(evidence)
    served = [one for one in evidence if one.has_users]
    if evidence and not served:
        message = "an SLO is about the requests of users, and these cases train: leave out --slo"
        raise InputError("slo-for-training", message, key="--slo")
    return served


def recommend(evidence: Evidence, question: Question) -> Recommendation:
    """The best configuration, why, and what would change that."""
    question = _with_slo(question, evidence)
    ranking = rank(evidence.points, question)
    configurations = list({point.configuration.key: point.configuration for point in evidence.points}.values())
    # What was left out has names that distinguish it from the others.
    names = _names([*configurations, *(left_out.configuration for left_out in evidence.left_out)])
    return Recommendation(
        work=evidence.work,
        is_served=evidence.is_served,
        question=question,
        unit=evidence.points[0].unit if evidence.points else "",
        shared=shared_choices(configurations),
        points=tuple(evidence.points),
        ranking=ranking,
        left_out=tuple(replace(one, label=names[one.configuration.key]) for one in evidence.left_out),
        changes=changes(evidence.points, ranking, question),
    )


def _with_slo(question: Question, evidence: Evidence) -> Question:
    """The question with an SLO: that of the served cases themselves, if they share one and no other is asked for."""
    if not evidence.is_served:
        # Steps of a model have no requests that could fail.
        return replace(question, bounds=tuple(bound for bound in question.bounds if bound.metric != ERRORS))
    if not evidence.points or any(bound.metric != ERRORS for bound in question.bounds):
        return question
    slos = {tuple(sorted((k, v) for k, v in one.items() if k != ERRORS)) for one in evidence.slos}
    if len(slos) != 1 or not next(iter(slos)):
        differ = len(slos) > 1
        message = f"its cases have {'different SLOs' if differ else 'no SLO'}: say what must hold, like --slo p99=50ms"
        code = "different-slos" if differ else "missing-slo"
        raise InputError(code, message, where=f"'{evidence.work}'", key="--slo")
    errors = {bound.metric: bound.limit for bound in question.bounds if bound.is_explicit}
    return replace(question, bounds=bounds_of(dict(next(iter(slos))) | errors), origin="as in the run's own SLO")
