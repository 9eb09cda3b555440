"""How far chance alone takes a healthy node: the noise of each metric between nodes, its size and its tail.

Defects make a metric worse, never better. So the better half of the nodes shows noise alone, however far it reaches,
and the worse half shows it near the median, where no defect counts yet. Each half is matched with Student's
distributions from normal to very heavy tails; what all metrics say together is where each begins, so that a hundred
nodes are enough to know a tail. The halves of a metric are most likely alike, and each then speaks for the other; where
they are not, the heavier tail is believed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.baseline import SCALE, column_medians
from paceline.core.stats import student_upper

Floats = NDArray[np.float64]

FARTHEST = 3.0  # deviations beyond which a node has no say in the spread
WITHIN_FARTHEST = 0.97334  # variance of normal noise within it
# Degrees of freedom of Student's t, with the deviation that `spreads` gives of it.
SHAPES = (
    (math.inf, 1.0), (50.0, 1.0147), (20.0, 1.0365), (10.0, 1.0717), (6.0, 1.1163), (5.0, 1.1378), (4.0, 1.1689),
    (3.5, 1.1905), (3.0, 1.2184), (2.5, 1.2562), (2.0, 1.3108), (1.5, 1.3979), (1.0, 1.5686),
)  # fmt: skip
NORMAL_FIRST = np.asarray([0.999, *([0.001 / (len(SHAPES) - 1)] * (len(SHAPES) - 1))])
ONE_HEAVIER = np.eye(
    len(SHAPES), k=1
)  # from each shape to the next, but from nearly normal ones and the heaviest to itself
ONE_HEAVIER[:2] = np.eye(len(SHAPES))[:2]
ONE_HEAVIER[-1, -1] = 1.0
BELIEF = 8.0  # metrics that it takes to outweigh it
UNLIKE = 0.01  # the part of metrics whose better and worse half may have different tails
BELIEVED = 8.0  # deviations: one freak value says no more than this about a tail
FROM = 0.5  # deviations from which on a node says something about a tail; values that are all alike do not
NEAR = 3.5  # deviations up to which the worse half shows noise
ROUNDS = 150  # of learning what all metrics have in common
KNOTS = np.expm1(np.linspace(0.0, math.log1p(1e6), 240))


def spreads(values: Floats) -> Floats:
    """The standard deviation of each column, of the nodes near its median alone: as good as with nobody far off."""
    distance = np.abs(values - column_medians(values))
    spread = SCALE * column_medians(distance)
    for _ in range(2):
        is_near = distance <= FARTHEST * spread
        count = np.maximum(is_near.sum(axis=0) - 1, 1)
        squares = np.einsum("ij,ij->j", np.where(is_near, distance, 0.0), np.where(is_near, distance, 0.0))
        spread = np.sqrt(squares / count / WITHIN_FARTHEST)
    return spread


def freedom(nodes: Floats) -> Floats:
    """Degrees of freedom of a spread from so many nodes, fitted to what it gives of normal noise."""
    return np.maximum(np.maximum(0.38 * nodes, 0.85 * nodes - 7.0), 1.0)


@dataclass(frozen=True)
class Tails:
    """For each column, the chance that a healthy node is worse than so many deviations."""

    chances: Floats  # a row for each column: the logarithm of the chance at each of KNOTS

    def log_chance(self, column: int, deviations: Floats) -> Floats:
        """The logarithm of the chance of being worse than this."""
        return np.asarray(np.interp(np.log1p(deviations), np.log1p(KNOTS), self.chances[column]))

    def limit(self, log_chance: float) -> Floats:
        """By column, the deviations beyond which the chance is smaller than this."""
        scale = np.log1p(KNOTS)
        found = [np.interp(-log_chance, -one, scale, right=math.inf) for one in self.chances]
        return np.expm1(np.asarray(found))


def learn_tails(deviations: Floats, freedoms: Floats) -> Tails:
    """The tails of columns of deviations, each by its own nodes and by what all columns have in common."""
    degrees = _rounded(freedoms)
    fits = _fits(deviations, degrees)
    shared = np.full(len(SHAPES), 1.0 / len(SHAPES))
    for _ in range(ROUNDS):
        weights = _weights(fits, shared)
        shared = (weights.mean(axis=0).sum(axis=0) + BELIEF * NORMAL_FIRST) / (degrees.size + BELIEF)
    # Of noise that adds up from several heavy-tailed parts, the middle looks lighter than the tail is.
    weights = weights @ ONE_HEAVIER
    chances = np.empty((degrees.size, KNOTS.size))
    for column, degree in enumerate(degrees.tolist()):
        halves = weights[:, column, :] @ _chances(degree)
        chances[column] = np.log(np.maximum(halves.max(axis=0), 1e-300))
    return Tails(chances)


def _weights(fits: Floats, shared: Floats) -> Floats:
    """How likely each shape is, of each half of each column, if columns have shapes as often as `shared` says."""
    together = fits[0] * fits[1] * shared
    apart = fits * shared
    sums, sums_apart = together.sum(axis=-1, keepdims=True), apart.sum(axis=-1, keepdims=True)
    is_alike = (1.0 - UNLIKE) * sums
    is_alike /= is_alike + UNLIKE * sums_apart.prod(axis=0)
    # Halves of which no shape explains both have no sum together.
    return np.asarray(is_alike * together / np.maximum(sums, 1e-300) + (1.0 - is_alike) * apart / sums_apart)


def _fits(deviations: Floats, degrees: Floats) -> Floats:
    """How well each shape explains the better and the worse half of each column: likelihoods, the best is 1."""
    logs = np.zeros((2, degrees.size, len(SHAPES)))
    is_better = deviations <= -FROM
    is_near = (deviations >= FROM) & (deviations <= NEAR)
    squares = np.square(np.where(is_better | is_near, np.maximum(deviations, -BELIEVED), 0.0))
    for number, (shape, unit) in enumerate(SHAPES):
        degree = 1.0 / (1.0 / shape + 1.0 / degrees)
        constants = np.asarray([_log_front(one) for one in degree.tolist()]) + math.log(unit)
        decline = np.log1p(squares * (unit * unit / degree)) * (-(degree + 1.0) / 2.0)
        for half, (is_shown, end) in enumerate(((is_better, math.inf), (is_near, NEAR))):
            shown = np.asarray([_log_between(FROM * unit, end * unit, one) for one in degree.tolist()])
            sums = np.where(is_shown, decline, 0.0).sum(axis=0)
            logs[half, :, number] = is_shown.sum(axis=0) * (constants - shown) + sums
    return np.asarray(np.exp(logs - logs.max(axis=-1, keepdims=True)))


def _rounded(freedoms: Floats) -> Floats:
    """Rounded down to steps of 5 %, so that few curves have to be drawn."""
    return np.asarray(1.05 ** np.floor(np.log(np.minimum(freedoms, 1e5)) / math.log(1.05)))


@lru_cache(maxsize=256)
def _chances(degree: float) -> Floats:
    """The chance of being beyond each of KNOTS, a row for each shape."""
    of_shapes = [(1.0 / (1.0 / shape + 1.0 / degree), unit) for shape, unit in SHAPES]
    return np.asarray([[student_upper(knot * unit, one) for knot in KNOTS.tolist()] for one, unit in of_shapes])


@lru_cache(maxsize=4096)
def _log_front(degree: float) -> float:
    """The logarithm of the density of Student's t at zero."""
    return math.lgamma((degree + 1.0) / 2.0) - math.lgamma(degree / 2.0) - 0.5 * math.log(degree * math.pi)


@lru_cache(maxsize=4096)
def _log_between(low: float, high: float, degree: float) -> float:
    """The logarithm of the chance of lying between the two."""
    return math.log(student_upper(low, degree) - (student_upper(high, degree) if math.isfinite(high) else 0.0))
