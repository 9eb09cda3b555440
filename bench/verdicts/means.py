"""The intervals of mean and median: does the truth lie within, for samples that are alike, skewed or heavy-tailed?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from bench.verdicts.cell import Cell
from paceline.core.stats import CONFIDENCE, ENOUGH, Interval, summarize

Floats = NDArray[np.float64]

COVERS = 0.93
MOST_WIDTH = 1.3
COUNTS = (30, 100, 200, 1000, 6000)
CORRELATIONS = (0.0, 0.7, 0.9, 0.97)


@dataclass(frozen=True)
class Shape:
    """A distribution as what it makes of standard normal numbers, with its truth."""

    name: str
    of_normal: Callable[[Floats], Floats]
    mean: float
    median: float


def _uniform(normal: Floats) -> Floats:
    return np.asarray(np.clip(_normal_cdf(normal), 1e-12, 1 - 1e-12))


def _normal_cdf(normal: Floats) -> Floats:
    """By interpolation of the exact one, to 1e-7."""
    grid = np.linspace(-8.0, 8.0, 16001)
    return np.interp(normal, grid, [NormalDist().cdf(one) for one in grid.tolist()])


def _bimodal(normal: Floats) -> Floats:
    """Four of five at 1, the others at 1.3, both with 2 % of noise; which of them depends on the normal's size."""
    uniform = _uniform(normal)
    low = uniform < 0.8
    within = np.where(low, uniform / 0.8, (uniform - 0.8) / 0.2)
    return np.asarray(np.where(low, 1.0, 1.3) + 0.02 * (within - 0.5) * math.sqrt(12.0))


def _student(normal: Floats) -> Floats:
    """Student's t with 3 degrees of freedom by its quantile function, interpolated."""
    grid = np.concatenate((-np.logspace(4, -6, 4000), [0.0], np.logspace(-6, 4, 4000)))
    scaled = grid / math.sqrt(3.0)
    cdf = 0.5 + (scaled / (1.0 + scaled**2) + np.arctan(scaled)) / math.pi
    return 1.0 + 0.05 * np.interp(_uniform(normal), cdf, grid)


SHAPES = (
    Shape("normal", lambda normal: 1.0 + 0.05 * normal, 1.0, 1.0),
    Shape("log-normal", lambda normal: np.exp(0.5 * normal), math.exp(0.125), 1.0),
    Shape("bimodal 80/20", _bimodal, 1.06, 1.0 + 0.02 * (0.5 / 0.8 - 0.5) * math.sqrt(12.0)),
    Shape("Pareto 3", lambda normal: (1.0 - _uniform(normal)) ** (-1.0 / 3.0), 1.5, 2.0 ** (1.0 / 3.0)),
    Shape("Student's t 3", _student, 1.0, 1.0),
)


def cells(replicates: int, seed: int) -> Iterator[Cell]:
    """Each shape, count and correlation; then steps of which one in a hundred is twenty times slower."""
    for shape in SHAPES:
        for correlation in CORRELATIONS:
            for count in COUNTS:
                random = np.random.default_rng([seed, count, round(100 * correlation), SHAPES.index(shape)])
                case = f"{shape.name}, AR(1) {correlation:g}, {count:,} samples"
                batches = list(series(shape, correlation, count, replicates, random))
                true_count = count * (1.0 - correlation) / (1.0 + correlation)
                yield from coverage(case, batches, shape.mean, shape.median, is_enough=true_count >= ENOUGH)
    for count in (500, 1000, 6000):
        yield _stalling(count, replicates, np.random.default_rng([seed, count]))


def coverage(case: str, batches: list[Floats], mean: float, median: float, *, is_enough: bool = True) -> Iterator[Cell]:
    """How often the two intervals of these series hold the truth, and how wide they are.

    Of a process with too few effective samples nothing should be said; what is said of it by luck is counted against
    all attempts, since it is not a sample of the intervals that people see.
    """
    summaries = [summarize(samples) for samples in batches]
    means = [one.mean_interval for one in summaries]
    medians = [one.median_interval for one in summaries]
    # Few effective samples have a range instead, and it says how sure it is.
    sure = [one if one is not None and one.confidence >= CONFIDENCE - 1e-9 else None for one in medians]
    yield _covering("interval of the mean", case, means, mean, [one.mean for one in summaries], is_enough)
    yield _covering("interval of the median", case, sure, median, [one.median for one in summaries], is_enough)


def _covering(
    part: str, case: str, intervals: list[Interval | None], truth: float, estimates: list[float], is_enough: bool
) -> Cell:
    shown = [one for one in intervals if one is not None]
    right = sum(one.low <= truth <= one.high for one in shown)
    return Cell(
        part=part,
        case=case,
        claim="covers",
        bound=COVERS,
        hits=right,
        tries=len(shown),
        withheld=len(intervals) - len(shown),
        wrong_of=None if is_enough else len(intervals),
        width=float(np.median([one.high - one.low for one in shown])) if shown else None,
        known_width=2.0 * NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0) * float(np.std(estimates, ddof=1)),
        most_width=MOST_WIDTH,
        least_shown=0.5,
    )


def _stalling(count: int, replicates: int, random: np.random.Generator) -> Cell:
    batches = [
        np.where(random.random(count) < 0.01, 20.0, 1.0) * (1.0 + 0.01 * random.standard_normal(count))
        for _ in range(replicates)
    ]
    case = f"1 % of steps 20 times slower, {count:,} samples"
    first, _ = coverage(case, batches, 1.19, 1.0)
    return first


def series(
    shape: Shape, correlation: float, count: int, replicates: int, random: np.random.Generator
) -> Iterator[Floats]:
    """Series of normal numbers that each resemble the one before, made into the shape."""
    at_once = max(1, 2_000_000 // count)
    for begin in range(0, replicates, at_once):
        rows = min(at_once, replicates - begin)
        noise = random.standard_normal((count, rows))
        series = np.empty_like(noise)
        series[0] = noise[0]
        for step in range(1, count):
            series[step] = correlation * series[step - 1] + math.sqrt(1.0 - correlation**2) * noise[step]
        yield from shape.of_normal(np.ascontiguousarray(series.T))
