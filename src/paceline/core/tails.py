"""Percentiles of times in the order in which they were taken, with intervals that allow for lateness in clusters.

Requests that wait in one queue are late together: a thousand of them may be worth thirty. An interval is given only
where the requests are worth enough, because fewer do not even show how much they resemble one another; otherwise it
says how many more would do.

The interval is Woodruff's: that of the part of all requests below the percentile, turned back into times. How many
independent requests these are worth there (Korn and Graubard) comes from the spectrum and from the autocorrelation of
lateness itself, whichever says fewer. A quiet stretch shows both a low percentile and little resemblance, so that the
upper end, not the lower one, allows for an error of that count; beyond the largest times the tail is exponential.
Servers side by side hide a slow queue behind service times of their own: it is looked for over many lags together.
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
LEAST_EFFECTIVE = 240.0  # independent samples that samples must be worth for an interval
LEAST_UNLIKE = 100  # samples, where neighbours do not resemble each other
UNLIKE = 0.2  # rank correlation of neighbours below which they do not
NEAR = 1.8  # times the least count: so near to it, that it was reached may be luck
LUCK, TAIL_LUCK = 4.0, 1.5  # by how much the upper end is further away then, at most; beyond p90 it is far already
CLEARLY = 2.0  # times the samples that may be beyond a limit: so many are too many, whatever chance does
TAIL = 0.9  # the part of the samples above which lateness comes in clusters
LEVELS = (0.97, 0.99)  # where clusters are looked for, for percentiles beyond them
DOUBT = 0.5  # standard errors of the mean excess over the beginning of the tail that its upper end allows for
COUNT_NOISE = 4.0  # variance of the logarithm of a count, times the count
SEEN = 2.5  # standard errors of a correlation that is not there
FEWEST_STRETCHES = 30  # that samples are cut into to look for slow changes
SHORTEST = 0.35  # samples after which resemblance has halved, where there is none to be seen
HALVINGS = 9.0  # of the resemblance, after which nothing of it is left
WAVES_PART = 0.06  # waves that are long enough to show the variance of a mean, by samples and the lag of a half
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
    if not is_alike(count, effective):
        return max(0, LEAST_UNLIKE - count)
    return rounded_up(max(0.0, count * (LEAST_EFFECTIVE / max(effective, 1.0) - 1.0)))


def is_alike(count: int, effective: float) -> bool:
    """Whether neighbours among so many samples resemble each other."""
    return effective <= count * (1.0 - UNLIKE) / (1.0 + UNLIKE)


def not_decidable(more: int, noun: str = "requests") -> str:
    """The sentence where a percentile cannot be judged."""
    return f"{NOT_DECIDABLE}: {more:,} more {noun}"


def rounded_up(count: float) -> int:
    """A count with two digits, as an estimate has no more."""
    if count < 100:
        return math.ceil(count)
    unit: int = 10 ** (math.floor(math.log10(count)) - 1)
    return math.ceil(round(count / unit, 6)) * unit


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
    def slow(self) -> tuple[float, float]:
        """How much neighbours resemble each other, and after how many samples that has halved.

        Servers side by side hide a slow queue behind service times of their own. As many lags are taken together as it
        takes to see it, if it is there.
        """
        summed = np.concatenate(([0.0], np.cumsum(self.resemblance[1:])))
        lags = 1
        while lags <= self.n // FEWEST_STRETCHES:
            level = float(summed[lags]) / lags
            if level > SEEN / math.sqrt(self.n * lags):
                means = (summed[lags:] - summed[:-lags]) / lags
                after = int(np.argmax(means < level / 2.0))
                before, behind = (float(one) for one in means[after - 1 : after + 1])
                return level, max(after - 1 + (before - level / 2.0) / (before - behind), SHORTEST)
            lags *= 2
        return 0.0, SHORTEST

    @cached_property
    def is_unlike(self) -> bool:
        """Whether neighbours hardly resemble each other."""
        return not is_alike(self.n, self.effective)

    @cached_property
    def effective(self) -> float:
        """How many independent samples these are worth.

        A whole sum of correlations would be nearer to the truth on average, and much further away in a single case.
        """
        level, half = self.slow
        return self.n / (1.0 + 2.0 * level * half / math.log(2.0))

    def _interval(self, share: float) -> Interval | None:
        levels = [*(level for level in LEVELS if level < share), share]
        independent, waves = min(self._independent(level) for level in levels)
        miss = (1.0 - self.confidence) / 2.0
        worth = independent * (NormalDist().inv_cdf(1.0 - miss) / student_quantile(1.0 - miss, waves)) ** 2
        at_least = worth * math.exp(-math.sqrt(COUNT_NOISE / independent))
        low_share = beta_quantile(miss, worth * share + 0.5, worth * (1.0 - share) + 0.5)
        high_share = beta_quantile(1.0 - miss, at_least * share + 1.0, at_least * (1.0 - share))
        value, high = self._at(share), self._at(high_share)
        if share >= TAIL and math.isfinite(high):
            beyond = self._beyond(high_share, independent)
            high = max(high, beyond) if (1.0 - high_share) * self.n >= FEWEST_BEYOND else beyond
        if not math.isfinite(high):
            return None
        low, high = min(self._at(low_share), value), value + (high - value) * self._luck(share)
        return Interval(low=low, high=max(high, value), confidence=self.confidence)

    def _luck(self, share: float) -> float:
        """By which factor the upper end is further away because the count only just allows one."""
        if self.is_unlike:
            return 1.0
        distance = min(math.log(self.effective / LEAST_EFFECTIVE) / math.log(NEAR), 1.0)
        return 1.0 + (LUCK if share <= TAIL else TAIL_LUCK) * (1.0 - distance) ** 2

    def _at(self, share: float) -> float:
        return float(self.ordered[min(max(math.ceil(round(share * self.n, 6)) - 1, 0), self.n - 1)])

    def _beyond(self, share: float, independent: float) -> float:
        """Where an exponential tail, as heavy as its few clusters allow, has this part of the samples below it."""
        begin = self._at(TAIL)
        above = self.ordered[self.ordered > begin]
        excess = above[np.isfinite(above)] - begin
        if not excess.size:
            return begin
        part = above.size / self.n  # less than what is beyond the level, where many are equal
        mean = float(excess.mean()) * (1.0 + DOUBT / math.sqrt(max(independent * part, 1.0)))
        return begin + mean * max(0.0, math.log(part / max(1.0 - share, 1e-12)))

    def _independent(self, level: float) -> tuple[float, int]:
        """How many independent samples the part above a level rests on, and the waves that showed it."""
        if level not in self._counts:
            late = (self.values > self._at(level)).astype(np.float64)
            late -= late.mean()
            variance = float(np.mean(late**2))
            if variance == 0.0:
                self._counts[level] = float(self.n), MOST_WAVES
                return self._counts[level]
            half = self.slow[1]
            last = min(math.ceil(HALVINGS * half), self.n - 1)
            summed = 1.0 + 2.0 * float(autocorrelation(late)[1 : last + 1].sum())
            waves = min(max(round(WAVES_PART * self.n / half), FEWEST_WAVES), MOST_WAVES, self.n - 1)
            spread = slow_power(late, waves) / variance
            self._counts[level] = self.n / max(summed, spread, 1.0), waves
        return self._counts[level]


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Where the beta distribution has this part below it."""
    low, high = 0.0, 1.0
    while high - low > 1e-9 * max(1.0 - high, 1e-6):
        middle = (low + high) / 2.0
        low, high = (middle, high) if beta_below(middle, a, b) < probability else (low, middle)
    return (low + high) / 2.0
