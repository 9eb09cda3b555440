"""The data of a collective: every element's right value is known, so that a single wrong one is seen.

Each rank sends its own random permutation of the numbers 1 to p, again and again to the end of its array. The numbers
are so small that sums over all ranks are exact in the array's format, whatever the order they are added in. p is a
prime, so that no stretch of a power of two of elements can stand for its neighbour.

Arrays are numpy's or torch's: what is used here is written alike for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.benchmarks.communication._operations import ROOT, Operation, Piece
from paceline.core.errors import Unsupported
from paceline.core.quantity import show_size

EXACT = {"fp32": 1 << 24, "fp16": 1 << 11, "bf16": 1 << 8}  # integers up to here have no gaps
ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
LONGEST_PERIOD = 8191

Table = npt.NDArray[np.float64]


class Payload:
    """What one rank sends and receives in one operation at one size."""

    def __init__(
        self,
        operation: Operation,
        rank: int,
        ranks: int,
        size: int,
        *,
        precision: str,
        in_place: bool,
        seed: int,
        empty: Callable[[int], Any],  # a new array of so many elements
        lift: Callable[[Table], Any],  # these numbers as an array of that kind
    ) -> None:
        self.operation = operation
        self.rank = rank
        self._ranks = ranks
        self._seed = seed
        self._lift = lift
        self._period = _period(precision, ranks if operation.sums else 1)
        self.count = operation.count(size, ELEMENT_BYTES[precision], ranks)
        self.size = self.count * ELEMENT_BYTES[precision]
        self.keeps_input = not (in_place and operation.changes_input)
        share = self.count // ranks
        mine = slice(rank * share, (rank + 1) * share)
        gathers, scatters = operation.name == "all-gather", operation.name == "reduce-scatter"
        if in_place:
            whole = empty(self.count)
            self.sent = whole[mine] if gathers else whole
            self.received = whole[mine] if scatters else whole
        else:
            self.sent = empty(share if gathers else self.count)
            self.received = empty(share if scatters else self.count)

    def prepare(self) -> None:
        """Fresh data to send; where data is to arrive there is nothing that could pass for it."""
        self.received[:] = math.nan
        if self.operation.name != "broadcast" or self.rank == ROOT:
            _tile(self.sent, self._lift(_table(self._seed, self.rank, self._period)))

    def complaint(self) -> str | None:
        """The first element that is not what it must be, in words; None when all are right."""
        for piece in self.operation.pieces(self.rank, self._ranks, self.count):
            wanted = self._lift(self._wanted(piece))
            arrived = self.received[piece.start : piece.start + piece.length]
            index = first_difference(arrived, wanted)
            if index is not None:
                return (
                    f"rank {self.rank} received a wrong element in {self.operation.name} of {show_size(self.size)}: "
                    f"element {piece.start + index} is {float(arrived[index]):g}, "
                    f"expected {float(wanted[index % self._period]):g}"
                )
        return None

    def _wanted(self, piece: Piece) -> Table:
        tables = (_table(self._seed, source, self._period) for source in piece.sources)
        total = sum(tables, np.zeros(self._period))
        return np.roll(total, -(piece.source_start % self._period))


def first_difference(array: Any, wanted: Any) -> int | None:
    """The index of the first element that differs from the endlessly repeated wanted ones."""
    period = len(wanted)
    rows = len(array) // period
    whole = rows * period
    for start, part, want in (
        (0, array[:whole].reshape(rows, period), wanted),
        (whole, array[whole:], wanted[: len(array) - whole]),
    ):
        wrong = part != want
        if bool(wrong.any()):
            return start + int(wrong.reshape(-1).nonzero()[0][0])
    return None


def _tile(array: Any, table: Any) -> None:
    period = len(table)
    rows = len(array) // period
    whole = rows * period
    array[:whole].reshape(rows, period)[:] = table
    array[whole:] = table[: len(array) - whole]


@lru_cache(maxsize=256)
def _table(seed: int, rank: int, period: int) -> Table:
    numbers = np.random.default_rng([seed, rank]).permutation(period) + 1
    return numbers.astype(np.float64)


def _period(precision: str, addends: int) -> int:
    most = min(LONGEST_PERIOD, EXACT[precision] // addends)
    found = next((n for n in range(most, 1, -1) if all(n % d for d in range(2, math.isqrt(n) + 1))), None)
    if found is None:
        raise Unsupported(f"sums of {addends} ranks cannot be checked exactly in {precision}: use fp32")
    return found
