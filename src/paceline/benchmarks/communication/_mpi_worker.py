"""One MPI rank of a collective, started by mpirun: measures a sweep with the others; the first reports the result."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.communication._exchange import ROOT, Exchange, Payload
from paceline.benchmarks.communication._mpi import Begin, End, Failed, Line, PointLine
from paceline.benchmarks.communication.collective import CollectiveParameters, sizes_of
from paceline.benchmarks.ranks import Ranks
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.die_with_parent import die_with_parent
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.core.probe import read_text
from paceline.devices import open_device
from paceline.measure.memory import exhausted

SHARED_MEMORY = "/dev/shm/"


@dataclass(frozen=True)
class MpiRanks(Ranks):
    """The ranks that mpirun started; `control` is a communicator for verdicts alone."""

    def agree(self, mine: bool) -> bool:
        return bool(self.control.bcast(mine, root=0))

    def meet(self) -> None:
        self.control.Barrier()

    def gather(self, mine: Any) -> list[Any]:
        return list(self.control.allgather(mine))


class MpiExchange(Exchange):
    """One operation among the ranks of an MPI communicator."""

    def __init__(self, payload: Payload, communicator: Any) -> None:
        self.payload = payload
        self._move = self._bound(communicator)

    def call(self) -> None:
        self._move()

    def _bound(self, comm: Any) -> Callable[[], object]:
        """The operation with its data: looked up once, for that takes half as long as a small message."""
        from mpi4py import MPI

        payload, received, in_place = self.payload, self.payload.received, self.payload.transfer.in_place
        sent = MPI.IN_PLACE if in_place else payload.sent
        to_root = (sent, received) if comm.Get_rank() == ROOT else (payload.sent, None)
        return {
            "all-reduce": partial(comm.Allreduce, sent, received),
            "broadcast": partial(comm.Bcast, received, root=ROOT),
            "reduce": partial(comm.Reduce, *to_root, root=ROOT),
            "all-gather": partial(comm.Allgather, sent, received),
            "reduce-scatter": partial(comm.Reduce_scatter_block, sent, payload.sent if in_place else received),
            "all-to-all": partial(comm.Alltoall, sent, received),
        }[payload.operation.name]


def main(case_text: str, exchange_type: type[MpiExchange] = MpiExchange) -> None:
    """Measure the case; a failure of one rank ends all of them."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        why = (
            f"mpi4py cannot load an MPI library: {error}; install one that belongs to mpirun (apt install openmpi-bin)"
        )
        _say_failure(int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")), Unsupported(why))
        sys.exit(1)
    # mpirun gives its ranks process groups of their own, which what kills the case's group does not reach.
    die_with_parent()
    everybody = MPI.COMM_WORLD
    try:
        with _segments_without_names(everybody):
            _measure(Case.model_validate_json(case_text), everybody, MPI.Get_library_version(), exchange_type)
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        _say_failure(everybody.Get_rank(), error)
        everybody.Abort(1)


def _say_failure(rank: int, error: BaseException) -> None:
    if isinstance(error, Unsupported):
        failed = Failed(rank=rank, why="unsupported", message=str(error))
    else:
        message = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        failed = Failed(rank=rank, why="memory" if exhausted(error) else "error", message=message)
    sys.stdout.write(f"\n{failed}\n")  # on a line of its own, whoever else writes
    sys.stdout.flush()


@contextmanager
def _segments_without_names(communicator: Any) -> Iterator[None]:
    """Memory that the ranks share has no name meanwhile, so that it goes with them, however they end.

    Open MPI removes its segments in the end, and complains where they are gone: so empty ones take their place.
    """
    communicator.alltoall(range(communicator.Get_size()))  # everybody has attached to everybody
    maps = (read_text(Path("/proc/self/maps")) or "").splitlines()
    mapped = {Path(line[line.index(SHARED_MEMORY) :]) for line in maps if SHARED_MEMORY in line}
    names = [path for path in sorted(mapped) if path.name.startswith(("vader_segment.", "sm_segment."))]
    communicator.Barrier()
    for name in names:
        with suppress(OSError):  # another rank of this host was first
            name.unlink()
    communicator.Barrier()
    yield
    communicator.Barrier()
    for name in names:
        with suppress(OSError):
            name.touch(mode=0o600)
    communicator.Barrier()


def _measure(case: Case, communicator: Any, library: str, exchange_type: type[MpiExchange]) -> None:
    parameters = CollectiveParameters.model_validate(case.parameters)
    transfer = parameters.transfer("mpi")
    operation = transfer.operation
    ranks = MpiRanks(communicator.Get_rank(), communicator.Get_size(), communicator.Dup()).with_siblings()
    _say(ranks, Begin(ranks=ranks.world_size, library=library.splitlines()[0].strip("\0 ")))
    if ranks.world_size != case.ranks:
        return
    context = Context(case=case, rank=ranks.rank, world_size=ranks.world_size)
    device = open_device("cpu")
    sizes = sizes_of(parameters, operation, device.kind, ranks.world_size)
    try:
        with MicroSession(parameters, context, device, ranks) as session:
            for size in sizes:
                payload = Payload(
                    transfer,
                    ranks.rank,
                    ranks.world_size,
                    size,
                    empty=lambda count: np.empty(count, np.float32),
                    lift=lambda table: table.astype(np.float32),
                )
                if transfer.in_place and operation.name == "reduce-scatter":
                    # MPI lays the result where the array begins.
                    payload.received = payload.sent[: payload.count // ranks.world_size]
                samples = exchange_type(payload, communicator).time(session).timed.samples
                _say(ranks, PointLine(size=size, samples=max(ranks.gather(samples), key=np.mean)))
    except SilentCorruption as error:
        _say(ranks, Failed(rank=ranks.rank, why="corruption", message=str(error)))
        return
    result = session.result([])
    _say(ranks, End(points=len(sizes), facts=result.facts, warnings=result.warnings))


def _say(ranks: Ranks, line: Line) -> None:
    if ranks.rank == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
