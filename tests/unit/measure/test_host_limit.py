"""Allocation fails at a part of the free memory, and only within."""

from __future__ import annotations

import resource
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from paceline.measure import memory
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


def test_afterwards_the_limits_are_as_they_were() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with host_limit(0.5):
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        assert soft > 0
        assert soft != before[0]
        assert hard == before[1]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_what_the_process_has_already_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**30))
    with host_limit(0.5):
        soft = resource.getrlimit(resource.RLIMIT_DATA)[0]
    used = memory._status("VmData")
    assert used is not None
    assert soft - 2**29 == pytest.approx(used, abs=2**24)
