"""An MFU above 100 % is doubted: nothing is faster than its ceiling."""

from __future__ import annotations

import pytest

from paceline.benchmarks._model.measuring import _peak_doubts
from paceline.benchmarks._model.metrics import StepWork, step_measurements
from paceline.measure.memory import Peak

PEAK = Peak(1e12, "measured by paceline machine --measure on 2026-03-14, run k7qd")


@pytest.mark.parametrize(("flops", "kinds"), [(0.9e12, []), (5.6e12, ["beyond-peak"])])
def test_only_what_is_faster_than_its_peak_is_doubted(flops: float, kinds: list[str]) -> None:
    work = StepWork(samples=1, sample_name="image", tokens=None, flops=flops, peak=PEAK)
    doubts = _peak_doubts(step_measurements([1.0] * 20, work), work)
    assert [doubt.kind for doubt in doubts] == kinds
    assert all("560 %" in doubt.message and "run k7qd" in doubt.message for doubt in doubts)


def test_without_a_peak_there_is_nothing_to_doubt() -> None:
    work = StepWork(samples=1, sample_name="image", tokens=None, flops=1e12, peak=None)
    assert _peak_doubts(step_measurements([1.0] * 20, work), work) == []
