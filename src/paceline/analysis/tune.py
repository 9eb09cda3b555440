"""The search for the best of many settings: what trials say of all, which to try next, and what they came to.

The logarithm of a figure is a constant, a part that varies smoothly along the axes, alone and together, and a part that
each setting has for itself: a Gaussian process over the places of the settings on their axes. How smoothly along which
axis, how strongly, and by how much trials of one setting differ from start to start are the values of a small grid that
make the scores likely, averaged by how likely they make them.

A spread sample of the settings gets a short trial each, the first one a whole trial (if it fails, the one that leads).
From then on the setting is next that may be the best by all trials so far, its neighbours' included, in a trial as long
as pays: as short as possible where trials differ from start to start more than within one, longer where the start costs
much. The time is a part of what one whole trial of every setting would take. A setting that fails is out, and what is
near it is less likely to be tried. The one that leads at the end was chosen because it did well, so that its figures
flatter it: it is measured again, in alternation with the first setting, and these rounds alone say whether it is
better.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.compare.significance import Ratio, ratio_of_pairs
from paceline.analysis.configuration import flattened
from paceline.core.case import Case
from paceline.core.metric import Better
from paceline.core.record import Measurement, Outcome, Record

Floats = NDArray[np.float64]
Guess = tuple[float, ...]  # amplitude, noise, share of what axes do alone, share of what each setting has; reaches

AMPLITUDES = (0.05, 0.15, 0.4, 1.0)
NOISES = (0.015, 0.03, 0.06, 0.12, 0.25)  # between starts, as a part of the figure
ALONE = (0.0, 0.5, 0.9)
OWN = (0.1,)
REACHES = (0.7, 1.5, 3.0)  # steps on an axis over which scores are alike
USUAL = (0.4, 0.06, 0.5, 0.1)  # where the search for the likeliest begins
NOISE = 0.05  # that is expected before trials show it, within a factor of about three
AVERAGED = 3.0  # guesses less likely by more than exp(this) are left out
REFERENCE = 0  # the first setting is what the others are compared with


@dataclass(frozen=True)
class Estimate:
    """Every setting's score by all trials, and the noise between starts."""

    score: Floats
    deviation: Floats
    noise: float


