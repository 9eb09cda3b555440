"""What a tuning and a command line ask of serving cases: shorter ones, an SLO as text, a plain title."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.serve import LEAST_SEARCH, Serve
from paceline.core.errors import InputError


def parameters(**more: Any) -> ServeParameters:
    return ServeParameters.read({"slo": {"p99": "50ms"}} | more, is_typed=True)


def test_a_part_of_a_load_is_shorter_and_otherwise_the_same() -> None:
    whole = parameters(load={"arrival": "closed", "users": 4, "duration": "9s"})
    part = Serve.shortened(whole, 1 / 3)
    assert part.load is not None and part.load.duration == pytest.approx(3.0)
    assert part.load.users == 4
    assert Serve.shortened(whole, 1.0) == whole


def test_a_part_of_a_number_of_requests_has_one_at_least() -> None:
    whole = parameters(load={"arrival": "closed", "users": 1, "requests": 90})
    assert [getattr(Serve.shortened(whole, part).load, "requests", None) for part in (1 / 9, 0.001)] == [10, 1]


def test_a_part_of_a_trace_is_of_its_own_length(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("timestamp\n" + "\n".join(str(30 * row) for row in range(10)))
    whole = parameters(load={"arrival": "trace", "file": file, "requests": 7})
    lengths = [len(one.load.recorded()) for part in (1 / 3, 1.0) if (one := Serve.shortened(whole, part)).load]
    assert lengths == [2, 7]


def test_a_search_is_never_so_short_that_nothing_comes_of_it() -> None:
    assert Serve.shortened(parameters(search_budget="120s"), 0.5).search_budget == 60.0
    assert Serve.shortened(parameters(search_budget="120s"), 0.1).search_budget == LEAST_SEARCH
    assert Serve.shortened(parameters(search_budget="10s"), 0.1).search_budget == 10.0


def test_an_slo_may_be_a_text() -> None:
    assert (
        parameters(slo="p99=50ms, p99.9=80ms,errors=2%").slo
        == parameters(slo={"p99": "50ms", "p99_9": "80ms", "errors": "2%"}).slo
    )
    for wrong in ("p98=50ms", "p99", "p99=soon", ""):
        with pytest.raises(InputError):
            parameters(slo=wrong)


def test_the_title_of_a_sweep_says_up_to_how_many_users() -> None:
    assert "sweep up to 8 users" in parameters(load={"arrival": "sweep", "users": 8}).label()
