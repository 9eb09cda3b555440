"""A job on several followers: who begins when, what ends the attempt on all, and when their devices are free again."""

from __future__ import annotations

import errno
import random
from itertools import pairwise

import pytest

from paceline.core.errors import StoreError
from paceline.service.engines.base import Assignment, Meeting
from paceline.service.jobs import FailureKind, JobFailure, JobState, MachineNeeds
from paceline.service.leader import Leader
from paceline.store.store import Store
from support.kept_jobs import BEYOND_LEASE, full_disk, history, kept, statuses
from support.scripted_followers import Clock, Measured, ScriptedEngine, a_job

PAIR = MachineNeeds(nodes=2)


class Gang:
    """A job on two followers, with a leader that can be replaced."""

    def __init__(self, store: Store, clock: Clock, followers: tuple[str, ...] = ("one", "two")) -> None:
        self.store, self.clock = store, clock
        self.engine = ScriptedEngine(followers)
        self.leader = Leader(store, self.engine, clock)
        self.leader.submit(a_job(needs=PAIR))

    def restart(self) -> None:
        self.leader = Leader(self.store, self.engine, self.clock)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.leader.step()

    def part(self, place: int, number: int = 1) -> Measured:
        held = (one for all_ in self.engine.attempts.values() for key, one in all_.items() if key == ("job", number))
        return next(one for one in held if one.assignment.place == place)

    def wait_for_the_first(self, number: int = 1) -> None:
        self.part(1, number).meeting = Meeting(address="127.0.0.1", port=number, secret="s")

    def run(self, number: int = 1) -> None:
        self.step()
        self.wait_for_the_first(number)
        self.step(2)
        self.part(0, number).begin()
        self.step()
        assert kept(self.store).state is JobState.RUNNING

    def lost(self) -> list[str]:
        return [event.document["reason"] for event in self.store.queue.events("job") if event.kind == "lost"]


@pytest.fixture
def gang(store: Store, clock: Clock) -> Gang:
    return Gang(store, clock)


def test_the_others_begin_first_and_the_first_when_they_wait_for_it(gang: Gang) -> None:
    gang.step(3)
    first, second = kept(gang.store).followers
    assert {follower for follower, _, _ in gang.engine.begun} == {second}
    gang.wait_for_the_first()
    gang.step()
    assert gang.engine.begun[-1] == (first, "job", 1)
    assignment = gang.part(0).assignment
    assert (assignment.name, assignment.peers, assignment.place) == (first, (second,), 0)
    assert assignment.meetings == (gang.part(1).meeting,)
    assert gang.part(1).assignment.peers == (first,)
    assert gang.part(1).assignment.address == second


def test_it_is_over_when_all_of_them_are(gang: Gang) -> None:
    gang.run()
    gang.part(0).record()
    gang.part(0).end()
    gang.step()
    assert kept(gang.store).state is JobState.RUNNING, "the devices of the second are not free yet"
    gang.part(1).end()
    gang.step(2)
    assert kept(gang.store).state is JobState.SUCCEEDED
    assert history(gang.store) == ["submitted", "placed", "began", "ended"]
    assert statuses(gang.store) == ["finished"]
    gang.step(2)
    assert not any(gang.engine.attempts.values()), "all of them were acknowledged"


@pytest.mark.parametrize("place", [0, 1])
def test_what_one_says_of_another_is_worth_less_than_its_own_word(gang: Gang, place: int) -> None:
    gang.run()
    dead = gang.part(place)
    gang.part(1 - place).end(JobFailure(kind=FailureKind.BROKEN, message="the connection to the other is lost"))
    gang.step(2)
    dead.die()
    gang.step(2)
    assert gang.lost() == [f"follower {dead.assignment.name}: the process that measured is gone"]


