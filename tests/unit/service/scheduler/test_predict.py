"""Durations out of the past: what they rest on, and whether their errors are honest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paceline.core.case import Case
from paceline.service.scheduler.duration_predictor import Basis, History, together


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
