"""A crowd at the front of a real leader while it measures: a slice of `python -m bench flood`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from bench import flood

HALF_OPEN, SLOW, POLLING = 700, 10, 40


@pytest.mark.long
def test_a_crowd_at_the_front_stops_neither_who_is_let_in_nor_what_is_measured(tmp_path: Path) -> None:
    with flood.leading(tmp_path, is_alone=True) as leader:
        flood.fill(leader, 50)
        front = partial(flood.crowded, numbers=(HALF_OPEN, SLOW, POLLING))
        block = flood.measured_block(leader, "measured", front)
    assert block.attempts == 1
    for client in block.clients:
        answered = {status for status in client.statuses if not status.startswith("again")}
        assert answered <= {"200", "201"}, client.statuses
        assert sum(client.statuses[status] for status in answered) == len(client.seconds) > 0
    counts = block.crowd["counts"]
    assert counts["half-open: shed"] > 0, "there is no room for all of them"
    assert block.crowd["slow_most"] == SLOW
    assert {name for name in counts if name.startswith("poll") and "again" not in name} == {"poll: 200"}
    assert leader.watched["descriptors"] < flood.DESCRIPTORS
