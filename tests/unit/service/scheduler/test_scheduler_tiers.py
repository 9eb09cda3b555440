"""Which follower a job goes to, which job a follower takes, and what it is drained for."""

from __future__ import annotations

import pytest

from paceline.service.scheduler import events
from paceline.service.scheduler.state import ClusterState, Demand, Follower, JobPlacement, Needs, SchedulerDevice
from support.refused import refused
from support.scheduling import Drive, conflicts, demand, node


def started(drive: Drive) -> list[str]:
    return [name for name, _ in sorted(drive.starts.items(), key=lambda item: item[1])]


def where(drive: Drive, name: str) -> set[str]:
    return {one.follower for one in drive.intervals if one.demand.id == name}


def test_a_job_goes_only_where_its_needs_are_met() -> None:
    big = Follower("big", (SchedulerDevice("h200", 141, frozenset({"rack=1"})),))
    small = Follower("small", (SchedulerDevice("t4", 16),))
    drive = Drive([small, big])
    drive.submit(
        [
            demand("memory", 1.0, memory_gib=100),
            demand("kind", 1.0, at=2.0, kind="t4"),
            demand("label", 1.0, at=4.0, labels=frozenset({"rack=1"})),
        ]
    ).run()
    assert [where(drive, name) for name in ("memory", "kind", "label")] == [{"big"}, {"small"}, {"big"}]


def test_needs_that_nobody_meets_wait_for_a_follower_that_does() -> None:
    drive = Drive([node("n0")])
    wanted = Needs(kind="tpu")
    assert not drive.cluster.can_run(wanted)
    drive.submit([demand("t", 1.0, kind="tpu")]).run()
    assert not drive.starts
    drive.at(5.0, "join", Follower("n1", (SchedulerDevice("tpu"),)))
    drive.run()
    assert drive.starts == {"t": 5.0} and drive.cluster.can_run(wanted)


def test_a_gang_of_more_nodes_than_there_are_blocks_nobody() -> None:
    drive = Drive([node("n0", 2), node("n1", 2)])
    drive.submit([demand("huge", 1.0, nodes=3), demand("pair", 5.0, count=2), demand("other", 5.0, count=2)])
    drive.submit([demand("late", 5.0, at=1.0, count=2)]).run()
    assert set(drive.ends) == {"pair", "other", "late"}


def test_the_shortest_predicted_goes_first_and_a_higher_priority_before_it() -> None:
    demands = [demand("now", 10.0), demand("long", 9.0, at=1.0), demand("short", 2.0, at=2.0)]
    demands.append(demand("urgent", 9.5, at=3.0, priority=1))
    assert started(Drive([node("n0")]).submit(demands).run()) == ["now", "urgent", "short", "long"]


def test_a_job_that_is_due_goes_before_shorter_ones() -> None:
    demands = [demand("now", 100.0), demand("long", 9.0, at=1.0), demand("short", 8.9, at=20.0)]
    assert started(Drive([node("n0")], stretch=20.0).submit(demands).run()) == ["now", "short", "long"]
    assert started(Drive([node("n0")], stretch=10.0).submit(demands).run()) == ["now", "long", "short"]


def test_cpu_heavy_jobs_are_kept_apart_and_others_away_from_them() -> None:
    drive = Drive([node("n0", 4), node("n1", 4)])
    drive.submit([demand(name, 9.0, cpu_heavy=True) for name in ("h0", "h1", "h2")])
    drive.run()
    assert where(drive, "h0") != where(drive, "h1")
    assert drive.starts["h2"] == 9.0 and conflicts(drive.intervals) == []
    beside = Drive([node("n0", 4), node("n1", 4)])
    beside.submit([demand("heavy", 9.0, cpu_heavy=True), demand("light", 9.0), demand("more", 9.0)]).run()
    assert where(beside, "heavy").isdisjoint(where(beside, "light") | where(beside, "more"))


def test_small_jobs_share_a_node_so_that_a_whole_one_stays_free() -> None:
    drive = Drive([node("n0", 2), node("n1", 2)])
    drive.submit([demand("a", 9.0), demand("b", 9.0), demand("whole", 9.0, whole_node=True)]).run()
    assert where(drive, "a") == where(drive, "b") and drive.starts["whole"] == 0.0


