"""One command has every follower of a leader measure a suite; a follower that dies is named, and measures later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.core import registry
from paceline.service.jobs import JobState
from support.cli import MARK, PLUGIN, Sandbox, events
from support.kept_jobs import kept
from support.leading import Served, served_in
from support.watching import Watched
from support.workers import Workers

NAMES = ["one", "three", "two"]
PATIENCE = 400  # seconds; only what hangs takes so long
pytestmark = pytest.mark.long


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("PYTHONPATH", str(PLUGIN))
    monkeypatch.syspath_prepend(PLUGIN)  # the leader, which is here, must know what it takes
    monkeypatch.setattr(registry, "providers", lambda: (registry.BUILTIN, "paceline_test_plugin"))
    monkeypatch.setenv(MARK, tmp_path.name)
    workers = Workers(tmp_path / "followers", NAMES)
    with served_in(tmp_path, engine=workers) as leading:
        thread = threading.Thread(target=leading.leader.run, daemon=True)
        thread.start()
        try:
            yield leading
        finally:
            workers.end_all()


def workers_of(served: Served) -> Workers:
    assert isinstance(served.engine, Workers)
    return served.engine


def test_every_follower_measures_it_and_the_runs_share_a_tag(sandbox: Sandbox, served: Served) -> None:
    suite = sandbox.suite({"benchmark": "nap", "steps": 2, "duration": "10ms"})
    done = sandbox.run("submit", suite, "--each", "--wait", "--tag", "check", "--leader", served.url, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 nodes measured everything." in done.stdout
    assert [name for name, _ in sorted(workers_of(served).begun)] == NAMES
    runs = [served.store.load(one.id) for one in served.store.runs(10)]
    (fleet,) = set.intersection(*(set(run.run.tags) for run in runs)) - {"check"}
    assert fleet.startswith("fleet-") and fleet in done.stdout
    assert len(runs) == 3 and all(run.all_ok for run in runs)


def test_a_follower_that_dies_is_named_and_goes_on_when_it_returns(sandbox: Sandbox, served: Served) -> None:
    suite = sandbox.suite(*({"benchmark": "nap", "steps": steps, "duration": "500ms"} for steps in (6, 7, 8)))
    words = ["submit", suite, "--each", "--wait", "--json", "--leader", served.url]
    watched = Watched.start(sandbox, *words)
    assert watched.wait_for("node", node="two", state="measuring"), watched.errors
    workers = workers_of(served)
    workers.absent.add("two")
    assert watched.finish_within(PATIENCE) == 1, watched.errors
    said = {event["event"]: event for event in watched.said}
    assert said["fleet_ended"]["nodes"] == {"one": "finished", "three": "finished", "two": "lost"}
    (lost,) = [event for event in watched.said if event.get("state") == "lost"]
    assert lost["node"] == "two" and "it waits for two to return" in lost["cause"]
    again = sandbox.ask("submit", suite, "--each", "--leader", served.url, "--json")
    assert again.returncode == 0, again.stderr
    assert sorted(events(again.stdout)[0]["jobs"]) == ["one", "three"], "nothing is sent to one that is away"

    job = said["fleet_started"]["jobs"]["two"]
    workers.absent.discard("two")
    done = sandbox.run("logs", job, "--follow", "--leader", served.url, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert kept(served.store, job).state is JobState.SUCCEEDED


def test_what_no_follower_has_is_refused(sandbox: Sandbox, served: Served) -> None:
    done = sandbox.ask("submit", "nap", "--each", "--machines", "gpu=h200", "--leader", served.url)
    assert done.returncode == 2
    assert "no follower that could run it is here" in done.stderr
