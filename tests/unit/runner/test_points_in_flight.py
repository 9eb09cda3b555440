"""Samples of a sweep that is interrupted are kept under the point that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline.core.case import Case
from paceline.core.record import Record
from paceline.core.run import Run
from paceline.runner.execute import CaseEnd
from paceline.runner.fork_client import WarmServer
from paceline.runner.run import SuiteRun

CASE = Case(index=0, benchmark="copy", parameters={}, title="")
RUN = Run(
    id="r",
    name="copy",
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
    version="0",
    command=[],
    environment={},
    cases=[CASE],
)


class Kept:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {}

    def add(self, record: Record) -> None:
        raise AssertionError("the case never ended")

    def keep_partial(
        self, run_id: str, case_index: int, attempt: int, metric: str, unit: str, samples: Sequence[float]
    ) -> None:
        self.samples.setdefault(metric, []).extend(samples)


def told(metric: str, *samples: float) -> dict[str, Any]:
    return {"phase": "measuring", "metric": metric, "unit": "s", "samples": samples, "work": None, "rate_unit": ""}


def test_an_interrupt_keeps_every_point_of_a_sweep_under_its_own_name() -> None:
    def interrupted(_server: WarmServer, _case: Case, tell: Callable[[dict[str, Any]], None]) -> CaseEnd:
        tell(told("time 4 KiB", 1.0, 1.0))
        tell(told("", *()))
        tell(told("time 4 KiB", 1.0))
        tell(told("time 16 MiB", 9.0))
        raise KeyboardInterrupt

    kept = Kept()
    with pytest.raises(KeyboardInterrupt):
        SuiteRun(run=RUN, todo=[CASE], sink=kept, execute=interrupted).go()
    assert kept.samples == {"time 4 KiB": [1.0, 1.0, 1.0], "time 16 MiB": [9.0]}
