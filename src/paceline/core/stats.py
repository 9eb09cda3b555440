"""The one place where samples become percentiles, intervals and outliers, live and afterwards.

Percentiles interpolate linearly between order statistics. The interval of the median is that of the share of samples
below it, and assumes no distribution. That of the mean takes the variance of a mean from the slowest waves of the
samples, corrects for skewness, and counts rare stalls as events. Samples that follow one another are rarely
independent, so both count an effective number of samples: noise that comes in waves does not pass for precision.
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
SKEWED = 1.5  # an interval whose one half is this many times as wide as the other is not written as a half-width
SKEWED_LEAST = 0.02  # of the value: narrower than this, the difference would not be noticed
ENOUGH = 7.0  # effective samples that an interval of the mean takes, or a third of the samples where they are few
NEAR = 2.0  # times the least count: so near to it, that it was reached may be luck
LUCK = 0.4  # by how much of it an interval is wider then, at most
HEAVY, SURELY_HEAVY = 6.0, 10.0  # kurtosis (3 if normal) from which samples may have, and have, a heavy tail
NEAR_HEAVY = 4.0  # times the least count: so near to it, the largest values of a heavy tail may be missing
MISSING = 0.5  # by how much of it the end at that tail is further then, at most
FEW = 10  # fewer samples say nothing of how they are correlated, and are taken as independent
WAVES = 1.2  # times the two thirds power of the effective count: so many of the slowest tell the variance of the mean
LEAST_WAVES = 4
MOST_SKEW = 0.35  # of a mean: beyond it the correction for skewness is no longer one
SHORTENED = 0.75  # the part of the correction for skewness that the end at the short tail takes
MANY_EVENTS = 100
STALL = 4.0  # times the median: a sample that took longer is a stall where such samples are rare

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

    def is_skewed(self, value: float) -> bool:
        """Whether it reaches so much further to one side of `value` that a half-width would mislead."""
        narrow, wide = sorted((value - self.low, self.high - value))
        return wide > SKEWED * narrow and wide >= SKEWED_LEAST * abs(value)


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

        def turn(interval: Interval | None, middle: float) -> Interval | None:
            if interval is None:
                return None
            high = rate(max(interval.low, min(self.minimum, interval.high)))
            if interval.low < self.minimum and middle > 0:
                # Student's interval of few times lies beyond the shortest of them, which is no bound of the true mean,
                # and may reach below zero. So the rate then has as much room above as the time has below it.
                high = max(high, rate(middle) * (2.0 - interval.low / middle))
            return Interval(low=rate(interval.high), high=high, confidence=interval.confidence)

        return self.model_copy(
            update={
                "mean": rate(self.mean),
                "median": rate(self.median),
                "minimum": rate(self.maximum),
                "maximum": rate(self.minimum),
                "deviation": rate(self.mean) * (self.deviation / self.mean if self.mean > 0 else 0.0),
                "mean_interval": turn(self.mean_interval, self.mean),
                "median_interval": turn(self.median_interval, self.median),
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
    effective, decay = _correlation(values)
    ordered = np.sort(values)
    mean = math.fsum(values) / values.size
    deviation = float(values.std(ddof=1)) if values.size > 1 else 0.0
    return Summary(
        count=int(values.size),
        effective_count=effective,
        mean=mean,
        median=_median(ordered),
        minimum=float(ordered[0]),
        maximum=float(ordered[-1]),
        deviation=deviation,
        mean_interval=_mean_interval(values, effective, confidence),
        median_interval=_median_interval(values, ordered, effective, decay, confidence),
        percentiles={f"{p:g}": _percentile(ordered, p) for p in PERCENTILES},
        outliers=int(outliers(ordered).sum()),
    )


def median_interval(samples: Samples, confidence: float = CONFIDENCE, *, independent: bool = False) -> Interval | None:
    """The interval of the median alone: what the live stop rule asks again and again.

    Samples are `independent` where their order means nothing: those of different machines.
    """
    values = np.asarray(samples, dtype=np.float64)
    ordered = np.sort(values)
    if independent:
        return _order_interval(ordered, float(values.size), confidence)
    return _median_interval(values, ordered, *_correlation(values), confidence)


def effective_count(samples: Samples) -> float:
    """How many independent samples these are worth, with the benefit of the doubt given to correlation."""
    return _correlation(np.asarray(samples, dtype=np.float64))[0]


def _correlation(values: NDArray[np.float64]) -> tuple[float, float]:
    """The effective count, and the factor by which the ranks' correlation likely falls from one sample to the next.

    The count is the lesser of two estimates: n / (1 + 2 * sum of the autocorrelations of the ranks), whose sum runs
    until neighbouring pairs stop being positive (Geyer), and what the slowest decay of the correlation leaves.
    Negative correlation earns nothing: the result never exceeds the number of samples.
    """
    n = values.size
    _, same, sizes = np.unique(values, return_inverse=True, return_counts=True)
    if sizes.size < 2:
        return float(n), 0.0
    # Ranks, so that one huge outlier neither hides nor fakes correlation.
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    ranks = (np.bincount(same, weights=ranks) / sizes)[same]
    correlation = autocorrelation(ranks)
    total = 0.0
    for lag in count(1, 2):  # all correlations together are negative, so that one pair is
        # A small sample's correlation of order 1/sqrt(n) is noise, not a wave.
        pair = float(correlation[lag] + correlation[lag + 1])
        if pair <= 2.0 / math.sqrt(n):
            break
        total += pair
    summed = n / (1.0 + 2.0 * total)
    if n < FEW:
        return summed, 0.0
    likely, slowest = _decay(correlation, n)
    return max(1.0, min(summed, n * (1.0 - slowest) / (1.0 + slowest))), likely


def _decay(correlation: NDArray[np.float64], n: int) -> tuple[float, float]:
    """By what factor the correlation falls from one sample to the next: likely, and the slowest that they allow.

    A short series shows less correlation than there is, so that the bias is taken out. To the slowest a standard error
    is added: what a few samples cannot distinguish from noise would pass for precision. Slow waves beneath fast noise
    hardly show between neighbours; they show between samples that are further apart.
    """
    nearest = float(correlation[1])
    if nearest <= -2.0 / math.sqrt(n):
        return 0.0, 0.0  # neighbours differ rather than resemble each other
    unbiased = (n * nearest + 1.0) / (n - 3.0)
    error = math.sqrt(max(0.0, 1.0 - nearest**2) / n)
    # The correlation of far samples varies by so much, if that of neighbours is all there is (Bartlett).
    chance = math.sqrt((1.0 + nearest**2) / max(1.0 - nearest**2, 1e-9) / n)
    lag, far = 2, 0.0
    while lag < n // 2 and correlation[lag] > 3.0 * chance:
        far = max(far, float(correlation[lag]) ** (1.0 / lag))
        lag += lag
    likely, slowest = (min(max(one, far, 0.0), 0.999) for one in (unbiased, unbiased + error))
    return likely, slowest


def autocorrelation(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """At every lag from 0, as a part of that at lag 0; beyond the last there are zeros, and then the same backwards."""
    # Of equal values only rounding is left, and that would be correlated.
    centred = values - values.mean() if np.ptp(values) else np.zeros_like(values)
    # Twice as long, so that the end does not meet the beginning, and a power of two, which is fast.
    waves = np.fft.rfft(centred, 1 << (2 * values.size - 1).bit_length())
    correlation = np.fft.irfft(waves * np.conj(waves))
    return np.asarray(correlation / correlation[0] if correlation[0] > 0 else np.eye(1, correlation.size)[0])


def _median(values: NDArray[np.float64]) -> float:
    """As numpy's, which takes several times as long for few values."""
    if not values.size:
        return math.nan
    last = values.size - 1
    parted = np.partition(values, (last // 2, (last + 1) // 2, last))  # NaN comes last
    if math.isnan(parted[last]):
        return math.nan
    return float(parted[last // 2] + parted[(last + 1) // 2]) / 2.0


def _percentile(ordered: NDArray[np.float64], percentile: float) -> float:
    """As numpy's, to the bit: linear between the two nearest, from the nearer one; NaN, which comes last, is in all."""
    last = ordered.size - 1
    if math.isnan(ordered[last]):
        return math.nan
    place = last * (percentile / 100.0)
    before = min(int(place), last)
    low, high = float(ordered[before]), float(ordered[min(before + 1, last)])
    part = place - before
    return high - (high - low) * (1.0 - part) if part >= 0.5 else low + (high - low) * part


def outliers(samples: Samples) -> NDArray[np.bool_]:
    """Which samples lie far from the median: over 5 scaled median absolute deviations and over 2 %."""
    values = np.asarray(samples, dtype=np.float64)
    middle = _median(values)
    distance = np.abs(values - middle)
    spread = 1.4826 * _median(distance)
    return np.asarray((distance > 5.0 * spread) & (distance > 0.02 * abs(middle)))


def drift_interval(samples: Samples, confidence: float = CONFIDENCE) -> Interval | None:
    """By what part the last samples differ from the first (see `end_size`); None where they are too few to say.

    Each end is cut into a few blocks, which by their length are hardly correlated, and what correlation is left widens
    the interval. Of a block that is long enough the middle counts, so that rare stalls are not drift.
    """
    values = np.asarray(samples, dtype=np.float64)
    size = end_size(values.size)
    if 2 * size > values.size:
        return None
    first, last = values[:size], values[-size:]
    blocks = np.stack([_blocks(first), _blocks(last)])
    count = blocks.shape[1]
    before, after = blocks.mean(axis=1)
    apart = blocks - blocks.mean(axis=1, keepdims=True)
    squares = float((apart * apart).sum())
    if not before:
        return None
    neighbours = float((apart[:, 1:] * apart[:, :-1]).sum()) / squares if squares else 0.0
    if count > 4:  # few values look less correlated than they are
        neighbours = (neighbours + 1.0 / count) / (1.0 - 4.0 / count)
    correlation = min(max(neighbours, 0.0), 0.9)
    freedom = 2.0 * count - 2.0
    error = math.sqrt(squares / freedom * (2.0 / count) * (1.0 + correlation) / (1.0 - correlation))
    reach = student_quantile(0.5 + confidence / 2.0, freedom) * error / abs(before)
    change = float((after - before) / before)
    low, high = change - reach, change + reach
    # To its interval a smooth fall is correlated noise; but ends that do not even touch differ.
    gap = max(float(last.min() - first.max()), float(first.min() - last.max()), 0.0) / abs(before)
    if gap > 0.0:
        low, high = (max(low, gap), high) if change > 0.0 else (low, min(high, -gap))
    return Interval(low=low, high=high, confidence=confidence)


def end_size(count: int) -> int:
    """How many samples of so many are the first, and the last, when drift is looked for: a quarter, but three.

    A step in the time between the two is in neither of them, and a slope shows best between ends that are far apart.
    """
    return max(3, count // 4)


def _blocks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """What at most twelve blocks of equal length are like, the last of them at the end."""
    count = min(12, values.size)
    rows = np.sort(values[values.size % count :].reshape(count, -1), axis=1)
    ends = rows.shape[1] // 5
    return np.asarray(rows[:, ends : rows.shape[1] - ends].mean(axis=1))


def _mean_interval(values: NDArray[np.float64], effective: float, confidence: float) -> Interval | None:
    n = values.size
    if effective < (2.0 if n < FEW else min(ENOUGH, n / 3.0)):
        return None
    mean = math.fsum(values) / n
    if n < FEW:
        error = float(values.std(ddof=1)) / math.sqrt(effective)
        reach = student_quantile(0.5 + confidence / 2.0, effective - 1.0) * error
        return Interval(low=mean - reach, high=mean + reach, confidence=confidence)
    below, above = _reach(values, effective, confidence)
    stalls = _stalls(values)
    if stalls.any():
        fewer, more = _stall_reach(values, stalls, confidence)
        below, above = max(below, fewer), max(above, more)
    fewer, more = _doubt(values, effective / min(ENOUGH, n / 3.0))
    return Interval(low=mean - fewer * below, high=mean + more * above, confidence=confidence)


def _doubt(values: NDArray[np.float64], ratio: float) -> tuple[float, float]:
    """How much further the two ends are where the effective count is only so many times the least.

    Of series that have just enough samples, those that look as if they had more are the ones that show an interval.
    And where the samples have a heavy tail, so few of them have likely met none of its largest values.
    """
    luck = 1.0 + LUCK * max(0.0, 1.0 - math.log(ratio) / math.log(NEAR)) ** 2
    near = max(0.0, 1.0 - math.log(ratio) / math.log(NEAR_HEAVY))
    centred = values - values.mean()
    variance = float((centred**2).mean())
    if near == 0.0 or variance == 0.0:
        return luck, luck
    skew, kurtosis = float((centred**3).mean()) / variance**1.5, float((centred**4).mean()) / variance**2
    heavy = min(max((kurtosis - HEAVY) / (SURELY_HEAVY - HEAVY), 0.0), 1.0)
    missing = MISSING * near * heavy * math.tanh(skew)
    return luck * (1.0 + max(-missing, 0.0)), luck * (1.0 + max(missing, 0.0))


def _reach(values: NDArray[np.float64], effective: float, confidence: float) -> tuple[float, float]:
    """How far the true mean may lie below and above that of the samples.

    The variance of the mean is the power of the slowest waves, of which each is an independent look at it, so that
    Student's t has as many degrees of freedom. Skewed samples leave more room on the side of their long tail (Hall),
    and less on the other, which is taken in part: few samples do not know their skewness well.
    """
    n = values.size
    if not np.ptp(values):
        return 0.0, 0.0  # whatever rounding leaves
    centred = values - values.mean()
    waves = _waves(n, effective)
    # Ranks of values at two levels are more correlated than the values are.
    ordered = np.sort(values)
    ends = _percentile(ordered, 2.0), _percentile(ordered, 98.0)
    decay, _ = _decay(autocorrelation(np.clip(values, *ends)), n)
    error = math.sqrt(_power(centred, waves, effective, decay) / n)
    plain = student_quantile(0.5 + confidence / 2.0, float(waves))
    spread = float(centred.std())
    if spread == 0.0 or error == 0.0:
        return plain * error, plain * error
    skew = float((centred**3).mean()) / spread**3 / math.sqrt(effective)
    skew = MOST_SKEW * math.tanh(skew / MOST_SKEW)
    skewed = (abs(_without_skew(side * plain, skew)) for side in (1.0, -1.0))
    below, above = (max(one, plain + SHORTENED * (one - plain)) for one in skewed)
    return below * error, above * error


def _waves(n: int, effective: float) -> int:
    return min(n - 1, max(LEAST_WAVES, round(WAVES * math.pow(effective, 2.0 / 3.0))))


def _power(centred: NDArray[np.float64], waves: int, effective: float, decay: float) -> float:
    """The variance of the mean, times the number of samples; alternation, which has no slow waves, earns nothing."""
    slow = slow_power(centred, waves) * _peak(centred.size, waves, decay)
    return slow if effective < centred.size else max(slow, float((centred**2).mean()))


def _peak(n: int, waves: int, decay: float) -> float:
    """How much stronger than the mean of these waves an endless one is, where correlation falls by this factor."""
    halves = np.sin(0.5 * np.pi * np.arange(1, waves + 1) / n)
    return 1.0 / float((1.0 / (1.0 + decay * (2.0 * halves / (1.0 - decay)) ** 2)).mean())


def slow_power(centred: NDArray[np.float64], waves: int) -> float:
    """The mean square of the slowest cosine waves; for independent samples that is their variance."""
    n = centred.size
    if n > 1024:  # a few samples less, so that the transform's length has small factors
        n -= n % (1 << (n.bit_length() - 8))
        centred = centred[:n] - centred[:n].mean()
    mirrored = np.fft.rfft(np.concatenate((centred, centred[::-1])))[1 : waves + 1]
    turned = mirrored * np.exp(-0.5j * np.pi * np.arange(1, waves + 1) / n)
    return float((turned.real**2).mean()) / (2.0 * n)


def _without_skew(t: float, skew: float) -> float:
    """The value of a studentised mean whose cubic transformation, which takes the skewness away, is `t` (Hall)."""
    if abs(skew) < 1e-6:
        return t
    inner = 1.0 + skew * (t - skew / 6.0)
    return 3.0 * (math.copysign(abs(inner) ** (1.0 / 3.0), inner) - 1.0) / skew


def _stalls(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which samples are stalls: many times longer than the median, and rare."""
    middle = _median(values)
    slow = values > STALL * middle if middle > 0 else np.zeros(values.size, dtype=np.bool_)
    return slow if slow.sum() <= 0.05 * values.size else np.zeros(values.size, dtype=np.bool_)


def _stall_reach(values: NDArray[np.float64], stalls: NDArray[np.bool_], confidence: float) -> tuple[float, float]:
    """How far off the mean may be where a few samples took many times longer: how many there are is an event count.

    The samples without what the stalls add have a reach of their own; the number of stalls, those in a row taken as
    one, has that of a Poisson count. The two are joined so that each end takes its own (MOVER).
    """
    middle = _median(values)
    calm = np.where(stalls, middle, values)
    below, above = _reach(calm, effective_count(calm), confidence)
    excess = float((values - calm).sum()) / values.size
    events = int((stalls[1:] & ~stalls[:-1]).sum()) + int(stalls[0])
    fewest, most = _poisson_limits(events, confidence)
    sizes = values[stalls] - middle
    # How much one adds is known from as many as there are.
    doubt = float(sizes.std()) / float(sizes.mean()) / math.sqrt(events) if events > 1 else 0.0
    down = excess * math.hypot(1.0 - fewest / events, 2.0 * doubt)
    up = excess * math.hypot(most / events - 1.0, 2.0 * doubt)
    return math.hypot(below, down), math.hypot(above, up)


@lru_cache(maxsize=4096)
def _poisson_limits(events: int, confidence: float) -> tuple[float, float]:
    """Between which means a Poisson count has not happened to be this one (Garwood)."""
    outside = (1.0 - confidence) / 2.0
    if events > MANY_EVENTS:  # its cube root is normal then, to a ten-thousandth of the limits (Wilson, Hilferty)
        from statistics import NormalDist

        z = NormalDist().inv_cdf(1.0 - outside)
        ends = ((events, -z), (events + 1, z))
        low, high = (count * (1.0 - 1.0 / (9.0 * count) + side / (3.0 * math.sqrt(count))) ** 3 for count, side in ends)
        return low, high

    def solve(chance_above: float, count: int) -> float:
        # The mean at which at least `count` events have this chance; it grows with the mean.
        low, high = 0.0, count + 10.0 * math.sqrt(count) + 20.0
        for _ in range(60):
            middle = (low + high) / 2.0
            term = total = math.exp(-middle)
            for k in range(1, count):
                term *= middle / k
                total += term
            low, high = (middle, high) if 1.0 - total < chance_above else (low, middle)
        return low

    return (solve(outside, events) if events else 0.0), solve(1.0 - outside, events + 1)


def _median_interval(
    values: NDArray[np.float64], ordered: NDArray[np.float64], effective: float, decay: float, confidence: float
) -> Interval | None:
    """From how far off one half the share of samples below it may be, taken as a mean of zeros and ones (Woodruff).

    A share cannot leave 0 to 1: its reach is that of its arcsine, whose variance is the same everywhere.
    """
    n = int(ordered.size)
    if n < FEW or effective < min(ENOUGH, n / 3.0):
        return _order_interval(ordered, effective, confidence)
    middle = _median(ordered)
    # Values equal to the median lie half on either side.
    below = (values < middle) + 0.5 * (values == middle)
    waves = _waves(n, effective)
    power = max(_power(below - below.mean(), waves, effective, decay), 0.25 / n)
    angle = student_quantile(0.5 + confidence / 2.0, float(waves)) * math.sqrt(power / n)
    reach = 0.5 * math.sin(min(2.0 * angle, math.pi / 2.0))
    ranks = np.clip(n * np.array([0.5 - reach, 0.5 + reach]) - 0.5, 0, n - 1)
    low, high = np.interp(ranks, np.arange(n), ordered).tolist()
    return Interval(low=low, high=high, confidence=confidence)


def _order_interval(ordered: NDArray[np.float64], effective: float, confidence: float) -> Interval | None:
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
    """The quantile of Student's t for probabilities above one half, by Newton's method from the normal one.

    It lies beyond the normal one, and the tail is convex, so that every step goes towards it.
    """
    from statistics import NormalDist

    scale = math.exp(math.lgamma((freedom + 1.0) / 2.0) - math.lgamma(freedom / 2.0)) / math.sqrt(freedom * math.pi)
    t = NormalDist().inv_cdf(probability)
    for _ in range(100):
        density = scale * (1.0 + t * t / freedom) ** (-(freedom + 1.0) / 2.0)
        step = (student_upper(t, freedom) - (1.0 - probability)) / density
        t += step
        if abs(step) <= 1e-14 * t:
            break
    return t


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
