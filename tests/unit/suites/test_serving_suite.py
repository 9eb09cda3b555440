"""The suite `serving-quick` is quick: its loads, warm-ups and searches fit into minutes on any machine."""

from __future__ import annotations

import pytest

from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import Case
from paceline.core.suite import Here, expand
from paceline.runner.suite_file import load_suite

FIVE_MINUTES = 300.0
START = 8.0  # seconds to start a server and to make the requests, generously


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return expand(load_suite("serving-quick"), BENCHMARKS.registry().get, Here())


def parameters(case: Case) -> ServeParameters:
    return ServeParameters.read(case.parameters)


def test_two_models_with_two_engines_each_under_three_rates(cases: list[Case]) -> None:
    loads = [parameters(case) for case in cases if case.parameters["load"] is not None]
    seen = {(one.model, one.server.whole().engine, one.load.rate) for one in loads if one.load is not None}  # type: ignore[attr-defined]
    assert len(seen) == len(loads) == 12
    assert len({model for model, _, _ in seen}) == 2
    assert {engine for _, engine, _ in seen} == {"torch", "onnxruntime"}


def test_batching_is_compared_under_one_promise(cases: list[Case]) -> None:
    searches = [parameters(case) for case in cases if case.parameters["load"] is None]
    assert [one.server.whole().max_batch for one in searches] == [1, 16]  # type: ignore[attr-defined]
    assert len({str(one.slo) for one in searches}) == 1


def test_every_case_tells_what_is_promised_and_what_it_costs(cases: list[Case]) -> None:
    for case in cases:
        assert parameters(case).slo is not None
        assert parameters(case).instance is not None
        assert case.target == "cpu"


def test_it_takes_less_than_five_minutes(cases: list[Case]) -> None:
    seconds = 0.0
    for case in cases:
        asked = parameters(case)
        load = asked.load.seconds if asked.load is not None else asked.search_budget + 5.0
        seconds += START + asked.warm_up + load
    assert seconds < FIVE_MINUTES
