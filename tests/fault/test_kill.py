"""kill -9 of the runner or of a case, at any moment, loses nothing that was acknowledged and leaves nobody behind."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from paceline.core.errors import InputError
from paceline.core.record import CauseKind, Outcome
from support.cli import Sandbox, case_processes, sandbox_in
from support.watching import Watched

WORKERS = 2
NAPS = [0.06, 0.15, 0.05, 0.2, 0.1, 0.08]  # seconds
ALONE = ("--no-report", "--json")
LONG_THEN_SHORT = {"benchmark": "nap", "duration": ["30s", "20ms"], "steps": 300}


def measuring_seconds(watched: Watched) -> float:
    """How long the cases nap that are to do; it returns at the first sign of life of the first of them."""
    if not watched.wait_for("case_progress"):
        return 0.0
    todo = next(event["todo"] for event in watched.said if event["event"] == "run_started")
    return sum(NAPS[index] for index in todo)


def kill_cases(rng: random.Random, watched: Watched, number: int) -> int:
    """The cases that happen to run after random whiles, one after the other; how many."""
    seconds = measuring_seconds(watched)
    kills = 0
    for _ in range(number):
        time.sleep(rng.uniform(0.0, seconds / (number + 1)))
        kills += kill_a_case(watched)
    return kills


def kill_a_case(watched: Watched) -> bool:
    """The one in flight, or the next; False if there is none any more."""
    while watched.process.poll() is None:
        for case in case_processes(watched.process.pid):
            with suppress(psutil.NoSuchProcess):
                case.kill()
                return True
        time.sleep(0.001)
    return False


def kill_runner(rng: random.Random, watched: Watched, moment: str) -> None:
    """While it starts, the moment it says that something is kept, or at any moment of its measuring."""
    if moment == "starting":
        time.sleep(rng.uniform(0.0, 1.5))
    elif moment == "acknowledging":
        kept = len(watched.acknowledged)
        while watched.process.poll() is None and len(watched.acknowledged) == kept:
            time.sleep(0.001)
    else:
        time.sleep(rng.uniform(0.0, measuring_seconds(watched)))
    watched.process.kill()


def assert_nothing_is_lost(sandbox: Sandbox, run_id: str, acknowledged: set[tuple[int, int, str]]) -> None:
    with sqlite3.connect(sandbox.store) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()
    kept = [
        (record.case.index, record.attempt, str(record.outcome))
        for index in range(len(NAPS))
        for record in sandbox.attempts(run_id, index)
    ]
    assert len(kept) == len(set(kept))
    assert acknowledged <= set(kept)
    loaded = sandbox.load(run_id)
    assert loaded.run.status in ("interrupted", "finished")
    assert all(record.cause is None or record.cause.kind is CauseKind.INTERRUPTED for record in loaded.records)


def kill_until_done(sandbox: Sandbox, rng: random.Random, budget: int) -> int:
    """One run, killed and resumed again and again until it is complete; how often it was killed."""
    suite = sandbox.suite({"benchmark": "nap", "duration": NAPS, "steps": 4})
    run_id: str | None = None
    acknowledged: set[tuple[int, int, str]] = set()
    kills = 0
    while kills < budget:
        moment = rng.choice(["starting", "acknowledging", "measuring", "measuring", "never"])
        watched = Watched.start(sandbox, "run", *(["--resume", run_id] if run_id else [suite]), *ALONE)
        if moment != "starting":
            kills += kill_cases(rng, watched, rng.randint(0, 2) if moment != "never" else rng.randint(1, 3))
        if moment != "never":
            kill_runner(rng, watched, moment)
        code = watched.finish()
        kills += code == -signal.SIGKILL  # it may have ended in the last moment
        acknowledged |= watched.acknowledged
        run_id = watched.run_id or run_id or begun_run(sandbox)
        assert code in ((0, 1) if moment == "never" else (-signal.SIGKILL, 0, 1))
        assert sandbox.left_behind() == []
        if run_id is not None:
            assert_nothing_is_lost(sandbox, run_id, acknowledged)
        if code == 0:
            break
    if run_id is None:
        return kills
    done = sandbox.run("run", "--resume", run_id, *ALONE)
    assert done.returncode == 0, done.stderr
    assert_nothing_is_lost(sandbox, run_id, acknowledged)
    loaded = sandbox.load(run_id)
    assert loaded.run.status == "finished"
    assert [record.case.index for record in loaded.records] == list(range(len(NAPS)))
    assert all(record.outcome is Outcome.OK for record in loaded.records)
    for index in range(len(NAPS)):
        *earlier, last = sandbox.attempts(run_id, index)
        assert last.outcome is Outcome.OK
        assert all(record.cause and record.cause.kind is CauseKind.INTERRUPTED for record in earlier)
        assert [record.attempt for record in (*earlier, last)] == list(range(1, last.attempt + 1))
    assert sandbox.left_behind() == []
    return kills


def begun_run(sandbox: Sandbox) -> str | None:
    """A runner may die after it began the run and before it could say so."""
    if not sandbox.store.exists():
        return None
    with suppress(InputError):
        return sandbox.load().run.id
    return None


@pytest.mark.timeout(1500)  # fifty kills start about a hundred processes, and others run beside them
@pytest.mark.parametrize("number_of_kills", [6, pytest.param(50, marks=pytest.mark.long)])
def test_kills_lose_nothing_and_every_run_can_be_resumed(tmp_path: Path, number_of_kills: int) -> None:
    share = number_of_kills // WORKERS

    def worker(number: int) -> int:
        rng = random.Random(f"kills, worker {number}")
        kills = runs = 0
        while kills < share:
            with sandbox_in(tmp_path / f"{number}-{runs}") as sandbox:
                kills += kill_until_done(sandbox, rng, share - kills)
            runs += 1
        return kills

    with ThreadPoolExecutor(WORKERS) as pool:
        assert sum(pool.map(worker, range(WORKERS))) >= number_of_kills


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_case_that_is_killed_counts_as_interrupted_and_is_measured_again(
    sandbox: Sandbox, number: signal.Signals
) -> None:
    watched = Watched.start(sandbox, "run", sandbox.suite(LONG_THEN_SHORT), *ALONE)
    assert watched.wait_for("case_progress", index=0, samples=3)
    (case,) = case_processes(watched.process.pid)
    case.send_signal(number)
    assert watched.finish() == 1
    first, second = sandbox.load().records
    assert second.outcome is Outcome.OK
    assert first.outcome is Outcome.FAILED
    assert first.cause is not None
    assert first.cause.kind is CauseKind.INTERRUPTED
    assert "--resume" in first.cause.message
    assert [case.index for case in sandbox.load().missing] == [0]


def test_a_killed_warm_server_interrupts_its_case_alone(sandbox: Sandbox) -> None:
    watched = Watched.start(sandbox, "run", sandbox.suite(LONG_THEN_SHORT), *ALONE)
    assert watched.wait_for("case_started")
    while not case_processes(watched.process.pid):
        time.sleep(0.01)
    (server,) = psutil.Process(watched.process.pid).children()
    os.kill(server.pid, signal.SIGKILL)
    assert watched.finish() == 1
    first, second = sandbox.load().records
    assert first.cause is not None
    assert first.cause.kind is CauseKind.INTERRUPTED
    assert second.outcome is Outcome.OK
    assert sandbox.left_behind() == []


def test_a_run_that_is_still_measured_cannot_be_resumed_beside_it(sandbox: Sandbox) -> None:
    watched = Watched.start(sandbox, "run", "nap", "--duration", "30s", *ALONE)
    assert watched.wait_for("case_started")
    assert watched.run_id is not None
    done = sandbox.run("run", "--resume", watched.run_id, *ALONE)
    assert done.returncode == 2
    assert "still being measured" in done.stderr
    watched.process.kill()
    watched.finish()
    assert sandbox.left_behind() == []
