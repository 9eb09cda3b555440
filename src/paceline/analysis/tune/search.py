"""A search over settings with a model of noise and of neighbours: a few of all, then what may still be the best.

A spread sample of the settings gets a short trial each, the first one a whole trial (if it fails, the one that leads).
From then on the setting is next that may be the best by all trials so far, its neighbours' included (see `surface`), in
a trial as long as pays: as short as possible where trials differ from start to start more than within one, longer where
the start costs much.
The time is a part of what one whole trial of every setting would take. A setting that fails is out, and what is near
it is less likely to be tried. The one that leads at the end was chosen because it did well, so that its figures flatter
it: it is measured again, in alternation with the first setting, and these rounds alone say whether it is better.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.analysis.compare.significance import Ratio, ratio_of_pairs
from paceline.analysis.tune.surface import REFERENCE, Estimate, Space

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
