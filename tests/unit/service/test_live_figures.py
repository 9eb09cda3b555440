"""What a follower shows of a case in flight, and what the leader keeps of it."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline.core.benchmark import Progress
from paceline.service import leader as leading
from paceline.service.engines.base import AttemptProgress, LiveFigure
from paceline.service.follower.measuring import live_figures
from paceline.service.leader import Leader
from paceline.store import open_store
from support.scripted_followers import ScriptedEngine, a_job


def test_steps_show_their_time_and_their_rate() -> None:
    progress = Progress("measuring", "step_time", "s", (0.5,), work=32, rate_unit="images/s")
    figures = live_figures(vars(progress), [9.0] * 500 + [0.5] * 100)  # the recent ones count
    assert figures == {
        "rate": LiveFigure(value=64.0, unit="images/s"),
        "step_time": LiveFigure(value=0.5, unit="s"),
    }


def test_a_load_shows_rate_latencies_and_failures() -> None:
    progress = Progress("sending", load={"rate": 49.5, "p50": 0.01, "p99": 0.2, "failures": 0.0})
    figures = live_figures(vars(progress), [])
    assert {name: figure.unit for name, figure in figures.items()} == {
        "rate": "requests/s",
        "p50": "s",
        "p99": "s",
        "failures": "requests/s",
    }


def test_what_is_not_a_number_is_left_out() -> None:
    odd: dict[str, Any] = {"rate": math.nan, "p50": "fast", "p99": None, "failures": 1, "x\x1b" * 99: math.inf}
    assert live_figures({"load": odd}, []) == {"failures": LiveFigure(value=1.0, unit="requests/s")}
    assert live_figures({"load": [1], "metric": "step_time", "samples": []}, []) == {}


def shows(rate: float, case: int = 0) -> AttemptProgress:
    return AttemptProgress(case_index=case, figures={"rate": LiveFigure(value=rate, unit="requests/s")})


def test_the_leader_keeps_what_is_new_until_the_job_is_over(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(leading, "WATCHED", 3)
    engine = ScriptedEngine(["one"])
    with open_store(tmp_path / "store.db") as store:
        leader = Leader(store, engine)
        leader.step()
        leader.submit(a_job("load", datetime.now(UTC)))
        leader.step()
        attempt = engine.attempt("load")
        attempt.begin()
        for rate in (1.0, 2.0, 2.0, 3.0, 4.0):
            attempt.progress = shows(rate)
            leader.step()
        assert [one.figures["rate"].value for _, one in leader.watched("load")] == [2.0, 3.0, 4.0]
        attempt.record()
        attempt.end()
        leader.step()
        assert leader.watched("load") == []
        leader.close()
