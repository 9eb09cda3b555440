"""A run and the last attempt at each of its cases."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.environment import Environment
from paceline.core.record import Cause, CauseKind, Outcome
from paceline.core.run import RunRecords
from support.records import case, record, run_of


def run_with(*outcomes: Outcome, not_run: int = 0, **more: Any) -> RunRecords:
    records = [record(case(index, "train", ""), outcome=outcome) for index, outcome in enumerate(outcomes)]
    return run_of(records, not_run=[case(len(outcomes) + place, "train", "") for place in range(not_run)], **more)


@pytest.mark.parametrize(
    ("outcomes", "not_run", "succeeded"),
    [
        ([Outcome.OK, Outcome.OK], 0, True),
        ([Outcome.OK, Outcome.UNSUPPORTED], 0, True),
        ([Outcome.UNSUPPORTED], 0, False),
        ([Outcome.OK, Outcome.FAILED], 0, False),
        ([Outcome.OK], 1, False),
        ([], 0, False),
    ],
)
def test_a_run_succeeds_if_something_was_measured_and_nothing_failed(
    outcomes: list[Outcome], not_run: int, succeeded: bool
) -> None:
    assert run_with(*outcomes, not_run=not_run).all_ok is succeeded


def test_cases_without_a_final_record_are_missing() -> None:
    run = run_with(Outcome.OK, Outcome.FAILED, Outcome.FAILED, not_run=1)
    cut = run.records[1].model_copy(update={"cause": Cause(kind=CauseKind.INTERRUPTED, message="")})
    assert [one.index for one in run.with_latest([cut]).missing] == [1, 3]


def test_a_later_attempt_takes_the_place_of_the_earlier_one() -> None:
    run = run_with(Outcome.FAILED, Outcome.OK)
    again = record(case(0, "train", ""), outcome=Outcome.OK)
    further = record(case(2, "train", ""))
    later = run.with_latest([further, again])
    assert [(one.case.index, one.outcome) for one in later.records] == [(0, "ok"), (1, "ok"), (2, "ok")]
    assert run.records[0].outcome is Outcome.FAILED


def test_an_environment_is_taken_as_it_is_or_read_in_whichever_version() -> None:
    machine = Environment(host="node-1")
    assert run_with(environment=machine).run.environment is machine
    assert run_with(environment={"host": "node-1", "cpu": 7}).run.environment.host == "node-1"
