"""Finds where a series of values changes its level: steps and drifts, but neither outliers nor modes nor louder noise.

A part of the series is divided where the studentised difference of the values before and after is largest, if that is
larger than in all but few random orders of the same values: so two modes, heavy tails and outliers are no steps,
whatever their distribution. Where one cut says nothing, a stretch with different ends is tried. Each cut is then
confirmed between its neighbours: a step must be likelier than noise that comes in waves or grows louder. No value
counts further than CAP deviations. `python -m bench verdicts trends` measures false alarms, recall and precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline.core.stats import CONFIDENCE, Interval, student_quantile

FEWEST = 6  # values in which a change can be distinguished from noise
CAP = 3.0  # deviations of the noise beyond which a value counts no more
SMALLEST_NOISE = 2e-4  # of a logarithm: a series that repeats itself to the digit still has no steps of 0.01 %
_ORDERS = 299  # random orders that a cut is compared with
_CHANCE = 0.04  # of them may divide as well, in a series without any cut yet
_CHANCE_MORE = 0.01  # in a part of a series, and for a stretch in the middle
_WORTH_TRYING = 2.8  # studentised differences below this are never beyond chance
_STRETCH_WORTH_TRYING = 3.4
_SHORT = 10  # values whose random orders are too few to say anything
_SHORT_CHANCE = 0.001
_PRIOR = 4.0  # values that the noise of both sides counts for: two that happen to agree make no level sure
_LEAST_VARIANCE = 0.01  # of the noise that neighbours show: values that repeat themselves have no exact level
_CORRELATION_BIAS = 3.0  # over the count: what each level that is fitted takes from the residuals' correlation
_MOST_CORRELATION = 0.7  # that is taken for noise; more is a change
_CORRELATIONS = (0.0, 0.2, 0.4)  # of neighbours, that noise may have
_STEP_CORRELATION = 0.2  # the largest of them around a step
_EXPECTED = 5.0  # standard errors of a step
_LOUDER_PLACES = 7  # from which noise may be louder
_LOUDER_TIMES = 3.0
_EVIDENCE = 0.8  # logarithm of how much likelier a step must be than none
_EVIDENCE_MORE = 1.5  # the same where there are several
_AROUND = 7  # values on either side that say how loud it is around one
_TIE = 1e-3  # of the cost of a value, for each deviation from its level without any cap
_NEAR = 2  # runs that the place of a change may be off and still serve
_RAMP_ENDS = 16  # positions that are tried for each end of a drift
_LINE_FITS_BETTER = 9.0  # squared deviations
_MODE_SHARE = 0.1  # of the values in the smaller of two modes, at least
_MODE_GAP = 4.0  # deviations within modes that their centres are apart, at least

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
class Modes:
    """Two values that runs come to, in turns: a program that is placed well or badly, not one that changed."""

    usual: float  # both as differences from the level
    other: float
    share: float  # of the values in the other one


@dataclass(frozen=True)
class Fit:
    """The changes of a series, and the level behind each of its values."""

    changes: tuple[Change, ...]
    levels: tuple[float, ...]
    outliers: tuple[bool, ...]
    noise: float  # the deviation of the values from their levels
    modes: Modes | None = None


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
    cuts = _confirmed(scaled, _cuts(scaled, is_whole=True))
    changes, fitted = _with_drifts(scaled, cuts, _levels(scaled, cuts))
    residuals = scaled - fitted
    modes = _modes(residuals)
    return Fit(
        changes=tuple(
            replace(one, difference=noise * one.difference, half_width=noise * one.half_width) for one in changes
        ),
        levels=tuple((centre + noise * fitted).tolist()),
        outliers=tuple((np.abs(residuals) > CAP * _loudness(residuals)).tolist())
        if modes is None
        else (False,) * values.size,
        noise=noise * 1.4826 * float(np.median(np.abs(residuals))),
        modes=Modes(noise * modes.usual, noise * modes.other, modes.share) if modes else None,
    )


def penalty(count: int) -> float:
    """What a change costs in squared deviations where a drift is compared with steps."""
    return 14.0 + 2.0 * math.log10(max(1.0, count / 50.0))


def _noise(values: Values) -> float:
    """The deviation of the noise, from differences of neighbours, which steps hardly move."""
    distances = np.abs(np.diff(values))
    # Most neighbours may be equal: what differs is then all there is to go by.
    return (1.4826 * float(np.median(distances)) or float(distances.mean())) / math.sqrt(2.0)


def _loudness(residuals: Values) -> Values:
    """The deviation of the noise around each value, but no less than usual."""
    padded = np.pad(np.abs(residuals), _AROUND, mode="reflect" if residuals.size > _AROUND else "edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _AROUND + 1)
    loudness: Values = np.maximum(1.4826 * np.median(windows, axis=-1), 1.0)
    return loudness


def _contrasts(values: Values, fewest: int) -> Values:
    """How far the values before and after each place differ, in standard errors; rows are series of their own."""
    count = values.shape[-1]
    inside = np.arange(fewest, count - fewest + 1, dtype=np.float64)
    return _studentised(values, np.cumsum(values, axis=-1)[..., fewest - 1 : count - fewest], inside)


def _stretch_contrasts(values: Values) -> Values:
    """The same for stretches in the middle against all the rest, in the order of `_stretches`."""
    begins, ends = _stretches(values.shape[-1])
    sums = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    return _studentised(values, sums[..., ends] - sums[..., begins], (ends - begins).astype(np.float64))


def _studentised(values: Values, sums: Values, inside: Values) -> Values:
    count = values.shape[-1]
    whole = values.sum(axis=-1, keepdims=True)
    squares = (values**2).sum(axis=-1, keepdims=True) - whole**2 / count
    between = (sums - whole * inside / count) ** 2 * count / (inside * (count - inside))
    ratio: Values = np.sqrt(between / np.maximum(squares - between, 1e-9) * (count - 2))
    return ratio


@lru_cache(maxsize=64)
def _stretches(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where stretches of three values or more begin and end, three or more from either end of the series."""
    lengths, length = [], 3
    while length <= count // 2 + 1:
        lengths.append(length)
        length = max(length + 1, round(1.3 * length))
    pairs = [(begin, begin + length) for length in lengths for begin in range(3, count - length - 2)]
    begins, ends = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return begins, ends


