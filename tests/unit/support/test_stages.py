"""The stages of `make test`: all of them run, each is timed, and one that failed fails the whole."""

from __future__ import annotations

import re

import pytest

import stages
from stages import Stage, clock, table


def test_a_stage_that_fails_does_not_keep_the_next_from_running(capfd: pytest.CaptureFixture[str]) -> None:
    assert stages.main(["first: echo one; false", "second: echo two"]) == 1
    said = capfd.readouterr().out
    assert re.search(r"^one$.*^two$", said, re.MULTILINE | re.DOTALL)
    assert said.splitlines()[-3:] == ["first     0:00  failed", "second    0:00  ok", "total     0:00  failed"]


def test_without_a_failure_the_exit_code_is_zero(capfd: pytest.CaptureFixture[str]) -> None:
    assert stages.main(["only: true"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "total    0:00  ok"


def test_the_total_is_the_sum() -> None:
    done = [Stage("lint", "", seconds=59.6), Stage("unit", "", seconds=240.2)]
    assert table(done).splitlines() == ["lint     1:00  ok", "unit     4:00  ok", "total    5:00  ok"]


def test_a_stage_beside_the_next_one_takes_no_time_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert stages.main(["+beside: echo one; sleep 0.1; false", "next: echo two"]) == 1
    said = capfd.readouterr().out
    assert re.search(r"^two$.*^--- beside: .*^one$", said, re.MULTILINE | re.DOTALL)
    assert said.splitlines()[-3:] == ["beside    0:00  failed", "next      0:00  ok", "total     0:00  failed"]
    done = [Stage("lint", "", is_beside=True, seconds=30), Stage("unit", "", seconds=60)]
    assert table(done).splitlines()[-1] == "total    1:00  ok"


def test_minutes_and_seconds() -> None:
    assert [clock(seconds) for seconds in (0.4, 59.6, 61, 3600)] == ["0:00", "1:00", "1:01", "60:00"]


def test_what_is_no_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="'make' is not 'name: command'"):
        Stage.read("make")
