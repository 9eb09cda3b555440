"""Fits what no datasheet says of a cluster to throughputs that were measured on it, and says how far off that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.plan import LIBAI, Cluster, step_time
from paceline.analysis.published import libai_rows
from paceline.core.errors import PacelineError
from paceline.core.files import shipped_rows
from paceline.core.layout import Layout
from paceline.core.transformer import Transformer, as_published, transformer

Vector = NDArray[np.float64]

ROUNDS = 60
STEP = 1e-4  # of a fitted number, for its derivative
SETTLED = 1e-4  # of the sum of squares
NEARLY_DONE = 1e-3  # damping of a search that begins near its end
NEVER, ALWAYS = 0.001, 0.999  # a part of one has no log-odds at its ends


@dataclass(frozen=True)
class Observation:
    """A throughput that was measured."""

    model: Transformer
    layout: Layout
    samples_per_s: float


@dataclass(frozen=True)
class Free:
    """A field of the cluster that is fitted, and how far it may reasonably be from where it starts.

    What must be positive is fitted by its logarithm, a part of one by its log-odds.
    """

    name: str
    freedom: float
    part_of_one: bool = False

    def read(self, value: float) -> float:
        if self.part_of_one:
            value = min(max(value, NEVER), ALWAYS)
            return math.log(value / (1 - value))
        return math.log(value)

    def write(self, number: float) -> float:
        number = min(max(number, -50.0), 50.0)
        return 1 / (1 + math.exp(-number)) if self.part_of_one else math.exp(number)


FREE = (
    Free("rate", 2.0),
    Free("intra_bandwidth", 2.0),
    Free("inter_bandwidth", 2.0),
    Free("intra_latency", 2.0),
    Free("layer_overhead", 0.5),
    Free("head_cost", 1.0),
    Free("attention_cost", 1.0),
    Free("overlap", 2.0, part_of_one=True),
    Free("contention", 2.0, part_of_one=True),
)
# Where the observations say nothing about a number it stays where it starts; where they do, this much is no hindrance.
NOISE = 0.03  # of an observation, as a part of it

# Where a fit to nodes of eight V100 starts: what the datasheet says, and what a usual network has.
V100_NODES = replace(
    LIBAI,
    rate=50e12,
    intra_bandwidth=60e9,
    inter_bandwidth=12e9,
    intra_latency=20e-6,
    layer_overhead=1e-4,
    head_cost=1.0,
    attention_cost=2.0,
    overlap=0.5,
    contention=0.3,
)


@dataclass(frozen=True)
class Calibration:
    """A cluster fitted to what was measured on it, and what a fit to all but one layout made of that one."""

    cluster: Cluster
    observations: tuple[Observation, ...]
    fitted: tuple[str, ...]  # fields of the cluster that the observations depend on
    misses: tuple[float, ...]  # predicted over measured, less one; none for a single observation

    @property
    def typical_miss(self) -> float | None:
        """The median, without its sign; None where nothing could be left out."""
        return float(np.median(np.abs(self.misses))) if self.misses else None

    @property
    def worst(self) -> tuple[float, Observation] | None:
        """The largest miss, with the observation."""
        pairs = zip(self.misses, self.observations, strict=False)
        return max(pairs, key=lambda pair: abs(pair[0]), default=None)


def calibration(observations: Sequence[Observation], start: Cluster, *, only: Sequence[str] = ()) -> Calibration:
    """Fit to all of them, and to all but one at a time for the error out of sample."""
    cluster = calibrate(observations, start, only=only)
    misses: list[float] = []
    for index, one in enumerate(observations if len(observations) > 1 else ()):
        others = [*observations[:index], *observations[index + 1 :]]
        misses.append(miss(one, calibrate(others, start, near=cluster, only=only)))
    fitted = tuple(free.name for free in _free(observations, start, only))
    return Calibration(cluster, tuple(observations), fitted, tuple(misses))


def miss(one: Observation, cluster: Cluster) -> float:
    """By what part the prediction is above what was measured."""
    return samples_per_second(one.model, one.layout, cluster) / one.samples_per_s - 1


def samples_per_second(model: Transformer, layout: Layout, cluster: Cluster) -> float:
    """Of all GPUs together."""
    return layout.global_batch / step_time(model, layout, cluster).total


def calibrate(
    observations: Sequence[Observation], start: Cluster, *, near: Cluster | None = None, only: Sequence[str] = ()
) -> Cluster:
    """The cluster whose predictions are nearest to the observations, by least squares of logarithms.

    Each fitted number also counts as an observation of its start, as sure as its freedom says, so that a few
    observations suffice. The search begins `near` a cluster whose fit is alike, which changes only how long it takes.
    With names of fields, `only` these are fitted.
    """
    if not observations:
        raise PacelineError("nothing to calibrate on: give at least one measured throughput")
    free = _free(observations, start, only)
    first = _numbers(free, start)
    freedom = np.array([one.freedom for one in free])

    def residuals(numbers: Vector) -> Vector:
        cluster = _with(start, free, numbers)
        missed = [math.log(samples_per_second(o.model, o.layout, cluster) / o.samples_per_s) for o in observations]
        return np.array([*(one / NOISE for one in missed), *(numbers - first) / freedom])

    if near is None:
        return _with(start, free, _least_squares(residuals, first))
    return _with(start, free, _least_squares(residuals, _numbers(free, near), damping=NEARLY_DONE))


def _free(observations: Sequence[Observation], start: Cluster, only: Sequence[str]) -> list[Free]:
    """The fields that some prediction depends on; the others stay exactly as they start."""

    def matters(free: Free) -> bool:
        moved = _with(start, [free], _numbers([free], start) + 1.0)
        return any(step_time(o.model, o.layout, moved) != step_time(o.model, o.layout, start) for o in observations)

    return [free for free in FREE if (not only or free.name in only) and matters(free)]


def _numbers(free: Sequence[Free], cluster: Cluster) -> Vector:
    return np.array([one.read(getattr(cluster, one.name)) for one in free])


def _with(cluster: Cluster, free: Sequence[Free], numbers: Vector) -> Cluster:
    fitted = {one.name: one.write(float(number)) for one, number in zip(free, numbers, strict=True)}
    return replace(cluster, **fitted)  # type: ignore[arg-type]


def _least_squares(residuals: Callable[[Vector], Vector], start: Vector, damping: float = 1.0) -> Vector:
    """Levenberg and Marquardt's method."""
    best, errors = start, residuals(start)
    slopes = _slopes(residuals, best, errors)
    for _ in range(ROUNDS):
        normal, gradient = slopes.T @ slopes, slopes.T @ errors
        trial = best - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
        tried = residuals(trial)
        gained = float(errors @ errors - tried @ tried)
        if gained <= 0:
            damping *= 4
            continue
        best, errors, damping = trial, tried, damping / 3
        if gained < SETTLED * float(errors @ errors):
            break
        slopes = _slopes(residuals, best, errors)
    return best


def _slopes(residuals: Callable[[Vector], Vector], numbers: Vector, errors: Vector) -> Vector:
    return np.column_stack([(residuals(numbers + step) - errors) / STEP for step in STEP * np.eye(numbers.size)])


System = Literal["libai", "megatron"]


@lru_cache
def published_observations(system: System) -> tuple[Observation, ...]:
    """Every published row once, in the table's order, less those whose layout contradicts itself."""
    unique: dict[Layout, Observation] = {}
    for row in libai_rows():
        if not row.is_contradictory:
            model = as_published(transformer(row.layout.model, row.layout.layers))
            unique.setdefault(row.layout, Observation(model, row.layout, float(getattr(row, system))))
    return tuple(unique.values())


@lru_cache
def h200_observations() -> tuple[Observation, ...]:
    """What the benchmark `parallel` measured on one H200."""
    observations = []
    for row in shipped_rows("paceline.analysis", "tables/plan_h200.csv"):
        layout = Layout.parse(row["layout"])
        model = transformer(layout.model, layout.layers, int(row["hidden"]), int(row["heads"]))
        observations.append(Observation(model, layout, float(row["samples_per_s"])))
    return tuple(observations)
