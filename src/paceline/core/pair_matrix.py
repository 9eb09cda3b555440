"""Which link, adapter or node is slow, from how fast every pair of ends is.

A pair is as fast as the slowest of three things: its two ends and the link between them. An end that is slow is so
with everybody, so its level is the middle of its pairs; a link that is slow is slower than both of its ends are with
others. Ends that are slow with others and fast among themselves share what is slow, a switch or its way to the others.
What is left is noise, and how large it is says what could not have been seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from paceline.core.stats import CONFIDENCE, student_quantile, student_upper

Floats = NDArray[np.float64]
Pair = tuple[str, str]  # labels of two ends

WRONGLY = 0.005  # the chance that anything at all is named where all is well
LEAST = 0.03  # a smaller loss makes nothing slow, however alike the others are
FEWEST = 4  # ends: with fewer a slow link cannot be told from a slow end
_MEDIAN = math.sqrt(math.pi / 2.0)  # the error of a median over that of a mean
_EFFICIENCY = 0.37  # of the median distance, as a measure of spread
_DEVIATION = 1.4826  # times the median distance from the median, of normal numbers
# How likely noise has which tails: degrees of freedom of Student's t, before any pair has been seen.
_TAILS = ((math.inf, 0.9), (20.0, 0.04), (10.0, 0.03), (6.0, 0.015), (5.0, 0.01), (4.0, 0.004), (3.0, 0.001))
_OWN_END, _OWN_LINK = 60.0, 12.0  # over the squared number of ends: how far what is slow hides behind its own loss
_SHOWN = 3  # ends of a group
SEEN = 0.8  # the part of losses of a size that must be found for the size to count as seen


@dataclass(frozen=True)
class Slow:
    """What is slower than the others of its kind."""

    kind: str  # node, adapter, link, group
    name: str
    loss: float  # the part of the speed that is missing
    low: float  # between which the loss is
    high: float

    def __str__(self) -> str:
        whom = {"link": "than either end is with others", "group": "with everybody else"}
        slower = f"is {self.loss:.0%} slower ({self.low:.0%} to {self.high:.0%})"
        return f"{self.kind} {self.name} {slower} {whom.get(self.kind, 'with everybody')}"


@dataclass(frozen=True)
class PairVerdict:
    """What is slow, the slowest first, and the smallest losses that would have been found."""

    slow: tuple[Slow, ...]
    noise: float  # of one pair, as a part of its speed
    seen_end: float
    seen_link: float

    @property
    def sentence(self) -> str:
        """What could be seen, and what was."""
        unseen = (
            f"a loss below {self.seen_end:.0%} of an end or {self.seen_link:.0%} of a link would not have been seen"
        )
        if not self.slow:
            return f"No node, adapter or link is slower than the others; {unseen}."
        return f"{'; '.join(map(str, self.slow))}; {unseen}."


def judge_pairs(speeds: Mapping[Pair, float], node_of: Mapping[str, str]) -> PairVerdict | None:
    """The verdict on pairs of ends, each end belonging to a node; None where there are too few to tell.

    Of several nodes the pairs within one do not count: they do not cross the network.
    """
    across = {(a, b): speed for (a, b), speed in speeds.items() if node_of[a] != node_of[b]}
    speeds = across or speeds
    ends = sorted({end for pair in speeds for end in pair})
    if len(ends) < FEWEST:
        return None
    place = {end: number for number, end in enumerate(ends)}
    matrix = np.full((len(ends), len(ends)), np.nan)
    for (a, b), speed in speeds.items():
        matrix[place[a], place[b]] = matrix[place[b], place[a]] = math.log(speed) if speed > 0 else np.nan
    levels = _levels(matrix)
    expected = np.minimum(levels[:, None], levels[None, :])
    rows, columns = np.triu_indices(len(ends), 1)
    known = ~np.isnan(matrix[rows, columns])
    rows, columns = rows[known], columns[known]
    apart = matrix[rows, columns] - expected[rows, columns]
    apart -= np.median(apart)  # of two levels that are not quite known, the lesser is too low
    noise = max(_DEVIATION * float(np.median(np.abs(apart))), 1e-4)
    partners = np.maximum(1, (~np.isnan(matrix)).sum(axis=1))
    # How large the noise is, is known from the pairs alone, and less well by its median than by its squares.
    freedom = max(1.0, _EFFICIENCY * (len(rows) - len(ends)))
    chance = 1.0 - WRONGLY / (len(ends) + len(rows))
    reach = max(student_quantile(chance, freedom) * noise, -math.log1p(-LEAST))
    error = _MEDIAN * noise / np.sqrt(partners)
    usual, spread = _usual(levels, error)
    apart_by = np.hypot(spread, error)
    # How far good ends differ is known from the ends alone, of which there are few.
    freedoms = apart_by**4 / (error**4 / freedom + spread**4 / max(1.0, _EFFICIENCY * (len(ends) - 1)))
    limits = np.array([student_quantile(chance, float(one)) for one in freedoms]) * apart_by
    limits = np.maximum(limits, -math.log1p(-LEAST))
    losses = {
        number: usual - float(levels[number]) for number in range(len(ends)) if usual - levels[number] > limits[number]
    }
    groups = _groups(losses, np.nan_to_num(matrix - expected, nan=0.0), reach)
    # Nothing makes a pair faster than its ends, but a switch behind which both are: what else is faster, is so by
    # noise.
    is_noise = (apart > 0.0) & ~(np.isin(rows, list(losses)) & np.isin(columns, list(losses)))
    reach = max(reach, _reach(apart[is_noise] / noise, chance, freedom) * noise)
    slow_ends = {
        ends[number]: _slow("adapter", ends[number], loss, float(error[number]))
        for number, loss in losses.items()
        if not any(number in group for group in groups)
    }
    slow_groups = [
        _slow("group", _listed([ends[number] for number in group]), max(map(losses.__getitem__, group)), error.max())
        for group in groups
    ]
    slow_links = [
        _slow("link", f"{ends[row]} - {ends[column]}", -float(loss), noise)
        for row, column, loss in zip(rows, columns, apart, strict=True)
        if -loss > reach
    ]
    found = [*_of_nodes(slow_ends, ends, node_of), *slow_groups, *slow_links]
    margin, few = NormalDist().inv_cdf(SEEN), 1.0 / len(ends) ** 2
    seen_end = float((limits + margin * apart_by).max()) * (1.0 + _OWN_END * few)
    seen_link = (reach + margin * math.hypot(noise, float(error.max()))) * (1.0 + _OWN_LINK * few)
    return PairVerdict(
        slow=tuple(sorted(found, key=lambda one: -one.loss)),
        noise=noise,
        seen_end=-math.expm1(-seen_end),
        seen_link=-math.expm1(-seen_link),
    )


def _levels(matrix: Floats) -> Floats:
    """How fast each end is with others: the middle of its pairs, those with ends that are slower still left out."""
    levels = np.nanmedian(matrix, axis=1)
    for _ in range(3):
        others = np.where(levels[None, :] >= levels[:, None] - 0.02, matrix, np.nan)
        enough = (~np.isnan(others)).sum(axis=1) >= 2
        levels = np.where(enough, np.nanmedian(np.where(enough[:, None], others, matrix), axis=1), levels)
    return levels


def _reach(gains: Floats, chance: float, freedom: float) -> float:
    """How many deviations noise reaches by this chance, if its losses have the tails that its gains have."""
    logs, weights, shapes = [], [], []
    for shape, weight in _TAILS:
        unit = 1.0 if math.isinf(shape) else student_quantile(0.75, shape) * _DEVIATION
        logs.append(_likelihood(gains * unit, shape) + gains.size * math.log(unit))
        weights.append(weight)
        shapes.append((1.0 / (1.0 / shape + 1.0 / freedom), unit))
    likely = np.exp(np.array(logs) - max(logs)) * weights
    likely /= likely.sum()
    low, high = 1.0, 1e3
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        beyond = [student_upper(middle * unit, shape) for shape, unit in shapes]
        low, high = (middle, high) if likely @ beyond > 1.0 - chance else (low, middle)
    return high


def _likelihood(deviations: Floats, shape: float) -> float:
    """The logarithm of that of Student's distribution with these degrees of freedom, but for a common constant."""
    squares = deviations**2
    if math.isinf(shape):
        return float(-0.5 * squares.sum())
    front = math.lgamma((shape + 1.0) / 2.0) - math.lgamma(shape / 2.0) - 0.5 * math.log(shape / 2.0)
    return deviations.size * front - (shape + 1.0) / 2.0 * float(np.log1p(squares / shape).sum())