@lru_cache(maxsize=64)
def _orders(count: int) -> NDArray[np.int64]:
    """Random orders of so many values, the same ones every time."""
    return np.argsort(np.random.default_rng(count).random((_ORDERS, count)), axis=1)


def _cuts(values: Values, *, is_whole: bool = False) -> list[int]:
    """The first index of every level but the first: the best cut, unless chance makes it, then those beside it."""
    made = _division(values, is_whole) if values.size >= 4 else ()
    cuts: list[int] = []
    for begin, end in pairwise((0, *made, values.size)) if made else ():
        cuts += [begin] if begin else []
        cuts += [begin + cut for cut in _cuts(values[begin:end])]
    return cuts


def _division(values: Values, is_whole: bool) -> tuple[int, ...]:
    """Where these values are divided into two, or into a stretch and what lies around it; nowhere by chance."""
    middle = float(np.median(values))
    reach = CAP * max(1.4826 * float(np.median(np.abs(values - middle))), _noise(values), 1e-9)
    near = np.clip(values, middle - reach, middle + reach)
    contrasts = _contrasts(near, 2)
    place = int(contrasts.argmax())
    if values.size < _SHORT:
        levels = _levels(values, [place + 2])
        strength = abs(levels[1] - levels[0]) / _error(values, [place + 2], levels, 0)
        return (place + 2,) if strength > student_quantile(1.0 - _SHORT_CHANCE / 2.0, values.size - 2.0) else ()
    orders = _orders(values.size)
    if contrasts[place] > _WORTH_TRYING:
        others = _contrasts(near[orders], 2).max(axis=-1)
        if _share(others, contrasts[place]) <= (_CHANCE if is_whole else _CHANCE_MORE):
            return (place + 2,)
    contrasts = _stretch_contrasts(near)
    place = int(contrasts.argmax())
    if contrasts[place] > _STRETCH_WORTH_TRYING:
        others = _stretch_contrasts(near[orders]).max(axis=-1)
        if _share(others, contrasts[place]) <= _CHANCE_MORE:
            begins, ends = _stretches(values.size)
            return int(begins[place]), int(ends[place])
    return ()


def _share(others: Values, own: float) -> float:
    """The part of random orders, this one included, that divide as well."""
    return (1.0 + float((others >= own).sum())) / (1.0 + others.size)


def _confirmed(values: Values, cuts: list[int]) -> list[int]:
    """The cuts at their best positions, without those that noise in waves explains as well."""
    cuts = list(cuts)
    while cuts:
        cuts = _refined(values, cuts)
        levels = _levels(values, cuts)
        strengths = [_strength(values, cuts, levels, place) for place in range(len(cuts))]
        weakest = int(np.argmin(strengths))
        if strengths[weakest] >= (_EVIDENCE if len(cuts) == 1 else _EVIDENCE_MORE):
            break
        del cuts[weakest]
    return cuts


