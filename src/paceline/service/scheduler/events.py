"""What follows from an event: the jobs that start now. The leader and the simulator call these, and nothing else.

Each takes the time as an argument, changes the cluster, and returns the starts that somebody has to carry out.

Tier one, at the leader, decides which follower with room a job goes to. If there is none it is bound to none: it waits
in the queue of every follower that could run it, and tier two gives it to the first of them that gets room. A decision
that is made so late needs no correction when predictions prove wrong.

Tier two, at each follower, decides which of the jobs that it could run it takes next, and what it is drained for. A
wide job (several devices, a whole node, several nodes) for which there is no room when its turn comes has followers
drained for it, all that it needs in one step or none, so that two of them never wait for each other. Smaller jobs may
use a drained follower if they are over before it is expected to be empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush, nsmallest
from itertools import chain, count, islice

from paceline.service.scheduler.state import (
    Candidate,
    ClusterState,
    Demand,
    DemandQueue,
    Follower,
    JobPlacement,
    Match,
    Rank,
    Reservation,
)

# Draining wastes room: at most this part of the followers that are alike, and one job at a time unless it is due.
DRAINED = 0.25
LOOKED_AT = 100  # followers among which those to drain are chosen: of so many, some have room soon


def submitted(cluster: ClusterState, demand: Demand, now: float) -> list[JobPlacement]:
    """A job has come; also one that comes again after its follower was lost."""
    placement = _place(cluster, demand, now) if cluster.may_start(demand.owner) else None
    if placement is None:
        cluster.wait(demand)
        return []
    return [placement, *settle(cluster, cluster.start(placement, now), now)]


def ended(cluster: ClusterState, job_id: str, now: float) -> list[JobPlacement]:
    """A running job has ended, well or not."""
    owner = cluster.demands[job_id].owner
    return _settle_released(cluster, cluster.end(job_id), [owner], now)


def limited(cluster: ClusterState, most_running: dict[str, int], now: float) -> list[JobPlacement]:
    """Owners may have so many jobs running from now on; those that are not named, as many as there is room for."""
    before, cluster.most_running = cluster.most_running, dict(most_running)
    changed = sorted(one for one in {*before, *most_running} if before.get(one) != most_running.get(one))
    freed = [follower for owner in changed for follower in cluster.hold(owner)]
    return _settle_released(cluster, freed, changed, now)


def _settle_released(
    cluster: ClusterState, freed: Iterable[Follower], owners: Iterable[str], now: float
) -> list[JobPlacement]:
    """Everything that starts because followers have room, and because jobs of these owners are not held any more."""
    released = [demand for owner in owners for demand in cluster.release(owner)]
    started = settle(cluster, freed, now)
    for demand in released:  # there may be room for it on a follower that nothing has changed on
        if demand.id in cluster.running or not cluster.may_start(demand.owner):
            continue
        placement = _place(cluster, demand, now)
        if placement is not None:
            started += [placement, *settle(cluster, cluster.start(placement, now), now)]
    return started


def cancelled(cluster: ClusterState, job_id: str, now: float) -> list[JobPlacement]:
    """Nobody wants a job any more that waits; one that runs is stopped first, and then has ended."""
    return settle(cluster, cluster.withdraw(cluster.demands[job_id]), now)


def joined(cluster: ClusterState, follower: Follower, now: float) -> list[JobPlacement]:
    """A follower has come, or come back."""
    cluster.join(follower)
    return settle(cluster, [follower], now)


def lost(cluster: ClusterState, names: Iterable[str], now: float) -> tuple[list[Demand], list[JobPlacement]]:
    """Followers have gone: what ran on them, for the caller to submit again or give up, and what starts now."""
    demands: list[Demand] = []
    freed: list[Follower] = []
    owners: list[str] = []
    for follower in [cluster.followers[name] for name in names]:
        for running in list(follower.running.values()):
            demands.append(running.demand)
            freed += cluster.end(running.demand.id)
            owners.append(running.demand.owner)
        if follower.reservation:
            waiting = follower.reservation.demand  # again like any other
            freed += cluster.withdraw(waiting)
            cluster.wait(waiting)
        cluster.leave(follower)
    return demands, _settle_released(cluster, freed, owners, now)


def settle(cluster: ClusterState, followers: Iterable[Follower], now: float) -> list[JobPlacement]:
    """Everything that starts because these followers may have room."""
    pending = list(dict.fromkeys(followers))
    started: list[JobPlacement] = []
    for follower in pending:  # grows while it is walked
        if cluster.followers.get(follower.id) is not follower:
            continue  # it has gone
        for decision in _take(cluster, follower, now):
            if isinstance(decision, Reservation):
                cluster.reserve(decision)
            else:
                pending += cluster.start(decision, now)
                started.append(decision)
    return started


# Tier one


def _place(cluster: ClusterState, demand: Demand, now: float) -> JobPlacement | None:
    """Where a job that has just come starts at once, or None if it has to wait."""
    queue = cluster.queue_of(demand.needs)
    for match in queue.matches.values():
        followers = _with_room(match)
        if not followers and demand.needs.nodes == 1:  # perhaps on one that is drained for a job which starts later
            drained = (one for one in match.shape.drained if match.fits(one.signature) and match.needs.allows(one))
            followers = list(islice((one for one in drained if _may_start_on(one, demand, now)), 1))
        if followers:
            return _placement(demand, match, followers)
    return None


def _placement(demand: Demand, match: Match, followers: Sequence[Follower]) -> JobPlacement:
    """The job on these followers, with the devices that it gets on each."""
    return JobPlacement(demand, tuple(followers), tuple(match.devices_of(follower) for follower in followers))


def _with_room(match: Match, drained: Sequence[Follower] = ()) -> list[Follower] | None:
    """As many followers as the job needs, all of which have room: first those drained for it, then the fittest."""
    nodes = match.needs.nodes
    if not drained and sum(map(len, match.shape.open.values())) < nodes:
        return None
    chosen = [follower for follower in drained if match.fits(follower.signature)][:nodes]
    buckets = [item for item in match.shape.open.items() if match.fits(item[0])]
    # CPU-heavy jobs go where few others run; others go away from those, and where it is full already.
    if match.needs.cpu_heavy:
        buckets.sort(key=lambda item: -sum(item[0][:-1]))
    else:
        buckets.sort(key=lambda item: (item[0][-1], sum(item[0][:-1])))
    able = filter(match.needs.allows, chain.from_iterable(bucket for _, bucket in buckets))
    chosen += islice(able, nodes - len(chosen))
    return chosen if len(chosen) == nodes else None


def _may_start_on(follower: Follower, demand: Demand, now: float) -> bool:
    """Whether a follower that is drained for another job is free for this one: it must be over before."""
    other = follower.reservation
    return other is None or now + demand.late_seconds <= other.until


# Tier two


def _take(cluster: ClusterState, follower: Follower, now: float) -> Iterator[JobPlacement | Reservation]:
    """What a follower does with its room, one decision after the other; each is applied before the next is made.

    Room only shrinks meanwhile, so that a job for which there is none is not looked at twice.
    """
    heap: list[tuple[Rank, int, Candidate]] = []
    numbers = count()  # so that candidates are never compared themselves
    done: set[str] = set()

    def add(queue: DemandQueue) -> None:
        for candidate in queue.candidates(now):
            if candidate.demand.id not in done:
                heappush(heap, (candidate.rank, next(numbers), candidate))

    for queue in cluster.queues[follower.shape].values():
        add(queue)
    may_drain = True
    while heap:
        candidate = heappop(heap)[2]
        if candidate.demand.id in done:
            continue
        done.add(candidate.demand.id)
        if not cluster.may_start(candidate.demand.owner):  # since a decision before this one
            add(candidate.queue)
            continue
        decision: JobPlacement | Reservation | None = _start(candidate, follower, now)
        needs, is_reserved = candidate.demand.needs, candidate.demand.id in candidate.queue.reserved
        could_have_room = len(follower.shape.members) >= needs.nodes
        is_wide = candidate.queue.matches[follower.shape].is_wide
        if decision is None and may_drain and is_wide and not is_reserved and could_have_room:
            decision = _drain(candidate, follower, now)
            may_drain = False  # one at a time is enough; and nobody may take what an earlier one still lacks
        if decision is not None:
            yield decision
            add(candidate.queue)  # its first has gone, and the next one comes in


def _start(candidate: Candidate, follower: Follower, now: float) -> JobPlacement | None:
    demand, queue = candidate.demand, candidate.queue
    match = queue.matches[follower.shape]
    reservation = queue.reserved.get(demand.id)
    if reservation or demand.needs.nodes > 1:
        drained = reservation.followers if reservation and reservation.followers[0].shape is follower.shape else ()
        followers = _with_room(match, drained)
        return _placement(demand, match, followers) if followers else None
    is_able = match.needs.allows(follower) and match.fits(follower.signature)
    if not is_able or not _may_start_on(follower, demand, now):
        return None
    return _placement(demand, match, [follower])


def _drain(candidate: Candidate, asking: Follower, now: float) -> Reservation | None:
    """The followers, alike to the asking one, that are expected to have room first; all that are needed or none."""
    match, members = candidate.queue.matches[asking.shape], asking.shape.members
    nodes = match.needs.nodes
    drained = len(asking.shape.drained)
    if drained and not (candidate.is_due and drained + nodes <= DRAINED * len(members)):
        return None
    able = (one for one in members if one.reservation is None and match.needs.allows(one))
    free = list(islice(able, max(nodes, LOOKED_AT)))
    if len(free) < nodes:
        return None
    soonest = nsmallest(nodes, ((match.room_at(one, now), index) for index, one in enumerate(free)))
    return Reservation(candidate.demand, tuple(free[index] for _, index in soonest), soonest[-1][0])
