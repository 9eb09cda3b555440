"""A slice of the table of verdicts: comparisons of what did not change, and of what did."""

from __future__ import annotations

import numpy as np
import pytest
from bench.verdicts import comparisons
from bench.verdicts.comparisons import SHOCK, Laboratory, Layout, Noise
from scipy import stats

from paceline.analysis.compare.significance import ratios

REPLICATES = 120


def test_claims_of_comparisons_hold() -> None:
    cells = [*comparisons._other_sessions(REPLICATES, 20), *comparisons._powers(REPLICATES, 20)]
    cells += comparisons._families(10, 20)
    assert [cell.case for cell in cells if not cell.is_met(len(cells))] == []


def test_one_session_each_is_withheld_without_history() -> None:
    alone = comparisons.Layout(runs=3)
    lab = comparisons.Laboratory(20, comparisons.Noise(session=0.02), 1)
    cell = comparisons._false_calls("", comparisons._compared(lab, alone, alone, is_shared=False))
    assert (cell.tries, cell.withheld) == (0, 20)


def test_one_run_each_in_a_session_has_students_chance_with_the_freedom_of_its_history() -> None:
    lab = Laboratory(300, Noise(run=0.01, session=SHOCK, is_common=True), 777)
    session = lab.sessions(1)
    before, runs_before = lab.side("a", Layout(), session, "s")
    after, runs_after = lab.side("b", Layout(), session, "s")
    past, earlier = lab.side("h", Layout(sessions=5, runs=3), lab.sessions(5), "h")
    within = earlier.reshape(300, 5, 3)
    variances = np.square(within - within.mean(axis=2, keepdims=True)).sum(axis=(1, 2)) / 10
    distances = np.abs(runs_after - runs_before)[:, 0] / np.sqrt(2.0 * variances)
    # Cases are independent then, so that exactly 5 % of unchanged families have a call.
    assert [one.chance for one in ratios(before, after, [past])] == pytest.approx(2.0 * stats.t.sf(distances, 10))
