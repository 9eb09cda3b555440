"""Checks for silent errors in idle gaps: for a follower with nothing to do, once in an interval, after all others."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from paceline.service.admission import Quotas
from paceline.service.api.tokens import Scope, make
from paceline.service.engines.base import FollowerState
from paceline.service.idle_checks import TAG
from paceline.service.jobs import Job, JobState, MachineNeeds
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


def test_what_waits_for_others_keeps_nobody_from_a_check(store: Store, clock: Clock) -> None:
    _, row = make("ann", Scope.SUBMIT, None, quotas=Quotas(max_running=1))
    with store.queue.writing("keep a token") as writing:
        writing.put_token(row)
    engine = ScriptedEngine(["one", "two"], gpus=2)
    leader = leading(store, clock, engine, every=EVERY)
    leader.submit(a_job("runs", submitted_by="ann", needs=MachineNeeds(follower="two")))
    leader.submit(a_job("held", submitted_by="ann"))
    leader.submit(a_job("elsewhere", needs=MachineNeeds(gpu="b200")))
    leader.submit(a_job("wide", needs=MachineNeeds(gpus=2, nodes=3)))
    leader.step()
    engine.attempt("runs").begin()
    leader.submit(a_job("next", needs=MachineNeeds(follower="two")))
    later(leader, clock, 120)
    waiting = [leader.job(name).state for name in ("held", "elsewhere", "wide", "next")]
    assert waiting == [JobState.QUEUED] * 4
    assert [follower for follower, _ in checks(engine)] == ["one"]


def test_a_follower_with_gpus_of_two_kinds_is_checked_as_a_whole(store: Store, clock: Clock) -> None:
    class Mixed(ScriptedEngine):
        def followers(self) -> Sequence[FollowerState]:
            gpus = {"gpus": ("H200", "H200", "L4"), "gpu_memory_gib": (141, 141, 24)}
            return [state.model_copy(update=gpus) for state in super().followers()]

    engine = Mixed(["one"])
    leader = leading(store, clock, engine, every=EVERY)
    later(leader, clock, 120)
    ((_, job_id),) = checks(engine)
    assert leader.job(job_id).devices == ((0, 1, 2, 3),)


def test_without_the_setting_nobody_is_checked(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one"])
    leader = leading(store, clock, engine, every=None)
    later(leader, clock, 200)
    assert engine.begun == []
