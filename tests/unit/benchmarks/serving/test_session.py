"""What is learnt of a server before it is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.benchmarks.serving import serve, session
from paceline.benchmarks.serving.parameters import ServeParameters, Slo
from paceline.benchmarks.serving.requests import Requests
from paceline.benchmarks.serving.search import SearchResult
from paceline.benchmarks.serving.session import ServingSession
from paceline.load.parameters import LoadParameters
from paceline.load.quality import LoadNotDelivered
from paceline.load.trace import OK, TIMED_OUT, Trace
from support.traces import trace


@dataclass
class _Asked:
    """A server that answers as it is written down, load by load."""

    answers: list[Trace]
    parameters: ServeParameters = field(default_factory=lambda: ServeParameters(load=LoadParameters(rate=1)))
    first_rate: float = 1.0
    cold_start: list[Any] = field(default_factory=list)

    def send(self, _load: LoadParameters, _phase: str, **_named: Any) -> Trace:
        return self.answers.pop(0)


def test_a_warm_up_without_an_answer_says_nothing_of_the_rate() -> None:
    """Requests that all gave up left within microseconds: nothing over that is no rate to begin a search with."""
    asked = _Asked([trace([0.5]), trace([math.nan] * 4, gap=1e-6, status=[TIMED_OUT] * 4)])
    session._warm_up(cast(ServingSession, asked), 1.0)
    assert asked.first_rate == pytest.approx(2.0)


def test_the_rate_of_the_warm_up_is_what_was_answered_over_its_time() -> None:
    asked = _Asked([trace([0.5]), trace([0.1] * 10, gap=0.1, status=[OK] * 9 + [TIMED_OUT])])
    session._warm_up(cast(ServingSession, asked), 1.0)
    assert asked.first_rate == pytest.approx(9.0, rel=0.01)


def test_a_search_whose_load_generator_delivers_nothing_says_so() -> None:
    """And does not call one request per second, the least that is sent, the most that the server can do."""
    parameters = ServeParameters(slo=Slo(p99=0.1))
    silent = cast(ServingSession, SimpleNamespace(parameters=parameters, most_rate=0.0, first_rate=10.0))
    with pytest.raises(LoadNotDelivered, match="even towards a server that does nothing"):
        serve._search(silent, Slo(p99=0.1), {})


@pytest.mark.parametrize(("late", "kinds"), [(0.0, []), (5.0, ["client-limited"])])
def test_a_last_load_that_went_late_is_not_the_servers_latency_alone(
    late: float, kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = trace([late + 0.01] * 100, late=late)
    monkeypatch.setattr(serve, "_search", lambda *_: SearchResult("found", rate=10.0))
    asked = SimpleNamespace(
        parameters=ServeParameters(slo=Slo(p90=10.0)),
        context=SimpleNamespace(target="cpu"),
        server=SimpleNamespace(processes=list),
        send=lambda *_arguments, **_named: sent,
        requests=Requests([], ""),
        ceiling=None,
        clients=None,
        begun=0.0,
        metrics=None,
        first_load=0.0,
    )
    found = serve._searched(cast(ServingSession, asked))
    assert [warning.kind for warning in found.warnings if warning.kind == "client-limited"] == kinds
    assert found.measurements[0].value == 10.0
