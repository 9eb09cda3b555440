"""`paceline ab`: how often its rounds call a difference that is none, see one that is there, and what that costs.

Rounds are drawn as the command draws them, A B B A, with noise of each measurement and a drift that both sides share;
after each one the product's own test decides whether to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.verdicts.cell import Cell
from paceline.analysis.compare.sides import Decision, decision, ratio_of_rounds
from paceline.analysis.compare.significance import FALSE_ALARMS, ratio_of_pairs
from paceline.core.metric import Better

ROUNDS = 30  # the command's own limit
NOISE = 0.02  # of one measurement
QUIET = 0.005  # so little that no difference can be shown within the rounds
DRIFT = 0.005  # of the machine from one measurement to the next, a random walk
CHANGE = 0.03
WITHIN = 0.01
POWER = 0.95

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]

NOISES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(0.0, 1.0, shape),
    "skewed": lambda rng, shape: rng.exponential(1.0, shape),
    "heavy tails": lambda rng, shape: rng.standard_t(2, shape),
    "two modes": lambda rng, shape: rng.normal(0.0, 0.25, shape) + 3.0 * (rng.random(shape) < 0.2),
}


@dataclass(frozen=True)
class Trials:
    """What came of many comparisons."""

    decisions: list[Decision]
    rounds: list[int]
    covered: int  # whose interval, where there was one, has the true ratio in it
    with_interval: int

    def count(self, *wanted: Decision) -> int:
        return sum(one in wanted for one in self.decisions)


def logs(rng: np.random.Generator, draw: Draw, rounds: int, change: float, noise: float = NOISE) -> Floats:
    """Logarithms of A and B in each round, in a row each."""
    walk = np.cumsum(rng.normal(0.0, DRIFT * noise / NOISE, 2 * rounds)).reshape(rounds, 2)
    measured = walk + noise * draw(rng, (rounds, 2))
    measured[1::2] = measured[1::2, ::-1].copy()  # B came first
    measured[:, 1] += np.log1p(change)
    return measured


def trials(
    replicates: int, seed: int, draw: Draw, change: float, *, rounds: int = ROUNDS, noise: float = NOISE
) -> Trials:
    """Comparisons of times, each until it is decided or out of rounds."""
    rng = np.random.default_rng(seed)
    decisions, counts, covered, with_interval = [], [], 0, 0
    for _ in range(replicates):
        pairs = [(float(a), float(b)) for a, b in np.exp(logs(rng, draw, rounds, change, noise))]
        for count in range(2, rounds + 1):
            ratio = ratio_of_rounds(pairs[:count])
            is_change = ratio.chance is not None and ratio.chance <= FALSE_ALARMS
            decided = decision(ratio, Better.LOWER, WITHIN, is_change=is_change)
            if decided is not Decision.OPEN:
                break
        decisions.append(decided)
        counts.append(count)
        if ratio.interval is not None:
            with_interval += 1
            covered += ratio.interval.low <= 1.0 + change <= ratio.interval.high
    return Trials(decisions, counts, covered, with_interval)


def fixed_rounds(replicates: int, seed: int, draw: Draw, change: float) -> int:
    """How many rounds a test of fixed size, Student's on the pairs, takes for the same power."""
    rng = np.random.default_rng(seed)
    every = [logs(rng, draw, ROUNDS, change) for _ in range(replicates)]
    for rounds in range(3, ROUNDS + 1):
        chances = [ratio_of_pairs(np.exp(one[:rounds]).tolist()).chance for one in every]
        if sum(chance is not None and chance <= FALSE_ALARMS for chance in chances) >= POWER * replicates:
            return rounds
    return ROUNDS


def cells(replicates: int, seed: int) -> Iterator[Cell]:
    """False calls, power, intervals and cost."""
    called = (Decision.BETTER, Decision.WORSE)
    for rounds in (ROUNDS, 5 * ROUNDS):
        for name, draw in NOISES.items():
            tries = replicates if rounds == ROUNDS else max(200, replicates // 5)
            none = trials(tries, seed, draw, 0.0, rounds=rounds)
            case = f"{name}, at most {rounds} rounds"
            yield Cell("ab, no change", case, "false calls", 0.05, at_most=True, hits=none.count(*called), tries=tries)
    for name, draw in NOISES.items():
        equal = trials(replicates, seed, draw, WITHIN, noise=QUIET).count(Decision.EQUAL)
        case = f"{name}, a change of {WITHIN:.0%}, noise of {QUIET:.1%}"
        yield Cell("ab, ruled out", case, "falsely", 0.05, at_most=True, hits=equal, tries=replicates)
    same = trials(replicates, seed, NOISES["normal"], 0.0, noise=QUIET)
    case = f"no change, noise of {QUIET:.1%}"
    yield Cell("ab, ruled out", case, "shown", POWER, hits=same.count(Decision.EQUAL), tries=replicates)
    for change in (0.0, CHANGE):
        stopped = trials(replicates, seed, NOISES["normal"], change)
        case = f"normal, a change of {change:.0%}, at the end"
        yield Cell("ab, interval", case, "covers", 0.95, hits=stopped.covered, tries=stopped.with_interval)
    seen = trials(replicates, seed, NOISES["normal"], CHANGE)
    case = f"{CHANGE:.0%} slower, noise of {NOISE:.0%}"
    yield Cell("ab, a change", case, "seen", POWER, hits=seen.count(Decision.WORSE), tries=replicates)
    fixed = fixed_rounds(replicates, seed, NOISES["normal"], CHANGE)
    mean = float(np.mean(seen.rounds)) / fixed
    error = float(np.std(seen.rounds)) / fixed / np.sqrt(replicates)
    note = f"{np.mean(seen.rounds):.1f} rounds on average, {fixed} of fixed size for {POWER:.0%}"
    yield Cell("ab, cost", case, "rounds over fixed size", 1.0, at_most=True, value=mean, error=error, note=note)
