"""What would change a recommendation: the next best, another bound, or a surer measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.analysis.figures import Reading
from paceline.analysis.recommend.choose import (
    Option,
    OptionStanding,
    Ranking,
    grouped,
    holds_from,
    judge,
    name_configurations,
    option_of,
    order,
    rank,
    score,
    surely_from,
)
from paceline.analysis.recommend.evidence import MeasuredLoad
from paceline.analysis.recommend.question import Question

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
    names = name_configurations(points)
    metrics = [bound.metric for bound in question.bounds if bound.is_asked]
    looser = [flip for metric in metrics if (flip := _looser(points, ranking, question, metric, names))]
    best = ranking.best
    if best is None:
        return Changes(None, (), (), tuple(looser), None)
    tighter = [flip for metric in metrics if (flip := _tighter(points, best, question, metric, names))]
    equals = [one for one in ranking.options[1:] if one.standing is best.standing]
    tied = [one.label for one in equals if relation(best, one) == "tied"]
    return Changes(
        rival=_rival(best, ranking.options[1], question) if len(ranking.options) > 1 else None,
        tied=tuple(tied),
        tighter=tuple(tighter),
        looser=tuple(looser),
        unsure=_unsure(points, best, question, names),
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


def _unsure(
    points: Sequence[MeasuredLoad], best: Option, question: Question, names: Mapping[str, str]
) -> Option | None:
    """The best of the points that are better at what is asked, but not sure to meet the SLO."""
    if best.standing is not OptionStanding.SURE:
        return None
    better = []
    for key, group in grouped(points).items():
        for option in (option_of(point, group, question, names[key]) for point in group):
            if option.standing is OptionStanding.UNCERTAIN and option.score is not None:
                is_better = order(option, question)[1] < order(best, question)[1]
                better += [option] if is_better and relation(best, option) != "tied" else []
    return min(better, key=lambda one: order(one, question), default=None)


def _tighter(
    points: Sequence[MeasuredLoad], best: Option, question: Question, metric: str, names: Mapping[str, str]
) -> Flip | None:
    """The bound below which the choice is another: a tighter one only takes points away, so that this is its own."""
    key = best.configuration.key
    group = [point for point in points if point.configuration.key == key]
    choice, now = best, question
    for _ in range(2 * len(group)):
        bound = next(bound for bound in now.bounds if bound.metric == metric)
        sure = surely_from(choice.point, group, bound)
        edge = sure if sure <= bound.limit else holds_from(choice.point, metric)
        if edge <= 0 or not math.isfinite(edge):
            return None
        now = now.with_limit(metric, math.nextafter(edge, -math.inf))
        next_choice = rank(points, now, names).best
        if next_choice is None:
            return Flip(metric, edge, "", OptionStanding.BROKEN)
        if next_choice.configuration.key != key:
            return Flip(metric, edge, next_choice.label, next_choice.standing)
        choice = next_choice
    return None


def _looser(
    points: Sequence[MeasuredLoad], ranking: Ranking, question: Question, metric: str, names: Mapping[str, str]
) -> Flip | None:
    """The smallest bound beyond the present one at which the choice is another."""
    bound = next(bound for bound in question.bounds if bound.metric == metric)
    free = question.with_limit(metric, math.inf)
    sign = -1.0 if question.by == "goodput" else 1.0
    events: list[tuple[float, tuple[int, float, str], str, Reading]] = []
    for key, group in grouped(points).items():
        for point in group:
            reading = score(point, question)
            if reading is None or metric not in point.readings:
                continue
            elsewhere, _ = judge(point, group, free)
            surely = max(surely_from(point, group, bound), bound.limit)
            perhaps = max(holds_from(point, metric), bound.limit)
            for edge, standing in ((perhaps, OptionStanding.UNCERTAIN), (surely, OptionStanding.SURE)):
                reached = max(standing, elsewhere)
                is_allowed = reached <= (OptionStanding.SURE if question.strict else OptionStanding.UNCERTAIN)
                if bound.limit < edge < math.inf and is_allowed:
                    events.append((edge, (int(reached), sign * reading.value, names[key]), key, reading))
    best = ranking.best
    leader = order(best, question) if best else (math.inf, math.inf, "")
    for edge, position, key, reading in sorted(events, key=lambda event: event[:3]):
        if position < leader:
            leader = position
            if best is None or key != best.configuration.key:
                is_tied = best is not None and best.score is not None and best.score.overlaps(reading) is True
                return Flip(metric, edge, names[key], OptionStanding(position[0]), is_tied)
    return None
