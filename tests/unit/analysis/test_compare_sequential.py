"""The test after every round: what it takes to decide, and which way."""

from __future__ import annotations

import math

import pytest

from paceline.analysis.compare.sides import Decision, critical, decision, ratio_of_rounds, rounds_to_decide
from paceline.analysis.compare.significance import Ratio, ratio_of_pairs
from paceline.core.metric import Better
from paceline.core.stats import Interval

SLOWER = [(1.00, 1.03), (1.01, 1.05), (0.99, 1.02), (1.00, 1.02), (1.02, 1.06), (1.01, 1.04)]


def between(low: float, high: float) -> Ratio:
    value = math.sqrt(low * high)
    return Ratio(1.0, value, value, Interval(low=low, high=high, confidence=0.95), 0.01, 9, 0.5)


def test_fewer_than_five_rounds_decide_nothing() -> None:
    assert [critical(rounds, 0.05) for rounds in (1, 2, 3, 4)] == [math.inf] * 4
    assert critical(5, 0.05) == pytest.approx(8.45, abs=0.01)
    assert ratio_of_rounds(SLOWER[:4]).interval is None
    assert ratio_of_rounds(SLOWER[:4]).value == ratio_of_pairs(SLOWER[:4]).value


def test_more_rounds_need_fewer_standard_errors_but_more_than_a_single_look() -> None:
    needed = [critical(rounds, 0.05) for rounds in (6, 10, 20, 40)]
    assert needed == sorted(needed, reverse=True)
    assert needed == pytest.approx([5.45, 3.87, 3.42, 3.32], abs=0.01)
    assert critical(10, 0.01) > critical(10, 0.05)


def test_the_interval_leaves_out_one_where_the_p_value_is_below_five_per_cent() -> None:
    for count in (5, 6):
        ratio = ratio_of_rounds(SLOWER[:count])
        assert ratio.interval is not None
        assert ratio.chance is not None
        assert (ratio.interval.low > 1.0) == (ratio.chance < 0.05)
    once = ratio_of_pairs(SLOWER)
    assert once.interval is not None
    assert ratio.interval is not None
    assert ratio.interval.low < once.interval.low
    # The end of the interval is the ratio that is on the verge of being ruled out.
    shifted = ratio_of_rounds([(a * ratio.interval.low, b) for a, b in SLOWER])
    assert shifted.chance == pytest.approx(0.05, rel=1e-6)


def test_what_has_no_ratio_is_left_as_it_is() -> None:
    assert ratio_of_rounds([(0.0, 1.0)] * 6).value is None
    assert ratio_of_rounds([(1.0, 2.0)]).interval is None


@pytest.mark.parametrize(
    ("ratio", "is_change", "better", "expected"),
    [
        (between(1.02, 1.05), True, Better.LOWER, Decision.WORSE),
        (between(1.02, 1.05), True, Better.HIGHER, Decision.BETTER),
        (between(0.95, 0.98), True, Better.HIGHER, Decision.WORSE),
        (between(0.95, 0.98), True, Better.NEITHER, Decision.CHANGED),
        (between(0.98, 1.05), False, Better.LOWER, Decision.OPEN),
        (between(0.995, 1.005), False, Better.LOWER, Decision.EQUAL),
        (between(1.002, 1.008), True, Better.LOWER, Decision.EQUAL),  # surely there, and surely too small to matter
        (between(0.989, 1.005), False, Better.LOWER, Decision.OPEN),
        (between(1.01, 1.02)._replace(interval=None), True, Better.LOWER, Decision.OPEN),
    ],
)
def test_what_a_ratio_comes_to(ratio: Ratio, is_change: bool, better: Better, expected: Decision) -> None:
    assert decision(ratio, better, 0.01, is_change=is_change) is expected


def test_the_rounds_that_would_decide_follow_from_noise_and_difference() -> None:
    open_still = Ratio(1.0, 1.01, 1.01, None, 0.01, 9, 0.3)  # after ten rounds, a logarithm's noise of 3 %
    count = rounds_to_decide(open_still, 10, 0.001)
    assert count is not None
    assert critical(count, 0.05) * 0.01 * math.sqrt(10 / count) < math.log(1.01)
    assert 80 < count < 140
    assert rounds_to_decide(open_still._replace(value=1.0), 10, 0.01) is not None  # equal is a decision, too
    assert rounds_to_decide(open_still._replace(error=10.0), 10, 0.01) is None
    assert rounds_to_decide(open_still._replace(error=None), 10, 0.01) is None
