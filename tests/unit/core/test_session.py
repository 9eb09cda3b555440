"""Which runs are one session."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from paceline.core.environment import Environment
from paceline.core.run import Run, continues, machine_key, session_of, sessions_of
from support.records import ENVIRONMENT, STARTED


def run(name: str, minutes: float = 0.0, lasts: float | None = 10.0, session: str = "", **environment: Any) -> Run:
    start = STARTED + timedelta(minutes=minutes)
    ended = None if lasts is None else start + timedelta(minutes=lasts)
    described = ENVIRONMENT | {"boot": "one"} | environment
    return Run(id=name, name="x", started_at=start, ended_at=ended, version="0", session=session, environment=described)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("later", "is_same"),
    [
        (run("b", 30), True),
        (run("b", 69), True),
        (run("b", 70), False),
        (run("b", 5), True),  # while the first still runs
        (run("b", -5), False),
        (run("b", 30, boot="two"), False),
        (run("b", 30, boot=None), True),  # not known
        (run("b", 30, driver={"version": "999"}), False),
        (run("b", 30, gpus=[gpu | {"power_limit_watts": 300.0} for gpu in ENVIRONMENT["gpus"]]), False),
        (run("b", 30, gpus=[gpu | {"uuid": "other"} for gpu in ENVIRONMENT["gpus"]]), False),
        (run("b", 30, cpu=ENVIRONMENT["cpu"] | {"governor": "powersave"}), False),
    ],
)
def test_a_session_ends_with_an_hour_or_a_change_of_the_machine(later: Run, is_same: bool) -> None:
    assert continues(run("a"), later) is is_same


def test_a_run_without_an_end_counts_from_its_start() -> None:
    assert continues(run("a", lasts=None), run("b", 59))
    assert not continues(run("a", lasts=None), run("b", 60))


def test_what_machine_measured_must_be_known() -> None:
    unknown = dict.fromkeys(("host", "driver")) | {"gpus": [], "cpu": {}}
    assert machine_key(Environment()) == ""
    assert not continues(run("a", **unknown), run("b", 5, **unknown))


def test_a_machine_without_gpus_is_known_by_its_name() -> None:
    assert machine_key(Environment.model_validate({"host": "n1", "cpu": {"model": "EPYC"}})) == "n1; EPYC"


def test_sessions_are_named_after_their_first_run_and_go_on() -> None:
    runs = [run("c", 120), run("a"), run("b", 60), run("d", 300)]
    assert sessions_of(runs) == {"a": "a", "b": "a", "c": "a", "d": "d"}
    assert session_of(run("e", 320), [run("d", 300, session="d0")]) == "d0"
    assert sessions_of([run("a", session="kept"), run("b", 20)]) == {"a": "kept", "b": "kept"}
