"""The one place where samples become percentiles, intervals and outliers, live and afterwards.

Percentiles interpolate linearly between order statistics. The interval of the median comes from order
statistics and assumes no distribution; that of the mean uses Student's t. Samples that follow one another
are rarely independent, so both intervals count an effective number of samples, corrected for the
correlation of neighbours: noise that comes in waves does not pass for precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import count

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
CONFIDENCE = 0.95

Samples = Sequence[float] | NDArray[np.float64]


class Interval(BaseModel):
    """Where the true value lies, with this confidence."""

    model_config = ConfigDict(frozen=True)

    low: float
    high: float
    confidence: float

    def relative(self, value: float) -> float:
        """The larger half-width as a part of `value`."""
        return max(self.high - value, value - self.low) / abs(value) if value else math.inf


class Summary(BaseModel):
    """What many samples of one metric say together."""

    model_config = ConfigDict(frozen=True)

    count: int
    effective_count: float
    mean: float
    median: float
    minimum: float
    maximum: float
    deviation: float
    mean_interval: Interval | None
    median_interval: Interval | None
    percentiles: dict[str, float]
    outliers: int

    def as_rate(self, work: float) -> Summary:
        """The rate at which `work` per sample was done, where the samples are times.

        The mean rate is all work over all time, never a mean of rates; percentile p of the rate is the rate at
        percentile p of the time, so p99 is a slow step's rate.
        """

        def rate(seconds: float) -> float:
            return work / seconds if seconds > 0 else 0.0  # what took no measurable time has no infinite rate

        def turn(interval: Interval | None) -> Interval | None:
            if interval is None:
                return None
            # Student's interval of very noisy times may reach below zero; no rate is above the fastest measured.
            fastest = max(interval.low, min(self.minimum, interval.high))
            return Interval(low=rate(interval.high), high=rate(fastest), confidence=interval.confidence)

        return self.model_copy(
            update={
                "mean": rate(self.mean),
                "median": rate(self.median),
                "minimum": rate(self.maximum),
                "maximum": rate(self.minimum),
                "deviation": rate(self.mean) * (self.deviation / self.mean if self.mean > 0 else 0.0),
                "mean_interval": turn(self.mean_interval),
                "median_interval": turn(self.median_interval),
                "percentiles": {name: rate(value) for name, value in self.percentiles.items()},
            }
        )


def resolves(count: int, percentile: float) -> bool:
    """Whether `count` samples can tell this percentile from their maximum."""
    return count * (100.0 - percentile) / 100.0 >= 1.0 - 1e-9


def summarize(samples: Samples, confidence: float = CONFIDENCE) -> Summary:
    """All statistics of the samples at once."""
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no samples to summarize")
    effective = effective_count(values)
    ordered = np.sort(values)
    mean = math.fsum(values) / values.size
    deviation = float(values.std(ddof=1)) if values.size > 1 else 0.0
    mean_interval = None
    if effective >= 2:
        reach = student_quantile(0.5 + confidence / 2.0, effective - 1.0) * (deviation / math.sqrt(effective))
        mean_interval = Interval(low=mean - reach, high=mean + reach, confidence=confidence)
    return Summary(
        count=int(values.size),
        effective_count=effective,
        mean=mean,
        median=float(np.median(ordered)),
        minimum=float(ordered[0]),
        maximum=float(ordered[-1]),
        deviation=deviation,
        mean_interval=mean_interval,
        median_interval=_median_interval(ordered, effective, confidence),
        percentiles={f"{p:g}": float(np.percentile(ordered, p)) for p in PERCENTILES},
        outliers=int(outliers(ordered).sum()),
    )


def median_interval(samples: Samples, confidence: float = CONFIDENCE, *, independent: bool = False) -> Interval | None:
    """The interval of the median alone: what the live stop rule asks again and again.

    Samples are `independent` where their order means nothing: those of different machines.
    """
    values = np.asarray(samples, dtype=np.float64)
    effective = float(values.size) if independent else effective_count(values)
    return _median_interval(np.sort(values), effective, confidence)


def effective_count(samples: Samples) -> float:
    """How many independent samples these are worth: n / (1 + 2 * sum of the autocorrelations).

    The sum runs over lags until neighbouring pairs of autocorrelations stop being positive (Geyer). Negative
    correlation earns nothing: the result never exceeds the number of samples.
    """
    values = np.asarray(samples, dtype=np.float64)
    n = values.size
    _, same, sizes = np.unique(values, return_inverse=True, return_counts=True)
    if sizes.size < 2:
        return float(n)
    # Ranks, so that one huge outlier neither hides nor fakes correlation.
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    ranks = (np.bincount(same, weights=ranks) / sizes)[same]
    centred = ranks - ranks.mean()
    padded = np.fft.rfft(centred, 2 * n)
    correlation = np.fft.irfft(padded * np.conj(padded))
    correlation /= correlation[0]
    total = 0.0
    for lag in count(1, 2):  # all correlations together are negative, so that one pair is
        # A small sample's correlation of order 1/sqrt(n) is noise, not a wave.
        pair = float(correlation[lag] + correlation[lag + 1])
        if pair <= 2.0 / math.sqrt(n):
            break
        total += pair
    return n / (1.0 + 2.0 * total)


def outliers(samples: Samples) -> NDArray[np.bool_]:
    """Which samples lie far from the median: over 5 scaled median absolute deviations and over 2 %."""
    values = np.asarray(samples, dtype=np.float64)
    middle = float(np.median(values))
    distance = np.abs(values - middle)
    spread = 1.4826 * float(np.median(distance))
    return np.asarray((distance > 5.0 * spread) & (distance > 0.02 * abs(middle)))


def drift(samples: Samples) -> float:
    """By what part of the median the second half differs from the first, beyond what noise explains; otherwise 0.

    The halves' medians differ by more than noise when their distance exceeds the half-widths of both their
    intervals together, or when one half lies almost entirely on one side of the other: a fall that slows down
    looks like strongly correlated noise to the intervals.
    """
    values = np.asarray(samples, dtype=np.float64)
    half = values.size // 2
    if half < 3:
        return 0.0
    first, second = values[:half], values[-half:]
    before, after = float(np.median(first)), float(np.median(second))
    noise = sum(
        max(interval.high - middle, middle - interval.low)
        for interval, middle in ((median_interval(first), before), (median_interval(second), after))
        if interval is not None
    )
    # In which part of all pairs, one of each half, the same half is the larger: 0.5 if they are mixed, 1 if apart.
    ordered, pairs = np.sort(first), half * half
    smaller = np.searchsorted(ordered, second, "left").sum()
    larger = pairs - np.searchsorted(ordered, second, "right").sum()
    is_noise = abs(after - before) <= noise and max(smaller, larger) / pairs < 0.95
    return 0.0 if is_noise or not before else (after - before) / before


def _median_interval(ordered: NDArray[np.float64], effective: float, confidence: float) -> Interval | None:
    n = int(ordered.size)
    if n < 2:
        return None
    independent = max(2, int(effective))
    reached, rank = _order_rank(independent, confidence)
    # Ranks of the effective sample, stretched over the real one; rounded outward.
    low = math.floor(rank * n / independent)
    return Interval(low=float(ordered[low]), high=float(ordered[n - 1 - low]), confidence=reached)


@lru_cache(maxsize=4096)
def _order_rank(n: int, confidence: float) -> tuple[float, int]:
    """The largest 0-based rank k whose interval [x(k), x(n-1-k)] covers the median with this confidence.

    Few samples cannot reach it; then the whole range is given with the confidence it has.
    """
    if n > 1000:  # the normal approximation is exact to a fraction of a rank here
        from statistics import NormalDist

        z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
        return confidence, math.floor((n - z * math.sqrt(n)) / 2.0)
    # tail is P(B <= rank); the interval at rank+1 misses with twice the next tail.
    rank, tail, term = 0, 0.5**n, n * 0.5**n
    while 2.0 * (tail + term) <= 1.0 - confidence:
        rank += 1
        tail += term
        term *= (n - rank) / (rank + 1)
    return 1.0 - 2.0 * tail, rank


@lru_cache(maxsize=4096)
def student_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t for probabilities above one half."""
    low, high = 0.0, 2.0
    while student_upper(high, freedom) > 1.0 - probability:
        high += high
    while (middle := (low + high) / 2.0) not in (low, high):
        if student_upper(middle, freedom) > 1.0 - probability:
            low = middle
        else:
            high = middle
    return middle


def student_upper(t: float, freedom: float) -> float:
    """P(T > t) for t >= 0, by the regularized incomplete beta function."""
    return 0.5 * beta_below(freedom / (freedom + t * t), freedom / 2.0, 0.5)


def beta_below(x: float, a: float, b: float) -> float:
    """P(X < x) of the beta distribution: the regularized incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, evaluated by Lentz's method."""
    c = 1.0
    value = d = 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for numerator in (even, odd):
            d = 1.0 / (1.0 + numerator * d)
            c = 1.0 + numerator / c
            step = d * c
            value *= step
        if abs(step - 1.0) < 1e-15:
            break
    return value
