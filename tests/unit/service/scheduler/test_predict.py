"""Durations out of the past: what they rest on, and whether their errors are honest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paceline.core.case import Case
from paceline.service.scheduler.duration_predictor import Basis, History, Prediction, together


def case(benchmark: str = "gemm", timeout: float = 600.0, **parameters: Any) -> Case:
    budget = parameters.get("budget")
    expected = budget + 5.0 if budget else None
    return Case(
        index=0, benchmark=benchmark, parameters=parameters, title=benchmark, timeout=timeout, expected=expected
    )


def test_nothing_known_but_the_budget_or_the_timeout() -> None:
    history = History()
    budget = history.predict(case(budget=10.0), "h200")
    assert budget.basis is Basis.BUDGET and 10.0 < budget.seconds < 30.0
    timeout = history.predict(case(), "h200")
    assert timeout.basis is Basis.TIMEOUT and timeout.seconds == 60.0
    assert timeout.error > budget.error


def test_the_same_case_is_its_median() -> None:
    history = History()
    for seconds in (40.0, 42.0, 300.0):
        history.add(case(size=1024), "h200", seconds)
    found = history.predict(case(size=1024), "h200")
    assert found.basis is Basis.SAME_CASE and found.seconds == pytest.approx(42.0, rel=0.1)


def test_nearer_parameters_count_more() -> None:
    history = History()
    for size in (256, 1024, 4096):
        history.add(case(size=size), "h200", size / 10)
    found = history.predict(case(size=1100), "h200")
    assert found.basis is Basis.NEAREST and 90.0 < found.seconds < 140.0


def test_a_case_that_is_to_take_longer_than_those_known_is_given_that_time() -> None:
    history = History()
    for rate in (10, 20, 40):
        history.add(case("serve", rate=rate, budget=10.0), "h200", 16.0)
    found = history.predict(case("serve", rate=20, budget=7200.0, timeout=20_000.0), "h200")
    assert found.basis is Basis.NEAREST and 7000.0 < found.seconds < 8000.0


def test_a_machine_that_is_slower_is_learnt() -> None:
    history = History()
    for size in range(10, 30):
        history.add(case(size=size), "h200", 100.0)
    for size in range(10, 20):
        history.add(case(size=size), "t4", 400.0)
    found = history.predict(case(size=25), "t4")  # seen on the other machine only
    assert found.basis is Basis.OTHER_MACHINE and found.seconds == pytest.approx(400.0, rel=0.2)


def test_it_is_never_more_than_the_timeout() -> None:
    history = History()
    history.add(case(size=1), "h200", 500.0)
    assert history.predict(case(size=1, timeout=60.0), "h200").seconds == 60.0


@pytest.mark.parametrize("spread", [0.05, 0.3, 0.8])
def test_intervals_hold_what_they_promise(spread: float) -> None:
    generator = np.random.default_rng(3)
    history, inside, errors = History(), [], []
    for step in range(400):
        size = int(generator.integers(1, 12))
        seconds = 20.0 * size**0.5 * math.exp(float(generator.normal(0.0, spread)))
        found = history.predict(case(size=size), "h200")
        if step >= 100:
            inside.append(abs(math.log(seconds / found.seconds)) <= 1.96 * found.error)
            errors.append(found.error)
        history.add(case(size=size), "h200", seconds)
    assert np.mean(inside) > 0.88
    assert np.median(errors) < 2 * spread + 0.1  # and they are no wider than need be


def test_errors_of_several_cases_even_out() -> None:
    history = History()
    single = history.predict(case(budget=10.0), "cpu")
    seconds, error = together([single] * 4)
    assert seconds == pytest.approx(4 * single.seconds) and error == pytest.approx(single.error / 2)
    assert together([]) == (0.0, 0.0)


def test_cases_that_even_out_count_by_how_long_they_take() -> None:
    parts = [Prediction(10.0, 0.5, Basis.BUDGET), Prediction(30.0, 0.1, Basis.BUDGET)]
    assert together(parts) == pytest.approx((40.0, math.sqrt(5.0**2 + 3.0**2) / 40.0))


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_duration_that_cannot_be_is_not_learnt(seconds: float) -> None:
    history = History()
    history.add(case(), "h200", seconds)
    assert history.predict(case(), "h200") == History().predict(case(), "h200")


def test_a_case_of_less_than_a_second_is_learnt() -> None:
    history = History()
    history.add(case(), "h200", 0.5)
    assert history.predict(case(), "h200").seconds == 0.5


def test_the_same_case_is_not_corrected_and_its_error_is_what_was_missed() -> None:
    history = History()
    for seconds in (40.0, 42.0, 300.0, 50.0):
        history.add(case(size=1024), "h200", seconds)
    misses = [math.log(42.0 / 40.0), math.log(300.0 / 41.0), math.log(50.0 / 42.0)]
    error = math.sqrt((3 * 0.15**2 + sum(miss**2 for miss in misses)) / 6)
    prediction = history.predict(case(size=1024), "h200")
    assert (prediction.seconds, prediction.basis) == (46.0, Basis.SAME_CASE)
    assert prediction.error == pytest.approx(error)


@pytest.mark.parametrize(("count", "share"), [(2, 0.0), (3, 3 / 4), (4, 4 / 5)])
def test_what_three_predictions_missed_corrects_the_next_one(count: int, share: float) -> None:
    history = History()
    seconds = [400.0, 800.0, 400.0, 400.0][:count]
    for size, slower in enumerate(seconds):
        history.add(case(size=size), "h200", 100.0)
        history.add(case(size=size), "t4", slower)
    history.add(case(size=99), "h200", 100.0)
    bias = math.log(4.0) * share
    squares = sum((math.log(slower / 100.0) - bias) ** 2 for slower in seconds)
    prediction = history.predict(case(size=99, timeout=1e6), "t4")
    assert prediction.basis is Basis.OTHER_MACHINE
    assert prediction.seconds == pytest.approx(100.0 * math.exp(bias))
    assert prediction.error == pytest.approx(math.sqrt((3 * 0.5**2 + squares) / (3 + count)))


def near(*distances_and_seconds: tuple[float, float]) -> float:
    """The mean of durations, weighed by how near they are."""
    weights = [1 / (0.05 + distance) for distance, _ in distances_and_seconds]
    logs = [math.log(seconds) for _, seconds in distances_and_seconds]
    return math.exp(float(np.average(logs, weights=weights)))


def test_the_three_nearest_are_weighed_by_their_distance() -> None:
    history = History()
    for size, seconds in ((8, 1000.0), (256, 10.0), (2048, 70.0), (1024, 40.0)):
        history.add(case(size=size), "h200", seconds)
    # One prediction of nearest parameters was made for each but the first: enough for a correction.
    misses = [math.log(10.0 / 1000.0), math.log(70.0 / near((3, 10.0), (8, 1000.0)))]
    misses.append(math.log(40.0 / near((1, 70.0), (2, 10.0), (7, 1000.0))))
    nearest = near((1, 10.0), (1, 40.0), (2, 70.0))
    prediction = history.predict(case(size=512), "h200")
    assert prediction.seconds == pytest.approx(nearest * math.exp(sorted(misses)[1] * 3 / 4))


def test_cases_on_such_a_machine_count_before_nearer_ones_on_others() -> None:
    history = History()
    history.add(case(size=512), "t4", 500.0)
    history.add(case(size=1024), "h200", 30.0)
    assert history.predict(case(size=500), "h200").seconds == pytest.approx(30.0)
    assert history.predict(case(size=500), "t4").seconds == pytest.approx(500.0)
    both = near((math.log2(512 / 500), 500.0), (math.log2(1024 / 500), 30.0))
    assert history.predict(case(size=500), "cpu").seconds == pytest.approx(both)


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ({"n": 1}, {"n": 4}, 2.0),
        ({"n": 4}, {"n": 1}, 2.0),
        ({"n": 0.5}, {"n": 2}, 2.0),
        ({"n": 1}, {"n": 0.25}, 2.0),
        ({"n": 0}, {"n": 4}, 1.0),
        ({"n": 4}, {"n": 0}, 1.0),
        ({"n": -2}, {"n": 16}, 1.0),
        ({"n": True}, {"n": 16}, 1.0),
        ({"n": "auto"}, {"n": 16}, 1.0),
        ({"n": "a"}, {"n": "b"}, 1.0),
        ({}, {"n": 16}, 1.0),
        ({"n": 1, "m": "a", "k": 3}, {"n": 2, "m": "b", "k": 3}, 2.0),
    ],
)
def test_parameters_are_apart_by_doublings_and_by_one_where_they_are_no_numbers(
    one: dict[str, Any], other: dict[str, Any], distance: float
) -> None:
    history = History()
    history.add(case(**other), "h200", 100.0)
    history.add(case(**one, reference="x"), "h200", 2.0)  # which differs by one
    prediction = history.predict(case(**one), "h200")
    assert prediction.basis is Basis.NEAREST
    assert prediction.seconds == pytest.approx(near((distance, 100.0), (1, 2.0)))
