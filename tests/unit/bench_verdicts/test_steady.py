"""A slice of the table: no warm-up biases a result unseen, quiet steps have no warning, stopping misleads nobody."""

from __future__ import annotations

import pytest
from bench.verdicts import means
from bench.verdicts.steady import BIAS, FAMILIES, QUIET, of_family, stopped


@pytest.mark.parametrize("family", FAMILIES)
def test_a_warm_up_leaves_no_bias_without_a_warning(family: str) -> None:
    measured = [of_family(family, 7, index) for index in range(6)]
    assert [one for one in measured if one.bias >= BIAS and not one.warnings] == []


def test_quiet_steady_steps_are_not_warned_of() -> None:
    assert sum(bool(of_family(QUIET, 7, index).warnings) for index in range(5)) <= 1


def test_intervals_at_the_stop_hold_the_truth() -> None:
    for cell in stopped(means.SHAPES[0], 0.7, 40, 7):
        assert cell.tries - cell.hits <= 8, (cell.part, cell.measured)
