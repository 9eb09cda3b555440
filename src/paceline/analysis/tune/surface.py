"""What trials of some settings say of all: a Gaussian process over the places of the settings on their axes.

The logarithm of a figure is a constant, a part that varies smoothly along the axes, alone and together, and a part that
each setting has for itself. How smoothly along which axis, how strongly, and by how much trials of one setting differ
from start to start are the values of a small grid that make the scores likely, averaged by how likely they make them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

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
