"""Networks between users and server: how long messages take."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.load.parameters import PRESETS, Link, link_of


def test_a_request_takes_the_delay_and_its_size_at_the_bandwidth() -> None:
    sizes = np.array([0.0, 100.0, 1000.0])
    random = np.random.default_rng(1)
    assert Link(delay=0.5, up=200).way_up(sizes, random).tolist() == [0.5, 1.0, 5.5]
    assert Link(delay=0.5).way_up(sizes, random).tolist() == [0.5] * 3
    assert Link(delay=0.5, down=200).way_down(3, random).tolist() == [0.5] * 3


def test_jitter_is_added_to_the_delay_and_has_its_mean() -> None:
    added = Link(delay=1.0, jitter=0.25).way_down(20_000, np.random.default_rng(1)) - 1.0
    assert added.min() >= 0.0
    assert added.mean() == pytest.approx(0.25, rel=0.05)


def test_a_link_is_named_or_written() -> None:
    written = Link(delay=1.0)
    assert link_of(written) is written
    assert link_of("wifi") is PRESETS["wifi"]
