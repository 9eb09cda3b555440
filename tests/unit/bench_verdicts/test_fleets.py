"""A slice of what `python -m bench verdicts fleets` measures."""

from __future__ import annotations

import pytest
from bench.verdicts.fleets import Fault, Noise, fleet_cells


@pytest.mark.parametrize(
    ("nodes", "noise", "kind", "shared", "fault"),
    [
        (100, 0.005, "normal", 0.0, "one component"),
        (100, 0.05, "normal", 0.5, "whole node"),
        (400, 0.02, "normal", 0.0, "one metric"),
        (200, 0.02, "t3", 0.0, "one component"),
        (200, 0.02, "t3", 0.5, "one metric"),
    ],
)
def test_few_are_accused_wrongly_and_few_defects_are_missed(
    nodes: int, noise: float, kind: Noise, shared: float, fault: Fault
) -> None:
    cells = list(fleet_cells(6, 7, nodes, noise, kind, shared, fault))
    assert [cell.claim for cell in cells] == ["precision", "recall", "claim, in deviations"]
    precision, recall, claim = cells
    assert precision.is_met(10) and recall.is_met(10), cells
    assert claim.is_met(), cells
