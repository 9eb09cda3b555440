"""Who is here, who is heard, who is let in, and who is given up, with time that a test lets pass."""

from __future__ import annotations

import pytest

from paceline.service.engines.base import FollowerState
from paceline.service.follower_calls import Presence
from paceline.service.jobs import LEASE
from support.kept_jobs import BEYOND_LEASE
from support.scripted_followers import START, Clock


def a_follower(name: str, *, draining: bool = False) -> FollowerState:
    return FollowerState(id=name, host=name, seen_at=START, draining=draining)


@pytest.fixture
def presence(clock: Clock) -> Presence:
    return Presence(clock, LEASE)


def test_one_that_is_seen_is_heard_only_after_it_answered(presence: Presence) -> None:
    presence.see([a_follower("one")])
    assert not presence.is_heard("one")
    presence.hear("one")
    assert presence.is_heard("one")


def test_silence_counts_from_the_last_answer(presence: Presence, clock: Clock) -> None:
    presence.see([a_follower("one")])
    presence.hear("one")
    clock.pass_(LEASE.total_seconds())
    assert presence.silent(["one"]) == {}
    clock.pass_(1)
    assert presence.silent(["one"]) == {"one": "follower one was not heard of for 30 s"}
    presence.hear("one")
    assert presence.silent(["one"]) == {}


def test_one_that_was_gone_has_to_answer_again(presence: Presence) -> None:
    presence.see([a_follower("one")])
    presence.hear("one")
    presence.see([])
    presence.see([a_follower("one")])
    assert not presence.is_heard("one")


def test_a_new_leader_waits_a_lease_for_those_that_it_sees(presence: Presence, clock: Clock) -> None:
    presence.see([a_follower("one")])
    assert presence.is_there("one")
    assert not presence.is_there("two"), "nobody sees it"
    clock.pass_(BEYOND_LEASE)
    assert not presence.is_there("one")
    presence.start_over([])
    presence.see([a_follower("one")])
    assert presence.is_there("one")


def test_one_that_answered_and_fell_silent_is_not_waited_for(clock: Clock) -> None:
    presence = Presence(clock, LEASE)
    presence.see([a_follower("one")])
    presence.hear("one")
    clock.pass_(BEYOND_LEASE)
    presence.start_over([])
    presence.see([a_follower("one")])
    presence.hear("one")
    assert presence.is_there("one")
    clock.pass_(BEYOND_LEASE)
    assert not presence.is_there("one")


def test_who_leaves_and_why(presence: Presence) -> None:
    presence.see([a_follower("stays"), a_follower("busy", draining=True), a_follower("idle", draining=True)])
    leaving = presence.leaving(["stays", "busy", "idle", "gone"], ["stays", "idle", "gone"])
    assert leaving == {"gone": "follower gone is gone", "idle": "follower idle takes nothing new"}


def test_let_in_is_who_answers_and_is_neither_inside_nor_busy_nor_draining(presence: Presence) -> None:
    names = ["heard", "unheard", "inside", "busy"]
    presence.see([*map(a_follower, names), a_follower("draining", draining=True)])
    for name in ("heard", "inside", "busy", "draining"):
        presence.hear(name)
    assert presence.newcomers(["inside"], ["busy"], []) == {"heard"}
    assert presence.newcomers(["inside"], ["busy"], [["draining"]]) == {"heard", "draining"}, "it has a job"


def test_those_of_a_gang_are_let_in_together_or_not_at_all(presence: Presence) -> None:
    presence.see(map(a_follower, ("a", "b", "c", "alone")))
    for name in ("a", "b", "alone"):
        presence.hear(name)
    # b waits for c, and a for b.
    assert presence.newcomers([], [], [["a", "b"], ["b", "c"]]) == {"alone"}
    presence.hear("c")
    assert presence.newcomers([], [], [["a", "b"], ["b", "c"]]) == {"a", "b", "c", "alone"}
    assert presence.newcomers(["c"], [], [["b", "c"]]) == {"a", "b", "alone"}, "one of them is inside already"


def test_who_was_let_in_stays_known_after_it_has_gone(presence: Presence) -> None:
    presence.see([a_follower("one")])
    presence.recorded["one"] = presence.here["one"]
    presence.see([])
    assert (set(presence.here), set(presence.recorded)) == (set(), {"one"})
    presence.start_over([a_follower("two")])
    assert set(presence.recorded) == {"two"}, "the store decides"
