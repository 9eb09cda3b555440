"""Small stories of the queue, told event by event."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.servers._embedded.service import Batcher, Policy, RequestBatch, WaitingRequest


@dataclass(eq=False, slots=True)
class NamedRequest(WaitingRequest):
    name: str


def batcher(instances: int = 1, **policy: object) -> Batcher[NamedRequest]:
    options = {"max_batch": 4, "max_delay": 10, "max_queue": 100, **policy}
    return Batcher(Policy(**options), instances)  # type: ignore[arg-type]


def add(queue: Batcher[NamedRequest], name: str, at: int = 0, size: int = 1, group: str = "g") -> NamedRequest:
    request = NamedRequest(size, group, at, name)
    queue.add(request)
    return request


def names(batches: list[RequestBatch[NamedRequest]]) -> list[list[str]]:
    return [[request.name for request in batch.requests] for batch in batches]


def test_a_lone_request_waits_for_company_and_then_goes() -> None:
    queue = batcher()
    add(queue, "a", at=5)
    assert queue.take(5) == []
    assert queue.wake() == 15
    assert queue.take(14) == []
    assert names(queue.take(15)) == [["a"]]
    assert queue.wake() is None


def test_a_full_batch_goes_at_once() -> None:
    queue = batcher()
    for name in "abcde":
        add(queue, name)
    assert names(queue.take(0)) == [["a", "b", "c", "d"]]
    assert len(queue) == 1


def test_the_busy_instance_is_not_given_more_and_no_alarm_is_set() -> None:
    queue = batcher()
    for name in "abcdefgh":
        add(queue, name)
    [first] = queue.take(0)
    assert queue.take(100) == []
    assert queue.wake() is None
    queue.release(first.instance)
    assert names(queue.take(100)) == [["e", "f", "g", "h"]]


def test_a_request_that_does_not_fit_closes_the_batch_and_is_not_overtaken() -> None:
    queue = batcher(instances=2)
    add(queue, "a", size=3)
    add(queue, "b", size=2)
    add(queue, "c", size=1)
    assert names(queue.take(0)) == [["a"]]
    assert names(queue.take(10)) == [["b", "c"]]


def test_the_largest_preferred_size_goes_without_waiting() -> None:
    queue = batcher(max_batch=8, preferred=(2, 4))
    for name in "abcde":
        add(queue, name)
    assert names(queue.take(0)) == [["a", "b", "c", "d"]]


def test_what_reaches_no_preferred_size_goes_after_the_delay() -> None:
    queue = batcher(max_batch=8, preferred=(4,))
    for name in "abc":
        add(queue, name)
    assert queue.take(9) == []
    assert names(queue.take(10)) == [["a", "b", "c"]]


def test_groups_do_not_mix_and_the_oldest_goes_first() -> None:
    queue = batcher(max_batch=2)
    add(queue, "a1", at=0, group="a")
    add(queue, "b1", at=1, group="b")
    add(queue, "b2", at=2, group="b")
    add(queue, "a2", at=3, group="a")
    [batch] = queue.take(3)
    assert names([batch]) == [["a1", "a2"]]
    queue.release(batch.instance)
    assert names(queue.take(3)) == [["b1", "b2"]]


def test_a_full_group_does_not_wait_for_an_older_one_that_is_not() -> None:
    queue = batcher(max_batch=2)
    add(queue, "a1", at=0, group="a")
    add(queue, "b1", at=1, group="b")
    add(queue, "b2", at=2, group="b")
    assert names(queue.take(2)) == [["b1", "b2"]]


def test_who_left_is_not_computed_and_cannot_leave_twice() -> None:
    queue = batcher()
    request = add(queue, "a")
    for _ in range(2):
        queue.cancel(request)
        assert len(queue) == 0
    assert queue.take(100) == []
    other = add(queue, "b")
    add(queue, "c", at=200)
    assert names(queue.take(100)) == [["b", "c"]]
    add(queue, "d", at=200)
    queue.cancel(other)
    assert len(queue) == 1