def test_memory_that_ran_out_on_one_of_them_is_the_cause_of_the_last_loss(gang: Gang) -> None:
    for number in (1, 2, 3):
        gang.run(number)
        gang.part(1, number).end(JobFailure(kind=FailureKind.MEMORY, message="killed for memory"))
        gang.step(2)
        gang.part(0, number).stop()
        gang.step(2)
    job = kept(gang.store)
    assert job.failure is not None
    assert (job.state, job.failure.kind) == (JobState.FAILED, FailureKind.MEMORY)


def test_what_each_of_them_writes_is_kept_once_and_under_its_name(gang: Gang) -> None:
    gang.run()
    first, second = kept(gang.store).followers
    gang.part(1).tell("log", text="rank 1\n")
    gang.part(0).tell("log", text="rank 0\n")
    gang.step()
    gang.restart()  # the new leader does not remember what the second has told
    gang.part(1).tell("log", text="  ok\n")
    gang.part(1).end()
    gang.part(0).end()
    gang.step(3)
    assert kept(gang.store).state is JobState.SUCCEEDED
    rows = gang.store.queue.logs("job")
    assert [row.number for row in rows] == [1, 2, 3]
    told = {one: [row.text for row in rows if row.follower == one] for one in (first, second)}
    assert told == {first: ["rank 0\n"], second: ["rank 1\n", "  ok\n"]}
    gang.step(2)
    assert not any(gang.engine.attempts.values()), "all of them were acknowledged"


@pytest.mark.parametrize("place", [0, 1])
def test_a_process_that_dies_ends_the_attempt_on_all_before_the_next_one_begins(gang: Gang, place: int) -> None:
    gang.run()
    gang.part(0).record()
    dead, other = gang.part(place), gang.part(1 - place)
    dead.die()
    gang.step(2)
    assert other.is_stopping
    assert (kept(gang.store).state, kept(gang.store).attempt) == (JobState.RUNNING, 1)
    other.stop()
    gang.step(2)
    assert (kept(gang.store).state, kept(gang.store).attempt) == (JobState.PLACED, 2)
    name = dead.assignment.name
    assert gang.lost() == [f"follower {name}: the process that measured is gone"]
    gang.run(2)
    gang.part(0, 2).end()
    gang.part(1, 2).end()
    gang.step(2)
    assert kept(gang.store).state is JobState.SUCCEEDED
    assert statuses(gang.store) == ["interrupted", "finished"]
    assert len(gang.store.load(kept(gang.store).run_ids[0]).records) == 1


@pytest.mark.parametrize("place", [0, 1])
def test_a_follower_that_is_gone_ends_the_attempt_on_the_others(store: Store, clock: Clock, place: int) -> None:
    gang = Gang(store, clock, ("one", "two", "three"))
    gang.run()
    gone, other = gang.part(place), gang.part(1 - place)
    gang.engine.present.remove(gone.assignment.name)
    gang.step(2)
    assert other.is_stopping
    assert kept(store).state is JobState.RUNNING, "nothing else may use the device that it still has"
    other.stop()
    gang.step(2)
    job = kept(store)
    assert (job.state, job.attempt) == (JobState.PLACED, 2)
    assert gone.assignment.name not in job.followers
    assert gang.lost() == [f"follower {gone.assignment.name} is gone"]


def test_one_that_is_cut_off_and_returns_stops_before_it_gets_anything(gang: Gang) -> None:
    gang.run()
    first, second = kept(gang.store).followers
    gang.engine.silent = {second}
    gang.clock.pass_(BEYOND_LEASE)
    gang.step(2)
    gang.part(0).stop()
    gang.step(2)
    assert kept(gang.store).state is JobState.QUEUED, "one follower alone is no gang"
    assert gang.lost() == [f"follower {second} was not heard of for 30 s"]
    late = gang.part(1)
    gang.engine.silent = set()
    gang.step(3)
    assert late.is_stopping
    assert kept(gang.store).state is JobState.QUEUED
    late.stop()
    gang.step(3)
    assert (kept(gang.store).state, kept(gang.store).attempt) == (JobState.PLACED, 2)
    assert set(kept(gang.store).followers) == {first, second}


