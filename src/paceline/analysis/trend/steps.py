"""Finds where a series of values changes its level: steps and drifts, but no single outlier.

The levels minimise the squared residuals in units of the noise, each capped at CAP², plus a penalty per change: exact
optimal partitioning with a biweight loss, as a shortest path over a grid of levels. Since CAP² < penalty < 2 CAP², one
outlier is never a change, however far it lies; two runs at the end of a series may be one, and three anywhere else.
The noise is the median absolute difference of neighbours, which steps hardly move. The penalty holds false alarms below
5 % of series without a change, for noise that is normal, uniform, Laplace, Student's t down to two degrees of freedom,
or contaminated with outliers, and for 6 to 300 values (`tests/property/test_trend.py` repeats part of that). Noise that
comes in waves is seen from 40 values on, and counted; in shorter series it passes for steps more often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline.core.stats import CONFIDENCE, Interval, effective_count, student_quantile

FEWEST = 6  # values in which a change can be distinguished from noise
CAP = 3.0  # deviations of the noise beyond which a value counts no more
SMALLEST_NOISE = 2e-4  # of a logarithm: a series that repeats itself to the digit still has no steps of 0.01 %
_WAVES_FROM = 40  # values in which correlation can be distinguished from a step
_LAGS = (2, 3, 4)
_CHANCE = 1.5  # times 1/sqrt(n): correlation below it is a small sample's own
_PRIOR = 4.0  # values that the noise of the whole series counts for: two that happen to agree make no level sure
_CELLS = 16  # of the grid, in one deviation of the noise
_RAMP_ENDS = 16  # positions that are tried for each end of a drift

Values = NDArray[np.float64]
StepKind = Literal["step", "drift"]


@dataclass(frozen=True)
class Change:
    """From one level to another: at once, or over several values."""

    kind: StepKind
    at: int  # the first value of the new level; of a drift, the first that left the old one
    until: int  # the first value of the new level
    earliest: int  # where it may also have begun, with 95 % confidence
    latest: int
    difference: float  # of the new level from the old one, in the units of the series
    half_width: float  # of its interval

    @property
    def interval(self) -> Interval:
        """Of the difference."""
        low, high = self.difference - self.half_width, self.difference + self.half_width
        return Interval(low=low, high=high, confidence=CONFIDENCE)


@dataclass(frozen=True)
class Fit:
    """The changes of a series, and the level behind each of its values."""

    changes: tuple[Change, ...]
    levels: tuple[float, ...]
    outliers: tuple[bool, ...]
    noise: float  # the deviation of the values from their levels


def find_changes(series: Sequence[float], smallest_noise: float = SMALLEST_NOISE) -> Fit:
    """Where the series changes its level; one that is too short for an answer has one level, its median.

    The series is of logarithms, so that a difference is a factor, or else `smallest_noise` is in its units.
    """
    values = np.asarray(series, dtype=np.float64)
    if values.size < FEWEST:
        middle = float(np.median(values)) if values.size else math.nan
        return Fit((), (middle,) * values.size, (False,) * values.size, 0.0)
    centre = float(np.median(values))
    noise = max(_noise(values), smallest_noise)
    scaled = (values - centre) / noise
    cuts = _confirmed(scaled, _partition(scaled, penalty(values.size)))
    levels = _levels(scaled, cuts)
    changes, fitted = _with_drifts(scaled, cuts, levels)
    return Fit(
        changes=tuple(
            replace(one, difference=noise * one.difference, half_width=noise * one.half_width) for one in changes
        ),
        levels=tuple((centre + noise * fitted).tolist()),
        outliers=tuple((np.abs(scaled - fitted) > CAP).tolist()),
        noise=noise * 1.4826 * float(np.median(np.abs(scaled - fitted))),
    )


def penalty(count: int) -> float:
    """What one more change must gain, in squared deviations: from simulated series without any change."""
    return 14.0 + 2.0 * math.log10(max(1.0, count / 50.0))


def _noise(values: Values) -> float:
    """The deviation of the noise, from differences of neighbours; larger where neighbours resemble each other.

    Noise that comes in waves makes differences over several values larger than those over one, where a few steps
    make only few of either larger. The mean of such values is as unsure as that of fewer independent ones.
    """
    noise = _spread(values, 1)
    if noise == 0.0:  # most neighbours are equal: what differs is then all there is to go by
        noise = float(np.abs(np.diff(values)).mean()) / math.sqrt(2.0)
    elif values.size >= _WAVES_FROM:
        wide = float(np.median([_spread(values, lag) for lag in _LAGS]))
        correlation = 1.0 - (noise / wide) ** 2 if wide else 0.0
        if correlation > _CHANCE / math.sqrt(values.size):
            noise = wide * math.sqrt((1.0 + correlation) / (1.0 - correlation))
    return noise


def _spread(values: Values, lag: int) -> float:
    return 1.4826 * float(np.median(np.abs(values[lag:] - values[:-lag]))) / math.sqrt(2.0)


def _partition(values: Values, price: float) -> list[int]:
    """The first index of every level but the first, by dynamic programming over a grid of levels."""
    # Levels worth trying: within one deviation of some value.
    cells = np.unique(np.round(values * _CELLS).astype(np.int64))
    around = np.arange(-_CELLS, _CELLS + 1, dtype=np.int64)
    grid = np.unique((cells[:, None] + around[None, :]).ravel()) / _CELLS
    changed = np.zeros((values.size, grid.size), dtype=np.bool_)
    best = np.zeros(values.size, dtype=np.int64)
    costs = np.zeros(grid.size)
    for index, value in enumerate(values):
        if index:
            jump = costs[best[index - 1]] + price
            changed[index] = costs > jump
            costs = np.minimum(costs, jump)
        costs = costs + np.minimum((value - grid) ** 2, CAP**2)
        best[index] = costs.argmin()
    cuts = []
    level = best[-1]
    for index in range(values.size - 1, 0, -1):
        if changed[index, level]:
            cuts.append(index)
            level = best[index - 1]
    return cuts[::-1]


def _confirmed(values: Values, cuts: list[int]) -> list[int]:
    """The cuts at their best positions, without those that correlated noise explains."""
    cuts = list(cuts)
    while cuts:
        cuts = _refined(values, cuts)
        levels = _levels(values, cuts)
        sizes = [abs(after - before) for before, after in pairwise(levels)]
        reaches = [_half_width(values, cuts, levels, index) for index in range(len(cuts))]
        ratios = [reach / size if size else math.inf for reach, size in zip(reaches, sizes, strict=True)]
        weakest = ratios.index(max(ratios))
        if reaches[weakest] < sizes[weakest]:
            break
        del cuts[weakest]
    return cuts


def _refined(values: Values, cuts: list[int]) -> list[int]:
    levels = _levels(values, cuts)
    edges = [0, *cuts, values.size]
    moved: list[int] = []
    for index in range(len(cuts)):
        begin, end = (moved[-1] if moved else 0), edges[index + 2]
        costs = _costs_of_cutting(values[begin:end], levels[index], levels[index + 1])
        # Of equal positions the one that the partition chose.
        chosen = edges[index + 1] - begin
        best = int(costs.argmin())
        moved.append(begin + 1 + (best if costs[best] < costs[chosen - 1] - 1e-9 else chosen - 1))
    return moved


def _costs_of_cutting(values: Values, before: float, after: float) -> Values:
    """The cost of these values with the change of level before their second, third, ... one."""
    low = np.minimum((values - before) ** 2, CAP**2)
    high = np.minimum((values - after) ** 2, CAP**2)
    total: Values = np.cumsum(low)[:-1] + (np.cumsum(high[::-1])[::-1])[1:]
    return total


def _levels(values: Values, cuts: list[int]) -> list[float]:
    """Of each part the mean of the values that the noise explains, around their median."""
    levels = []
    for part in np.split(values, cuts):
        level = float(np.median(part))
        for _ in range(10):
            near = part[np.abs(part - level) <= CAP]
            moved = float(near.mean()) if near.size else level
            if moved == level:
                break
            level = moved
        levels.append(level)
    return levels


def _half_width(values: Values, cuts: list[int], levels: list[float], index: int) -> float:
    """The half-width of the interval of a step, where values that resemble their neighbours count less."""
    edges = [0, *cuts, values.size]
    parts = [values[edges[index + side] : edges[index + side + 1]] - levels[index + side] for side in (0, 1)]
    parts = [part[np.abs(part) <= CAP] for part in parts]
    counts = [max(1.0, effective_count(part)) for part in parts]
    freedom = max(1.0, sum(counts) - 2.0)
    squares = sum(float((part**2).sum()) for part in parts)
    spread = math.sqrt((squares + _PRIOR) / (sum(part.size for part in parts) - 2.0 + _PRIOR))
    reach = student_quantile(0.5 + CONFIDENCE / 2.0, freedom + _PRIOR)
    return reach * spread * math.sqrt(sum(1.0 / count for count in counts))


def _with_drifts(values: Values, cuts: list[int], levels: list[float]) -> tuple[list[Change], Values]:
    """The steps, those of a ramp as one drift; and the fitted value behind every value."""
    edges = [0, *cuts, values.size]
    fitted = np.repeat(levels, np.diff(edges))
    ways = [math.copysign(1.0, after - before) for before, after in pairwise(levels)]
    changes: list[Change] = []
    index = 0
    while index < len(cuts):
        # A drift covers steps in one direction: as many as possible.
        last = index
        while last + 1 < len(ways) and ways[last + 1] == ways[index]:
            last += 1
        ends = range(last, index - 1, -1)
        drift = next((made for end in ends if (made := _drift(values, edges, fitted, index, end))), None)
        if drift is None:
            changes.append(_step(values, cuts, levels, index))
            index += 1
        else:
            change, line, last = drift
            changes.append(change)
            fitted[edges[index] : edges[last + 2]] = line
            index = last + 1
    return changes, fitted


def _step(values: Values, cuts: list[int], levels: list[float], index: int) -> Change:
    edges = [0, *cuts, values.size]
    begin, end = edges[index], edges[index + 2]
    costs = _costs_of_cutting(values[begin:end], levels[index], levels[index + 1])
    # The positions that together hold the change with 95 % confidence.
    weights = np.exp(-(costs - costs.min()) / 2.0)
    order = np.argsort(-weights, kind="stable")
    needed = int(np.searchsorted(np.cumsum(weights[order]), CONFIDENCE * weights.sum())) + 1
    earliest, latest = (begin + 1 + int(edge) for edge in (order[:needed].min(), order[:needed].max()))
    difference, half_width = levels[index + 1] - levels[index], _half_width(values, cuts, levels, index)
    return Change("step", cuts[index], cuts[index], earliest, latest, difference, half_width)


def _drift(
    values: Values, edges: list[int], fitted: Values, first: int, last: int
) -> tuple[Change, Values, int] | None:
    """A straight line between two levels instead of these steps, if it explains the values better."""
    begin, end = edges[first], edges[last + 2]
    part, stairs = values[begin:end], fitted[begin:end]
    price = penalty(values.size)
    cost = float(np.minimum((part - stairs) ** 2, CAP**2).sum()) + price * (last - first + 1)
    if cost <= 2.0 * price:  # that much a line costs at best
        return None
    weights = (np.abs(part - stairs) <= CAP).astype(np.float64)
    positions = np.arange(part.size, dtype=np.float64)
    starts = np.unique(np.round(np.linspace(0, edges[first + 1] - begin, _RAMP_ENDS))).tolist()
    ends = np.unique(np.round(np.linspace(edges[last + 1] - begin, part.size - 1, _RAMP_ENDS))).tolist()
    best: tuple[float, float, float, float, float] | None = None
    line = stairs
    for start, stop in product(starts, ends):
        if stop - start < 2.0:
            continue
        way = np.clip((positions - start) / (stop - start), 0.0, 1.0)
        fit = _two_levels(part, way, weights)
        if fit is None:
            continue
        drawn = fit[0] * (1.0 - way) + fit[1] * way
        sum_of_costs = float(np.minimum((part - drawn) ** 2, CAP**2).sum()) + 2.0 * price
        if sum_of_costs < cost:
            cost, best, line = sum_of_costs, (start, stop, *fit), drawn
    if best is None:
        return None
    start, stop, before, after, error = best
    resid = (part - line)[weights > 0]
    spread = math.sqrt((float((resid**2).sum()) + _PRIOR) / (resid.size + _PRIOR))
    half_width = student_quantile(0.5 + CONFIDENCE / 2.0, max(1.0, resid.size - 2.0)) * spread * error
    left, arrived = begin + int(start) + 1, begin + math.ceil(stop)
    return Change("drift", left, arrived, left, left, after - before, half_width), line, last


def _two_levels(values: Values, way: Values, weights: Values) -> tuple[float, float, float] | None:
    """The levels before and after by least squares, and the standard error of their difference at noise 1."""
    back = 1.0 - way
    a, b, c = float((weights * back * back).sum()), float((weights * back * way).sum()), float((weights * way**2).sum())
    determinant = a * c - b * b
    if determinant <= 1e-9:
        return None
    p, q = float((weights * back * values).sum()), float((weights * way * values).sum())
    before, after = (c * p - b * q) / determinant, (a * q - b * p) / determinant
    return before, after, math.sqrt((a + c + 2.0 * b) / determinant)