@dataclass(frozen=True)
class Space:
    """The settings, each by its place on every axis."""

    places: Sequence[tuple[int, ...]]
    unordered: frozenset[int] = frozenset()  # axes whose values are only equal or different
    _alike: dict[tuple[int, float], Floats] = field(default_factory=dict, repr=False, compare=False)

    @property
    def axes(self) -> int:
        return len(self.places[0])

    @cached_property
    def steps(self) -> list[Floats]:
        """By axis, how far each setting is from each other."""
        table = np.array(self.places, dtype=float).reshape(len(self.places), -1)
        apart = [np.abs(column[:, None] - column[None, :]) for column in table.T]
        return [np.minimum(one, 1.0) if axis in self.unordered else one for axis, one in enumerate(apart)]

    def spread(self, count: int, seed: int) -> list[int]:
        """So many that have every value of each axis about equally often, far apart; the reference first."""
        order = random.Random(seed).sample(range(len(self.places)), len(self.places))
        sizes = [len(set(values)) for values in zip(*self.places, strict=True)]
        chosen = [REFERENCE]
        while len(chosen) < min(count, len(order)):
            same = sum(size * (one[:, chosen] == 0).sum(axis=1) for size, one in zip(sizes, self.steps, strict=True))
            apart = sum(self.steps)[:, chosen].min(axis=1)  # type: ignore[index]
            chosen.append(min((one for one in order if one not in chosen), key=lambda one: (same[one], -apart[one])))
        return chosen

    def estimate(self, settings: Sequence[int], scores: Sequence[float], errors: Sequence[float]) -> Estimate:
        """All settings by these trials, each with the error that its own samples leave."""
        at, own = np.array(settings), np.array(errors) ** 2
        middle = float(np.mean(scores))
        seen: dict[Guess, float] = {}

        def solved(guess: Guess) -> tuple[float, Floats, Floats, Floats]:
            prior = self._covariance(guess)
            lower = np.linalg.cholesky(prior[np.ix_(at, at)] + np.diag(own + guess[1] ** 2))
            residual: Floats = np.linalg.solve(lower, np.array(scores) - middle).astype(np.float64)
            likely = -0.5 * float(residual @ residual) - float(np.log(np.diag(lower)).sum())
            return likely - 0.5 * math.log(guess[1] / NOISE) ** 2, prior, lower, residual

        best: Guess = (*USUAL, *(REACHES[1] for _ in self.steps))
        choices = (AMPLITUDES, NOISES, ALONE, OWN, *(REACHES for _ in self.steps))
        for place, values in [*enumerate(choices)] * 2:
            for value in values:
                guess = (*best[:place], value, *best[place + 1 :])
                if guess not in seen:
                    seen[guess] = solved(guess)[0]
            best = max(seen, key=seen.__getitem__)
        used = {guess: math.exp(one - seen[best]) for guess, one in seen.items() if one > seen[best] - AVERAGED}
        total, mean, square = sum(used.values()), np.zeros(len(self.places)), np.zeros(len(self.places))
        for guess, weight in used.items():
            _, prior, lower, residual = solved(guess)
            known = np.linalg.solve(lower, prior[at])
            score = known.T @ residual
            mean += weight / total * score
            square += weight / total * (np.diag(prior) - (known**2).sum(axis=0) + score**2)
        return Estimate(middle + mean, np.sqrt(np.maximum(square - mean**2, 1e-12)), best[1])

    def _covariance(self, guess: Guess) -> Floats:
        amplitude, _, alone, own, *reaches = guess
        each = [self._along(axis, reach) for axis, reach in enumerate(reaches)]
        smooth = alone * sum(each) / len(each) + (1.0 - alone) * np.prod(each, axis=0)
        made: Floats = 1.0 + amplitude**2 * (smooth + own * np.eye(len(self.places)))
        return made

    def _along(self, axis: int, reach: float) -> Floats:
        if (axis, reach) not in self._alike:
            self._alike[axis, reach] = np.exp(-0.5 * (self.steps[axis] / reach) ** 2)
        return self._alike[axis, reach]


LENGTHS = (1 / 9, 1 / 3, 1.0)  # of a whole trial, by rung
WHOLE = len(LENGTHS) - 1
PROOF = len(LENGTHS)  # the rung of the rounds that decide, with whole trials
PART = 0.235  # of the time of a whole trial of every setting
FEWEST, MOST = 6, 30  # whole trials that the search takes the time of, whatever that is
REACH = 2.0  # deviations by which a setting may be better than it looks
UNSURE = 0.3  # standard error of a failure, which counts as the worst score that there was


@dataclass(frozen=True)
class Trial:
    """One measurement of a setting."""

    setting: int
    rung: int
    repeat: int = 1


@dataclass(frozen=True)
class TrialResult:
    """What a trial came to."""

    trial: Trial
    score: float | None  # logarithm of the figure, so that more is better; None where there is none to go by
    error: float = 0.0  # standard error that its own samples leave
    seconds: float = 0.0  # that it took with all that belongs to it; 0 where that is not known

    @property
    def length(self) -> float:
        return LENGTHS[min(self.trial.rung, WHOLE)]

    @property
    def cost(self) -> float:
        return self.seconds or self.length


def search(space: Space, rounds: int, seed: int) -> Generator[list[Trial], list[TrialResult], None]:
    """Yields trials to make and takes their results; the same results lead to the same trials."""
    results = yield [Trial(REFERENCE, WHOLE)]
    results += yield [Trial(setting, 0) for setting in space.spread(2 * space.axes + 1, seed)[1:]]
    while not any(one.trial.rung == WHOLE and one.score is not None for one in results):  # what the time is judged by
        if (leading := leader(space, results)) is None:
            break
        results += yield [Trial(leading, WHOLE)]
    while (trial := _next(space, results)) is not None:
        results += yield [trial]
    while (winner := leader(space, results)) is not None:
        for number in range(1, rounds + 1):
            if winner == REFERENCE or {winner, REFERENCE} & failed(results):
                break
            pair = [Trial(winner, PROOF, number), Trial(REFERENCE, PROOF, number)]
            results += yield pair if number % 2 else pair[::-1]
        if winner not in failed(results):
            return


