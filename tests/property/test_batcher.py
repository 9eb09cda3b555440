"""Whatever arrives, leaves or takes long: each request is computed once, in time, in order, in a batch that fits."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from paceline.servers._embedded.service import Batcher, Policy, RequestBatch, WaitingRequest


@dataclass(eq=False, slots=True)
class NumberedRequest(WaitingRequest):
    number: int


@dataclass(frozen=True)
class Arrival:
    """One request of a script: how long after the one before, and what becomes of it."""

    gap: int
    size: int
    group: str
    cancelled_after: int | None


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    max_batch = draw(st.integers(1, 8))
    preferred = draw(st.lists(st.integers(1, max_batch), max_size=2))
    return Policy(max_batch, draw(st.integers(0, 20)), draw(st.integers(1, 12)), tuple(preferred))


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        gap=st.integers(0, 10),
        size=st.integers(1, 8),
        group=st.sampled_from("ab"),
        cancelled_after=st.none() | st.integers(0, 30),
    ),
    max_size=40,
)


@dataclass
class Replay:
    """Time as the batcher would see it: arrivals, cancellations, finished batches, and its own wake-ups."""

    policy: Policy
    speeds: list[int]
    shed: list[NumberedRequest] = field(default_factory=list)
    cancelled: list[NumberedRequest] = field(default_factory=list)
    batches: list[tuple[int, RequestBatch[NumberedRequest]]] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)
    requests: list[NumberedRequest] = field(default_factory=list)

    def run(self, arrivals: list[Arrival]) -> None:
        batcher: Batcher[NumberedRequest] = Batcher(self.policy, len(self.speeds))
        now = 0
        script: list[tuple[int, int, str, object]] = []
        for number, arrival in enumerate(arrivals):
            now += arrival.gap
            request = NumberedRequest(min(arrival.size, self.policy.max_batch), arrival.group, now, number)
            self.requests.append(request)
            script.append((now, number, "arrive", request))
            if arrival.cancelled_after is not None:
                script.append((now + arrival.cancelled_after, 10_000 + number, "cancel", request))
        order = 100_000
        heapq.heapify(script)
        while script or batcher.wake() is not None:
            wake = batcher.wake()
            if wake is not None and (not script or wake < script[0][0]):
                now = max(now, wake)
                taken = batcher.take(now)
                assert taken, "it woke for nothing"
            else:
                now, _, what, value = heapq.heappop(script)
                if what == "arrive":
                    assert isinstance(value, NumberedRequest)
                    if len(batcher) < self.policy.max_queue:
                        batcher.add(value)
                    else:
                        self.shed.append(value)
                elif what == "cancel":
                    assert isinstance(value, NumberedRequest)
                    waiting = len(batcher)
                    batcher.cancel(value)
                    if len(batcher) < waiting:
                        self.cancelled.append(value)
                else:
                    assert isinstance(value, int)
                    self.busy.discard(value)
                    batcher.release(value)
                taken = batcher.take(now)
            for batch in taken:
                assert batch.instance not in self.busy
                self.busy.add(batch.instance)
                self.batches.append((now, batch))
                order += 1
                heapq.heappush(script, (now + self.speeds[batch.instance], order, "finish", batch.instance))
            self.check_patience(batcher, now)
        assert len(batcher) == 0

    def check_patience(self, batcher: Batcher[NumberedRequest], now: int) -> None:
        """With an instance free nobody has waited for the whole delay, nor waits in a full batch."""
        if len(self.busy) == len(self.speeds):
            return
        gone = {id(one) for _, batch in self.batches for one in batch.requests}
        gone |= {id(one) for one in (*self.shed, *self.cancelled)}
        waiting = [one for one in self.requests if one.arrival < now and id(one) not in gone]
        assert all(now - one.arrival < self.policy.max_delay for one in waiting)
        for group in "ab":
            assert sum(one.size for one in waiting if one.group == group) < self.policy.max_batch


@given(policies(), st.lists(st.integers(0, 25), min_size=1, max_size=3), ARRIVALS)
def test_every_promise_is_kept(policy: Policy, speeds: list[int], arrivals: list[Arrival]) -> None:
    replay = Replay(policy, speeds)
    replay.run(arrivals)
    computed = [one for _, batch in replay.batches for one in batch.requests]
    ends = [one.number for one in (*computed, *replay.shed, *replay.cancelled)]
    assert sorted(ends) == list(range(len(arrivals))), "each ends in exactly one way"
    for _, batch in replay.batches:
        assert 0 < batch.size <= policy.max_batch
        assert batch.size == sum(one.size for one in batch.requests)
        assert len({one.group for one in batch.requests}) == 1
    for group in "ab":
        numbers = [one.number for one in computed if one.group == group]
        assert numbers == sorted(numbers), "first come, first served"


@given(st.integers(1, 3), ARRIVALS)
def test_without_batching_nobody_waits_for_company(instances: int, arrivals: list[Arrival]) -> None:
    replay = Replay(Policy(max_batch=1, max_delay=10**9, max_queue=100), [3] * instances)
    replay.run(arrivals)
    computed = [one.number for _, batch in replay.batches for one in batch.requests]
    assert computed == sorted(computed), "one group or another, whoever came first goes first"
    assert not replay.shed