def test_of_whole_nodes_with_one_device_the_shortest_goes_first_whenever_it_came() -> None:
    demands = [demand("a", 10.0, whole_node=True), demand("b", 12.0, whole_node=True)]
    demands += [demand(name, seconds, at=1.0, whole_node=True) for name, seconds in (("c", 8.0), ("d", 9.0))]
    demands.append(demand("short", 2.0, at=11.0, whole_node=True))  # after c has started, and d might have been next
    drive = Drive([node("n0"), node("n1")]).submit(demands).run()
    assert started(drive) == ["a", "b", "c", "short", "d"]


def test_a_whole_node_gets_its_turn_among_a_stream_of_small_tasks() -> None:
    stream = [demand(f"s{i}", 10.0, at=i * 2.4) for i in range(300)]  # four devices, always busy
    drive = Drive([node("n0", 4)]).submit([*stream, demand("whole", 12.0, at=5.0, whole_node=True)]).run()
    assert drive.starts["whole"] < 200.0
    assert conflicts(drive.intervals) == []


def test_what_ends_in_time_uses_a_node_that_is_drained() -> None:
    demands = [demand("a", 100.0), demand("b", 10.0), demand("whole", 50.0, at=1.0, whole_node=True)]
    demands += [demand("fits", 60.0, at=11.0), demand("too-long", 95.0, at=12.0)]
    drive = Drive([node("n0", 2)]).submit(demands).run()
    assert drive.starts == {"a": 0.0, "b": 0.0, "fits": 11.0, "whole": 100.0, "too-long": 150.0}


def test_a_prediction_with_a_large_error_is_not_trusted_to_end_in_time() -> None:
    demands = [demand("a", 100.0), demand("b", 10.0), demand("whole", 50.0, at=1.0, whole_node=True)]
    drive = Drive([node("n0", 2)]).submit([*demands, demand("vague", 60.0, at=11.0, error=0.7)]).run()
    assert drive.starts["whole"] == 100.0 and drive.starts["vague"] == 150.0


def test_two_gangs_that_overlap_both_run() -> None:
    nodes = [node(f"n{i}") for i in range(3)]
    demands = [demand(f"small{i}", 10.0 + i) for i in range(3)]
    demands += [demand("g0", 20.0, at=1.0, nodes=2), demand("g1", 20.0, at=1.0, nodes=2)]
    drive = Drive(nodes).submit(demands).run()
    assert drive.starts["g0"] == 11.0 and drive.starts["g1"] == 31.0


def test_a_drained_job_takes_another_place_that_is_free_sooner() -> None:
    drive = Drive([node("n0", 2), node("n1", 2)], true_seconds={"a": 500.0})
    drive.submit([demand("a", 10.0), demand("b", 5.0), demand("c", 30.0), demand("d", 31.0)])
    drive.submit([demand("whole", 50.0, at=1.0, whole_node=True)]).run()
    assert where(drive, "whole") == where(drive, "d")
    assert drive.starts["whole"] == 31.0  # and not at 500, when the node that was predicted to be free first is
    assert not drive.cluster.reserved


def test_what_a_lost_follower_ran_comes_back_to_be_submitted_again() -> None:
    cluster = ClusterState()
    for name in ("n0", "n1"):
        events.joined(cluster, node(name), 0.0)
    events.submitted(cluster, demand("gang", 10.0, nodes=2), 0.0)
    events.submitted(cluster, demand("next", 5.0), 0.0)
    lost, starts = events.lost(cluster, ["n0"], 3.0)
    assert [one.id for one in lost] == ["gang"]
    assert [start.demand.id for start in starts] == ["next"]
    assert list(cluster.running) == ["next"] and list(cluster.followers) == ["n1"]


def test_a_cancelled_job_makes_room_that_was_kept_for_it() -> None:
    drive = Drive([node("n0", 2)])
    whole, small = demand("whole", 50.0, at=1.0, whole_node=True), demand("small", 95.0, at=12.0)
    drive.submit([demand("a", 100.0), demand("b", 10.0), whole, small]).run(until=20.0)
    assert "small" not in drive.starts and drive.cluster.reserved
    assert [start.demand.id for start in events.cancelled(drive.cluster, "whole", 20.0)] == ["small"]
    assert events.ended(drive.cluster, "small", 21.0) == []


def test_the_same_name_twice_is_refused() -> None:
    cluster = ClusterState()
    events.joined(cluster, node("n0"), 0.0)
    with refused("duplicate-follower", value="n0"):
        events.joined(cluster, node("n0"), 0.0)
    events.submitted(cluster, demand("t", 1.0), 0.0)
    with refused("duplicate-job", value="t"):
        events.submitted(cluster, demand("t", 1.0), 0.0)


