"""How long a run takes: guessed before it begins, counted down while it goes on."""

from __future__ import annotations

import pytest

from paceline.cli._running import TimeLeft, foreseen
from paceline.core.case import Case
from support.store_samples import a_record


def case(index: int, size: int = 64, expected: float | None = 10.0) -> Case:
    return Case(index=index, benchmark="gemm", parameters={"size": size}, title="", expected=expected)


@pytest.mark.parametrize(
    ("past", "sentence"),
    [
        ([], "2 cases, about 20 s (a guess from their budgets)"),
        ([(case(0), 30.0), (case(1, 128), 90.0)], "2 cases, about 2 min 00 s (as in earlier runs)"),
    ],
)
def test_what_a_dry_run_says(past: list[tuple[Case, float]], sentence: str) -> None:
    assert foreseen([case(0), case(1, 128)], past) == sentence


def test_what_was_measured_before_says_something_of_similar_cases() -> None:
    sentence = foreseen([case(0), case(1, 128)], [(case(0), 30.0)])
    assert "1 of them measured before, the others judged by similar cases" in sentence


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_goes_down_while_a_case_runs() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    left.started([case(0), case(1)])
    assert str(left) == "about 20 s left"
    left.case_started(case(0))
    clock.now = 4.0
    assert str(left) == "about 16 s left"


def test_a_case_that_took_longer_corrects_what_is_left() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    left.started([case(0), case(1), case(2)])
    left.case_started(case(0))
    clock.now = 25.0
    assert str(left) == "longer than expected, about 20 s after it"
    clock.now = 30.0
    left.case_ended(a_record(case=case(0), seconds=30.0))
    assert str(left) == "about 60 s left"


def test_the_last_case_may_take_longer_than_expected() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    left.started([case(0)])
    left.case_started(case(0))
    clock.now = 11.0
    assert str(left) == "longer than expected, the last one"
