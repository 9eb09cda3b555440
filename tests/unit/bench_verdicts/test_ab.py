"""A slice of `python -m bench verdicts ab`: few trials, a fixed seed, limits that chance leaves room for."""

from __future__ import annotations

import pytest
from bench.verdicts.ab import CHANGE, NOISES, QUIET, WITHIN, fixed_rounds, trials
from bench.verdicts.cell import Cell

from paceline.analysis.compare.sides import Decision

TRIALS = 60


@pytest.mark.parametrize("noise", NOISES)
def test_sides_that_are_the_same_are_seldom_called_different(noise: str) -> None:
    none = trials(TRIALS, 1, NOISES[noise], 0.0)
    calls = none.count(Decision.BETTER, Decision.WORSE)
    assert Cell("ab", noise, "false calls", 0.05, at_most=True, hits=calls, tries=TRIALS).is_met(4)


def test_a_slow_down_is_seen_with_fewer_rounds_than_a_fixed_size_takes() -> None:
    seen = trials(TRIALS, 2, NOISES["normal"], CHANGE)
    assert Cell("ab", "3 %", "seen", 0.95, hits=seen.count(Decision.WORSE), tries=TRIALS).is_met()
    assert sum(seen.rounds) / TRIALS < fixed_rounds(TRIALS, 2, NOISES["normal"], CHANGE)


def test_a_difference_is_not_ruled_out_where_it_is_there() -> None:
    assert trials(TRIALS, 3, NOISES["normal"], 0.0, noise=QUIET).count(Decision.EQUAL) > 0.8 * TRIALS
    assert trials(TRIALS, 3, NOISES["normal"], WITHIN, noise=QUIET).count(Decision.EQUAL) < 0.1 * TRIALS