def _usual(levels: Floats, error: Floats) -> tuple[float, float]:
    """The middle of all ends, and how far good ones differ beyond what noise makes of their levels."""
    middle = float(np.median(levels))
    seen = _DEVIATION * float(np.median(np.abs(levels - middle)))
    return middle, math.sqrt(max(0.0, seen**2 - float(np.median(error)) ** 2))


def _groups(slow: Iterable[int], gains: Floats, reach: float) -> list[list[int]]:
    """Those of the slow ends that are fast among themselves, which an end that is slow itself is with nobody."""
    left, groups = list(slow), []
    while len(left) > 1:
        among = gains[np.ix_(left, left)]
        first, second = np.unravel_index(int(np.argmax(among)), among.shape)
        if among[first, second] <= reach:
            break
        group = [left[first], left[second]]
        while rest := [one for one in left if one not in group]:
            strength = gains[np.ix_(rest, group)].mean(axis=1) * math.sqrt(len(group))
            if strength.max() <= reach:
                break
            group.append(rest[int(strength.argmax())])
        groups.append(sorted(group))
        left = [one for one in left if one not in group]
    return groups


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _slow(kind: str, name: str, loss: float, error: float) -> Slow:
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0) * error
    part, low, high = (-math.expm1(-one) for one in (loss, max(loss - reach, 0.0), loss + reach))
    return Slow(kind, name, part, low, high)


def _of_nodes(slow: Mapping[str, Slow], ends: Sequence[str], node_of: Mapping[str, str]) -> list[Slow]:
    """A node whose every adapter is slow is slow itself; with one adapter, nobody can tell which of the two."""
    found: list[Slow] = []
    for node in dict.fromkeys(node_of[end] for end in slow):
        members = [end for end in ends if node_of[end] == node]
        mine = [slow[end] for end in members if end in slow]
        if len(mine) == len(members):
            worst = max(mine, key=lambda one: one.loss)
            found.append(Slow("node", node, worst.loss, worst.low, worst.high))
        else:
            found += mine
    return found
