"""What a case does besides measuring stays with it: the cases after it are measured, and nothing lives on."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil
import pytest

from paceline.core.record import CauseKind, Outcome
from support.cli import GENEROUS, Sandbox

NAP = {"benchmark": "nap", "duration": "20ms"}


def test_rubbish_in_inherited_descriptors_ends_no_run_and_is_a_warning(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", sandbox.suite({"benchmark": "unruly", "how": "scribble"}, NAP), "--no-report")
    assert done.returncode == 0, done.stderr
    unruly, nap = sandbox.load().records
    assert (unruly.outcome, nap.outcome) == (Outcome.OK, Outcome.OK)
    assert [warning.kind for warning in unruly.warnings] == ["stray-writes"]
    assert "5 times" in unruly.warnings[0].message, "of the channel itself, and not by a child of the case"
    assert nap.warnings == []


def test_a_daemon_ends_with_its_case_and_is_named_in_the_record(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", sandbox.suite({"benchmark": "unruly", "how": "daemon"}, NAP), "--no-report")
    assert done.returncode == 0, done.stderr
    unruly, nap = sandbox.load().records
    (warning,) = unruly.warnings
    assert warning.kind == "escaped"
    assert "sleep (pid " in warning.message
    assert not psutil.pid_exists(int(warning.message.partition("(pid ")[2].partition(")")[0]))
    assert (nap.outcome, nap.warnings) == (Outcome.OK, [])
    assert sandbox.left_behind() == []


def test_of_much_output_the_first_and_the_last_lines_are_kept(sandbox: Sandbox) -> None:
    printing = {"benchmark": "unruly", "how": "print", "size": "200MiB"}
    assert sandbox.ask("run", sandbox.suite(printing, NAP), "--no-report").returncode == 1
    unruly, nap = sandbox.load().records
    assert unruly.cause is not None
    assert unruly.cause.message == "the process exited with code 3 before it had a result"
    first, dropped, *_, last = unruly.cause.detail.splitlines()[:1] + [
        line for line in unruly.cause.detail.splitlines() if "were dropped" in line or line == "the last line"
    ]
    assert (first, last) == ("the first line", "the last line")
    assert dropped.startswith(("[... 1", "[... 2")), "of 200 MiB nearly all"
    assert nap.outcome is Outcome.OK


@pytest.mark.parametrize("how", ["grow", "helper-grows"])
def test_a_case_above_its_ceiling_is_out_of_memory_and_others_are_measured(sandbox: Sandbox, how: str) -> None:
    growing = {"benchmark": "unruly", "how": how, "size": "600MiB", "memory_limit": "200MiB"}
    done = sandbox.ask("run", sandbox.suite(growing, NAP), "--no-report")
    assert done.returncode == 1
    unruly, nap = sandbox.load().records
    assert unruly.cause is not None
    assert (unruly.outcome, unruly.cause.kind) == (Outcome.OUT_OF_MEMORY, CauseKind.HOST_MEMORY), unruly.cause
    assert "its ceiling of 200 MiB" in unruly.cause.message
    assert "--memory-limit" in unruly.cause.message
    assert nap.outcome is Outcome.OK
    assert sandbox.left_behind() == []


def names_of(processes: list[psutil.Process]) -> list[str]:
    """Without those that have gone meanwhile."""
    names = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            names.append(process.name())
    return names


@pytest.mark.parametrize("victim", ["server", "runner"])
def test_a_daemon_ends_with_its_case_whoever_is_killed(sandbox: Sandbox, victim: str) -> None:
    """Should the warm server be killed, its orphans come to the runner; without a runner the server ends them."""
    suite = sandbox.suite({"benchmark": "unruly", "how": "daemon", "lasts": "10min"})
    with sandbox.start("run", suite, "--no-report") as running:
        deadline = time.monotonic() + GENEROUS
        try:
            while "sleep" not in names_of(sandbox.processes()):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            runner = psutil.Process(running.pid)
            servers = [child for child in runner.children() if "paceline.runner.fork_server" in child.cmdline()]
            (runner if victim == "runner" else servers[0]).kill()
            running.communicate(timeout=GENEROUS)
        finally:
            running.kill()  # or a failure would wait for its case
    while sandbox.left_behind() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert sandbox.left_behind() == []
    if victim == "server":
        (record,) = sandbox.load().records
        assert [(warning.kind, "sleep" in warning.message) for warning in record.warnings] == [("escaped", True)]
