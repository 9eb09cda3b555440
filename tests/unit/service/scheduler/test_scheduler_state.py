"""What a follower has, what is free of it and when, and which needs it meets."""

from __future__ import annotations

import math

import pytest

from paceline.service.scheduler.state import Follower, Match, Needs, Running, SchedulerDevice
from support.scheduling import GPU, demand, node

T4 = SchedulerDevice("t4", 16)
H100 = SchedulerDevice("h100", 80, frozenset({"rack=1", "fast"}))
MIXED = (T4, T4, H100)


def match_of(follower: Follower, needs: Needs) -> Match:
    made = follower.shape.match(needs)
    assert made is not None
    return made


def busy(devices: tuple[SchedulerDevice, ...], *jobs: tuple[int, float, bool]) -> Follower:
    """A follower on whose devices jobs run: which device, until when, and whether it is CPU-heavy."""
    follower = Follower("n0", devices)
    for number, (device, ends_at, cpu_heavy) in enumerate(jobs):
        follower.occupy(Running(demand(f"t{number}", 1.0, cpu_heavy=cpu_heavy), (device,), ends_at))
    return follower


@pytest.mark.parametrize(
    ("needs", "is_wide"),
    [
        (Needs(), False),
        (Needs(cpu_heavy=True), False),
        (Needs(count=2), True),
        (Needs(nodes=2), True),
        (Needs(whole_node=True), True),
    ],
)
def test_a_job_is_wide_that_takes_more_than_one_device(needs: Needs, is_wide: bool) -> None:
    for devices in (2, 1):
        match = node("n0", devices).shape.match(needs)
        assert match is None or match.is_wide is (is_wide and not (devices == 1 and needs.whole_node))


def test_a_job_whose_prediction_is_often_off_may_take_longer_by_as_much() -> None:
    assert demand("t", 10.0, error=math.log(2.0)).late_seconds == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("needs", "groups"),
    [
        (Needs(), (0, 1)),
        (Needs(kind="t4"), (0,)),
        (Needs(kind="h100"), (1,)),
        (Needs(kind="tpu"), None),
        (Needs(memory_gib=16), (0, 1)),
        (Needs(memory_gib=17), (1,)),
        (Needs(memory_gib=80), (1,)),
        (Needs(memory_gib=81), None),
        (Needs(labels=frozenset({"rack=1"})), (1,)),
        (Needs(labels=frozenset({"rack=1", "fast"})), (1,)),
        (Needs(labels=frozenset({"rack=2"})), None),
        (Needs(count=2), (0,)),
        (Needs(count=3), None),
        (Needs(kind="t4", memory_gib=17), None),
    ],
)
def test_needs_are_met_by_devices_that_have_at_least_as_much(needs: Needs, groups: tuple[int, ...] | None) -> None:
    made = Follower("n0", MIXED).shape.match(needs)
    assert (made and made.groups) == groups


@pytest.mark.parametrize(
    ("needs", "signature", "fits"),
    [
        (Needs(whole_node=True), (2, 1, 0), True),
        (Needs(whole_node=True), (1, 1, 0), False),
        (Needs(whole_node=True), (2, 1, 1), False),
        (Needs(cpu_heavy=True), (2, 1, 0), True),
        (Needs(cpu_heavy=True), (2, 1, 1), False),
        (Needs(cpu_heavy=True), (0, 0, 0), False),
        (Needs(), (2, 1, 1), True),
        (Needs(), (1, 0, 0), True),
        (Needs(), (0, 1, 0), True),
        (Needs(), (0, 0, 0), False),
        (Needs(count=2), (2, 0, 0), True),
        (Needs(count=2), (1, 1, 0), False),
    ],
)
def test_a_job_starts_where_there_are_as_many_devices_as_it_needs(
    needs: Needs, signature: tuple[int, ...], fits: bool
) -> None:
    assert match_of(Follower("n0", MIXED), needs).fits(signature) is fits


@pytest.mark.parametrize(
    ("taken", "needs", "devices"),
    [
        ((), Needs(count=2), (0, 1)),
        ((0,), Needs(), (1,)),  # the last one of its kind is one
        ((0, 1), Needs(), (2,)),
        ((), Needs(whole_node=True), (0, 1, 2)),
    ],
)
def test_a_job_gets_devices_of_the_first_kind_that_has_enough(
    taken: tuple[int, ...], needs: Needs, devices: tuple[int, ...]
) -> None:
    follower = busy(MIXED, *((device, 9.0, False) for device in taken))
    assert match_of(follower, needs).devices_of(follower) == devices


def test_devices_that_rested_longest_are_used_first() -> None:
    follower = busy((GPU, GPU), (0, 9.0, False))
    follower.release("t0")
    assert match_of(follower, Needs()).devices_of(follower) == (1,)


@pytest.mark.parametrize(
    ("needs", "now", "room_at"),
    [
        (Needs(kind="gpu"), 1.0, 10.0),
        (Needs(kind="gpu", count=2), 1.0, 20.0),
        (Needs(kind="gpu", count=3), 1.0, 30.0),
        (Needs(kind="gpu"), 15.0, 15.0),  # later than it was expected
        (Needs(), 1.0, 1.0),  # on the other kind, which is idle
        (Needs(whole_node=True), 1.0, 30.0),
        (Needs(whole_node=True), 50.0, 50.0),
    ],
)
def test_room_comes_when_enough_devices_are_expected_to_be_free(needs: Needs, now: float, room_at: float) -> None:
    follower = busy((GPU, GPU, GPU, T4), (0, 20.0, False), (1, 10.0, False), (2, 30.0, False))
    assert match_of(follower, needs).room_at(follower, now) == room_at


def test_room_on_one_kind_of_device_does_not_come_from_another() -> None:
    follower = busy((GPU, T4), (0, 10.0, False), (1, 7.0, False))
    rooms = [match_of(follower, Needs(kind=kind)).room_at(follower, 1.0) for kind in ("gpu", "t4", "")]
    assert rooms == [10.0, 7.0, 7.0]


@pytest.mark.parametrize(
    ("jobs", "needs", "room_at"),
    [
        ([(0, 5.0, False), (1, 40.0, True)], Needs(cpu_heavy=True), 40.0),
        ([(0, 5.0, False), (1, 40.0, True)], Needs(), 1.0),
        ([(0, 5.0, True), (1, 50.0, False), (2, 60.0, False)], Needs(cpu_heavy=True, count=2), 50.0),
    ],
)
def test_a_cpu_heavy_job_waits_for_the_other_of_its_sort_to_end(
    jobs: list[tuple[int, float, bool]], needs: Needs, room_at: float
) -> None:
    follower = busy((GPU,) * 3, *jobs)
    assert match_of(follower, needs).room_at(follower, 1.0) == room_at


def test_what_ended_leaves_a_follower_as_it_was() -> None:
    follower = busy(MIXED, (2, 9.0, True))
    assert follower.signature == (2, 0, 1)
    assert follower.ends_of(1) == [9.0]
    follower.release("t0")
    assert follower.signature == follower.shape.idle == (2, 1, 0)
    assert follower.ends_of(1) == []
