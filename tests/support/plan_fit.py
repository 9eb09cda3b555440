"""Fits what no datasheet says of a cluster on throughputs that were measured there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.plan.timing import LIBAI, Cluster, step_time
from paceline.analysis.published.libai import libai_rows
from paceline.core.errors import PacelineError
from paceline.core.layout import Layout
from paceline.core.transformer import Transformer, as_published, transformer

Vector = NDArray[np.float64]

ROUNDS = 60
STEP = 1e-4  # of a fitted number, for its derivative
SETTLED = 1e-6  # of the sum of squares


@dataclass(frozen=True)
class Observation:
    """A throughput that was measured."""

    model: Transformer
    layout: Layout
    samples_per_s: float


@dataclass(frozen=True)
class _Free:
    """A field of the cluster that is fitted, and how far it may reasonably be from where it starts.

    What must be positive is fitted by its logarithm, a part of one by its log-odds.
    """

    name: str
    start: float  # what the datasheet says of a V100, or what a usual network has
    freedom: float
    part_of_one: bool = False

    def read(self, value: float) -> float:
        return math.log(value / (1 - value)) if self.part_of_one else math.log(value)

    def write(self, number: float) -> float:
        number = min(max(number, -50.0), 50.0)
        return 1 / (1 + math.exp(-number)) if self.part_of_one else math.exp(number)


FREE = (
    _Free("rate", 50e12, 2.0),
    _Free("intra_bandwidth", 60e9, 2.0),
    _Free("inter_bandwidth", 12e9, 2.0),
    _Free("intra_latency", 20e-6, 2.0),
    _Free("layer_overhead", 1e-4, 0.5),
    _Free("head_cost", 1.0, 1.0),
    _Free("attention_cost", 2.0, 1.0),
    _Free("overlap", 0.5, 2.0, part_of_one=True),
    _Free("contention", 0.3, 2.0, part_of_one=True),
)
# Where the observations say nothing about a number it stays where it starts; where they do, this much is no hindrance.
NOISE = 0.03  # of an observation, as a part of it


def samples_per_second(model: Transformer, layout: Layout, cluster: Cluster) -> float:
    """Of all GPUs together."""
    return layout.global_batch / step_time(model, layout, cluster).total


def calibrate(observations: Sequence[Observation], start: Cluster) -> Cluster:
    """The cluster whose predictions are nearest to the observations, by least squares of logarithms.

    Levenberg and Marquardt's method. Each fitted number also counts as an observation of its start, as sure as its
    freedom says, so that a few observations suffice.
    """
    if not observations:
        raise PacelineError("nothing to calibrate on: give at least one measured throughput")
    first = np.array([free.read(getattr(start, free.name)) for free in FREE])
    freedom = np.array([free.freedom for free in FREE])

    def residuals(numbers: Vector) -> Vector:
        cluster = _with(start, numbers)
        missed = [math.log(samples_per_second(o.model, o.layout, cluster) / o.samples_per_s) for o in observations]
        return np.array([*(miss / NOISE for miss in missed), *(numbers - first) / freedom])

    return _with(start, _least_squares(residuals, first))


def _with(cluster: Cluster, numbers: Vector) -> Cluster:
    fitted = {free.name: free.write(float(numbers[place])) for place, free in enumerate(FREE)}
    return replace(cluster, **fitted)  # type: ignore[arg-type]


def _least_squares(residuals: Callable[[Vector], Vector], start: Vector) -> Vector:
    best, errors = start, residuals(start)
    damping = 1.0
    for _ in range(ROUNDS):
        moved = [best + step for step in STEP * np.eye(best.size)]
        slopes = np.column_stack([(residuals(numbers) - errors) / STEP for numbers in moved])
        normal, gradient = slopes.T @ slopes, slopes.T @ errors
        trial = best - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
        tried = residuals(trial)
        gained = float(errors @ errors - tried @ tried)
        if gained > 0:
            best, errors, damping = trial, tried, damping / 3
            if gained < SETTLED * float(errors @ errors):
                break
        else:
            damping *= 4
    return best


System = Literal["libai", "megatron"]

START = replace(LIBAI, **{free.name: free.start for free in FREE})  # type: ignore[arg-type]


def observations(system: System) -> list[Observation]:
    """Every published row once, in the table's order, less those whose layout contradicts itself."""
    unique: dict[Layout, Observation] = {}
    for row in libai_rows():
        if not row.is_contradictory:
            model = as_published(transformer(row.layout.model, row.layout.layers))
            unique.setdefault(row.layout, Observation(model, row.layout, float(getattr(row, system))))
    return list(unique.values())
