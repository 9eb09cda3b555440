"""Who waits in which order, who can run what, and what the cluster forgets."""

from __future__ import annotations

import pytest

from paceline.service.scheduler import events
from paceline.service.scheduler.state import (
    Candidate,
    ClusterState,
    Demand,
    DemandQueue,
    Follower,
    JobPlacement,
    Needs,
    Reservation,
    SchedulerDevice,
)
from support.scheduling import demand, node


def queue_with(*demands: Demand) -> DemandQueue:
    queue = DemandQueue(Needs(), (), stretch=10.0)
    for number, one in enumerate(demands):
        queue.push(one, number)
    return queue


def ranks(candidates: list[Candidate]) -> list[tuple[str, tuple[float, ...], bool]]:
    return [(one.demand.id, one.rank, one.is_due) for one in candidates]


class TestQueue:
    """Jobs of equal needs."""

    def test_the_shortest_is_next_until_one_is_due(self) -> None:
        queue = queue_with(demand("long", 50.0), demand("short", 10.0, at=10.0))
        shortest = ("short", (1, 0, 10.0, 1), False)
        assert ranks(queue.candidates(0.0)) == [shortest]
        assert ranks(queue.candidates(109.9)) == [shortest]
        assert ranks(queue.candidates(110.0)) == [("short", (0, 110.0, 1), True), shortest]

    def test_the_one_that_is_due_longest_goes_before_the_shortest(self) -> None:
        queue = queue_with(demand("long", 50.0), demand("short", 10.0, at=490.0))
        assert ranks(queue.candidates(500.0)) == [("long", (0, 500.0, 0), True), ("short", (1, 0, 10.0, 1), False)]

    def test_a_higher_priority_goes_before_a_shorter_one(self) -> None:
        queue = queue_with(demand("short", 10.0), demand("urgent", 20.0, priority=1))
        assert ranks(queue.candidates(0.0)) == [("urgent", (1, -1, 20.0, 1), False)]

    def test_a_job_that_followers_are_drained_for_still_waits(self) -> None:
        queue = queue_with(demand("long", 50.0), demand("first", 10.0, priority=2), demand("second", 30.0))
        reservations = [Reservation(one, (), 0.0) for one in list(queue)[1:]]
        for reservation in reservations:
            queue.reserve(reservation)
        assert len(queue) == 3
        assert [one.id for one in queue] == ["long", "first", "second"]
        waiting = ("long", (1, 0, 50.0, 0), False)
        second = ("second", (1, 0, 30.0), False)
        assert ranks(queue.candidates(0.0)) == [waiting, ("first", (1, -2, 10.0), False), second]
        assert ranks(queue.candidates(100.0)) == [waiting, ("first", (0, 100.0), True), second]
        assert queue.remove("first") is reservations[0]
        assert queue.remove("long") is None
        assert [one.id for one in queue] == ["second"]

    def test_whose_turn_it_is_is_not_worked_out_again_while_nothing_changes(self) -> None:
        queue = queue_with(demand("t", 10.0))
        first = queue.candidates(100.0)  # the moment in which it is due
        assert queue.candidates(100.0) is first
        queue.push(demand("other", 1.0, at=100.0), 1)
        assert [one.demand.id for one in queue.candidates(100.0)] == ["t", "other"]

    def test_a_job_that_comes_again_counts_as_what_it_is_now(self) -> None:
        queue = queue_with(demand("again", 5.0))
        queue.remove("again")
        queue.push(demand("again", 50.0), 1)
        queue.push(demand("other", 20.0), 2)
        assert [one.demand.id for one in queue.candidates(0.0)] == ["other"]
        assert [one.demand.id for one in queue.candidates(200.0)] == ["other", "other"]

    def test_jobs_that_are_gone_are_forgotten_once_they_are_many_more_than_those_that_wait(self) -> None:
        queue = queue_with(*(demand(f"t{place}", 1.0 + place) for place in range(84)))
        for place in range(74):
            queue.remove(f"t{place}")
        assert len(queue._shortest) == len(queue._due) == 84
        queue.remove("t74")
        assert len(queue._shortest) == len(queue._due) == 9
        assert [one.demand.id for one in queue.candidates(0.0)] == ["t75"]


