"""The model of repeats, runs and sessions, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from paceline.core.uncertainty import Level, Part, differences, estimates, units_needed


def parts(*sessions: tuple[str, list[list[float]]]) -> list[Part]:
    """Sessions of runs of repeats."""
    return [
        Part(name, f"{name}.{number}", value, 1e-6, 20.0)
        for name, runs in sessions
        for number, repeats in enumerate(runs)
        for value in repeats
    ]


@pytest.mark.parametrize(
    ("one", "level", "units"),
    [
        (parts(("s", [[0.1]])), Level.SAMPLE, [0.1]),
        (parts(("s", [[0.1, 0.2, 0.3]])), Level.REPEAT, [0.1, 0.2, 0.3]),
        (parts(("s", [[0.1, 0.3], [0.5, 0.7], [0.1, 0.1]])), Level.RUN, [0.2, 0.6, 0.1]),
        (parts(("s", [[0.1], [0.3]]), ("t", [[0.5]]), ("u", [[0.9, 1.1]])), Level.SESSION, [0.2, 0.5, 1.0]),
    ],
)
def test_the_highest_level_that_varies_decides(one: list[Part], level: Level, units: list[float]) -> None:
    found = estimates([one])
    assert found.levels == [level]
    assert found.logs[0] == pytest.approx(np.mean(units))
    if level is Level.SAMPLE:
        assert (found.variances[0], found.freedoms[0]) == pytest.approx((1e-6, 20.0))
        return
    assert found.variances[0] == pytest.approx(np.var(units, ddof=1) / len(units))
    assert (found.freedoms[0], found.units[0]) == (len(units) - 1, len(units))


def test_what_shifts_a_session_cancels_where_both_sides_share_it() -> None:
    """Three sessions far apart, a run of each side in each: a paired test."""
    shifts, steps = (0.0, 5.0, -3.0), (0.11, 0.09, 0.12)
    before = parts(*((f"s{n}", [[shift]]) for n, shift in enumerate(shifts)))
    after = parts(*((f"s{n}", [[shift + step]]) for n, (shift, step) in enumerate(zip(shifts, steps, strict=True))))
    found = differences([before], [after])
    assert found.levels == [Level.RUN]
    paired = stats.ttest_1samp(steps, 0.0)
    assert found.changes[0] == pytest.approx(np.mean(steps))
    assert found.changes[0] / math.sqrt(found.variances[0]) == pytest.approx(paired.statistic)
    assert found.freedoms[0] == 2


def test_sides_in_sessions_of_their_own_are_compared_by_the_means_of_sessions() -> None:
    before = parts(*((f"s{n}", [[level], [level + 0.2]]) for n, level in enumerate((0.0, 0.1, 0.3))))
    after = parts(*((f"t{n}", [[level]]) for n, level in enumerate((1.0, 1.3, 1.1, 1.2))))
    found = differences([before], [after])
    welch = stats.ttest_ind([1.0, 1.3, 1.1, 1.2], [0.1, 0.2, 0.4], equal_var=False)
    assert found.levels == [Level.SESSION]
    assert found.changes[0] / math.sqrt(found.variances[0]) == pytest.approx(welch.statistic)
    assert found.freedoms[0] == pytest.approx(welch.df)
    assert (found.units, found.runs) == ([(3, 4)], [(6, 4)])


@pytest.mark.parametrize("runs", [1, 3])
def test_one_session_each_cannot_be_decided(runs: int) -> None:
    found = differences([parts(("s", [[0.1]] * runs))], [parts(("t", [[0.2]] * runs))])
    assert math.isnan(found.variances[0])


def test_a_history_adds_its_scatter_and_what_is_far_quieter_is_left_out() -> None:
    past = parts(*((f"h{n}", [[value], [value + 9.0]]) for n, value in enumerate((0.0, 0.2, 0.1))))  # the first counts
    alone = [parts(("s", [[0.0]]))], [parts(("t", [[1.0]]))]
    found = differences(*alone, [[past]])
    assert found.variances[0] == pytest.approx(2 * np.var([0.0, 0.2, 0.1], ddof=1))
    assert (found.freedoms[0], found.histories[0]) == (2, 2)
    noisy = parts(*((f"s{n}", [[value]]) for n, value in enumerate((0.0, 5.0, -4.0))))
    found = differences([noisy], [parts(*((f"t{n}", [[value]]) for n, value in enumerate((1.0, 4.0, -3.0))))], [[past]])
    assert found.histories[0] == 0


def test_cases_do_not_mix() -> None:
    one, other = parts(("s", [[0.1], [0.2]])), parts(("s", [[0.5], [0.9], [0.7]]))
    together = differences([one, other], [other, one])
    for place, pair in enumerate(((one, other), (other, one))):
        alone = differences([pair[0]], [pair[1]])
        assert together.changes[place] == pytest.approx(alone.changes[0])
        assert together.variances[place] == pytest.approx(alone.variances[0])


def test_how_many_units_show_a_difference() -> None:
    needed = units_needed(0.02**2, 0.05)
    assert needed is not None
    reaches = [stats.t.ppf(0.975, 2 * n - 2) * 0.02 * math.sqrt(2 / n) for n in (needed - 1, needed)]
    assert reaches[0] > 0.05 >= reaches[1]
    assert units_needed(9.0, 0.01) is None
