"""An MFU above 100 % gets a warning: nothing is faster than its ceiling."""

from __future__ import annotations

import pytest

from paceline.benchmarks._model.measuring import StepWork, _peak_warnings, step_measurements
from paceline.measure.memory import Peak

PEAK = Peak(1e12, "measured by paceline machine --measure on 2026-03-14, run k7qd")


@pytest.mark.parametrize(("flops", "kinds"), [(0.9e12, []), (5.6e12, ["beyond-peak"])])
def test_only_what_is_faster_than_its_peak_is_warned(flops: float, kinds: list[str]) -> None:
    work = StepWork(samples=1, sample_name="image", tokens=None, flops=flops, peak=PEAK)
    warnings = _peak_warnings(step_measurements([1.0] * 20, work), work)
    assert [warning.kind for warning in warnings] == kinds
    assert all("560 %" in warning.message and "run k7qd" in warning.message for warning in warnings)


def test_without_a_peak_there_is_nothing_to_warning() -> None:
    work = StepWork(samples=1, sample_name="image", tokens=None, flops=1e12, peak=None)
    assert _peak_warnings(step_measurements([1.0] * 20, work), work) == []