def test_a_corrected_end_moves_what_is_expected() -> None:
    cluster = ClusterState()
    follower = node("n0")
    events.joined(cluster, follower, 0.0)
    events.submitted(cluster, demand("t", 10.0), 0.0)
    match = cluster.queue_of(Needs(whole_node=True)).matches[follower.shape]
    assert match.room_at(follower, 1.0) == 10.0
    cluster.retime("t", 40.0)
    assert match.room_at(follower, 1.0) == 40.0


def test_heaps_do_not_keep_jobs_that_are_gone() -> None:
    cluster = ClusterState()
    events.joined(cluster, node("n0"), 0.0)
    events.submitted(cluster, demand("now", 1.0), 0.0)
    for place in range(5000):
        one = Demand(f"t{place}", Needs(), 1.0 + place, 0.0)
        events.submitted(cluster, one, 0.0)
        events.cancelled(cluster, one.id, 0.0)
    queue = cluster.queue_of(Needs())
    assert len(queue) == 0 and len(queue._shortest) + len(queue._due) < 400


def test_a_drained_node_is_used_only_where_it_has_room() -> None:
    demands = [demand("a", 100.0), demand("b", 10.0), demand("whole", 50.0, at=1.0, whole_node=True)]
    demands += [demand("fits", 60.0, at=11.0), demand("tiny", 1.0, at=12.0)]
    drive = Drive([node("n0", 2)]).submit(demands).run()
    assert (drive.starts["fits"], drive.starts["tiny"], drive.starts["whole"]) == (11.0, 71.0, 100.0)


@pytest.mark.parametrize(("seconds", "starts_at"), [(89.0, 11.0), (90.0, 200.0)])
def test_what_uses_a_drained_node_ends_by_the_time_it_is_expected_to_be_empty(seconds: float, starts_at: float) -> None:
    demands = [demand("a", 100.0), demand("b", 10.0), demand("whole", 100.0, at=1.0, whole_node=True)]
    drive = Drive([node("n0", 2)]).submit([*demands, demand("t", seconds, at=11.0)]).run()
    assert (drive.starts["whole"], drive.starts["t"]) == (100.0, starts_at)


def test_of_several_drained_nodes_a_small_job_uses_one_and_a_gang_none() -> None:
    demands = [demand("h0", 100.0, cpu_heavy=True), demand("h1", 100.0, cpu_heavy=True), demand("b", 10.0)]
    demands += [demand("whole", 50.0, at=1.0, nodes=2, whole_node=True)]
    demands += [demand("tiny", 5.0, at=11.0), demand("gang", 5.0, at=20.0, nodes=2)]
    drive = Drive([node("n0", 2), node("n1", 2)]).submit(demands).run()
    assert len(where(drive, "tiny")) == 1
    assert (drive.starts["tiny"], drive.starts["whole"], drive.starts["gang"]) == (11.0, 100.0, 150.0)


def test_a_gang_starts_on_some_of_the_nodes_drained_for_it_and_on_others_that_are_free_sooner() -> None:
    drive = Drive([node(f"n{place}") for place in range(4)], true_seconds={"b": 500.0})
    drive.submit([demand("a", 10.0), demand("b", 20.0), demand("c", 30.0, nodes=2)])
    drive.submit([demand("gang", 5.0, at=1.0, nodes=2)]).run()
    assert where(drive, "gang") == {"n0", "n2"}
    assert drive.starts["gang"] == 30.0


def test_a_gang_never_mixes_nodes_drained_for_it_with_nodes_of_another_sort() -> None:
    nodes = [Follower(f"{kind}{place}", (SchedulerDevice(kind),)) for kind in "ab" for place in range(2)]
    drive = Drive(nodes, true_seconds={"pair": 30.0})
    drive.submit([demand("x", 10.0, kind="a"), demand("y", 500.0, kind="a"), demand("pair", 200.0, kind="b", nodes=2)])
    drive.submit([demand("gang", 5.0, at=1.0, nodes=2)]).run()
    assert where(drive, "gang") == {"b0", "b1"}
    assert drive.starts["gang"] == 30.0


H, T = SchedulerDevice("h"), SchedulerDevice("t")


