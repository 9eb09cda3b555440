"""Votes on fingerprints: of devices that should compute the same bit for bit, which one does not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from paceline.core.grouping import group_by
from paceline.core.record import Record
from paceline.core.subject import Fingerprint


@dataclass(frozen=True)
class Ballot:
    """The fingerprint of one device of a node."""

    node: str
    target: str
    case: str  # for people
    work: str  # the same for the same work
    print: Fingerprint

    @property
    def device(self) -> str:
        """Its name in a sentence."""
        return f"{self.node}, {self.target}"


@dataclass(frozen=True)
class Vote:
    """The fingerprints of the same work on like devices: one for each device, more where it disagrees with itself."""

    ballots: tuple[Ballot, ...]
    voters: str  # who they are, in a sentence

    @property
    def majority(self) -> Ballot | None:
        """One of those that more than half of the devices agree with; None where there is none.

        A device that disagrees with itself has its vote divided.
        """
        parts = Counter(one.device for one in self.ballots)
        votes: dict[str, Fraction] = {}
        for one in self.ballots:
            votes[one.print.digest] = votes.get(one.print.digest, Fraction()) + Fraction(1, parts[one.device])
        return next((one for one in self.ballots if 2 * votes[one.print.digest] > len(parts)), None)

    @property
    def outvoted(self) -> dict[Ballot, str]:
        """The devices that disagree with the majority, each with how."""
        right = self.majority
        if right is None:
            return {}
        agreeing = {one.device for one in self.ballots if one.print.digest == right.print.digest}
        count = len({one.device for one in self.ballots})
        of = f"that {len(agreeing)} of {count} {self.voters} have ({right.print.basis})"
        return {
            one: f"the fingerprint of {one.target} is {one.print.digest}, not {right.print.digest} {of}"
            + _since(one.print, right.print)
            + (f"; at other times it is {right.print.digest}" if one.device in agreeing else "")
            for one in self.ballots
            if one.print.digest != right.print.digest
        }

    @property
    def undecided(self) -> str:
        """What is to be said of devices that disagree where no majority says who is right; empty for others."""
        if self.majority is not None:
            return ""
        groups = group_by(self.ballots, lambda one: one.print.digest)
        sides = "; ".join(f"{digest}: {', '.join(one.device for one in members)}" for digest, members in groups.items())
        return f"fingerprints of {self.ballots[0].case} disagree, and no majority says which is right: {sides}"


def ballots_of(node: str, records: Sequence[Record], labels: Sequence[str]) -> list[Ballot]:
    """Those of a node's records, each with its label."""
    return [
        Ballot(node, record.case.target, label, json.dumps(record.case.work_key[:2]), record.fingerprint)
        for record, label in zip(records, labels, strict=True)
        if record.fingerprint is not None
    ]


def count_votes(ballots: Sequence[Ballot], *, by_run: bool = False) -> list[Vote]:
    """One vote for each kind of work on each kind of device, where there are several to compare."""
    # A repetition, or another run, that says the same has no vote of its own.
    distinct = {(one.device, one.work, one.print.basis, one.print.digest): one for one in ballots}
    groups = group_by(distinct.values(), lambda one: (one.work, one.print.basis))
    voters = "runs on like devices" if by_run else "like devices"
    return [Vote(tuple(members), voters) for members in groups.values() if len(members) > 1]


def _since(wrong: Fingerprint, right: Fingerprint) -> str:
    places = [
        number for number, pair in enumerate(zip(wrong.steps, right.steps, strict=False), 1) if len(set(pair)) > 1
    ]
    return f", from step {places[0]} on" if places else ""
