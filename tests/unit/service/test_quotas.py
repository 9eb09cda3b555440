"""What the jobs of one token may use, whose they are, and what an admin may do in addition."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from paceline.service.admission import Quotas, check_quotas, machine_hours, most_running
from paceline.service.api.tokens import Scope, make
from paceline.service.job_store import JobStore
from paceline.service.jobs import Cancelled, Ended, Job, Lost, Placed
from paceline.service.leader import Leader
from paceline.store.store import Store
from support.refused import refused
from support.scripted_followers import START, Clock, ScriptedEngine, a_job

HOUR = timedelta(hours=1)


def of(owner: str, name: str, **more: Any) -> Job:
    return a_job(name, submitted_by=owner, **more)


def give(store: Store, owner: str, scope: Scope = Scope.SUBMIT, **quotas: Any) -> None:
    _, row = make(owner, scope, None, quotas=Quotas(**quotas))
    with store.queue.writing("keep a token") as writing:
        writing.put_token(row)


def test_a_job_beyond_a_quota_is_refused_with_one_message(store: Store) -> None:
    leader = Leader(store, ScriptedEngine([]))
    quotas = Quotas(max_queued=2, max_priority=5)
    says = (
        "^beyond the quota of 'ann': priority 6 is above 5: submit it with less; who has an admin token may raise it$"
    )
    with refused("over-quota", says=says, key="priority", value=6):
        leader.submit(of("ann", "urgent", priority=6), quotas)
    for name in ("one", "two"):
        leader.submit(of("ann", name), quotas)
    with refused("over-quota", key="max_queued", value=2):
        leader.submit(of("ann", "three"), quotas)
    assert leader.submit(of("ann", "two"), quotas) == (leader.job("two"), False), "sent again, it is no other job"
    assert leader.submit(of("bob", "four"), quotas)[1], "each has a quota of their own"
    leader.cancel("one")
    assert leader.submit(of("ann", "three"), quotas)[1]
    assert leader.submit(of("ann", "admin"), Quotas())[1]
    leader.close()


def test_machine_hours_count_each_machine_while_a_job_has_it(store: Store) -> None:
    now = START
    jobs = JobStore(store, lambda: now, HOUR)

    def placed(name: str, owner: str, *followers: str) -> Job:
        job = of(owner, name)
        jobs.submit(job)
        return jobs.change(job, Placed(at=now, followers=followers, run_id=name))

    gang, lost = placed("gang", "ann", "f1", "f2"), placed("lost", "ann", "f3")
    placed("other", "bob", "f4")
    jobs.submit(of("ann", "waits"))
    now = START + HOUR
    jobs.change(gang, Ended(at=now))
    lost = jobs.change(lost, Lost(at=now, reason="gone"))
    now = START + 3 * HOUR
    again = jobs.change(lost, Placed(at=now, followers=("f1",), run_id="again"))
    now = START + 4 * HOUR
    jobs.change(again, Cancelled(at=now, by="ann"))
    assert machine_hours(store, "ann", START + 5 * HOUR) == pytest.approx(2 + 1 + 2)
    assert machine_hours(store, "bob", START + 5 * HOUR) == pytest.approx(5)
    assert machine_hours(store, "nobody", START + 5 * HOUR) == 0
    assert machine_hours(store, "ann", START + timedelta(days=31)) < 31 * 24
    with refused("over-quota", key="machine_hours"):
        check_quotas(of("ann", "next"), Quotas(machine_hours=0), store)
    check_quotas(of("ann", "next"), Quotas(machine_hours=0.1), store)


def test_only_tokens_that_hold_and_are_no_admins_limit_what_runs(store: Store) -> None:
    give(store, "ann", max_running=2)
    give(store, "bob", max_queued=2)
    give(store, "boss", Scope.ADMIN, max_running=1)
    give(store, "gone", max_running=1)
    with store.queue.writing("revoke a token") as writing:
        writing.revoke_token("gone")
    assert most_running(store.queue.tokens()) == {"ann": 2}


def test_of_one_owner_no_more_run_at_once_than_may_and_others_do(store: Store, clock: Clock) -> None:
    give(store, "ann", max_running=1)
    engine = ScriptedEngine(["one", "two", "three"])
    leader = Leader(store, engine, now=clock)
    leader.step()
    for owner, name in (("ann", "a1"), ("ann", "a2"), ("ann", "a3"), ("bob", "b1"), ("bob", "b2")):
        leader.submit(of(owner, name))
    states = {name: leader.job(name).state.value for name in ("a1", "a2", "a3", "b1", "b2")}
    assert states == {"a1": "placed", "a2": "queued", "a3": "queued", "b1": "placed", "b2": "placed"}
    assert leader.why_it_waits("a2") == "as many jobs of 'ann' run as may at once, 1"
    assert {job.id for job, _ in leader.waiting(10)} == {"a2", "a3"}
    leader.cancel("a3")
    leader.step()
    attempt = engine.attempt("a1")
    attempt.begin()
    attempt.end()
    leader.step()
    assert leader.job("a1").state.is_final
    assert leader.job("a2").state.value == "placed"
    leader.close()


def test_a_quota_that_changes_counts_within_a_second(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.service.leader._FRESH", 0.0)
    give(store, "ann", max_running=0)
    leader = Leader(store, ScriptedEngine(["one", "two"]), now=clock)
    leader.step()
    for name in ("a1", "a2"):
        leader.submit(of("ann", name))
    leader.step()
    assert [leader.job(name).state.value for name in ("a1", "a2")] == ["queued", "queued"]
    with store.queue.writing("limit a token") as writing:
        writing.limit_token("ann", {"max_running": 1})
    leader.step()
    assert sorted(leader.job(name).state.value for name in ("a1", "a2")) == ["placed", "queued"]
    with store.queue.writing("limit a token") as writing:
        writing.limit_token("ann", {})
    leader.step()
    assert [leader.job(name).state.value for name in ("a1", "a2")] == ["placed", "placed"]
    leader.close()
