"""Series whose changes are known, and how an answer is scored against them: what trends are put to the test with.

It needs numpy alone, so that another program's environment can make the same series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Values]

LENGTHS = (20, 50, 100)
OF_EACH = 50  # series of a class in the set that answers of other programs are stored for
SEED = 3107  # not one that the limits in the product were chosen with, or looked at while they were
BASE = 100.0


def normal(spread: float) -> Noise:
    """Independent from run to run."""
    return lambda rng, count: spread * rng.normal(size=count)


def bimodal(rng: np.random.Generator, count: int) -> Values:
    """One run in five lands in a second mode that is 6 to 10 % slower."""
    return 0.01 * rng.normal(size=count) + rng.uniform(0.06, 0.1) * (rng.random(count) < 0.2)


def louder(rng: np.random.Generator, count: int) -> Values:
    """Quiet, then four times as loud."""
    return np.where(np.arange(count) < count * rng.uniform(0.3, 0.7), 0.01, 0.04) * rng.normal(size=count)


def heavy(rng: np.random.Generator, count: int) -> Values:
    """Student's t with three degrees of freedom."""
    return 0.015 * rng.standard_t(3, count)


def with_outliers(rng: np.random.Generator, count: int) -> Values:
    """One run in twenty is 10 to 50 % slower."""
    return 0.01 * rng.normal(size=count) + (rng.random(count) < 0.05) * rng.uniform(0.1, 0.5, count)


def skewed(rng: np.random.Generator, count: int) -> Values:
    """Never much faster, sometimes much slower."""
    return 0.02 * (rng.exponential(size=count) - 1.0)


def waves(rng: np.random.Generator, count: int) -> Values:
    """AR(1): neighbours are correlated by 0.3."""
    draws = rng.normal(size=count)
    for place in range(1, count):
        draws[place] = 0.3 * draws[place - 1] + np.sqrt(0.91) * draws[place]
    return 0.02 * draws


@dataclass(frozen=True)
class Kind:
    """A class of series: its noise, and the sizes of the steps in it."""

    name: str
    noise: Noise
    steps: tuple[float, ...] = ()  # the size of the one step, up or down; of several, smallest and largest
    is_ramp: bool = False

    @property
    def has_steps(self) -> bool:
        """Whether recall can be asked for."""
        return bool(self.steps) and not self.is_ramp


KINDS = (
    Kind("level, normal noise", normal(0.02)),
    Kind("level, bimodal 80/20", bimodal),
    Kind("level, quiet then louder", louder),
    Kind("level, heavy tails", heavy),
    Kind("level, outliers", with_outliers),
    Kind("level, skewed noise", skewed),
    Kind("level, AR(1) 0.3", waves),
    *(
        Kind(f"step {step:.0%}, noise {spread:.0%}", normal(spread), (step,))
        for step in (0.02, 0.05, 0.1)
        for spread in (0.01, 0.03)
    ),
    Kind("several steps, noise 2%", normal(0.02), (0.05, 0.1)),
    Kind("step 10%, bimodal 80/20", bimodal, (0.1,)),
    Kind("step 10%, quiet then louder", louder, (0.1,)),
    Kind("step 5%, heavy tails", heavy, (0.05,)),
    Kind("step 5%, outliers", with_outliers, (0.05,)),
    Kind("step 10%, AR(1) 0.3", waves, (0.1,)),
    Kind("ramp 15%, noise 2%", normal(0.02), (0.15,), is_ramp=True),
)


@dataclass(frozen=True)
class Known:
    """One series, and the index of the first value behind each of its steps."""

    values: Values = field(repr=False)
    steps: tuple[int, ...]


def series_of(kind: Kind, length: int, count: int, seed: int = SEED) -> Iterator[Known]:
    """So many series of a class, the same ones for the same seed."""
    for number in range(count):
        rng = np.random.default_rng([seed, KINDS.index(kind), length, number])
        places = _places(kind, length, rng)
        level = np.zeros(length)
        if kind.is_ramp:
            level += rng.choice([-1.0, 1.0]) * kind.steps[0] * np.linspace(-0.5, 1.5, length).clip(0.0, 1.0)
        for place in places:
            level[place:] += rng.choice([-1.0, 1.0]) * rng.uniform(kind.steps[0], kind.steps[-1])
        yield Known(BASE * (1.0 + level) * np.exp(kind.noise(rng, length)), places)


def stored_set() -> Iterator[tuple[Kind, Known]]:
    """The thousand series that answers are stored for: of every class some of each length."""
    for kind in KINDS:
        for place, length in enumerate(LENGTHS):
            for known in series_of(kind, length, OF_EACH // 3 + (place < OF_EACH % 3)):
                yield kind, known


def _places(kind: Kind, length: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Where the steps are: not in the first or last tenth, several of them at least an eighth apart."""
    edge = max(3, length // 10)
    if not kind.has_steps:
        return ()
    if len(kind.steps) == 1:
        return (int(rng.integers(edge, length - edge + 1)),)
    count, gap = {20: 2, 50: 3, 100: 4}[length], max(4, length // 8)
    room = length - (count + 1) * gap
    return tuple(int(gap * (n + 1) + at) for n, at in enumerate(np.sort(rng.integers(0, room + 1, count))))


def tolerance(length: int) -> int:
    """How many runs an answer may be off: two, and of long series a twentieth."""
    return max(2, length // 20)


@dataclass(frozen=True)
class Score:
    """Answers over several series."""

    found: int = 0  # true steps that an answer names
    steps: int = 0
    answers: int = 0
    series: int = 0
    with_answers: int = 0

    def plus(self, known: Known, answers: Sequence[int]) -> Score:
        """With the answers about one series more; each step and each answer counts once."""
        left, reach = list(answers), tolerance(known.values.size)
        found = 0
        for step in known.steps:
            near = min(left, key=lambda place: abs(place - step), default=None)
            if near is not None and abs(near - step) <= reach:
                left.remove(near)
                found += 1
        return Score(
            self.found + found,
            self.steps + len(known.steps),
            self.answers + len(answers),
            self.series + 1,
            self.with_answers + bool(answers),
        )

    @property
    def recall(self) -> float:
        """The part of the steps that was named."""
        return self.found / self.steps if self.steps else 1.0

    @property
    def precision(self) -> float:
        """The part of the answers that are steps."""
        return self.found / self.answers if self.answers else 1.0
