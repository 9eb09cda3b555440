"""A leader of a Ray cluster with three nodes: some die, one is cut off or refused, and the leader is killed.

Every follower has a token of its own, the leader's one that it makes itself.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline.service.jobs import FailureKind, Job, JobState
from paceline.store import open_store
from paceline.store.store import Store
from support.cli import Sandbox
from support.kept_jobs import history, kept, statuses
from support.ray_cluster import LABEL, PATIENCE, RayCluster, a_cluster, wait_for
from support.scripted_followers import naps

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[cluster]'")
pytestmark = [pytest.mark.alone, pytest.mark.slow]

PAIR = {"bravo": 3, "charlie": 4}  # the last numbers of their addresses; they are alike, so that they make a gang
OTHER = {"delta": 5}  # has no token
TWO = {"nodes": 2, "labels": [LABEL]}
EXCHANGE = {
    "name": "exchange",
    "cases": [{"benchmark": "collective", "sizes": "4KiB", "budget": "1s", "warm_up": "1s"}],
}


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with a_cluster(Sandbox(tmp_path_factory.mktemp("ray")), PAIR | OTHER, PAIR) as made:
        yield made


@pytest.fixture
def store(ray_cluster: RayCluster) -> Iterator[Store]:
    with open_store(ray_cluster.sandbox.folder / "store.db") as opened:
        gather(ray_cluster, opened)
        yield opened


def gather(cluster: RayCluster, store: Store) -> None:
    """Have the leader and the pair be there, whatever an earlier test did to them; one by one, as Ray is slow."""
    if cluster.leader is None or cluster.leader.poll() is not None:
        cluster.lead()
    for name in PAIR:
        if name not in cluster.followers or cluster.followers[name].poll() is not None:
            cluster.follow(name)
        wait_for(name, lambda name=name: cluster.knows(store, name))


def all_jobs(store: Store, *states: JobState) -> list[Job]:
    return [Job.model_validate(row) for row in store.queue.jobs(states, limit=None)]


def unfinished(store: Store) -> list[Job]:
    return all_jobs(store, *(state for state in JobState if not state.is_final))


def on(store: Store, follower: str) -> list[Job]:
    return [job for job in all_jobs(store, JobState.RUNNING) if job.followers == (follower,)]


def losses(store: Store, follower: str, jobs: Collection[str]) -> list[str]:
    """Why these jobs were lost, as far as it was this follower's doing."""
    events = [event for job in jobs for event in store.queue.events(job) if event.kind == "lost"]
    return [event.document["reason"] for event in events if f"follower {follower}" in event.document["reason"]]


def test_a_job_is_measured_on_the_leaders_own_node(ray_cluster: RayCluster) -> None:
    ray_cluster.lead()
    with open_store(ray_cluster.sandbox.folder / "store.db") as store:
        ray_cluster.submit("at-home", naps("100ms", "200ms"), needs={"labels": ["home"]})
        wait_for("the end of the job", lambda: not unfinished(store))
        job = kept(store, "at-home")
        assert job.state is JobState.SUCCEEDED, job.failure
        assert history(store, "at-home") == ["submitted", "placed", "began", "ended"]
        assert len(store.load(job.run_ids[0]).records) == 2


@pytest.mark.long
def test_a_gang_measures_on_two_nodes_and_each_tells_its_part(ray_cluster: RayCluster, store: Store) -> None:
    ray_cluster.submit("gang", EXCHANGE, needs=TWO)
    wait_for("the end of the gang", lambda: not unfinished(store))
    job = kept(store, "gang")
    assert job.state is JobState.SUCCEEDED, job.failure
    assert history(store, "gang") == ["submitted", "placed", "began", "ended"]
    assert statuses(store, "gang") == ["finished"]
    (record,) = store.load(job.run_ids[0]).records
    assert (record.facts["nodes"], sorted(record.facts["hosts"])) == (2, sorted(PAIR))
    assert record.facts["backend"] == "gloo"
    placed = next(event for event in store.queue.events("gang") if event.kind == "placed").document["followers"]
    for follower in placed:
        lines = [row.text for row in store.queue.logs("gang") if row.follower == follower]
        assert any("collective" in line for line in lines)
        assert any(line.startswith("  ok after") for line in lines)


@pytest.mark.long
@pytest.mark.parametrize("place", [0, 1], ids=["first", "other"])
def test_a_gang_that_loses_a_node_tells_so_and_is_whole_once_that_is_back(
    ray_cluster: RayCluster, store: Store, place: int
) -> None:
    name = f"torn-{place}"
    ray_cluster.submit(name, EXCHANGE, needs=TWO)
    # The second says so when all have met.
    wait_for("both at work", lambda: any(": rank 1 of 2" in row.text for row in store.queue.logs(name)))
    victim = kept(store, name).followers[place]
    ray_cluster.kill(victim)
    wait_for("the loss", lambda: "lost" in history(store, name))
    assert losses(store, victim, [name]), store.queue.events(name)[-1].document
    assert kept(store, name).state is JobState.QUEUED, "one machine is no gang"

    gather(ray_cluster, store)
    wait_for("the end of the gang", lambda: not unfinished(store))
    job = kept(store, name)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2), job.failure
    assert history(store, name) == ["submitted", "placed", "began", "lost", "placed", "began", "ended"]
    assert statuses(store, name) == ["interrupted", "finished"]
    assert len(store.load(job.run_ids[1]).records) == 1
    assert {row.follower for row in store.queue.logs(name) if row.attempt == job.attempt} == set(PAIR)