@pytest.mark.parametrize("place", [0, 1])
def test_a_node_that_died_costs_one_attempt_whatever_the_other_says_of_it_first(gang: Gang, place: int) -> None:
    gang.run()
    dead, other = gang.part(place).assignment.name, gang.part(1 - place)
    gang.engine.silent = {dead}
    other.end(JobFailure(kind=FailureKind.BROKEN, message=f"{dead} was lost"))
    gang.step(2)
    assert kept(gang.store).state is JobState.RUNNING, "it may answer yet"
    gang.clock.pass_(BEYOND_LEASE)
    gang.step(2)
    assert (kept(gang.store).state, kept(gang.store).attempt) == (JobState.QUEUED, 1), "one follower alone is no gang"
    assert gang.lost() == [f"follower {dead} was not heard of for 30 s"]


def test_what_the_first_has_measured_to_the_end_counts_also_if_the_other_dies_then(gang: Gang) -> None:
    gang.run()
    gang.part(0).record()
    gang.part(0).end()
    gang.engine.silent = {gang.part(1).assignment.name}
    gang.clock.pass_(BEYOND_LEASE)
    gang.step(2)
    assert kept(gang.store).state is JobState.SUCCEEDED
    assert history(gang.store) == ["submitted", "placed", "began", "ended"]


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_cancelling_stops_all(gang: Gang, when: str) -> None:
    if when == "running":
        gang.run()
    else:
        gang.step(2)
    gang.leader.cancel("job")
    gang.step(2)
    parts = [gang.part(place) for place in ((0, 1) if when == "running" else (1,))]
    assert all(part.is_stopping for part in parts)
    for part in parts:
        part.stop()
    gang.step(2)
    assert kept(gang.store).state is JobState.CANCELLED
    gang.step(2)
    assert not any(gang.engine.attempts.values())


def test_one_that_forgot_its_part_ends_the_attempt(gang: Gang) -> None:
    gang.run()
    second = kept(gang.store).followers[1]
    gang.engine.attempts[second].clear()
    gang.step()
    assert gang.part(0).is_stopping
    gang.part(0).stop()
    gang.step(2)
    assert gang.lost() == [f"follower {second} no longer has it"]


def test_a_part_that_never_answers_again_after_a_restart_is_given_up(gang: Gang) -> None:
    gang.step(2)
    second = kept(gang.store).followers[1]
    gang.engine.present.remove(second)
    gang.restart()
    gang.step(2)
    assert kept(gang.store).state is JobState.PLACED
    gang.clock.pass_(BEYOND_LEASE)
    gang.step(2)
    assert kept(gang.store).state is JobState.QUEUED
    assert gang.lost() == [f"follower {second} was not heard of for 30 s"]


