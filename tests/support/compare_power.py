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


def pairs(
    noise: str, count: int, samples: int, *, runs: int = 3, between: float = 0.0, change: float = 0.0, seed: int = 5
) -> dict[str, list[Ratio]]:
    """Ratios of so many runs a side with noise of 1 % within them, by median time and by rate; the second is slower."""
    rng = np.random.default_rng(seed)
    made: dict[str, list[list[list[RepeatSamples]]]] = {"time": [], "rate": []}
    for factor in (1.0, 1.0 + change):
        levels = 1 + between * rng.standard_normal((count * runs, 1))
        table = 0.1 * factor * levels * (1 + 0.01 * NOISES[noise](rng, (count * runs, samples)))
        times = [part(row) for row in table]
        rates = [RepeatSamples(Measurement.of_rate(RATE, 32, one.measurement), one.samples) for one in times]
        for name, parts in (("time", times), ("rate", rates)):
            made[name].append([runs_of(*parts[place : place + runs]) for place in range(0, len(parts), runs)])
    return {name: ratios(*sides) for name, sides in made.items()}


def runs_of(*parts: RepeatSamples) -> list[RepeatSamples]:
    """Each part is a run, all of one session."""
    return [one._replace(run=str(number), session="s") for number, one in enumerate(parts)]


def part(samples: Sequence[float] | NDArray[np.float64]) -> RepeatSamples:
    """One repetition's step times."""
    times = Measurement.of_samples(STEP_TIME, samples)
    return RepeatSamples(times, times.samples)


def called(found: Sequence[Ratio], false_alarms: float = 0.05) -> float:
    """Which part of single comparisons would be called a change."""
    return float(np.mean([ratio.chance is not None and ratio.chance <= false_alarms for ratio in found]))
