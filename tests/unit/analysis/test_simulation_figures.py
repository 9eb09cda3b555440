"""Figures of a schedule that is small enough to check by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.analysis.simulation import Line, Schedule, StudyCell, measure

TWO = Schedule(np.array([0.0, 0.0]), np.array([0.0, 10.0]), np.array([10.0, 40.0]), device_seconds=40.0, devices=2)


def test_a_schedule_in_figures() -> None:
    found = measure(TWO)
    assert (found.mean, found.p50, found.longest) == (25.0, 25.0, 40.0)
    assert found.slowdown == pytest.approx((1 + 40 / 30) / 2)
    assert found.utilisation == 0.5
    assert found.worst_wait == 10.0 / 20.0
    assert found.fairness == pytest.approx((1 + 4 / 3) ** 2 / (2 * (1 + 16 / 9)))


def test_a_short_task_does_not_blow_up_the_slowdown() -> None:
    short = Schedule(np.zeros(2), np.array([0.0, 99.0]), np.array([200.0, 99.001]), 200.0, 1)
    assert measure(short).slowdown < 10.0


def test_a_gain_is_a_ratio_of_sums_with_an_interval_over_seeds() -> None:
    fast = measure(TWO)
    lines = (
        Line("round-robin", tuple(replace(fast, mean=mean) for mean in (50.0, 75.0, 100.0))),
        Line("two-tier", tuple(replace(fast, mean=mean) for mean in (25.0, 25.0, 50.0))),
    )
    cell = StudyCell("w", 0.5, lines, 20.0)
    gain = cell.gain("two-tier")
    assert gain is not None and gain.interval is not None
    assert gain.value == 2.25 and gain.interval.low < 2.25 < gain.interval.high
    assert cell.gain("clairvoyant") is None
    assert lines[0].estimate("longest").interval is None
    single = StudyCell("w", 0.5, tuple(replace(line, outcomes=line.outcomes[:1]) for line in lines), 20.0)
    once = single.gain("two-tier")
    assert once is not None and once.interval is None and once.relative is None
