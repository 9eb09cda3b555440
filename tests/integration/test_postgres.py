"""The command line with a store in PostgreSQL: a runner that is killed, a run that is resumed and reported."""

from __future__ import annotations

import signal

from paceline.core.record import Outcome
from paceline.store import open_store
from support.cli import Sandbox
from support.postgres import PostgresServer
from support.watching import Watched

SHORT = {"benchmark": "nap", "duration": "20ms"}
LONG = {"benchmark": "nap", "duration": "60s", "steps": 1200}


def test_a_killed_run_is_resumed_and_reported(sandbox: Sandbox, postgres: PostgresServer) -> None:
    url = postgres.new_database()
    suite = sandbox.suite(SHORT, {**LONG, "timeout": "2s"}, SHORT)
    watched = Watched.start(sandbox, "run", suite, "--store", url, "--no-report", "--json")
    assert watched.wait_for("case_progress", index=1)
    watched.process.send_signal(signal.SIGKILL)
    watched.finish()
    assert sandbox.left_behind() == []

    done = sandbox.run("run", "--resume", "last", "--store", url, "--no-report", "--json")
    assert done.returncode == 1  # the long one runs into its timeout
    with open_store(url) as store:
        stored = store.load(store.find_run("last"))
    assert [record.outcome for record in stored.records] == [Outcome.OK, Outcome.TIMEOUT, Outcome.OK]
    assert stored.missing == []

    shown = sandbox.run("report", "last", "--store", url)
    assert shown.returncode == 0
    assert "2 of 3 cases measured" in shown.stdout
    assert not sandbox.store.exists()
