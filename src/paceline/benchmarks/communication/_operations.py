"""Collective operations: what each rank sends and must receive, and what their bandwidths mean.

The conventions are those of nccl-tests, so that figures can be compared. The size of an operation is that of its
whole array: what one rank holds in the end of an all-gather and in the beginning of a reduce-scatter or an all-to-all.
Algorithm bandwidth is that size over time. Bus bandwidth multiplies it by the part that must pass each rank's link at
best, and so can be held against the link's speed whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from paceline.core.errors import Unsupported

OperationName = Literal["all-reduce", "all-gather", "broadcast", "reduce", "reduce-scatter", "all-to-all"]
Library = Literal["torch", "mpi"]

ROOT = 0  # of broadcast and reduce


@dataclass(frozen=True)
class Piece:
    """A stretch of what a rank must have received: the sum of what these ranks sent, from an index on."""

    start: int
    length: int
    sources: tuple[int, ...]
    source_start: int


@dataclass(frozen=True)
class Operation:
    """One collective operation."""

    name: OperationName
    formula: str  # of n ranks
    factor: Callable[[int], float]  # bus bandwidth over algorithm bandwidth
    sums: bool  # whether what arrives is a sum over ranks
    places: dict[Library, tuple[bool, ...]]  # the values of in_place that a library has, the usual one first
    changes_input: bool  # whether done in place it must begin with other data the next time

    def in_place(self, asked: bool | None, library: Library) -> bool:
        """Whether to work in one buffer; a way that the library does not have is unsupported."""
        known = self.places[library]
        if asked is None:
            return known[0]
        if asked not in known:
            only = "in place" if known[0] else "out of place"
            raise Unsupported(
                f"{self.name} of {library} works {only} only: leave in_place unset, or set it to {known[0]!s}".lower()
            )
        return asked

    def pieces(self, rank: int, ranks: int, count: int) -> list[Piece]:
        """What a rank must have received of an array of `count` elements; nothing where it does not matter."""
        everybody = tuple(range(ranks))
        share = count // ranks
        match self.name:
            case "all-reduce":
                return [Piece(0, count, everybody, 0)]
            case "reduce":
                return [Piece(0, count, everybody, 0)] if rank == ROOT else []
            case "broadcast":
                return [Piece(0, count, (ROOT,), 0)]
            case "all-gather":
                return [Piece(source * share, share, (source,), 0) for source in everybody]
            case "reduce-scatter":
                return [Piece(0, share, everybody, rank * share)]
            case "all-to-all":
                return [Piece(source * share, share, (source,), rank * share) for source in everybody]

    def count(self, size: int, element: int, ranks: int) -> int:
        """Elements of an array of about `size` bytes: the next whole number that every rank has the same part of."""
        unit = ranks if self.name in ("all-gather", "reduce-scatter", "all-to-all") else 1
        return max(1, -(-size // (element * unit))) * unit


def _shared(ranks: int) -> float:
    return (ranks - 1) / ranks


_BOTH, _BOTH_USUALLY_IN, _IN, _OUT = (False, True), (True, False), (True,), (False,)

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            name="all-reduce",
            formula="2 (n - 1) / n",
            factor=lambda ranks: 2 * _shared(ranks),
            sums=True,
            places={"torch": _IN, "mpi": _BOTH_USUALLY_IN},
            changes_input=True,
        ),
        Operation(
            name="all-gather",
            formula="(n - 1) / n",
            factor=_shared,
            sums=False,
            places={"torch": _BOTH, "mpi": _BOTH},
            changes_input=False,
        ),
        Operation(
            name="broadcast",
            formula="1",
            factor=lambda _: 1.0,
            sums=False,
            places={"torch": _IN, "mpi": _IN},
            changes_input=False,
        ),
        Operation(
            name="reduce",
            formula="1",
            factor=lambda _: 1.0,
            sums=True,
            places={"torch": _IN, "mpi": _BOTH_USUALLY_IN},
            changes_input=True,
        ),
        Operation(
            name="reduce-scatter",
            formula="(n - 1) / n",
            factor=_shared,
            sums=True,
            places={"torch": _BOTH, "mpi": _BOTH},
            changes_input=True,
        ),
        Operation(
            name="all-to-all",
            formula="(n - 1) / n",
            factor=_shared,
            sums=False,
            places={"torch": _OUT, "mpi": _BOTH},
            changes_input=True,
        ),
    )
}
