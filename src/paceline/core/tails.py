"""Percentiles of times in the order in which they were taken, with intervals that allow for lateness in clusters.

Requests that wait in one queue are late together: a thousand of them may be worth thirty. An interval is given only
where the requests are worth enough, because fewer do not even show how much they resemble one another; otherwise it
says how many more would do.

The interval is Woodruff's: that of the part of all requests below the percentile, turned back into times. How many
independent requests these are worth there (Korn and Graubard) comes from the spectrum and from the autocorrelation of
lateness itself, whichever says fewer. A quiet stretch shows both a low percentile and little resemblance, so that the
upper end, not the lower one, allows for an error of that count; beyond the largest times the tail is exponential.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from paceline.core.stats import (
    CONFIDENCE,
    Interval,
    Samples,
    autocorrelation,
    beta_below,
    slow_power,
    student_quantile,
)

NOT_DECIDABLE = "not decidable yet"
FEWEST_BEYOND = 5  # samples beyond a percentile for it to be reported at all
LEAST_EFFECTIVE = 280.0  # independent samples that samples must be worth for an interval
LEAST_UNLIKE = 100  # samples, where neighbours do not resemble each other
UNLIKE = 0.2  # rank correlation of neighbours below which they do not
NEAR = 1.6  # times the least count: so near to it, that it was reached may be luck
LUCK, TAIL_LUCK = 0.8, 0.55  # by how much the upper end is further away then, at most; beyond p90 it is far already
TAIL = 0.9  # the part of the samples above which lateness comes in clusters
LEVELS = (TAIL, 0.95, 0.97, 0.99)  # where clusters are looked for
COUNT_NOISE = 4.0  # variance of the logarithm of a count, times the count
WAVES_PART = 0.3  # of the independent samples: waves that are long enough to show the variance of a mean
FEWEST_WAVES, MOST_WAVES = 4, 400


@dataclass(frozen=True)
class Tail:
    """One percentile."""

    value: float
    count: int
    effective: float  # how many independent samples these are worth
    interval: Interval | None  # None where they are not worth enough
    more: int = 0  # samples that are missing for an interval


def fewest(share: float) -> int:
    """Samples without which this percentile is not reported."""
    return math.ceil(round(FEWEST_BEYOND / (1.0 - share), 6))  # a tenth of 50 is five, whatever floating point says


def tails(samples: Samples, shares: Iterable[float], confidence: float = CONFIDENCE) -> list[Tail]:
    """Percentiles of samples in time order; an infinite one is a request without an answer."""
    series = _Series(np.asarray(samples, dtype=np.float64), confidence)
    return [series.tail(share) for share in shares]


def to_decide(value: float, interval: Interval, count: int, limit: float) -> int:
    """About how many more samples would show on which side of a limit a percentile is; 0 where these do."""
    if not interval.low <= limit < interval.high:
        return 0
    end = interval.high if value <= limit else interval.low
    distance = max(abs(limit - value), 0.01 * abs(end - value))
    return max(1, rounded_up(count * ((end - value) ** 2 / distance**2 - 1.0))) if distance else 1


def missing(count: int, effective: float) -> int:
    """How many more samples an interval takes, where so many are worth so few."""
    if effective > count * (1.0 - UNLIKE) / (1.0 + UNLIKE):
        return max(0, LEAST_UNLIKE - count)
    return rounded_up(max(0.0, count * (LEAST_EFFECTIVE / max(effective, 1.0) - 1.0)))


def not_decidable(more: int, noun: str = "requests") -> str:
    """The sentence where a percentile cannot be judged."""
    return f"{NOT_DECIDABLE}: {more:,} more {noun}"


def rounded_up(count: float) -> int:
    """A count with two digits, as an estimate has no more."""
    if count < 100:
        return math.ceil(count)
    unit: int = 10 ** (math.floor(math.log10(count)) - 1)
    return math.ceil(count / unit) * unit


class _Series:
    def __init__(self, values: NDArray[np.float64], confidence: float) -> None:
        if not values.size:
            raise ValueError("no samples to take a percentile of")
        self.values, self.confidence = values, confidence
        self.n = values.size
        self.ordered = np.sort(values)
        self._counts: dict[float, tuple[float, int]] = {}

    def tail(self, share: float) -> Tail:
        more, interval = missing(self.n, self.effective), None
        if not more:
            interval = self._interval(share)
            more = 0 if interval is not None else self.n  # whose requests without an answer reach up to it
        return Tail(self._at(share), self.n, self.effective, interval, more)

    @cached_property
    def resemblance(self) -> NDArray[np.float64]:
        """The autocorrelation of the ranks, among which none is far away."""
        _, same, sizes = np.unique(self.values, return_inverse=True, return_counts=True)
        return autocorrelation((np.cumsum(sizes) - sizes / 2.0)[same])[: same.size]

    @cached_property
    def is_unlike(self) -> bool:
        """Whether neighbours hardly resemble each other."""
        return bool(self.n >= 2 and self.resemblance[1] < UNLIKE)

    @cached_property
    def effective(self) -> float:
        """How many independent samples these are worth, by the lag at which they resemble each other half as much.

        A whole sum of correlations would be nearer to the truth on average, and much further away in a single case.
        """
        if self.n < 2:
            return float(self.n)
        if self.is_unlike:
            first = max(0.0, float(self.resemblance[1]))
            return self.n * (1.0 - first) / (1.0 + first)
        after = int(np.argmax(self.resemblance < 0.5))
        before, behind = (float(one) for one in self.resemblance[after - 1 : after + 1])
        lag = after - 1 + (before - 0.5) / (before - behind)
        return min(float(self.n), self.n * math.log(2.0) / (2.0 * lag))

    def _interval(self, share: float) -> Interval | None:
        levels = [*(level for level in LEVELS if level < share), share]
        independent, waves = min(self._independent(level) for level in levels)
        miss = (1.0 - self.confidence) / 2.0
        worth = independent * (NormalDist().inv_cdf(1.0 - miss) / student_quantile(1.0 - miss, waves)) ** 2
        at_least = worth * math.exp(-math.sqrt(COUNT_NOISE / independent))
        low_share = beta_quantile(miss, worth * share + 0.5, worth * (1.0 - share) + 0.5)
        high_share = beta_quantile(1.0 - miss, at_least * share + 1.0, at_least * (1.0 - share))
        value, high = self._at(share), max(self._at(high_share), self._beyond(high_share) if share >= TAIL else 0.0)
        if not math.isfinite(high):
            return None
        low, high = min(self._at(low_share), value), value + (high - value) * self._luck(share)
        return Interval(low=low, high=max(high, value), confidence=self.confidence)

    def _luck(self, share: float) -> float:
        """By which factor the upper end is further away because the count only just allows one."""
        if self.is_unlike:
            return 1.0
        distance = math.log(self.effective / LEAST_EFFECTIVE) / math.log(NEAR)
        return 1.0 + (LUCK if share <= TAIL else TAIL_LUCK) * (1.0 - min(max(distance, 0.0), 1.0))

    def _at(self, share: float) -> float:
        return float(self.ordered[min(max(math.ceil(round(share * self.n, 6)) - 1, 0), self.n - 1)])

    def _beyond(self, share: float) -> float:
        """Where an exponential tail has this part of the samples below it."""
        begin = self._at(TAIL)
        excess = self.ordered[(self.ordered > begin) & np.isfinite(self.ordered)] - begin
        if not excess.size:
            return begin
        return begin + float(excess.mean()) * max(0.0, math.log((1.0 - TAIL) / max(1.0 - share, 1e-12)))

    def _independent(self, level: float) -> tuple[float, int]:
        """How many independent samples the part above a level rests on, and the waves that showed it."""
        if level not in self._counts:
            late = (self.values > self._at(level)).astype(np.float64)
            late -= late.mean()
            variance = float(np.mean(late**2))
            if variance == 0.0:
                self._counts[level] = float(self.n), MOST_WAVES
                return self._counts[level]
            summed = 1.0 + 2.0 * _positive_sum(autocorrelation(late)[: self.n])
            waves = min(max(round(WAVES_PART * self.n / summed), FEWEST_WAVES), MOST_WAVES, self.n - 1)
            spread = slow_power(late, waves) / variance
            self._counts[level] = self.n / max(summed, spread, 1.0), waves
        return self._counts[level]


def _positive_sum(correlation: NDArray[np.float64]) -> float:
    """The sum over lags from 1 until a pair of neighbouring ones is not positive (Geyer)."""
    last = 1 + 2 * ((correlation.size - 1) // 2)
    pairs = correlation[1:last:2] + correlation[2 : last + 1 : 2]
    ends = np.flatnonzero(pairs <= 0.0)
    return float(pairs[: ends[0] if ends.size else None].sum())


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Where the beta distribution has this part below it."""
    low, high = 0.0, 1.0
    while high - low > 1e-9 * max(1.0 - high, 1e-6):
        middle = (low + high) / 2.0
        low, high = (middle, high) if beta_below(middle, a, b) < probability else (low, middle)
    return (low + high) / 2.0
