"""Successive halving over settings with a model of noise: short trials of many, longer ones of what may be best.

A spread sample of the settings gets a short trial each, and the neighbours of the best one follow until it has none
left untried. What may still be the best gets longer and longer trials, fewer settings each time. A setting that fails
is out. The one that leads at the end was chosen because it did well, so that its figures flatter it: it is measured
again, in alternation with the first setting, and these rounds alone say whether it is better.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.analysis.compare.significance import Ratio, ratio_of_pairs
from paceline.core.grouping import group_by

LENGTHS = (1 / 9, 1 / 3, 1.0)  # of a whole trial, by rung
PROOF = len(LENGTHS)  # the rung of the rounds that decide, with whole trials
KEPT = 3  # one in so many goes on to the next rung, at most
FEWEST = 6  # settings: so few are all tried
SAMPLED = 6  # of more settings, one in so many is tried before the neighbours of the best
REACH = 2.0  # standard errors within which a setting may be better than it looks
NOISE = 0.05  # by which trials of one setting are taken to differ until they show it
TRUST = 4.0  # trials that this guess counts for
REFERENCE = 0  # the first setting is what the others are compared with


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


@dataclass(frozen=True)
class Standing:
    """A setting as all its trials together show it."""

    setting: int
    score: float
    error: float


@dataclass(frozen=True)
class Space:
    """The settings, each by its place on every axis."""

    places: Sequence[tuple[int, ...]]

    def neighbours(self, setting: int) -> list[int]:
        """Those that differ by one step on one axis."""
        mine = self.places[setting]
        return [other for other, place in enumerate(self.places) if _steps(mine, place) == 1]

    def spread(self, count: int, seed: int) -> list[int]:
        """So many that lie far from each other, the reference first."""
        order = random.Random(seed).sample(range(len(self.places)), len(self.places))
        chosen = [REFERENCE]
        while len(chosen) < min(count, len(order)):
            left = [one for one in order if one not in chosen]
            chosen.append(max(left, key=lambda one: min(_steps(self.places[one], self.places[o]) for o in chosen)))
        return chosen


def _steps(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


def search(space: Space, rounds: int, seed: int) -> Generator[list[Trial], list[TrialResult], None]:
    """Yields trials to make and takes their results; the same results lead to the same trials."""
    count = len(space.places)
    first = count if count <= FEWEST else max(FEWEST, math.ceil(count / SAMPLED))
    results = yield [Trial(setting, 0) for setting in space.spread(first, seed)]
    while more := _untried_neighbours(space, results):
        results += yield [Trial(setting, 0) for setting in more]
    for rung in range(1, PROOF):
        contenders = promising(results, rung - 1)
        if len(contenders) > 1:
            results += yield [Trial(setting, rung) for setting in contenders]
    while (winner := leader(results)) is not None:
        for number in range(1, rounds + 1):
            if winner == REFERENCE or {winner, REFERENCE} & _failed(results):
                break
            pair = [Trial(winner, PROOF, number), Trial(REFERENCE, PROOF, number)]
            results += yield pair if number % 2 else pair[::-1]
        if winner not in _failed(results):
            return


def _untried_neighbours(space: Space, results: Sequence[TrialResult]) -> list[int]:
    """Of the setting that leads."""
    best, tried = leader(results), {one.trial.setting for one in results}
    return [one for one in space.neighbours(best) if one not in tried] if best is not None else []


def leader(results: Sequence[TrialResult]) -> int | None:
    """The best of those that came furthest; None if all failed."""
    failed = _failed(results)
    good = [one for one in results if one.trial.rung < PROOF and one.trial.setting not in failed]
    ordered = standings(good, max((one.trial.rung for one in good), default=0))
    return ordered[0].setting if ordered else None


def promising(results: Sequence[TrialResult], rung: int) -> list[int]:
    """Settings of a rung that may be the best, that one first: at most one in `KEPT`, but two."""
    ordered = standings(results, rung)
    best = ordered[0] if ordered else None
    most = max(2, math.ceil(len(ordered) / KEPT))
    return [
        one.setting
        for one in ordered[:most]
        if best is not None and one.score + REACH * one.error >= best.score - REACH * best.error
    ]


def standings(results: Sequence[TrialResult], rung: int) -> list[Standing]:
    """The settings that reached a rung, the best first; those that failed are left out."""
    failed, between = _failed(results), noise(results) ** 2
    reached = {one.trial.setting for one in results if one.trial.rung >= rung} - failed
    made = []
    for setting, trials in group_by(results, lambda one: one.trial.setting).items():
        if setting in reached:
            scores = np.array([one.score for one in trials], dtype=float)
            weights = 1.0 / (np.array([one.error for one in trials]) ** 2 + between)
            made.append(Standing(setting, float(np.average(scores, weights=weights)), float(weights.sum()) ** -0.5))
    return sorted(made, key=lambda one: -one.score)


def noise(results: Iterable[TrialResult]) -> float:
    """By how much trials of one setting differ beyond what their own samples say, as a part of the figure."""
    squares, freedom = TRUST * NOISE**2, TRUST
    good = [one for one in results if one.score is not None]
    for trials in group_by(good, lambda one: one.trial.setting).values():
        scores = np.array([one.score for one in trials], dtype=float)
        own = np.array([one.error for one in trials]) ** 2
        share = 1.0 - 1.0 / len(trials)
        squares += max(0.0, float(((scores - scores.mean()) ** 2).sum() - own.sum() * share))
        freedom += len(trials) - 1
    return math.sqrt(squares / freedom)


def _failed(results: Iterable[TrialResult]) -> set[int]:
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
