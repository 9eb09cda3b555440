"""Steady state and the stop rule: step times whose truth is known, in virtual time through the loop that measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.verdicts import means
from bench.verdicts.cell import Cell
from paceline.core.parameters import MeasuringParameters
from paceline.devices.timeline import HostTimeline
from paceline.measure import loop

PART = "steady state"
BIAS = 0.02
MOST_SECONDS = 20.0  # warm-up and budget, by default
REPLICATES_EACH = 20  # for one shape of a family: 2,000 are 100 of each, 500 with a bias in all
WARNINGS = {"unsteady", "drifting", "short", "imprecise", "noisy"}
FAMILIES = ("settling", "step at 2 s", "step at 6 s", "throttling", "drift")

Level = Callable[[float], float]  # seconds under load: the true step time, over that at the end


@dataclass(frozen=True)
class Shape:
    """How steps behave while they warm up, and how noisy they are."""

    level: Level
    seconds: float  # of a step in the end
    noise: float  # standard deviation of a step, as a part of it
    correlation: float  # of neighbours, AR(1)

    def factors(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """The noise of so many steps."""
        return np.maximum(0.05, 1.0 + self.noise * autoregressive(rng, count, self.correlation))


@dataclass(frozen=True)
class Measured:
    """What the loop made of a shape."""

    bias: float  # of the mean or of the median, whichever is further off, without noise
    warnings: frozenset[str]
    seconds: float  # under load


def autoregressive(rng: np.random.Generator, count: int, correlation: float) -> NDArray[np.float64]:
    """AR(1) of variance 1."""
    values = rng.standard_normal(count)
    if correlation:
        values[1:] *= math.sqrt(1.0 - correlation**2)
        for index in range(1, count):
            values[index] += correlation * values[index - 1]
    return values


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """One number, as likely in each decade."""
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def level_of(family: str, rng: np.random.Generator) -> Level:
    """A warm-up of this kind, drawn at random."""
    height = log_uniform(rng, 0.02, 0.4)
    if family == "settling":
        size, constant = float(rng.choice([-0.5, 1.0])) * height, log_uniform(rng, 0.3, 30.0)
        return lambda at: 1.0 + size * math.exp(-at / constant)
    if family.startswith("step"):
        until = float(family.split()[2])
        return lambda at: 1.0 + (height if at < until else 0.0)
    if family == "throttling":
        onset, low = log_uniform(rng, 1.0, 7.0), 1.0 / (1.0 + height)
        return lambda at: low if at < onset else 1.0 - (1.0 - low) * math.exp(-(at - onset) / 0.5)
    if family == "drift":
        size, ends = float(rng.choice([-0.5, 1.0])) * height, log_uniform(rng, 3.0, 30.0)
        return lambda at: 1.0 + size * max(0.0, 1.0 - at / ends)
    return lambda at: 1.0


def shape_of(family: str, rng: np.random.Generator) -> Shape:
    """A shape of this family, with steps and noise drawn at random."""
    if family == QUIET:
        noise, correlation = log_uniform(rng, 0.001, 0.005), float(rng.uniform(0.0, 0.5))
        return Shape(level_of(family, rng), log_uniform(rng, 0.001, 0.1), noise, correlation)
    return Shape(
        level_of(family, rng), log_uniform(rng, 1e-4, 2.0), log_uniform(rng, 0.001, 0.05), float(rng.uniform(0.0, 0.9))
    )


class VirtualSteps:
    """Steps that take no time but on their own clock."""

    def __init__(self, level: Level, seconds: float, factors: NDArray[np.float64]) -> None:
        self.now = 0.0
        self.levels: list[float] = []
        self._level, self._seconds, self._factors = level, seconds, factors

    def __call__(self) -> None:
        level = self._level(self.now)
        factor = self._factors[len(self.levels) % len(self._factors)]
        self.levels.append(level)
        self.now += self._seconds * level * float(factor)

    def clock(self) -> float:
        """Seconds under load so far."""
        return self.now


def measure(shape: Shape, parameters: MeasuringParameters, rng: np.random.Generator) -> Measured:
    """Warm up and measure as a case does."""
    most = min(120_000, int(2.0 * (parameters.warm_up + parameters.budget) / shape.seconds) + 100)
    steps = VirtualSteps(shape.level, shape.seconds, shape.factors(rng, most))
    warm = loop.warm_up(steps, HostTimeline(steps.clock), parameters, clock=steps.clock)
    timed = loop.measure(steps, HostTimeline(steps.clock), parameters, clock=steps.clock)
    levels = steps.levels[-len(timed.samples) :]
    bias = max(abs(float(np.mean(levels)) - 1.0), abs(float(np.median(levels)) - 1.0))
    kinds = frozenset(warning.kind for warning in loop.warnings(warm, timed, parameters))
    return Measured(bias, kinds & WARNINGS, steps.now)


QUIET = "steady and quiet"
# Mean seconds under load of the same shapes when half a second without a visible drift was enough, for the cost.
BEFORE = {
    "settling": 6.8,
    "step at 2 s": 5.6,
    "step at 6 s": 5.1,
    "throttling": 5.7,
    "drift": 6.9,
    "steady": 5.6,
    QUIET: 1.1,
}
# The stop rule by itself: an interval that some of the samples reach early, so that looking often would show.
STOPPING = MeasuringParameters(span=0.0, interval=0.03, budget=12.0)
STEP_SECONDS = 0.005
CORRELATIONS = (0.0, 0.7, 0.9)


def cells(replicates: int, seed: int) -> Iterator[Cell]:
    """Warm-ups of every family, steps that are steady, and the stop rule over and over."""
    count = math.ceil(replicates / REPLICATES_EACH)
    for family in FAMILIES:
        measured = [of_family(family, seed, index) for index in range(count)]
        held = sum(one.bias < BIAS or bool(one.warnings) for one in measured)
        alone = sum(one.bias < BIAS for one in measured)
        yield Cell(PART, family, "bias below 2 % or a warning", bound=1.0, hits=held, tries=count)
        yield Cell(PART, family, "bias below 2 %", bound=0.3, hits=alone, tries=count)
        yield cost(family, measured)
    for family, bound in (("steady", 0.5), (QUIET, 0.1)):
        measured = [of_family(family, seed, index) for index in range(count)]
        warned = sum(bool(one.warnings) for one in measured)
        drifting = sum("drifting" in one.warnings for one in measured)
        yield Cell(PART, family, "warnings", bound=bound, at_most=True, hits=warned, tries=count)
        yield Cell(PART, family, "said to drift", bound=0.05, at_most=True, hits=drifting, tries=count)
        yield cost(family, measured)
    fewer = max(1, replicates // 5)
    for shape in means.SHAPES:
        for correlation in CORRELATIONS:
            yield from stopped(shape, correlation, fewer, seed)


def of_family(family: str, seed: int, index: int) -> Measured:
    """One shape, measured with the defaults."""
    rng = np.random.default_rng([seed, len(family), index])
    return measure(shape_of(family, rng), MeasuringParameters(), rng)


def cost(family: str, measured: list[Measured]) -> Cell:
    """The time that it took, on average."""
    seconds = np.array([one.seconds for one in measured])
    return Cell(
        PART,
        family,
        "seconds under load",
        bound=MOST_SECONDS,
        at_most=True,
        value=float(seconds.mean()),
        error=float(seconds.std()) / math.sqrt(seconds.size),
        note=f"{BEFORE[family]:g} s before",
    )


def stopped(shape: means.Shape, correlation: float, replicates: int, seed: int) -> Iterator[Cell]:
    """The intervals of mean and median at the moment at which the loop stopped."""
    rng = np.random.default_rng([seed, means.SHAPES.index(shape), round(100 * correlation)])
    batches = []
    for row in means.series(shape, correlation, 4000, replicates, rng):
        steps = VirtualSteps(lambda at: 1.0, STEP_SECONDS, np.maximum(row, 0.01))
        timed = loop.measure(steps, HostTimeline(steps.clock), STOPPING, clock=steps.clock)
        batches.append(np.asarray(timed.samples) / STEP_SECONDS)
    case = f"stop rule included: {shape.name}, AR(1) {correlation:g}"
    length = float(np.median([batch.size for batch in batches]))
    for cell in means.coverage(case, batches, shape.mean, shape.median):
        # How long they are is random, so that there is no width to compare with.
        yield replace(cell, width=None, note=f"a fifth of the replicates; stopped at {length:.0f} steps")
