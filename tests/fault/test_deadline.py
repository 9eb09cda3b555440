"""A case that is not done in time is ended with all its processes, whatever they are doing."""

from __future__ import annotations

import pytest

from paceline.core.record import CauseKind, Outcome
from support.cli import Sandbox, case_processes
from support.watching import Watched

pytestmark = pytest.mark.alone  # a case must have begun before its deadline of two seconds

NAP = {"benchmark": "nap", "duration": "300ms", "steps": 30}
ALONE = ("--no-report", "--json")


def test_the_deadline_ends_a_native_call_that_holds_the_lock_and_the_processes_beside_it(sandbox: Sandbox) -> None:
    watched = Watched.start(sandbox, "run", sandbox.suite(NAP, {"benchmark": "hang", "timeout": "2s"}, NAP), *ALONE)
    assert watched.wait_for("case_progress", index=1)
    assert any("sleep" in process.name() for process in sandbox.processes())
    assert watched.wait_for("case_progress", index=2)
    assert not any("sleep" in process.name() for process in sandbox.processes())
    assert watched.finish() == 1
    before, hung, after = sandbox.load().records
    assert before.outcome is Outcome.OK
    assert after.outcome is Outcome.OK
    assert hung.outcome is Outcome.TIMEOUT
    assert hung.cause is not None
    assert hung.cause.kind is CauseKind.TIMEOUT
    assert "2 s" in hung.cause.message
    assert "--timeout" in hung.cause.message
    assert "in measure (hang.py:" in hung.cause.message
    assert 2.0 <= hung.seconds < 30.0
    step_time = hung.measurement("step_time")
    assert step_time is not None
    assert step_time.samples == [0.25]
    assert sandbox.left_behind() == []


def test_what_a_case_leaves_running_in_its_group_is_ended_with_it(sandbox: Sandbox) -> None:
    watched = Watched.start(sandbox, "run", sandbox.suite({"benchmark": "hang"}), *ALONE)
    assert watched.wait_for("case_progress", index=0)
    watched.process.kill()
    watched.finish()
    assert sandbox.left_behind() == []


def test_a_rank_that_is_stopped_is_the_cause_and_not_the_one_that_waits_for_it(sandbox: Sandbox) -> None:
    case = {"benchmark": "rankfail", "how": "sleep", "ranks": 2, "timeout": "8s"}
    watched = Watched.start(sandbox, "run", sandbox.suite(case), *ALONE)
    assert watched.wait_for("case_progress", index=0, phase="sleeping")
    stopped = max(case_processes(watched.process.pid), key=lambda process: process.pid)  # the second one was made last
    stopped.suspend()
    assert watched.finish() == 1
    (record,) = sandbox.load().records
    assert record.outcome is Outcome.TIMEOUT
    assert record.cause is not None
    assert record.cause.rank == 1
    assert "not done after 8 s: the process does not react (stopped)" in record.cause.message
    assert sandbox.left_behind() == []
