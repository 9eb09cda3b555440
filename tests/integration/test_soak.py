"""A leader over simulated days: a slice of `python -m bench soak`, and that growth would be seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.soak import Day, grown, soak


def test_two_days_of_jobs_leave_nothing_behind() -> None:
    days = soak(jobs=60, days=2)
    assert [day.jobs for day in days] == [30, 60]
    assert days[1].descriptors <= days[0].descriptors
    assert days[1].threads <= days[0].threads


@pytest.mark.parametrize(("name", "is_seen"), [("memory", True), ("descriptors", True), ("log", False)])
def test_what_grows_is_named(name: str, is_seen: bool) -> None:
    usual = Day(1, 10, memory=100, descriptors=10, threads=5, store=100, write_ahead=100, log=10)
    days = [usual] * 10 + [replace(usual, **{name: 2 * getattr(usual, name)})]
    assert grown(days) == ([name] if is_seen else [])
