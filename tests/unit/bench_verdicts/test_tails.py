"""A slice of the table of verdicts: percentiles of queues whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bench.queues import Queue
from bench.verdicts.tails import _cells


@pytest.mark.parametrize(
    ("queue", "load", "count"),
    [
        (Queue("M"), 0.5, 1500), (Queue("M"), 0.7, 6000), (Queue("D"), 0.7, 6000), (Queue("M", 8), 0.7, 6000),
        (Queue("D"), 0.7, 1500),  # of which less than half have an interval: those that look quieter than they are
    ],
    ids=str,
)  # fmt: skip
def test_percentiles_of_queues_are_covered(queue: Queue, load: float, count: int) -> None:
    found = list(_cells(queue, load, count, 60, np.random.default_rng(5)))
    assert all(cell.is_met(20) for cell in found if cell.claim != "covers")
    covered = [cell for cell in found if cell.claim == "covers"]
    assert all(cell.hits >= 0.86 * cell.tries for cell in covered)  # 93 % less what 60 tries may be off by


@pytest.mark.parametrize("queue", [Queue("M"), Queue("M", 8)], ids=str)
def test_a_slow_queue_is_withheld_also_where_service_times_hide_it(queue: Queue) -> None:
    covered = [cell for cell in _cells(queue, 0.9, 1500, 60, np.random.default_rng(5)) if cell.claim == "covers"]
    assert all(cell.withheld >= 57 for cell in covered)


@pytest.mark.parametrize(
    "queue", [Queue("M"), Queue("D"), Queue("LN"), Queue("H2"), Queue("M", 4), Queue("D", 4)], ids=str
)
def test_the_truth_is_that_of_long_runs(queue: Queue) -> None:
    latencies = queue.latencies(0.7, 4000, 200, np.random.default_rng(1))
    _, from_empty = queue.from_empty(0.7, 200_000, np.random.default_rng(1))
    for share in (0.5, 0.9, 0.99):
        assert float(np.quantile(latencies, share)) == pytest.approx(queue.percentile(0.7, share), rel=0.06)
        assert float(np.quantile(from_empty, share)) == pytest.approx(queue.percentile(0.7, share), rel=0.12)


def test_truths_that_have_a_formula() -> None:
    assert Queue("D").percentile(0.5, 0.5) == pytest.approx(1.0, abs=0.003)  # half of the requests do not wait
    assert Queue("M").percentile(0.9, 0.99) == pytest.approx(math.log(100) * 10, rel=1e-3)