def _next(space: Space, results: Sequence[TrialResult]) -> Trial | None:
    """Of the setting that may be the best; None where one surely is, all failed, or the time is over."""
    known, out = estimate(space, results), failed(results)
    if known is None or len(out) == len(space.places):
        return None
    most = known.score + REACH * known.deviation
    most[list(out)] = -math.inf
    first, *others = np.argsort(-most, kind="stable")[:2]
    if all(most[one] < known.score[first] - REACH * known.deviation[first] for one in others):
        return None
    rung = _rung(results, known.noise)
    starting, loading = _costs(results)
    tried = {one.trial.setting for one in results}
    working = 1.0 - len(out) / len(tried)  # of the settings, as it seems; one that fails costs its start
    whole = working * (starting + loading) + (1.0 - working) * starting
    budget = min(max(PART * len(space.places), FEWEST), MOST) * whole
    if sum(one.cost for one in results) + starting + loading * LENGTHS[rung] > budget:
        return None
    same = [one for one in results if (one.trial.setting, one.trial.rung) == (first, rung)]
    return Trial(int(first), rung, len(same) + 1)


def _rung(results: Sequence[TrialResult], noise: float) -> int:
    """The length that tells most in its time; whole where none was, as that shows what the others save."""
    good = [one for one in results if one.score is not None]
    if all(one.trial.rung != WHOLE for one in good):
        return WHOLE
    own = float(np.mean([one.error**2 * one.length for one in good]))  # variance that a whole trial leaves
    starting, loading = _costs(results)
    costs = [(starting + loading * length) * (noise**2 + own / length) for length in LENGTHS]
    return int(np.argmin(costs))


def _costs(results: Sequence[TrialResult]) -> tuple[float, float]:
    """What a trial costs whatever its length, and what the load of a whole one adds."""
    good = [one for one in results if one.score is not None]
    lengths, costs = np.array([one.length for one in good]), np.array([one.cost for one in good])
    loading = max(0.0, float(np.polyfit(lengths, costs, 1)[0])) if len(set(lengths)) > 1 else 0.0
    return max(0.0, float(np.mean(costs - loading * lengths))), loading


def estimate(space: Space, results: Sequence[TrialResult]) -> Estimate | None:
    """Every setting by the trials of the search; None if all failed."""
    good = [(one.trial.setting, one.score, one.error) for one in results if one.score is not None]
    if not good:
        return None
    worst = min(score for _, score, _ in good)
    settings, scores, errors = zip(*good, *((one, worst, UNSURE) for one in sorted(failed(results))), strict=True)
    return space.estimate(settings, scores, errors)


def leader(space: Space, results: Sequence[TrialResult]) -> int | None:
    """The best of those that were tried and did not fail, as the search has shown them; None if there is none."""
    searched = [one for one in results if one.trial.rung < PROOF or one.score is None]
    tried = {one.trial.setting for one in searched} - failed(results)
    known = estimate(space, searched)
    return max(sorted(tried), key=lambda one: known.score[one]) if tried and known is not None else None


def failed(results: Iterable[TrialResult]) -> set[int]:
    """Settings of which a trial failed."""
    return {one.trial.setting for one in results if one.score is None}


def proof(results: Sequence[TrialResult], winner: int) -> Ratio | None:
    """How the winner compares with the reference by the rounds that were measured after it was chosen."""
    by_trial = {one.trial: one.score for one in results if one.trial.rung == PROOF}
    rounds = sorted({trial.repeat for trial in by_trial})
    scores = [[by_trial.get(Trial(one, PROOF, number)) for one in (REFERENCE, winner)] for number in rounds]
    pairs = [(math.exp(a), math.exp(b)) for a, b in scores if a is not None and b is not None]
    return ratio_of_pairs(pairs) if pairs else None


def is_better(ratio: Ratio | None) -> bool:
    """Whether the rounds show that the winner is better."""
    return ratio is not None and ratio.interval is not None and ratio.interval.low > 1.0


