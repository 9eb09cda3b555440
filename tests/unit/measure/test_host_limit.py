"""Allocation fails at a part of the free memory, and only within."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

from paceline.measure.memory import host_limit


def take(count: int) -> None:
    """Ask for memory without touching it."""
    np.empty(count, dtype=np.uint8)


def test_more_than_the_part_is_refused_and_less_is_not() -> None:
    free = psutil.virtual_memory().available
    with host_limit(0.3):
        take(int(0.1 * free))
        with pytest.raises(MemoryError):
            take(int(0.5 * free))
    take(int(0.5 * free))


def test_a_limit_within_a_limit_is_never_wider() -> None:
    free = psutil.virtual_memory().available
    with host_limit(0.2), host_limit(0.9), pytest.raises(MemoryError):
        take(int(0.5 * free))
