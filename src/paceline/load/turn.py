"""What a request is to the others of its conversation: which it follows, after how long, and whose answers it quotes.

A conversation, an agent with parallel calls and a request that stands alone are the same thing here: kinds of requests,
some of which follow others. Workers import this: nothing but the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_LENGTH = b"content-length: %d\r\n"


@dataclass(frozen=True)
class Turn:
    """Of one kind of request; kinds are counted from 0."""

    follows: tuple[int, ...] = ()  # kinds whose answers it waits for; none for one that begins a conversation
    wait: float = 0.0  # seconds after the last of them
    quotes: tuple[tuple[int, int], ...] = ()  # bytes into the request, and the kind whose answer goes there; in order
    depth: int = 1  # how many requests one after the other, with this one
    close_after: float = 0.0  # seconds after which its user has gone, if there is no whole answer by then
    close_chunks: int = 0  # the same by the pieces of text that have come


ALONE = Turn()


def followers(turns: Sequence[Turn]) -> dict[int, list[int]]:
    """The kinds that follow each kind."""
    found: dict[int, list[int]] = {}
    for kind, turn in enumerate(turns):
        for before in turn.follows:
            found.setdefault(before, []).append(kind)
    return found


def sizes(turns: Iterable[Turn]) -> list[int]:
    """How many requests each conversation has; its first one comes before the others, and those before the next."""
    counts: list[int] = []
    for turn in turns:
        if turn.follows:
            counts[-1] += 1
        else:
            counts.append(1)
    return counts


def longest_wait(turns: Sequence[Turn], timeout: float) -> float:
    """Seconds from the end of a first request to the end of the last one that follows it, at most."""
    until: list[float] = []
    for turn in turns:
        until.append(max(until[kind] for kind in turn.follows) + turn.wait + timeout if turn.follows else 0.0)
    return max(until, default=0.0)


def quoting(payload: bytes, turn: Turn, answers: Mapping[int, str]) -> bytes:
    """The request with the answers in their places, and the length that it has with them."""
    parts, last = [], 0
    for at, kind in turn.quotes:
        parts += [payload[last:at], json.dumps(answers[kind])[1:-1].encode()]
        last = at
    whole = b"".join([*parts, payload[last:]])
    body = len(payload) - payload.index(b"\r\n\r\n") - 4
    return whole.replace(_LENGTH % body, _LENGTH % (body + len(whole) - len(payload)), 1)