@pytest.mark.parametrize(
    ("taken", "heavy", "wanted", "goes_to"),
    [
        ({"n1": (2,)}, True, demand("light", 1.0, kind="h"), "n0"),  # away from a CPU-heavy one
        ({"n0": (2, 3), "n1": (0,)}, False, demand("light", 1.0, kind="h"), "n0"),  # where it is fuller in all
        ({"n0": (2, 3), "n1": (0,)}, False, demand("heavy", 1.0, kind="h", cpu_heavy=True), "n1"),  # and emptier
        ({"n0": (0, 1)}, False, demand("light", 1.0, kind="h"), "n1"),  # where there is any
    ],
)
def test_a_job_goes_by_all_that_is_free_of_a_follower(
    taken: dict[str, tuple[int, ...]], heavy: bool, wanted: Demand, goes_to: str
) -> None:
    cluster = ClusterState()
    for name in ("n0", "n1"):
        cluster.join(Follower(name, (H, H, T, T)))
    for name, devices in taken.items():
        running = demand(f"on {name}", 9.0, cpu_heavy=heavy)
        cluster.start(JobPlacement(running, (cluster.followers[name],), (devices,)), 0.0)
    assert [start.followers[0].id for start in events.submitted(cluster, wanted, 0.0)] == [goes_to]


def half_busy(stretch: float) -> ClusterState:
    """Eight nodes of two devices: a long job on each, and next to it a short one on the first four."""
    cluster = ClusterState(stretch=stretch)
    for place in range(8):
        follower = node(f"n{place}", 2)
        cluster.join(follower)
        ends = 900.0 if place == 5 else 1000.0
        cluster.start(JobPlacement(demand(f"long{place}", ends), (follower,), ((0,),)), 0.0)
        seconds = 10.0 if place < 4 else ends
        cluster.start(JobPlacement(demand(f"next{place}", seconds), (follower,), ((1,),)), 0.0)
    return cluster


def drained_after(cluster: ClusterState, wide: list[Demand]) -> list[list[str]]:
    """Which nodes are drained after each of the short jobs has ended."""
    for one in wide:
        assert events.submitted(cluster, one, 0.0) == []
    drained = []
    for place in range(4):
        assert events.ended(cluster, f"next{place}", 10.0) == []
        drained.append([follower.id for follower in cluster.reserved])
    return drained


@pytest.mark.parametrize(
    ("stretch", "drained"),
    [
        (1.0, [["n5"], ["n5", "n0"], ["n5", "n0"], ["n5", "n0"]]),
        (1000.0, [["n5"]] * 4),
    ],
)
def test_a_quarter_of_the_nodes_is_drained_for_jobs_that_are_due_one_at_a_time(
    stretch: float, drained: list[list[str]]
) -> None:
    wide = [demand(f"whole{place}", 5.0 + place, whole_node=True) for place in range(3)]
    assert drained_after(half_busy(stretch), wide) == drained


def test_a_later_job_has_no_node_drained_that_an_earlier_one_still_lacks() -> None:
    wide = [demand("whole", 5.0, whole_node=True), demand("gang", 6.0, nodes=2, whole_node=True)]
    wide.append(demand("later", 7.0, whole_node=True))
    assert drained_after(half_busy(1.0), wide) == [["n5"]] * 4


def test_a_job_for_one_follower_waits_for_it_and_takes_no_other() -> None:
    drive = Drive([node("n0"), node("n1"), node("n2")])
    drive.submit([demand("now", 10.0, follower="n1")])
    drive.submit([demand(f"for {name}", 2.0, at=1.0, follower=name, whole_node=True) for name in ("n0", "n1", "n2")])
    drive.submit([demand("any", 1.0, at=1.5)]).run()
    assert [where(drive, f"for {name}") for name in ("n0", "n1", "n2")] == [{"n0"}, {"n1"}, {"n2"}]
    assert [drive.starts[f"for {name}"] for name in ("n0", "n1", "n2")] == [1.0, 10.0, 1.0]
    assert drive.starts["any"] == 3.0, "as soon as another follower has room"
    assert conflicts(drive.intervals) == []


def test_a_job_for_a_follower_that_is_away_starts_when_it_returns() -> None:
    drive = Drive([node("n0")])
    wanted = Needs(follower="n1")
    assert not drive.cluster.can_run(wanted)
    drive.submit([demand("t", 1.0, follower="n1"), demand("u", 1.0, follower="n1", whole_node=True)]).run()
    assert not drive.starts
    drive.at(5.0, "join", node("n1"))
    drive.run()
    assert sorted(drive.starts.values()) == [5.0, 6.0]
    assert where(drive, "t") == where(drive, "u") == {"n1"}
    assert drive.cluster.can_run(wanted)
