"""A job while it runs: charts of what its case shows, as they grow."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from paceline.service.engines.base import AttemptProgress, LiveFigure
from paceline.web.site import small_chart
from support.scripted_followers import a_job

UNITS = {"rate": "requests/s", "p50": "s", "p99": "s", "failures": "requests/s"}


def shows(case: int = 0, **figures: float) -> AttemptProgress:
    found = {name: LiveFigure(value=value, unit=UNITS.get(name, "")) for name, value in figures.items()}
    return AttemptProgress(case_index=case, title="serve resnet50", phase="sending 50/s", cases=2, figures=found)


@pytest.fixture
def loaded(visited: Any) -> Any:
    visited.leader.submit(a_job("load", datetime.now(UTC)))
    visited.leader.step()
    visited.engine.attempt("load").begin(2)
    return visited


def look(loaded: Any, progress: AttemptProgress) -> None:
    loaded.engine.attempt("load").progress = progress
    loaded.leader.step()


def test_a_load_is_drawn_while_it_runs(loaded: Any) -> None:
    for rate, failures in ((10.0, 0.0), (50.0, 0.0), (48.0, 2.0)):
        look(loaded, shows(rate=rate, p50=0.01, p99=0.2, failures=failures))
    charts = loaded.json("/jobs/load")["live"]
    assert [(one["name"], one["now"], one["low"]) for one in charts] == [
        ("Rate", "48 requests/s", "0 requests/s"),
        ("Latency, p50", "10 ms", "0 s"),
        ("Latency, p99", "200 ms", "0 s"),
        ("Failures", "2 requests/s", "0 requests/s"),
    ]
    assert all(one["chart"]["paths"][0].count("L") == 2 for one in charts)
    page = loaded.page("/jobs/load?part=live")
    assert page.count('class="live-chart"') == 4
    assert "serve resnet50: sending 50/s" in page


def test_the_next_case_begins_anew(loaded: Any) -> None:
    look(loaded, shows(rate=10.0))
    look(loaded, shows(case=1, step_time=0.5))
    assert [one["name"] for one in loaded.json("/jobs/load")["live"]] == ["Step time"]


def test_a_job_that_shows_no_figures_has_no_charts(loaded: Any) -> None:
    look(loaded, shows())
    assert loaded.json("/jobs/load")["live"] == []
    assert "sending 50/s" in loaded.page("/jobs/load")


def test_a_line_is_interrupted_where_there_is_no_value() -> None:
    drawn = small_chart([[1.0, None, 3.0, 2.0]], width=106, height=26, floor=0.0)
    assert drawn.paths == ["M3 16.3M69.7 3L103 9.7"]
    assert (drawn.low, drawn.high, drawn.last) == (0.0, 3.0, (103.0, 9.7))
    assert small_chart([]).paths == [] and small_chart([[5.0, 5.0]]).paths[0]
    flat = small_chart([[1.0, 1.1]], height=26, least=1.0)
    assert flat.high - flat.low == pytest.approx(1.0)
