"""Decides between two sides while rounds are still being measured, without more false calls for looking after each.

The test is a mixture of likelihood ratios of Student's t (a normal prior on the difference in units of its noise): as
long as nothing changed, the chance that its p-value is ever below 5 % is at most 5 %, however many rounds are looked at
and for whatever reason one stops. The interval is the set of ratios that the same test has not ruled out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from paceline.analysis.compare.significance import Ratio, ratio_of_pairs
from paceline.core.metric import Better
from paceline.core.stats import CONFIDENCE, Interval

PRIOR = 1.0  # variance of the difference that is expected, in units of the variance of one round's logarithm
MOST_ROUNDS = 10_000  # beyond which nobody would wait


class Decision(StrEnum):
    """What the rounds so far have decided."""

    BETTER = "better"
    WORSE = "worse"
    CHANGED = "changed"  # of a metric without a direction
    EQUAL = "equal"  # any difference larger than the bound is ruled out
    OPEN = "undecided"


def ratio_of_rounds(pairs: Sequence[tuple[float, float]], confidence: float = CONFIDENCE) -> Ratio:
    """The ratio over rounds, with an interval and a p-value that hold whenever one stops."""
    ratio = ratio_of_pairs(pairs, confidence)
    if ratio.value is None or ratio.error is None:
        return ratio
    centre, reach = math.log(ratio.value), critical(len(pairs), 1.0 - confidence) * ratio.error
    chance = _chance(abs(centre) / ratio.error, len(pairs))
    if not math.isfinite(reach):
        return ratio._replace(interval=None, chance=chance)
    interval = Interval(low=math.exp(centre - reach), high=math.exp(centre + reach), confidence=confidence)
    return ratio._replace(interval=interval, chance=chance)


def critical(rounds: int, false_calls: float) -> float:
    """How many standard errors the mean must be off before it is a difference; infinite with too few rounds."""
    spread = 1.0 + rounds * PRIOR
    threshold = (math.sqrt(spread) / false_calls) ** (2.0 / rounds)
    if rounds < 2 or threshold >= spread:
        return math.inf
    return math.sqrt((rounds - 1) * (threshold - 1.0) / (1.0 - threshold / spread))


def decision(ratio: Ratio, better: Better, within: float, *, is_change: bool) -> Decision:
    """What a ratio comes to; a difference that is surely smaller than `within` counts as none."""
    interval = ratio.interval
    if interval is None or ratio.value is None:
        return Decision.OPEN
    if 1.0 / (1.0 + within) < interval.low and interval.high < 1.0 + within:
        return Decision.EQUAL
    if not is_change:
        return Decision.OPEN
    if better is Better.NEITHER:
        return Decision.CHANGED
    return Decision.BETTER if (ratio.value > 1.0) == (better is Better.HIGHER) else Decision.WORSE


def rounds_to_decide(ratio: Ratio, rounds: int, within: float, confidence: float = CONFIDENCE) -> int | None:
    """How many rounds in all would decide, if ratio and noise stay as they are; None if more than anyone would wait."""
    if ratio.value is None or ratio.error is None:
        return None
    centre, noise = abs(math.log(ratio.value)), ratio.error * math.sqrt(rounds)
    distance = max(centre, math.log1p(within) - centre)
    count = rounds
    while critical(count, 1.0 - confidence) * noise >= distance * math.sqrt(count):
        count += max(1, count // 50)
        if count > MOST_ROUNDS:
            return None
    return count


def _chance(distance: float, rounds: int) -> float:
    """The inverse of the mixture's likelihood ratio: as a p-value it holds at every look."""
    spread, square = 1.0 + rounds * PRIOR, distance**2 / (rounds - 1)
    log_ratio = -0.5 * math.log(spread) + 0.5 * rounds * (math.log1p(square) - math.log1p(square / spread))
    return min(1.0, math.exp(-log_ratio))