Objective = Literal["goodput", "throughput", "cost"]
METRICS: Mapping[Objective, tuple[str, ...]] = {  # by objective, the first that a record has
    "goodput": ("capacity", "goodput"),
    "throughput": ("token_throughput", "throughput"),
    "cost": ("cost_per_million_tokens", "cost_per_thousand"),
}
OF_CASE = {"target", "ranks", "power_limit", "clock_limit"}  # what settings may differ in next to parameters and env
ERRORS_OF_INTERVAL = 2.0  # half an interval of 95 % has about so many standard errors


@dataclass(frozen=True)
class TuneTrial:
    """A trial and its record."""

    trial: Trial
    record: Record
    objective: Objective

    @property
    def figure(self) -> Measurement | None:
        """What the objective goes by; None where the case failed or has no such figure."""
        if self.record.outcome is not Outcome.OK:
            return None
        names = METRICS[self.objective] + ((self.record.primary,) if self.objective == "throughput" else ())
        return next((one for name in names if name and (one := self.record.measurement(name)) is not None), None)

    @property
    def problem(self) -> str:
        """Why the setting is out; empty if it is not."""
        record, figure = self.record, self.figure
        if record.outcome is not Outcome.OK:
            return f"{record.outcome.value}: {record.cause.message if record.cause else 'no cause is known'}"
        if self.objective != "goodput" and record.load is not None and record.load.slo_met is False:
            return f"misses the SLO: {record.load.slo_missed_because}"
        if figure is None:
            return f"its record has no {' or '.join(METRICS[self.objective])}"
        return "" if figure.value > 0 else "no request met the SLO"

    @property
    def result(self) -> TrialResult:
        """The trial as the search takes it."""
        figure = self.figure
        if self.problem or figure is None:
            return TrialResult(self.trial, None, seconds=self.record.seconds)
        relative = figure.relative
        if relative is None and self.objective == "cost" and (rate := self.record.measurement("throughput")):
            relative = rate.relative  # which the cost follows from
        sign = -1.0 if figure.metric.better is Better.LOWER else 1.0
        error = (relative or 0.0) / ERRORS_OF_INTERVAL
        return TrialResult(self.trial, sign * math.log(figure.value), error, self.record.seconds)


@dataclass(frozen=True)
class Tuning:
    """All trials, and what they show."""

    space: Space
    settings: Sequence[str]  # what distinguishes each from the others
    trials: Sequence[TuneTrial]
    objective: Objective

    @cached_property
    def winner(self) -> int | None:
        """The setting that leads; None if all failed."""
        return leader(self.space, [one.result for one in self.trials])

    @cached_property
    def ratio(self) -> Ratio | None:
        """How many times as good as the reference it is; None where that was not measured."""
        results = [one.result for one in self.trials]
        return proof(results, self.winner) if self.winner not in (None, REFERENCE) else None

    @property
    def is_better(self) -> bool:
        return is_better(self.ratio)

    @property
    def failed(self) -> dict[int, str]:
        """Settings that are out, and why."""
        return {one.trial.setting: one.problem for one in reversed(self.trials) if one.problem}


def space_of(cases: Sequence[Case]) -> tuple[Space, list[str]]:
    """The cases by their place on every axis along which they differ, and what distinguishes each."""
    flat = [flattened(case.parameters | {"env": case.env}) | case.model_dump(include=OF_CASE) for case in cases]
    names = list(dict.fromkeys(name for one in flat for name in one))
    axes = {name: _distinct([one.get(name) for one in flat]) for name in names}
    axes = {name: values for name, values in axes.items() if len(values) > 1}
    numbers = {name for name, values in axes.items() if all(_is_number(value) for value in values)}
    ordered = {name: sorted(values) if name in numbers else values for name, values in axes.items()}
    places = [tuple(values.index(one.get(name)) for name, values in ordered.items()) for one in flat]
    unordered = frozenset(axis for axis, name in enumerate(axes) if name not in numbers)
    labels = [" ".join(f"{name.removeprefix('server.')}={_shown(one.get(name))}" for name in axes) for one in flat]
    return Space(places, unordered), labels


def _distinct(values: Sequence[Any]) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
