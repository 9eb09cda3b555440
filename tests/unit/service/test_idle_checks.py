"""Checks for silent errors in idle gaps: for a follower with nothing to do, once in an interval, after all others."""

from __future__ import annotations

from datetime import timedelta

from paceline.service.idle_checks import TAG
from paceline.service.jobs import Job, JobState
from paceline.service.leader import Leader
from paceline.store.store import Store
from support.scripted_followers import Clock, ScriptedEngine, a_job

EVERY = timedelta(seconds=100)


def leading(store: Store, clock: Clock, engine: ScriptedEngine, *, every: timedelta | None) -> Leader:
    leader = Leader(store, engine, clock, idle_checks=every)
    leader.step()
    return leader


def later(leader: Leader, clock: Clock, seconds: float) -> None:
    """Time passes, and everybody is heard of."""
    for _ in range(int(seconds / 10)):
        clock.pass_(10)
        leader.step()


def checks(engine: ScriptedEngine) -> list[tuple[str, str]]:
    return list(dict.fromkeys((follower, job) for follower, job, _ in engine.begun if job.startswith("idle-")))


def test_an_idle_follower_is_checked_once_in_an_interval_and_the_result_is_stored(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one", "two"], gpus=2)
    leader = leading(store, clock, engine, every=EVERY)
    later(leader, clock, 80)
    assert checks(engine) == []
    later(leader, clock, 40)
    assert sorted(follower for follower, _ in checks(engine)) == ["one", "two"]
    (_, job_id), _ = checks(engine)
    job = leader.job(job_id)
    assert (job.priority, job.tags, job.name) == (-100, (TAG,), "silent-errors")
    engine.attempt(job_id).all_of_it()
    leader.step()
    done: Job = leader.job(job_id)
    assert done.state is JobState.SUCCEEDED and len(store.load(done.run_ids[0]).records) == 1
    later(leader, clock, 40)
    assert len(checks(engine)) == 2


def test_a_follower_that_works_or_a_job_that_waits_is_left_alone(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one"])
    leader = leading(store, clock, engine, every=EVERY)
    leader.submit(a_job("first"))
    leader.submit(a_job("second"))
    leader.step()
    engine.attempt("first").begin()
    later(leader, clock, 200)
    assert checks(engine) == []
    engine.attempt("first").end()
    leader.step()
    assert checks(engine) == [] and [job for _, job, _ in engine.begun][-1] == "second"
    engine.attempt("second").all_of_it()
    later(leader, clock, 20)
    assert [follower for follower, _ in checks(engine)] == ["one"]


def test_without_the_setting_nobody_is_checked(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one"])
    leader = leading(store, clock, engine, every=None)
    later(leader, clock, 200)
    assert engine.begun == []
