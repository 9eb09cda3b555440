"""A slice of the table of verdicts: comparisons of what did not change, and of what did."""

from __future__ import annotations

from bench.verdicts import comparisons

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