def _strength(values: Values, cuts: list[int], levels: list[float], place: int) -> float:
    """The evidence for a cut among the values of its two sides; none where a side is too short or zero is possible."""
    begin, cut, end = [0, *cuts, values.size][place : place + 3]
    # Two values are a level at either end of a series, in the middle it takes three.
    is_short = min(cut - begin + (begin == 0), end - cut + (end == values.size)) < 3
    low, high = sorted(levels[place : place + 2])
    if is_short or high - low <= _half_width(values, cuts, levels, place):
        return -math.inf
    return _evidence(np.clip(values[begin:end], low - CAP, high + CAP))


def _evidence(values: Values) -> float:
    """The logarithm of how much likelier one step makes these values than none, whatever the noise may be.

    Either is a mean over kinds of noise, with neighbours correlated or not and one part louder or not, and a step over
    its places: likelihoods with level and scale integrated out, and a step of some _EXPECTED standard errors.
    """
    stepped, level = [], []
    for correlation in _CORRELATIONS:
        without, with_step = _likelihoods(values, _profiles(values.size), correlation)
        level.append(without)
        if correlation <= _STEP_CORRELATION:
            stepped.append(with_step)
    return _log_mean(np.stack(stepped)) - _log_mean(np.stack(level))


@lru_cache(maxsize=64)
def _profiles(count: int) -> Values:
    """How loud each of so many values may be: half of the profiles are even, the others louder on one side."""
    places = np.unique(np.linspace(2, count - 2, _LOUDER_PLACES).round().astype(np.int64))
    is_after = np.arange(count) >= places[:, None]
    louder = np.concatenate([np.where(is_after, _LOUDER_TIMES, 1.0), np.where(is_after, 1.0, _LOUDER_TIMES)])
    return np.concatenate([np.ones_like(louder), louder])


def _likelihoods(values: Values, spread: Values, correlation: float) -> tuple[Values, Values]:
    """Log likelihoods without a step, and with one before the third, fourth, ... value; each row of spreads its own."""
    count = values.size
    fresh = math.sqrt(1.0 - correlation**2)  # the deviation of what is new in each value

    def whitened(one: Values) -> Values:
        return np.concatenate([one[..., :1], (one[..., 1:] - correlation * one[..., :-1]) / fresh], axis=-1)

    level = whitened(1.0 / spread)
    weight = (level**2).sum(axis=-1, keepdims=True)
    rest = whitened(values / spread)
    rest = rest - (rest * level).sum(axis=-1, keepdims=True) / weight * level
    # A step is the level from its first value on, but for that value, which nothing precedes.
    first = 1.0 / (spread * fresh)
    after = weight - np.cumsum(level**2, axis=-1)
    squares = after + first**2 - (after + first * level) ** 2 / weight
    products = rest * first - np.cumsum(rest * level, axis=-1)
    total = (rest**2).sum(axis=-1, keepdims=True) + _LEAST_VARIANCE * count
    explained = (products**2 / np.maximum(squares, 1e-9))[..., 2 : count - 1] * _EXPECTED**2 / (1.0 + _EXPECTED**2)
    base = -(count - 1.0) * math.log(fresh) - 0.5 * np.log(weight) - np.log(spread).sum(axis=-1, keepdims=True)
    without: Values = base - 0.5 * (count - 1.0) * np.log(total)
    stepped: Values = base - 0.5 * math.log1p(_EXPECTED**2) - 0.5 * (count - 1.0) * np.log(total - explained)
    return without, stepped


def _log_mean(logarithms: Values) -> float:
    largest = float(logarithms.max())
    return largest + math.log(float(np.exp(logarithms - largest).mean()))


def _deflation(values: Values, cuts: list[int], levels: list[float]) -> float:
    """What is left of a standard error's worth where the residuals of neighbours resemble each other."""
    residuals = np.clip(values - np.repeat(levels, np.diff([0, *cuts, values.size])), -CAP, CAP)
    squares = float((residuals**2).sum())
    correlation = float((residuals[1:] * residuals[:-1]).sum()) / squares if squares else 0.0
    correlation += _CORRELATION_BIAS * len(cuts) / values.size
    correlation = min(max(correlation, 0.0), _MOST_CORRELATION)
    return math.sqrt((1.0 - correlation) / (1.0 + correlation))


def _refined(values: Values, cuts: list[int]) -> list[int]:
    levels = _levels(values, cuts)
    edges = [0, *cuts, values.size]
    moved: list[int] = []
    for index in range(len(cuts)):
        begin, end = (moved[-1] if moved else 0), edges[index + 2]
        costs = _costs_of_cutting(values[begin:end], levels[index], levels[index + 1])
        chances = np.exp((costs.min() - costs) / 2.0)
        # The likeliest place, and one that is hardly ever far off: near misses count as well.
        near = np.convolve(chances, np.ones(2 * _NEAR + 1))[_NEAR : _NEAR + chances.size] + chances
        chosen = edges[index + 1] - begin
        best = int(near.argmax())
        moved.append(begin + 1 + (best if near[best] > near[chosen - 1] + 1e-9 else chosen - 1))
    return moved