def test_leaders_that_die_at_any_write_lose_and_double_nothing(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine(["one", "two"])

    def go_on() -> None:
        for held in engine.attempts.values():
            for measured in held.values():
                if measured.assignment.place > 0:
                    measured.meeting = Meeting(address="127.0.0.1", port=1, secret="s")
                    first = engine.attempts.get(measured.assignment.peers[0], {})
                    key = (measured.assignment.job_id, measured.assignment.attempt)
                    if not measured.items and key in first and first[key].has_ended:
                        measured.end()
                elif not measured.items:
                    measured.all_of_it()

    names = [f"job-{writes}" for writes in range(10)]
    for writes, name in enumerate(names):
        leader = Leader(store, engine, clock)
        leader.submit(a_job(name, needs=PAIR))
        with full_disk(store, monkeypatch, after=writes):
            for _ in range(5):
                try:
                    leader.step()
                except StoreError:
                    break  # as if it had been killed there
                go_on()
    leader = Leader(store, engine, clock)
    for _ in range(120):
        leader.step()
        go_on()
    for name in names:
        assert kept(store, name).state is JobState.SUCCEEDED
        assert history(store, name) == ["submitted", "placed", "began", "ended"]
        assert statuses(store, name) == ["finished"]
        assert len(store.load(kept(store, name).run_ids[0]).records) == 1
    assert not any(engine.attempts.values())


@pytest.mark.parametrize("seed", [1, 2])
def test_gangs_and_others_never_share_a_machine_and_all_of_them_end(store: Store, clock: Clock, seed: int) -> None:
    """A random workload on followers that fall silent, go and return: who had which machine, and when."""
    rng = random.Random(seed)
    names = ["one", "two", "three", "four"]
    engine = ScriptedEngine(names)
    leader = Leader(store, engine, clock)
    todo = [f"job-{number}" for number in range(25)]
    jobs = list(todo)
    since: dict[tuple[str, tuple[str, int]], int] = {}
    spans: dict[str, list[tuple[int, int]]] = {name: [] for name in names}

    def play(turn: int, follower: str, attempt: tuple[str, int], measured: Measured) -> None:
        if measured.has_ended:
            return
        since.setdefault((follower, attempt), turn)
        place, peers = measured.assignment.place, measured.assignment.peers
        if measured.is_stopping:
            measured.stop()
        elif rng.random() < 0.01:
            measured.die()
        elif place > 0:
            measured.meeting = Meeting(address="127.0.0.1", port=1, secret="s")
            first = engine.attempts.get(next(iter(peers)), {}).get(attempt)
            if first is not None and first.has_ended:
                measured.end()
        elif not measured.items:
            measured.begin()
        elif rng.random() < 0.15:
            measured.end()
        if measured.has_ended:
            spans[follower].append((since[follower, attempt], turn))

    for turn in range(3000):
        if todo and rng.random() < 0.3:
            leader.submit(a_job(todo.pop(), needs=MachineNeeds(nodes=rng.choice([1, 1, 2, 3]))))
        if rng.random() < 0.02:
            engine.silent ^= {rng.choice(names)}
        elif rng.random() < 0.02:
            gone = rng.choice(names)
            engine.present = [name for name in names if (name in engine.present) != (name == gone)]
        elif rng.random() < 0.1:
            engine.silent, engine.present = set(), list(names)
        leader.step()
        clock.pass_(rng.uniform(0.1, 3.0))
        for follower, held in engine.attempts.items():
            for attempt, measured in held.items():
                play(turn, follower, attempt, measured)
        if not todo and not store.queue.jobs(["queued", "placed", "running"]):
            break
    assert all(kept(store, name).state.is_final for name in jobs)
    assert {kept(store, name).state for name in jobs} >= {JobState.SUCCEEDED}
    for follower, held_for in spans.items():
        for (_, ended), (began, _) in pairwise(sorted(held_for)):
            assert ended <= began, f"two jobs were measured on {follower} at once"
    for name in jobs:
        assert history(store, name).count("ended") <= 1
        assert statuses(store, name).count("finished") <= 1


def test_one_that_cannot_begin_is_named_and_the_gang_does_not_wait_for_ever(gang: Gang) -> None:
    gang.step()
    second = kept(gang.store).followers[1]
    gang.engine.attempts.clear()

    def full(assignment: Assignment) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    gang.engine.before_begin.append(full)
    gang.step()
    gang.clock.pass_(BEYOND_LEASE / 2)
    gang.step(2)
    assert gang.lost() == []
    gang.clock.pass_(BEYOND_LEASE)
    gang.step(2)
    assert gang.lost() == [f"follower {second} could not begin: No space left on device"]


def test_one_that_never_comes_to_meet_the_others_is_given_up(gang: Gang) -> None:
    gang.step()
    second = kept(gang.store).followers[1]
    for _ in range(12):
        gang.clock.pass_(BEYOND_LEASE)
        gang.step()
    assert gang.part(1).is_stopping
    gang.part(1).stop()
    gang.step(2)
    assert gang.lost() == [f"follower {second} did not begin within 300 s"]
