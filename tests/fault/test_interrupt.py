"""Ctrl-C and SIGTERM end a run in order: what was measured is kept, and the user is told how to go on."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Callable

import pytest

from paceline.core.record import CauseKind, Outcome
from support.cli import Sandbox, ended, events
from support.watching import Watched

LONG = {"benchmark": "nap", "duration": "60s", "steps": 1200}
SHORT = {"benchmark": "nap", "duration": "20ms"}
ALONE = ("--no-report", "--json")


def _ctrl_c(watched: Watched) -> None:
    """A terminal sends it to the whole foreground group."""
    os.killpg(watched.process.pid, signal.SIGINT)


def _terminate(watched: Watched) -> None:
    watched.process.terminate()


@pytest.mark.parametrize("end", [_ctrl_c, _terminate])
def test_an_interrupted_run_keeps_every_sample_it_has_told_of_and_says_how_to_resume(
    sandbox: Sandbox, end: Callable[[Watched], None]
) -> None:
    watched = Watched.start(sandbox, "run", sandbox.suite(SHORT, LONG), *ALONE)
    assert watched.wait_for("case_progress", index=1, samples=12)
    end(watched)

    assert watched.finish() == 130
    assert sandbox.left_behind() == []
    told = max(event["samples"] for event in watched.said if event["event"] == "case_progress" and event["index"] == 1)
    run_id = watched.run_id
    assert run_id is not None
    assert f"paceline run --resume {run_id}" in watched.errors
    assert "Traceback" not in watched.errors
    stored = sandbox.load(run_id)
    assert stored.run.status == "interrupted"
    assert stored.run.ended_at is not None
    short, long = stored.records
    assert short.outcome is Outcome.OK
    assert long.cause is not None
    assert long.cause.kind is CauseKind.INTERRUPTED
    step_time = long.measurement("step_time")
    assert step_time is not None
    assert len(step_time.samples) >= told
    assert step_time.metric.unit == "s"


def test_the_printed_command_resumes_the_run(sandbox: Sandbox) -> None:
    suite = sandbox.suite(SHORT, {**SHORT, "duration": "1s"}, SHORT)
    watched = Watched.start(sandbox, "run", suite, "--store", "my store.db", *ALONE)
    assert watched.wait_for("case_progress", index=1)
    _ctrl_c(watched)
    assert watched.finish() == 130
    found = re.search(r"go on with: paceline (.*)", watched.errors)
    assert found is not None
    done = sandbox.run(*shlex.split(found.group(1)), "--no-report", "--json")
    assert done.returncode == 0, done.stderr
    assert [(record.case.index, record.outcome) for record in ended(events(done.stdout))] == [
        (1, Outcome.OK),
        (2, Outcome.OK),
    ]
    assert not sandbox.store.exists()


def test_an_interrupt_while_libraries_are_imported_ends_them_too(sandbox: Sandbox) -> None:
    watched = Watched.start(sandbox, "run", "overhead", *ALONE)
    assert watched.wait_for("case_started")
    _ctrl_c(watched)
    assert watched.finish() == 130
    assert sandbox.left_behind() == []
    assert [case.index for case in sandbox.load().missing] == [0]
