"""A slice of the table: the intervals of mean and median hold the truth, and are withheld only where they must be."""

from __future__ import annotations

import numpy as np
import pytest
from bench.verdicts.means import SHAPES, coverage, series

CELLS = [
    (shape, correlation, count) for shape in SHAPES for correlation, count in ((0.0, 30), (0.7, 200), (0.97, 1000))
]


@pytest.mark.parametrize(("shape", "correlation", "count"), CELLS, ids=lambda one: getattr(one, "name", str(one)))
def test_the_truth_lies_within(shape: object, correlation: float, count: int) -> None:
    assert shape in SHAPES
    rows = list(series(shape, correlation, count, 100, np.random.default_rng(3)))
    for cell in coverage("", rows, shape.mean, shape.median):
        # Widths of a hundred series are not known well enough to be judged here.
        assert cell.tries - cell.hits <= 15, (cell.part, cell.measured)
        assert correlation > 0.7 or cell.withheld <= 5
