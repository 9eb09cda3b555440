"""Followers that come and go: who is here, who was heard of lately, and who was ever known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta

from paceline.service.engines.base import FollowerState


class Presence:
    """The followers of one leader, as its engine sees them and as they answer."""

    def __init__(self, now: Callable[[], datetime], lease: timedelta) -> None:
        self._now = now
        self._lease = lease
        self.start_over(())

    def start_over(self, known: Iterable[FollowerState]) -> None:
        """Remember nobody but those that were let in once; whoever is here is to be heard of first."""
        self.here: dict[str, FollowerState] = {}  # those that the engine sees
        self.known = {state.id: state for state in known}  # also those that have gone
        self._heard_at: dict[str, datetime] = {}
        self._since = self._now()

    def see(self, present: Iterable[FollowerState]) -> None:
        """These are here now; of one that has gone, it is forgotten when it was heard."""
        self.here = {state.id: state for state in present}
        self._heard_at = {one: at for one, at in self._heard_at.items() if one in self.here}

    def hear(self, follower: str) -> None:
        """A follower has answered."""
        self._heard_at[follower] = self._now()

    def is_heard(self, follower: str) -> bool:
        """Whether a follower has answered within a lease."""
        heard_at = self._heard_at.get(follower)
        return heard_at is not None and self._now() - heard_at <= self._lease

    def is_there(self, follower: str) -> bool:
        """Whether a follower is, or may yet be, heard of."""
        may_answer = follower in self.here and self._now() - self._since <= self._lease
        return self.is_heard(follower) or (may_answer and follower not in self._heard_at)

    def leaving(self, inside: Collection[str], idle: Collection[str]) -> dict[str, str]:
        """Those of the cluster that have gone, or run nothing and take nothing new, each with the reason."""
        gone = {one: f"follower {one} is gone" for one in inside if one not in self.here}
        drained = [one for one in idle if one in self.here and self.here[one].draining]
        return gone | {one: f"follower {one} takes nothing new" for one in drained}

    def silent(self, inside: Iterable[str]) -> dict[str, str]:
        """Those of the cluster that have not answered within a lease, each with the reason."""
        return {one: self.silence(one) for one in inside if not self.is_heard(one)}

    def silence(self, follower: str) -> str:
        """Why a follower is given up that does not answer."""
        return f"follower {follower} was not heard of for {self._lease.total_seconds():g} s"

    def newcomers(
        self, inside: Collection[str], busy: Collection[str], returning: Collection[Collection[str]]
    ) -> set[str]:
        """Who can be let in: whoever answers, is not busy with what was given up, and has all of its gang here.

        `returning` has the followers of each job that an earlier leader placed: these are let in also while they take
        nothing new.
        """
        awaited = {one for gang in returning for one in gang}
        ready = {one for one, state in self.here.items() if one in awaited or not state.draining}
        ready = {one for one in ready if one not in inside and one not in busy and self.is_heard(one)}
        while alone := {one for gang in returning if not ready.union(inside).issuperset(gang) for one in gang} & ready:
            ready -= alone
        return ready

    def let_in(self, follower: str) -> FollowerState:
        """Know a follower for good."""
        self.known[follower] = state = self.here[follower]
        return state
