"""A recommendation for each piece of work that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.analysis.configuration import labels, shared_choices
from paceline.analysis.recommend.changes import Changes, changes
from paceline.analysis.recommend.choose import Option, OptionStanding, Ranking, rank
from paceline.analysis.recommend.evidence import Evidence, LeftOut, MeasuredLoad
from paceline.analysis.recommend.question import ERRORS, Question, bounds_of
from paceline.core.errors import InputError


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
        """What is recommended."""
        return self.ranking.best

    @property
    def sure(self) -> tuple[Option, ...]:
        """Those that meet the SLO beyond their uncertainty."""
        return tuple(option for option in self.ranking.options if option.standing is OptionStanding.SURE)

    @property
    def uncertain(self) -> tuple[Option, ...]:
        """Those that perhaps do."""
        return tuple(option for option in self.ranking.options if option.standing is OptionStanding.UNCERTAIN)

    @property
    def work_unit(self) -> str:
        """What is counted: requests, images."""
        return self.unit.removesuffix("/s") or "samples"


def with_users(evidence: Sequence[Evidence], question: Question) -> list[Evidence]:
    """What an SLO may be about: if there is one, work that users wait for."""
    if not any(bound.is_asked for bound in question.bounds):
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
    every = {one.key: one for one in (*configurations, *(left_out.configuration for left_out in evidence.left_out))}
    names = dict(zip(every, labels(list(every.values())), strict=True))
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
    errors = {bound.metric: bound.limit for bound in question.bounds if bound.is_asked}
    return replace(question, bounds=bounds_of(dict(next(iter(slos))) | errors), origin="as in the run's own SLO")
