"""Figures of a schedule that is small enough to check by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.analysis.simulation import Line, Schedule, StudyCell, measure, ratio

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


def test_two_seeds_have_an_interval_and_one_has_none() -> None:
    slow, fast = measure(TWO), replace(measure(TWO), mean=20.0, longest=30.0)
    line = Line("x", (slow, fast))
    estimate = line.estimate("mean")
    assert estimate.value == 22.5
    assert estimate.interval is not None
    # Student's 97.5 % quantile of one degree of freedom, times the error of the mean.
    assert estimate.interval.high - 22.5 == pytest.approx(12.7062 * 2.5, rel=1e-4)
    assert line.estimate("longest").value == 40.0
    assert Line("x", (slow,)).estimate("mean").interval is None
    gain = ratio(line, Line("y", (fast, fast)))
    assert gain.value == 45.0 / 40.0
    assert gain.interval is not None
    assert ratio(Line("x", (slow,)), Line("y", (fast,))).interval is None


def test_percentiles_waits_and_the_span_count_from_when_the_tasks_came() -> None:
    # Task n comes at 100, waits n / 2 s and takes n / 2 s.
    number = np.arange(101.0)
    came = np.full(101, 100.0)
    figures = measure(Schedule(came, came + number / 2, came + number, device_seconds=500.0, devices=10))
    assert (figures.mean, figures.p50, figures.p95, figures.p99, figures.longest) == (50.0, 50.0, 95.0, 99.0, 100.0)
    assert figures.utilisation == pytest.approx(500.0 / (10 * 100.0))
    assert figures.worst_wait == pytest.approx(50.0 / 25.0)


def test_the_slowdown_of_a_short_task_counts_from_a_tenth_of_the_mean_duration() -> None:
    # Durations of 19 and 1 s have a mean of 10 s; the second task waited for 4 s and the first for none.
    schedule = Schedule(np.array([5.0, 5.0]), np.array([5.0, 9.0]), np.array([24.0, 10.0]), 20.0, 1)
    assert measure(schedule).slowdown == pytest.approx((1.0 + 5.0 / 1.0) / 2)
    shorter = Schedule(np.array([5.0, 5.0]), np.array([5.0, 9.5]), np.array([24.5, 10.0]), 20.0, 1)
    assert measure(shorter).slowdown == pytest.approx((1.0 + 5.0 / 1.0) / 2)


def test_the_interval_of_a_gain_is_that_of_the_jackknife() -> None:
    means = {"round-robin": (50.0, 75.0, 100.0), "two-tier": (25.0, 25.0, 50.0)}
    lines = [Line(name, tuple(replace(measure(TWO), mean=mean) for mean in values)) for name, values in means.items()]
    gain = StudyCell("w", 0.5, tuple(lines), 20.0).gain("two-tier", over="round-robin")
    assert gain is not None and gain.interval is not None
    # Without one seed each the gains are 7/3, 2 and 5/2; 4.30265 is Student's quantile of two degrees of freedom.
    gains = np.array([7 / 3, 2.0, 5 / 2])
    reach = 4.30265 * float(np.sqrt(2 / 3 * ((gains - gains.mean()) ** 2).sum()))
    assert (gain.interval.low, gain.interval.high) == (
        pytest.approx(2.25 - reach, rel=1e-4),
        pytest.approx(2.25 + reach, rel=1e-4),
    )
    assert gain.interval.confidence == 0.95
    assert gain.relative == pytest.approx(reach / 2.25, rel=1e-4)


def test_a_line_is_looked_up_by_its_policy_and_a_gain_needs_both() -> None:
    first, second = Line("two-tier", (measure(TWO),)), Line("clairvoyant", (measure(TWO),))
    cell = StudyCell("w", 0.5, (first, second), 20.0)
    assert (cell.line("two-tier"), cell.line("clairvoyant"), cell.line("round-robin")) == (first, second, None)
    assert cell.gain("two-tier") is None
    assert cell.gain("round-robin", over="two-tier") is None


def test_of_extremes_over_seeds_the_most_extreme_counts() -> None:
    outcomes = tuple(replace(measure(TWO), longest=value, worst_wait=value / 10) for value in (30.0, 50.0, 40.0))
    line = Line("x", outcomes)
    assert (line.estimate("longest").value, line.estimate("worst_wait").value) == (50.0, 5.0)
    assert line.estimate("worst_wait").interval is None
    means = Line("x", tuple(replace(measure(TWO), mean=mean) for mean in (10.0, 20.0, 60.0))).estimate("mean")
    assert means.value == pytest.approx(30.0) and means.interval is not None
    assert means.interval.high - 30.0 == pytest.approx(4.30265 * 700**0.5 / 3**0.5, rel=1e-4)
    assert 30.0 - means.interval.low == pytest.approx(4.30265 * 700**0.5 / 3**0.5, rel=1e-4)
