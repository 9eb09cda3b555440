"""How often a planted change is called one: known answers for comparisons, from fixed seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.compare.significance import Ratio, RepeatSamples, ratios
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement
from support.records import STEP_TIME

RATE = Metric(name="throughput", unit="images/s", better=Better.HIGHER)


def independent(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Noise without memory."""
    return rng.standard_normal(shape)


def waves(rng: np.random.Generator, shape: tuple[int, int], memory: float = 0.7) -> NDArray[np.float64]:
    """Noise of which each sample keeps a part of the one before."""
    made = rng.standard_normal(shape)
    for place in range(1, shape[1]):
        made[:, place] = memory * made[:, place - 1] + np.sqrt(1 - memory**2) * made[:, place]
    return made


def heavy(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Student's t with two degrees of freedom, whose variance is infinite."""
    return rng.standard_t(2, shape)


def spikes(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """One step in fifty takes about a third longer."""
    return rng.standard_normal(shape) + np.where(rng.random(shape) < 0.02, rng.exponential(30.0, shape), 0.0)


NOISES = {"independent": independent, "waves": waves, "heavy": heavy, "spikes": spikes}


def pairs(noise: str, count: int, samples: int, *, change: float = 0.0, seed: int = 5) -> dict[str, list[Ratio]]:
    """Ratios of pairs of step times with noise of 1 %, by median time and by rate; the second side is slower."""
    rng = np.random.default_rng(seed)
    sides = [0.1 * (1 + 0.01 * NOISES[noise](rng, (count, samples))) for _ in range(2)]
    sides[1] *= 1 + change
    times = [[part(row) for row in side] for side in sides]
    rates = [
        [RepeatSamples(Measurement.of_rate(RATE, 32, one.measurement), one.samples) for one in side] for side in times
    ]
    return {
        "time": ratios(*([[one] for one in side] for side in times)),
        "rate": ratios(*([[one] for one in side] for side in rates)),
    }


def part(samples: Sequence[float] | NDArray[np.float64]) -> RepeatSamples:
    """One repetition's step times."""
    times = Measurement.of_samples(STEP_TIME, samples)
    return RepeatSamples(times, times.samples)


def called(found: Sequence[Ratio], false_alarms: float = 0.05) -> float:
    """Which part of single comparisons would be called a change."""
    return float(np.mean([ratio.chance is not None and ratio.chance <= false_alarms for ratio in found]))
