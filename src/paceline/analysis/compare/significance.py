"""The ratio of two sides with its interval, for many cases at once.

Each part of a side (one repetition in one run) gives the logarithm of its headline and how far its own samples leave
that open, from the summary that the one statistics module made of them. How sure that makes the ratio is for the model
of repeats, runs and sessions to say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.record import Measurement
from paceline.core.stats import CONFIDENCE, Interval, Samples, student_quantile, student_upper
from paceline.core.uncertainty import Level, Part, differences

FALSE_ALARMS = 0.05  # the share of false ones among all that are called changes
FLOOR = 2e-4  # of a value: no side is known better than this, however alike its samples are
FEWEST = 8  # samples from which the correlation of neighbours can be guessed
FARTHEST = 700.0  # that the logarithm of an end may be from 0, so that the end and its inverse are numbers
MOST_FREEDOM = 200  # beyond it Student's distribution is the normal one for all practical purposes

Floats = NDArray[np.float64]


class RepeatSamples(NamedTuple):
    """A metric of one repetition in one run, and the samples that stand behind it."""

    measurement: Measurement
    samples: Samples = ()  # those of the time that a rate was computed from
    run: str = ""
    session: str = ""


class Ratio(NamedTuple):
    """How the new side compares with the reference: values and their quotient, new / reference."""

    reference: float  # the headline, the geometric mean of it where there are several parts
    new: float
    value: float | None  # None where there is no such quotient: a zero, a negative or not a number
    interval: Interval | None  # None where nothing shows how far the units of a side scatter
    error: float | None  # standard error of the quotient's logarithm
    freedom: float  # degrees of freedom of that error
    chance: float | None  # of a quotient as far from 1 or farther, if nothing changed
    level: Level = Level.RUN  # what the units are
    units: tuple[int, int] = (1, 1)  # of each side
    runs: tuple[int, int] = (1, 1)
    scatter: float = math.nan  # variance of one unit's logarithm
    history: int = 0  # degrees of freedom that earlier runs of the same case and machine gave


Cases = Sequence[Sequence[RepeatSamples]]


def ratios(
    references: Cases, news: Cases, histories: Sequence[Cases] = (), confidence: float = CONFIDENCE
) -> list[Ratio]:
    """The ratio of each case; a case is the parts of the reference and those of the new side, at least one each."""
    compared = differences(parts_of(references), parts_of(news), [parts_of(side) for side in histories])
    with np.errstate(all="ignore"):
        freedoms = _rounded(compared.freedoms)
        distinct, inverse = np.unique(freedoms, return_inverse=True)
        quantiles = np.array([student_quantile(0.5 + confidence / 2.0, float(one)) for one in distinct])[inverse]
        change, errors = compared.changes, np.sqrt(np.maximum(compared.variances, 2 * FLOOR**2))
        distances = np.abs(np.nan_to_num(change / errors)).tolist()
        chances = np.array([2.0 * student_upper(*pair) for pair in zip(distances, freedoms.tolist(), strict=True)])
        ends = [np.exp(np.clip(change + side * errors * quantiles, -FARTHEST, FARTHEST)) for side in (-1, 1)]
        is_known = np.isfinite(change) & np.isfinite(errors)
        means = [_values(side, logs) for side, logs in ((references, compared.references), (news, compared.news))]
        columns = (*means, np.exp(change), *ends, errors, freedoms, chances, compared.scatters, compared.histories)
    return [
        Ratio(
            reference=reference,
            new=new,
            value=ratio if math.isfinite(ratio) else None,
            interval=Interval(low=low, high=high, confidence=confidence) if known else None,
            error=error if known else None,
            freedom=freedom,
            chance=chance if known else None,
            level=level,
            units=units,
            runs=runs,
            scatter=scatter,
            history=int(history),
        )
        for (
            reference,
            new,
            ratio,
            low,
            high,
            error,
            freedom,
            chance,
            scatter,
            history,
        ), known, level, units, runs in zip(
            zip(*(column.tolist() for column in columns), strict=True),
            is_known.tolist(),
            compared.levels,
            compared.units,
            compared.runs,
            strict=True,
        )
    ]


def parts_of(cases: Cases) -> list[list[Part]]:
    """The parts of each case as the model of uncertainty takes them."""
    every = [part for parts in cases for part in parts]
    effective = independent([part.samples for part in every])
    made = iter(
        [
            Part(part.session or part.run, part.run, *_error_of(part.measurement, count))
            for part, count in zip(every, effective, strict=True)
        ]
    )
    return [list(islice(made, len(parts))) for parts in cases]


def _rounded(freedoms: Floats) -> Floats:
    """Rounded down, as each quantile takes its time: the quantiles differ by less than 1 % for it."""
    steps = np.where(freedoms > 30, 10.0, np.where(freedoms > 10, 1.0, 0.1))
    rounded = np.floor(np.nan_to_num(freedoms) / steps + 1e-9) * steps
    return np.clip(np.round(rounded, 1), 1.0, MOST_FREEDOM)


def _values(cases: Cases, logs: Floats) -> Floats:
    """The sides' values; where a logarithm is missing, the mean of what there is."""
    plain = [math.fsum(part.measurement.value for part in parts) / len(parts) for parts in cases]
    single = np.array([len(parts) == 1 for parts in cases], dtype=bool)
    return np.where(np.isfinite(logs) & ~single, np.exp(logs), plain)


