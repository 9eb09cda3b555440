"""A slice of the table of verdicts: percentiles of queues whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bench.verdicts.tails import _cells, percentile, sojourns


@pytest.mark.parametrize(
    ("kind", "load", "count"), [("M/M/1", 0.5, 1500), ("M/M/1", 0.7, 6000), ("M/D/1", 0.7, 6000), ("M/M/1", 0.9, 1500)]
)
def test_percentiles_of_queues_are_covered_or_withheld(kind: str, load: float, count: int) -> None:
    found = list(_cells(kind, load, count, 60, np.random.default_rng(5)))
    assert all(cell.is_met(20) for cell in found if cell.claim != "covers" or cell.tries < 30)
    covered = [cell for cell in found if cell.claim == "covers"]
    assert all(cell.hits >= 0.86 * cell.tries for cell in covered)  # 93 % less what 60 tries may be off by
    assert all((cell.withheld == 60) == (load == 0.9) for cell in covered) or load == 0.5


def test_the_truth_is_that_of_long_runs() -> None:
    for kind, load in (("M/M/1", 0.7), ("M/D/1", 0.7)):
        latencies = sojourns(kind, load, 4000, 200, np.random.default_rng(1))
        for share in (0.5, 0.9, 0.99):
            assert float(np.quantile(latencies, share)) == pytest.approx(percentile(kind, load, share), rel=0.03)
    assert percentile("M/D/1", 0.5, 0.5) == pytest.approx(1.0, abs=0.003)  # half of the requests do not wait
    assert percentile("M/M/1", 0.9, 0.99) == pytest.approx(math.log(100) * 10)
