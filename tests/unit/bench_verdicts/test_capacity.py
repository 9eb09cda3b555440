"""A slice of the table of verdicts: searches in virtual time, against queues whose capacity is known."""

from __future__ import annotations

import numpy as np
import pytest
from bench.queues import Queue
from bench.verdicts.capacity import SERVICES, capacity, searched


@pytest.mark.parametrize(("queue", "budget"), [(Queue("M"), 150.0), (Queue("D"), 60.0)])
def test_the_interval_of_the_largest_rate_covers_and_the_time_is_kept(queue: Queue, budget: float) -> None:
    service, random = SERVICES["fast"], np.random.default_rng(3)
    runs = [searched(queue, service, budget, random) for _ in range(20)]
    truth = capacity(queue) / service
    said = [result.interval for result, _ in runs if result.interval is not None]
    assert len(said) >= 5
    assert sum(one.low <= truth <= one.high for one in said) >= len(said) - 3  # the 0.5 % limit of 95 % of 20
    assert all(seconds <= budget for _, seconds in runs)


def test_too_short_a_time_is_called_that() -> None:
    result, seconds = searched(Queue("M"), SERVICES["slow"], 60.0, np.random.default_rng(1))
    assert (result.verdict, result.interval) == ("out of time", None)
    assert seconds <= 60.0
    assert "the time was over" in result.reason