@pytest.mark.long
def test_a_revoked_follower_is_shut_out_alone_under_any_name(ray_cluster: RayCluster, store: Store) -> None:
    cluster, name = ray_cluster, "watched"
    cluster.submit(name, naps("1s", "30s"), needs={"labels": [LABEL]})
    wait_for("a record", lambda: _records(store, name, 0))
    (revoked,) = kept(store, name).followers
    (other,) = set(PAIR) - {revoked}
    with store.queue.writing("revoke a token") as writing:
        writing.revoke_token(revoked)
    wait_for("the loss", lambda: losses(store, revoked, [name]))
    assert losses(store, revoked, [name])[0].startswith(f"follower {revoked} is refused: its token was revoked on ")
    assert _records(store, name, 0) == 1, "what it had delivered stays"
    wait_for("the job elsewhere", lambda: kept(store, name).followers == (other,))

    cluster.submit("next", naps("100ms"), needs={"labels": [LABEL]})
    cluster.follow("delta", token_of=revoked)
    wait_for("the refusal", lambda: "follower delta is refused: it has no token of its own" in cluster.log.read_text())
    cluster.kill("delta")
    wait_for("the end of both jobs", lambda: not unfinished(store))
    assert [kept(store, one).state for one in (name, "next")] == [JobState.SUCCEEDED] * 2
    for one in (name, "next"):
        assert store.queue.events(one)[-1].kind == "ended"
        placed = [event.document["followers"] for event in store.queue.events(one) if event.kind == "placed"]
        assert placed == ([[revoked], [other]] if one == name else [[other]])

    before = datetime.now(UTC)
    cluster.give_token(revoked)

    def is_back() -> bool:
        return any(row.id == revoked and row.seen_at > before for row in store.queue.followers())

    wait_for("its return with a new token", is_back)


def _records(store: Store, job: str, attempt: int) -> int:
    runs = kept(store, job).run_ids[attempt : attempt + 1]
    return sum(len(store.load(run).records) for run in runs if store.has(run))


@pytest.mark.long
def test_every_job_ends_once_whatever_happens_to_the_nodes(ray_cluster: RayCluster, store: Store) -> None:
    cluster = ray_cluster
    names = _submit_twelve(cluster)

    wait_for("a job on bravo", lambda: on(store, "bravo"))
    cluster.kill("bravo")
    wait_for("the loss of bravo", lambda: losses(store, "bravo", names))

    wait_for("a job on charlie", lambda: on(store, "charlie"))
    cluster.signal("charlie", signal.SIGSTOP, "RayFollower")
    wait_for("the loss of charlie", lambda: losses(store, "charlie", names))
    cluster.signal("charlie", signal.SIGCONT, "RayFollower")

    assert cluster.leader is not None
    cluster.leader.kill()
    cluster.leader.wait()
    cluster.lead()
    cluster.submit("after", naps("100ms"), needs={"labels": [LABEL]})

    wait_for("the end of all jobs", lambda: not unfinished(store))
    _count(store, [*names, "after"])
    assert cluster.leader.stdin is not None
    cluster.leader.stdin.close()
    assert cluster.leader.wait(PATIENCE) == 0


def _submit_twelve(cluster: RayCluster) -> list[str]:
    wanted: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for number in range(3):
        wanted[f"short-{number}"] = naps("100ms"), {}
        wanted[f"several-{number}"] = naps("100ms", "200ms", "300ms"), {}
        wanted[f"long-{number}"] = naps("6s", "1s", steps=60), {}
    wanted["fails"] = {"name": "fails", "cases": [{"benchmark": "raises"}, {"benchmark": "nap"}]}, {}
    wanted["refused"] = {"name": "refused", "cases": [{"benchmark": "no-such-thing"}]}, {}
    wanted["with-the-leader"] = naps("100ms"), {"needs": {"labels": ["home"]}}
    for name, (suite, more) in wanted.items():
        cluster.submit(name, suite, **more)
    return list(wanted)


def _count(store: Store, names: Collection[str]) -> None:
    """Every job ended once, every result is there once, and the history tells what happened."""
    jobs = {name: kept(store, name) for name in names}
    runs = {row.id: store.load(row.id) for row in store.runs(limit=None)}
    events = {name: store.queue.events(name) for name in jobs}
    print(
        f"{len(jobs)} jobs, {sum(job.attempt for job in jobs.values())} attempts, {len(runs)} runs, "
        f"{sum(len(run.records) for run in runs.values())} records"
    )
    assert len(jobs) == 13
    for name, job in jobs.items():
        kinds = [event.kind for event in events[name]]
        assert (kinds[0], kinds[-1], kinds.count("ended")) == ("submitted", "ended", 1)
        assert kinds.count("placed") == job.attempt == kinds.count("lost") + 1
        results = [runs[run_id] for run_id in job.run_ids if run_id in runs and runs[run_id].run.status == "finished"]
        if name == "refused":
            assert (job.state, results) == (JobState.FAILED, [])
            assert job.failure is not None
            assert job.failure.kind is FailureKind.REFUSED
            continue
        assert job.state is (JobState.FAILED if name == "fails" else JobState.SUCCEEDED)
        assert [result.run.id for result in results] == [job.run_ids[-1]]
        assert sorted(record.case.index for record in results[0].records) == list(range(len(results[0].run.cases)))
    placed = [event.document["followers"] for event in events["after"] if event.kind == "placed"]
    assert placed[-1] == ["charlie"], "it takes jobs again"
