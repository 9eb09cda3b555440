"""Collective operations: what each rank sends and must receive, the call that moves it, and what bandwidths mean.

The conventions are those of nccl-tests, so that figures can be compared. The size of an operation is that of its
whole array: what one rank holds in the end of an all-gather and in the beginning of a reduce-scatter or an all-to-all.
Algorithm bandwidth is that size over time. Bus bandwidth multiplies it by the part that must pass each rank's link at
best, and so can be compared with the link's speed whatever the number of ranks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from paceline.benchmarks._micro.formats import dtype_of
from paceline.benchmarks._micro.parameters import TIME
from paceline.benchmarks._micro.session import MicroSession, TimedPoint
from paceline.benchmarks.ranks import Ranks
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.core.quantity import show_size
from paceline.core.subject import BYTES
from paceline.devices import Device

OperationName = Literal["all-reduce", "all-gather", "broadcast", "reduce", "reduce-scatter", "all-to-all"]
Library = Literal["torch", "mpi"]
Table = npt.NDArray[np.float64]

ROOT = 0  # of broadcast and reduce
EXACT = {"fp32": 1 << 24, "fp16": 1 << 11, "bf16": 1 << 8}  # integers up to here have no gaps
LONGEST_PERIOD = 8191
# How torch says that a backend lacks an operation, or has it in fewer formats.
_LACKING = ("not support", "not implemented", "Invalid scalar type")


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
    formula: Literal["1", "(n - 1) / n", "2 (n - 1) / n"]  # bus bandwidth over algorithm bandwidth, of n ranks
    in_place_values: dict[Library, tuple[bool, ...]]  # that a library has, the default first
    sums: bool = False  # whether what arrives is a sum over ranks
    changes_input: bool = False  # whether done in place it must begin with other data the next time

    def factor(self, ranks: int) -> float:
        """The value of the formula."""
        return {"1": 1.0, "(n - 1) / n": (ranks - 1) / ranks, "2 (n - 1) / n": 2 * (ranks - 1) / ranks}[self.formula]

    def in_place(self, requested: bool | None, library: Library) -> bool:
        """Whether to work in one buffer; a way that the library does not have is unsupported."""
        available = self.in_place_values[library]
        if requested is None:
            return available[0]
        if requested not in available:
            only, value = ("in place", "true") if available[0] else ("out of place", "false")
            raise Unsupported(f"{self.name} of {library} works {only} only: leave in_place unset, or set it to {value}")
        return requested

    def pieces(self, rank: int, ranks: int, count: int) -> list[Piece]:
        """What a rank must have received of an array of `count` elements; nothing where it does not matter."""
        everybody = tuple(range(ranks))
        share = count // ranks
        return {
            "all-reduce": [Piece(0, count, everybody, 0)],
            "reduce": [Piece(0, count, everybody, 0)] if rank == ROOT else [],
            "broadcast": [Piece(0, count, (ROOT,), 0)],
            "all-gather": [Piece(source * share, share, (source,), 0) for source in everybody],
            "reduce-scatter": [Piece(0, share, everybody, rank * share)],
            "all-to-all": [Piece(source * share, share, (source,), rank * share) for source in everybody],
        }[self.name]

    def count(self, size: int, element: int, ranks: int) -> int:
        """Elements of an array of about `size` bytes: the next whole number that every rank has the same part of."""
        unit = ranks if self.name in ("all-gather", "reduce-scatter", "all-to-all") else 1
        return max(1, -(-size // (element * unit))) * unit


_IN, _OUT, _BOTH = (True,), (False,), (False, True)
_REDUCING: dict[Library, tuple[bool, ...]] = {"torch": _IN, "mpi": (True, False)}
OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("all-reduce", "2 (n - 1) / n", _REDUCING, sums=True, changes_input=True),
        Operation("all-gather", "(n - 1) / n", {"torch": _BOTH, "mpi": _BOTH}),
        Operation("broadcast", "1", {"torch": _IN, "mpi": _IN}),
        Operation("reduce", "1", _REDUCING, sums=True, changes_input=True),
        Operation("reduce-scatter", "(n - 1) / n", {"torch": _BOTH, "mpi": _BOTH}, sums=True, changes_input=True),
        Operation("all-to-all", "(n - 1) / n", {"torch": _OUT, "mpi": _BOTH}, changes_input=True),
    )
}


@dataclass(frozen=True)
class Transfer:
    """An operation, and the data that it moves."""

    operation: Operation
    precision: str
    in_place: bool
    seed: int


class Payload:
    """What one rank sends and receives in one operation at one size: every element's right value is known.

    Each rank sends its own random permutation of the numbers 1 to p, again and again to the end of its array. The
    numbers are so small that sums over all ranks are exact in the array's format, whatever the order they are added
    in. p is a prime, so that no stretch of a power of two of elements can stand for its neighbour.

    Arrays are numpy's or torch's: what is used here is written alike for both.
    """

    def __init__(
        self,
        transfer: Transfer,
        rank: int,
        ranks: int,
        size: int,
        empty: Callable[[int], Any],  # a new array of so many elements
        lift: Callable[[Table], Any],  # these numbers as an array of that kind
    ) -> None:
        operation, precision = transfer.operation, transfer.precision
        self.transfer = transfer
        self.operation = operation
        self.rank = rank
        self._ranks = ranks
        self._lift = lift
        self._period = _period(precision, ranks if operation.sums else 1)
        self.count = operation.count(size, BYTES[precision], ranks)
        self.size = self.count * BYTES[precision]
        self.keeps_input = not (transfer.in_place and operation.changes_input)
        share = self.count // ranks
        gathers, scatters = operation.name == "all-gather", operation.name == "reduce-scatter"
        if transfer.in_place:
            whole = empty(self.count)
            mine = whole[rank * share : (rank + 1) * share]
            self.sent, self.received = mine if gathers else whole, mine if scatters else whole
        else:
            self.sent, self.received = empty(share if gathers else self.count), empty(share if scatters else self.count)

    def prepare(self) -> None:
        """Fresh data to send; where data is to arrive there is nothing that could pass for it."""
        self.received[:] = math.nan
        if self.operation.name != "broadcast" or self.rank == ROOT:
            for _, part, numbers in _repetitions(
                self.sent, self._lift(_table(self.transfer.seed, self.rank, self._period))
            ):
                part[:] = numbers

    def complaint(self) -> str | None:
        """The first element that is not what it must be, in words; None when all are right."""
        for piece in self.operation.pieces(self.rank, self._ranks, self.count):
            tables = (_table(self.transfer.seed, source, self._period) for source in piece.sources)
            total = sum(tables, np.zeros(self._period))
            expected = self._lift(np.roll(total, -(piece.source_start % self._period)))
            arrived = self.received[piece.start : piece.start + piece.length]
            for start, part, numbers in _repetitions(arrived, expected):
                wrong = part != numbers
                if bool(wrong.any()):
                    index = start + int(wrong.reshape(-1).nonzero()[0][0])
                    return (
                        f"rank {self.rank} received a wrong element in {self.operation.name} of "
                        f"{show_size(self.size)}: element {piece.start + index} is {float(arrived[index]):g}, "
                        f"expected {float(expected[index % self._period]):g}"
                    )
        return None


def _repetitions(array: Any, table: Any) -> Iterator[tuple[int, Any, Any]]:
    """An array that repeats a table: as rows of whole tables, then the rest. Their index, a view, and their numbers."""
    rows = len(array) // len(table)
    whole = rows * len(table)
    yield 0, array[:whole].reshape(rows, len(table)), table
    yield whole, array[whole:], table[: len(array) - whole]


@lru_cache(maxsize=256)
def _table(seed: int, rank: int, period: int) -> Table:
    numbers = np.random.default_rng([seed, rank]).permutation(period) + 1
    return numbers.astype(np.float64)


def _period(precision: str, addends: int) -> int:
    most = min(LONGEST_PERIOD, EXACT[precision] // addends)
    prime = next((n for n in range(most, 1, -1) if all(n % d for d in range(2, math.isqrt(n) + 1))), None)
    if prime is None:
        raise Unsupported(f"sums of {addends} ranks cannot be checked exactly in {precision}: use fp32")
    return prime


class Exchange(ABC):
    """One operation at one size, ready to be called and timed."""

    payload: Payload

    @abstractmethod
    def call(self) -> None:
        """Move the data."""

    def verify(self, ranks: Ranks) -> None:
        """Raise on every rank when any rank received something wrong, so that nobody waits for the others."""
        complaint = next(filter(None, ranks.gather(self.payload.complaint())), None)
        if complaint is not None:
            raise SilentCorruption(complaint)

    def check(self, ranks: Ranks) -> None:
        """Move fresh data once and compare every element of what arrived."""
        self.payload.prepare()
        self.call()
        self.verify(ranks)

    def time(self, session: MicroSession, work: float | None = None) -> TimedPoint:
        """Time the calls, the result checked before and after."""
        self.check(session.ranks)
        self.payload.prepare()
        point = session.time(self.call, TIME, at={"size": self.payload.size}, work=work)
        if self.payload.keeps_input:
            self.verify(session.ranks)
        else:  # the timed calls worked on changed data
            self.check(session.ranks)
        return point


class TorchExchange(Exchange):
    """One operation among the ranks of a torch process group."""

    def __init__(self, transfer: Transfer, ranks: Ranks, size: int, device: Device) -> None:
        import torch

        dtype, where = dtype_of(transfer.precision), device.torch()
        self.payload = Payload(
            transfer,
            ranks.rank,
            ranks.world_size,
            size,
            empty=lambda count: torch.empty(count, dtype=dtype, device=where),
            lift=lambda table: torch.from_numpy(table).to(where, dtype),
        )
        self._issue = self._bound()

    def call(self) -> None:
        """Move the data, and wait as torch does: on the device's stream, or for the end on a CPU."""
        self._issue(async_op=False)

    def start(self) -> Any:
        """Begin to move the data; what is returned can be waited for."""
        return self._issue(async_op=True)

    def check(self, ranks: Ranks) -> None:
        from torch import __version__, distributed

        try:
            super().check(ranks)
        except (RuntimeError, NotImplementedError) as error:
            if not any(words in str(error) for words in _LACKING):
                raise
            raise Unsupported(
                f"{distributed.get_backend()} of torch {__version__} has no {self.payload.operation.name} in "
                f"{self.payload.transfer.precision}: use fp32, another operation, or backend = mpi ({error})"
            ) from None

    def verify(self, ranks: Ranks) -> None:
        mine = self.payload.complaint()
        complaints = ranks.gather(mine)
        if mine:
            raise SilentCorruption(mine)
        for rank, complaint in enumerate(complaints):
            if complaint:
                # The runner does not take the failure of a remote process for the cause: the rank itself reports it.
                raise SilentCorruption(f"the remote process of rank {rank} failed: {complaint}")

    def _bound(self) -> Callable[..., Any]:
        """The operation with its data: looked up once, for that would be in the time of every small message."""
        from torch import distributed

        def newest(name: str, before: str) -> Any:  # newer versions of torch call it by another name
            return getattr(distributed, name, None) or getattr(distributed, before)

        sent, received = self.payload.sent, self.payload.received
        return {
            "all-reduce": partial(distributed.all_reduce, received),
            "broadcast": partial(distributed.broadcast, received, src=ROOT),
            "reduce": partial(distributed.reduce, received, dst=ROOT),
            "all-gather": partial(newest("all_gather_single", "all_gather_into_tensor"), received, sent),
            "reduce-scatter": partial(newest("reduce_scatter_single", "reduce_scatter_tensor"), received, sent),
            "all-to-all": partial(distributed.all_to_all_single, received, sent),
        }[self.payload.operation.name]