def around(centre: float, reach: float, confidence: float) -> Interval:
    """The interval of a ratio, from that of its logarithm."""
    low, high = np.exp(np.clip([centre - reach, centre + reach], -FARTHEST, FARTHEST)).tolist()
    return Interval(low=low, high=high, confidence=confidence)


def ratio_of_pairs(pairs: Sequence[tuple[float, float]], confidence: float = CONFIDENCE) -> Ratio:
    """The ratio over pairs that were taken one right after the other: what drifts between pairs cancels."""
    with np.errstate(all="ignore"):
        logs = np.log(np.array(pairs, dtype=np.float64))
    middle = np.exp(logs.mean(axis=0))
    steps = logs[:, 1] - logs[:, 0]
    centre = float(steps.mean())
    freedom = max(1, min(len(steps) - 1, MOST_FREEDOM))
    if len(steps) < 2 or not np.isfinite(steps).all():
        value = math.exp(centre) if math.isfinite(centre) else None
        return Ratio(float(middle[0]), float(middle[1]), value, None, None, freedom, None)
    error = math.hypot(float(steps.std(ddof=1)) / math.sqrt(len(steps)), FLOOR)
    reach = student_quantile(0.5 + confidence / 2.0, float(freedom)) * error
    interval = around(centre, reach, confidence)
    chance = 2.0 * student_upper(abs(centre) / error, freedom)
    return Ratio(
        float(middle[0]),
        float(middle[1]),
        math.exp(centre),
        interval,
        error,
        freedom,
        chance,
        units=(len(steps), len(steps)),
        scatter=error**2 * len(steps) / 2.0,
    )


def significant(chances: Sequence[float | None], false_alarms: float = FALSE_ALARMS) -> list[bool]:
    """Which of many comparisons are changes, by Benjamini and Hochberg: of those, at most this share is false.

    Where nothing changed at all, the chance that any is called a change is at most the same.
    """
    ordered = sorted((chance, index) for index, chance in enumerate(chances) if chance is not None)
    called = [False] * len(chances)
    ranks = [rank for rank, (chance, _) in enumerate(ordered, 1) if chance <= false_alarms * rank / len(ordered)]
    for _, index in ordered[: max(ranks, default=0)]:
        called[index] = True
    return called


def _error_of(part: Measurement, count: float) -> tuple[float, float, float]:
    """The logarithm of the value, the variance of that, and its degrees of freedom; NaN for what is missing.

    `count` is how many independent samples there are if neighbours are alike, as `independent` has it.
    """
    value, summary = part.value, part.summary
    log = math.log(value) if value > 0 and math.isfinite(value) else math.nan
    if part.statistic == "single" or summary.count < 2:
        return log, math.nan, 1.0
    effective = max(1.0, min(summary.effective_count, count))
    is_alike = effective < 0.9 * summary.count
    if part.statistic == "mean" and summary.deviation > 0:
        # Samples that are alike stay closer to their own mean than to the true one.
        bias = (1.0 - 1.0 / summary.count) * effective / max(effective - 1.0, 0.5) if is_alike else 1.0
        variance = (summary.deviation / summary.mean) ** 2 / effective * bias
        return log, variance, max(1.0, (effective - 1.0) / (2.0 if is_alike else 1.0))
    interval = part.interval
    if interval is None or not 0 < interval.low <= interval.high:
        return log, math.nan, 1.0
    reach = _normal_reach(interval.confidence)
    error = (math.log(interval.high) - math.log(interval.low)) / (2.0 * reach)
    # Their distance is as sure as the independent samples between the two order statistics are many.
    return log, error**2 * summary.effective_count / effective, max(1.0, reach * math.sqrt(effective) / 2.0)


def independent(series: Sequence[Samples]) -> Floats:
    """How many independent samples each series is worth if each sample resembles the one before it, and only so.

    The correlation of neighbours is taken without its bias in short series, and never rounded down to none: what the
    effective count of a few samples cannot distinguish from noise would pass for precision. Infinite where unknown.
    """
    counts = np.full(len(series), np.inf)
    lengths = np.fromiter(map(len, series), dtype=np.int64, count=len(series))
    for length in sorted({length for length in lengths.tolist() if length >= FEWEST}):
        rows = np.flatnonzero(lengths == length)
        samples = np.array([series[int(row)] for row in rows], dtype=np.float64)
        # A huge outlier neither hides nor fakes correlation if it is drawn in.
        ordered = np.sort(samples, axis=1)
        edge = max(1, length // 20)
        drawn = np.clip(samples, ordered[:, [edge]], ordered[:, [-1 - edge]])
        centred = drawn - drawn.mean(axis=1, keepdims=True)
        with np.errstate(all="ignore"):
            correlation = (centred[:, 1:] * centred[:, :-1]).sum(axis=1) / (centred**2).sum(axis=1)
        alike = np.clip((length * np.nan_to_num(correlation) + 1.0) / (length - 3.0), 0.0, 0.99)
        counts[rows] = length * (1.0 - alike) / (1.0 + alike)
    return counts


@lru_cache(maxsize=4096)
def _normal_reach(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + min(max(confidence, 0.1), 0.999999) / 2.0)
