"""Two computations from one seed: the same, different for a stated reason, or silently corrupt."""

from __future__ import annotations

import math
import warnings

import pytest

from paceline.benchmarks._model.checks import caught_warnings, compare_runs
from paceline.core.errors import CaseError, SilentCorruption


def test_the_same_numbers_are_the_same_and_so_is_the_same_not_a_number() -> None:
    compare_runs([1.5, math.nan], [1.5, math.nan], 7, [])


@pytest.mark.parametrize("second", [[1.0, 2.0000000000000004], [1.0], [1.0, math.nan]])
def test_any_difference_is_silent_corruption(second: list[float]) -> None:
    with caught_warnings(enabled=True) as caught, pytest.raises(SilentCorruption, match="seed 7"):
        compare_runs([1.0, 2.0], second, 7, caught)


def test_an_operator_without_a_deterministic_implementation_excuses_a_difference() -> None:
    with caught_warnings(enabled=True) as caught:
        warnings.warn("scatter_add does not have a deterministic implementation. More words.", stacklevel=1)
        with pytest.raises(CaseError, match=r"proves nothing: scatter_add does not have") as raised:
            compare_runs([1.0], [2.0], 7, caught)
    assert not isinstance(raised.value, SilentCorruption)
