"""Results are accepted only from the follower that was given the attempt, for the run of that attempt."""

from __future__ import annotations

from copy import deepcopy

import pytest

from paceline.service.engines.base import Assignment
from paceline.service.job_store import TRIES
from paceline.service.jobs import JobState, MachineNeeds
from paceline.service.leader import Leader
from paceline.store.store import Store
from support.kept_jobs import BEYOND_LEASE, history, kept, statuses
from support.scripted_followers import Clock, Measured, ScriptedEngine, a_job


def forge(engine: ScriptedEngine, follower: str, assignment: Assignment) -> Measured:
    """A follower has an attempt that it was never given."""
    forged = Measured(deepcopy(assignment))
    engine.attempts.setdefault(follower, {})[assignment.job_id, assignment.attempt] = forged
    return forged


def running_beside_another(store: Store, clock: Clock) -> tuple[ScriptedEngine, Leader, str]:
    """A job runs on one of two followers; the name of the other."""
    engine = ScriptedEngine(["one", "two"])
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    engine.attempt("job").begin()
    leader.step()
    return engine, leader, ({"one", "two"} - set(kept(store).followers)).pop()


def test_a_follower_that_was_not_given_the_attempt_decides_and_stores_nothing(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    engine, leader, other = running_beside_another(store, clock)
    forged = forge(engine, other, engine.attempt("job").assignment)
    forged.all_of_it()
    for _ in range(3):
        leader.step()
    assert kept(store).state is JobState.RUNNING
    assert history(store) == ["submitted", "placed", "began"]
    assert store.load(kept(store).run_ids[0]).records == []
    assert [line for line in caplog.messages if "refused" in line] == [
        f"refused: follower {other} reports on attempt 1 at job job at place 0, which it was not given"
    ]

    holder = kept(store).followers[0]
    engine.attempts[holder]["job", 1].record()
    engine.attempts[holder]["job", 1].end()
    leader.step()
    assert kept(store).state is JobState.SUCCEEDED
    assert len(store.load(kept(store).run_ids[0]).records) == 1


def test_also_when_the_attempt_is_over(store: Store, clock: Clock) -> None:
    engine, leader, other = running_beside_another(store, clock)
    given = engine.attempt("job")
    given.record()
    given.end()
    leader.step()
    forge(engine, other, given.assignment).all_of_it()
    engine.attempts[other]["job", 1].record()
    leader.step()
    assert len(store.load(kept(store).run_ids[0]).records) == 1
    assert statuses(store) == ["finished"]


def test_it_is_ordered_to_stop_and_given_nothing_before_it_has(store: Store, clock: Clock) -> None:
    """What it runs may use the devices that a job would be measured on."""
    engine, leader, other = running_beside_another(store, clock)
    forged = forge(engine, other, engine.attempt("job").assignment)
    forged.begin()
    leader.step()
    assert forged.is_stopping
    assert not engine.attempt("job").is_stopping
    engine.silent = {other}
    clock.pass_(BEYOND_LEASE)
    leader.step()
    engine.silent = set()
    leader.submit(a_job("next"))
    leader.step()
    leader.step()
    assert kept(store, "next").state is JobState.QUEUED
    del engine.attempts[other]["job", 1]
    leader.step()
    leader.step()
    assert kept(store, "next").followers == (other,)


def test_results_of_another_run_are_put_aside(store: Store, clock: Clock) -> None:
    """A follower that has an attempt may report nothing on that of another one."""
    engine, leader, other = running_beside_another(store, clock)
    leader.submit(a_job("next"))
    leader.step()
    assert kept(store, "next").followers == (other,)
    own = engine.attempts[other]["next", 1]
    own.begin()
    own.record()
    forged = Measured(engine.attempts[kept(store).followers[0]]["job", 1].assignment, list(own.items))
    forged.record()
    own.items = forged.items
    own.end()
    for _ in range(TRIES):
        leader.step()
    victim = kept(store).run_ids[0]
    assert store.load(victim).records == []
    assert len(store.load(kept(store, "next").run_ids[0]).records) == 1
    (aside,) = store.queue.quarantined("next")
    assert aside.reason.startswith(f"it belongs to run '{victim}'")


def test_of_a_gang_only_the_first_reports_results(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one", "two"])
    leader = Leader(store, engine, clock)
    leader.submit(a_job(needs=MachineNeeds(nodes=2)))
    leader.step()
    second = kept(store).followers[1]
    assignment = engine.attempts[second]["job", 1].assignment
    forge(engine, second, assignment.model_copy(update={"place": 0})).all_of_it()
    leader.step()
    assert kept(store).state is JobState.PLACED
    assert statuses(store) == ["none"]
