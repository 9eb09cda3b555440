"""The scheduler on any jobs and followers: nothing is disturbed, lost, doubled, starved or stuck."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from paceline.service.scheduler.state import STRETCH, Demand
from support.scheduling import Drive, conflicts, demand, node

seconds = st.floats(0.5, 500.0)
times = st.floats(0.0, 300.0)
NODES, GPUS = 4, 4


@st.composite
def any_jobs(draw: st.DrawFn, most: int = 25) -> tuple[list[Demand], dict[str, float]]:
    """Jobs of all sorts with predictions that may be far off, and what they really take."""
    demands, true = [], {}
    for place in range(draw(st.integers(1, most))):
        name = f"t{place}"
        demands.append(
            demand(
                name,
                draw(seconds),
                draw(times),
                priority=draw(st.integers(0, 1)),
                error=draw(st.sampled_from([0.0, 0.3])),
                count=draw(st.integers(1, GPUS)),
                whole_node=draw(st.sampled_from([False, False, True])),
                nodes=draw(st.sampled_from([1, 1, 1, 2, NODES])),
                cpu_heavy=draw(st.booleans()),
            )
        )
        true[name] = draw(seconds)
    return demands, true


@st.composite
def small_tasks(draw: st.DrawFn) -> tuple[list[Demand], dict[str, float]]:
    demands, true = draw(any_jobs(40))
    return [demand(one.id, one.seconds, one.submitted_at) for one in demands], true


def fleet(names: list[str] | None = None, gpus: int = GPUS) -> list:
    return [node(name, gpus) for name in names or [f"n{place}" for place in range(NODES)]]


@given(any_jobs())
def test_every_job_ends_once_and_disturbs_none(given_jobs: tuple[list[Demand], dict[str, float]]) -> None:
    demands, true = given_jobs
    drive = Drive(fleet(), true).submit(demands).run()
    assert sorted(drive.ends) == sorted(one.id for one in demands)
    assert all(len(ends) == 1 for ends in drive.ends.values())
    assert conflicts(drive.intervals) == []
    assert not list(drive.cluster.waiting) and not drive.cluster.running and not drive.cluster.reserved


@given(any_jobs())
def test_a_gang_starts_whole_with_its_devices_on_each_node(given_jobs: tuple[list[Demand], dict[str, float]]) -> None:
    demands, true = given_jobs
    drive = Drive(fleet(), true).submit(demands).run()
    for one in demands:
        parts = [part for part in drive.intervals if part.demand is one]
        assert len(parts) == one.needs.nodes == len({part.follower for part in parts})
        assert len({(part.started, part.ended) for part in parts}) == 1
        assert all(len(part.devices) == (GPUS if one.needs.whole_node else one.needs.count) for part in parts)


@given(small_tasks(), st.integers(1, 5))
def test_no_job_waits_beyond_the_bound(given_jobs: tuple[list[Demand], dict[str, float]], devices: int) -> None:
    demands, true = given_jobs
    drive = Drive(fleet([f"n{place}" for place in range(devices)], gpus=1), true).submit(demands).run()
    due = {one.id: one.submitted_at + STRETCH * one.seconds for one in demands}
    for one in demands:
        moment = due[one.id]
        if drive.starts[one.id] <= moment:
            continue
        ahead = 0.0
        for other in demands:
            started, ended = drive.starts[other.id], drive.ends[other.id][0]
            if started < moment < ended:
                ahead += ended - moment
            elif other is not one and other.submitted_at <= moment <= started and due[other.id] <= moment:
                ahead += true[other.id]
        assert drive.starts[one.id] <= moment + ahead / devices + 1e-6


@given(any_jobs(15), st.permutations(range(NODES)))
def test_names_of_followers_change_nothing(given_jobs: tuple[list[Demand], dict[str, float]], order: list[int]) -> None:
    demands, true = given_jobs
    plain = Drive(fleet(), true).submit(demands).run()
    names = {f"n{place}": f"n{order[place]}" for place in range(NODES)}
    renamed = Drive(fleet(list(names.values())), true).submit(demands).run()
    assert [replace(one, follower=names[one.follower]) for one in plain.intervals] == renamed.intervals


@given(any_jobs(15), st.lists(st.tuples(st.integers(0, NODES - 1), times, st.floats(1.0, 200.0)), max_size=6))
def test_what_a_lost_follower_ran_is_done_elsewhere_or_when_it_returns(
    given_jobs: tuple[list[Demand], dict[str, float]], losses: list[tuple[int, float, float]]
) -> None:
    demands, true = given_jobs
    drive = Drive(fleet(), true).submit(demands)
    for place, when, away in losses:
        drive.at(when, "lose", f"n{place}")
        drive.at(when + away, "join", node(f"n{place}", GPUS))
    drive.run()
    assert sorted(drive.ends) == sorted(one.id for one in demands)
    assert all(len(ends) == 1 for ends in drive.ends.values())
    assert conflicts(drive.intervals) == []


@given(any_jobs(15))
def test_the_same_again_is_the_same(given_jobs: tuple[list[Demand], dict[str, float]]) -> None:
    demands, true = given_jobs
    assert Drive(fleet(), true).submit(demands).run().intervals == Drive(fleet(), true).submit(demands).run().intervals


@given(any_jobs(), st.dictionaries(st.sampled_from(["ann", "bob"]), st.integers(1, 3)))
def test_no_more_jobs_of_an_owner_run_than_may_and_all_end(
    given_jobs: tuple[list[Demand], dict[str, float]], most_running: dict[str, int]
) -> None:
    demands, true = given_jobs
    owned = [replace(one, owner=["ann", "bob", "eve"][place % 3]) for place, one in enumerate(demands)]
    drive = Drive(fleet(), true)
    drive.cluster.most_running = most_running
    drive.submit(owned).run()
    assert sorted(drive.ends) == sorted(one.id for one in owned)
    assert conflicts(drive.intervals) == []
    spans = {one.demand.id: one for one in drive.intervals}.values()
    for owner, most in most_running.items():
        mine = [one for one in spans if one.demand.owner == owner]
        for one in mine:
            assert sum(other.started <= one.started < other.ended for other in mine) <= most
    assert not list(drive.cluster.waiting) and not drive.cluster.running and not drive.cluster.reserved