def test_empty_queues_are_forgotten_when_they_are_very_many() -> None:
    cluster = ClusterState()
    cluster.wait(demand("t", 1.0, kind="tpu"))
    waiting, empty = cluster.queue_of(Needs(kind="tpu")), cluster.queue_of(Needs(kind="other"))
    for memory in range(999):
        cluster.queue_of(Needs(memory_gib=memory))
    assert cluster.queue_of(Needs(kind="other")) is empty
    cluster.queue_of(Needs(nodes=7))
    assert cluster.queue_of(Needs(kind="other")) is not empty
    assert cluster.queue_of(Needs(kind="tpu")) is waiting


def test_a_queue_of_many_is_not_forgotten_before_it_is_one_too_many() -> None:
    cluster = ClusterState()
    first = cluster.queue_of(Needs(memory_gib=0))
    for memory in range(1, 1001):
        cluster.queue_of(Needs(memory_gib=memory))
    assert cluster.queue_of(Needs(memory_gib=0)) is first
    cluster.queue_of(Needs(memory_gib=1001))
    assert cluster.queue_of(Needs(memory_gib=0)) is not first


def test_a_gang_can_run_where_enough_followers_are_alike() -> None:
    cluster = ClusterState()
    for follower in (node("n0"), node("n1"), Follower("n2", (SchedulerDevice("t4"),))):
        events.joined(cluster, follower, 0.0)
    needs = [Needs(), Needs(nodes=2), Needs(nodes=3), Needs(kind="t4", nodes=2), Needs(kind="t4")]
    assert [cluster.can_run(one) for one in needs] == [True, True, False, False, True]


def test_only_jobs_that_no_follower_could_run_are_stuck() -> None:
    cluster = ClusterState()
    events.joined(cluster, node("n0"), 0.0)
    for one in (demand("now", 1.0), demand("later", 1.0), demand("never", 1.0, nodes=2), demand("tpu", 1.0, kind="t")):
        events.submitted(cluster, one, 0.0)
    assert {one.id for one in cluster.stuck()} == {"never", "tpu"}
    assert {one.id for one in cluster.waiting} == {"later", "never", "tpu"}


def test_a_gang_is_expected_to_end_on_all_of_them_at_once() -> None:
    cluster = ClusterState()
    followers = (node("n0"), node("n1"))
    for follower in followers:
        cluster.join(follower)
    cluster.start(JobPlacement(demand("gang", 10.0, nodes=2), followers, ((0,), (0,))), 5.0)
    assert [follower.running["gang"].ends_at for follower in followers] == [15.0, 15.0]


def test_a_start_that_names_devices_of_only_some_followers_is_a_defect() -> None:
    cluster = ClusterState()
    followers = (node("n0"), node("n1"))
    for follower in followers:
        cluster.join(follower)
    with pytest.raises(ValueError, match="zip"):
        cluster.start(JobPlacement(demand("gang", 10.0, nodes=2), followers, ((0,),)), 0.0)


def test_a_follower_that_is_about_to_go_leaves_the_others_of_its_gang_taken() -> None:
    cluster = ClusterState()
    first, second = node("n0"), node("n1")
    for follower in (first, second):
        cluster.join(follower)
    events.submitted(cluster, demand("gang", 10.0, nodes=2), 0.0)
    cluster.shrink("gang", first)
    assert cluster.running == {"gang": (second,)}
    assert (first.signature, second.signature) == ((1, 0), (0, 0))
    assert [start.followers for start in events.submitted(cluster, demand("t", 1.0), 1.0)] == [(first,)]


def test_a_follower_with_one_kind_of_device_taken_has_room_on_the_other() -> None:
    cluster = ClusterState()
    cluster.join(Follower("n0", (SchedulerDevice("t4"), SchedulerDevice("h100"))))
    starts = [events.submitted(cluster, demand(kind, 9.0, kind=kind), 0.0) for kind in ("t4", "h100", "t4 ")]
    assert [len(one) for one in starts] == [1, 1, 0]
    assert [start.devices for one in starts for start in one] == [((0,),), ((1,),)]