def _costs_of_cutting(values: Values, before: float, after: float) -> Values:
    """The cost of these values with the change of level before their second, third, ... one.

    A value that is far from both levels tells next to nothing: only among equals, that it belongs to the nearer one.
    """
    low, high = (np.minimum((values - level) ** 2, CAP**2) + _TIE * np.abs(values - level) for level in (before, after))
    total: Values = np.cumsum(low)[:-1] + (np.cumsum(high[::-1])[::-1])[1:]
    return total


def _levels(values: Values, cuts: list[int]) -> list[float]:
    """Of each part the mean of the values that the noise explains, around their median."""
    levels = []
    for part in np.split(values, cuts):
        level = float(np.median(part))
        for _ in range(10):
            near = np.abs(part - level) <= CAP
            moved = float(part[near].mean()) if near.any() else level
            if moved == level:
                break
            level = moved
        levels.append(level)
    return levels


def _error(values: Values, cuts: list[int], levels: list[float], index: int) -> float:
    """The standard error of a step: each side has its own deviation, drawn towards that of both."""
    edges = [0, *cuts, values.size]
    sides = [slice(edges[index + side], edges[index + side + 1]) for side in (0, 1)]
    squares = [
        float((np.clip(values[side] - levels[index + place], -CAP, CAP) ** 2).sum()) for place, side in enumerate(sides)
    ]
    counts = [side.stop - side.start for side in sides]
    both = max(sum(squares) / max(1.0, sum(counts) - 2.0), _LEAST_VARIANCE)
    variances = [(own + _PRIOR * both) / (count - 1.0 + _PRIOR) for own, count in zip(squares, counts, strict=True)]
    return math.sqrt(sum(variance / count for variance, count in zip(variances, counts, strict=True)))


def _half_width(values: Values, cuts: list[int], levels: list[float], index: int) -> float:
    """The half-width of the interval of a step."""
    edges = [0, *cuts, values.size]
    freedom = edges[index + 2] - edges[index] - 2.0 + _PRIOR
    error = _error(values, cuts, levels, index) / _deflation(values, cuts, levels)
    return student_quantile(0.5 + CONFIDENCE / 2.0, freedom) * error


def _modes(residuals: Values) -> Modes | None:
    """Two modes, if the residuals lie around two values far apart and turn from one to the other again and again."""
    ordered = np.sort(residuals)
    count = ordered.size
    few = max(2, math.ceil(_MODE_SHARE * count))
    if count < 2 * few + 2:
        return None
    sizes = np.arange(few, count - few + 1)
    contrasts = _contrasts(ordered, few)
    size = int(sizes[contrasts.argmax()])
    low, high = ordered[:size], ordered[size:]
    within = math.sqrt(
        (float(((low - low.mean()) ** 2).sum()) + float(((high - high.mean()) ** 2).sum())) / (count - 2)
    )
    is_high = residuals >= ordered[size]
    turns = int((is_high[1:] != is_high[:-1]).sum())
    gap, apart = float(high.min() - low.max()), float(high.mean() - low.mean())
    if apart < _MODE_GAP * within or gap < within or turns < 4:
        return None
    usual, other = (low, high) if low.size >= high.size else (high, low)
    return Modes(float(np.median(usual)), float(np.median(other)), other.size / count)


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
    steps = last - first + 1
    # Stairs are the plainer answer: a line that stands for several steps must fit better than they do.
    dearer = price if steps == 1 else _LINE_FITS_BETTER * (3 - steps)
    cost = float(np.minimum((part - stairs) ** 2, CAP**2).sum()) - dearer
    if cost <= 0.0:
        return None
    weights = np.where(np.abs(part - stairs) <= CAP, 1.0, 0.0)
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
        sum_of_costs = float(np.minimum((part - drawn) ** 2, CAP**2).sum())
        if sum_of_costs < cost:
            cost, best, line = sum_of_costs, (start, stop, *fit), drawn
    if best is None:
        return None
    start, stop, before, after, error = best
    resid = (part - line)[weights > 0]
    deviation = math.sqrt((float((resid**2).sum()) + _PRIOR) / (resid.size + _PRIOR))
    half_width = student_quantile(0.5 + CONFIDENCE / 2.0, max(1.0, resid.size - 2.0)) * deviation * error
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
