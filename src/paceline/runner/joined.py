"""Processes that torchrun or mpirun started run one suite together, each its own rank of every case.

Every process expands the same suite. A key-value store at the rendezvous carries, for each case, the port of its
own rendezvous, the first failure, and every rank's result; the first rank keeps the records.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.record import Cause, CauseKind, Outcome, Result
from paceline.runner.execute import CaseEnd, CaseExecution, Failure, free_port
from paceline.runner.run import execute_here, imports_of
from paceline.runner.server import WarmServer

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

DEFAULT_PORT = 29500
ABORT_LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 24 * 3600.0  # others may wait as long as the first process measures alone
GATHER_SECONDS = 30.0  # ranks end together; one that is this late after its timeout is lost


# How launchers name the rank, the number of ranks, and the same on this host: torchrun, Open MPI, MPICH and kin.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


@dataclass(frozen=True)
class World:
    """This process among those that a launcher started."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    agent_store: bool  # torchrun serves the store itself

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> World | None:
        """What torchrun or mpirun says; None in a process that was started plainly."""
        names = next((names for names in _LAUNCHERS if names[0] in environment and names[1] in environment), None)
        if names is None:
            return None
        rank, size, local_rank, local_size = names
        try:
            world = cls(
                rank=int(environment[rank]),
                size=int(environment[size]),
                local_rank=int(environment.get(local_rank, environment[rank])),
                local_size=int(environment.get(local_size, environment[size])),
                address=environment.get("MASTER_ADDR", "127.0.0.1"),
                port=int(environment.get("MASTER_PORT", DEFAULT_PORT)),
                agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            )
        except ValueError as error:
            raise InputError(f"the launcher's environment cannot be read ({rank}, {size}): {error}") from None
        return world if world.size > 1 else None


_CASES = "paceline/cases"


class JoinedRanks:
    """Runs cases together with the other processes of the world."""

    def __init__(self, world: World) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self.world = world
        self._store: TCPStore = TCPStore(
            world.address,
            world.port,
            world.size,
            is_master=world.rank == 0 and not world.agent_store,
            timeout=timedelta(seconds=PATIENCE_SECONDS),
        )

    def announce(self, cases: Sequence[Case]) -> None:
        """Tell the others which cases are to be measured; only the first word counts."""
        if not self._store.check([_CASES]):
            self._store.set(_CASES, json.dumps([case.model_dump(mode="json") for case in cases]))

    def hear_cases(self) -> list[Case]:
        """Which cases the first process announced."""
        return [Case.model_validate(case) for case in json.loads(bytes(self._store.get(_CASES)))]

    def share(self, name: str, make: Callable[[], str]) -> str:
        """What the first rank makes, for everybody."""
        if self.world.rank == 0:
            self._store.set(f"paceline/{name}", make())
        return bytes(self._store.get(f"paceline/{name}")).decode()

    def execute(self, server: WarmServer, case: Case, on_progress: Callable[[dict[str, Any]], None]) -> CaseEnd | None:
        """This process's rank of a case; the first rank returns the end of them all."""
        world = self.world
        if case.ranks == 1:
            return execute_here(server, case, on_progress) if world.rank == 0 else None
        prefix = f"paceline/case/{case.index}"
        port = self.share(f"case/{case.index}/port", lambda: str(free_port()))
        environment = {
            "RANK": str(world.rank),
            "LOCAL_RANK": str(world.local_rank),
            "WORLD_SIZE": str(world.size),
            "LOCAL_WORLD_SIZE": str(world.local_size),
            "MASTER_ADDR": world.address,
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
        looked_at = 0.0

        def somebody_failed() -> bool:
            nonlocal looked_at
            if time.monotonic() - looked_at < ABORT_LOOK_SECONDS:
                return False
            looked_at = time.monotonic()
            return bool(self._store.check([f"{prefix}/failed"]))

        execution = CaseExecution(
            server,
            case,
            ranks={world.rank: environment},
            world_size=world.size,
            on_progress=on_progress,
            abort=somebody_failed,
        )
        end = execution.run(imports_of(case))
        self._publish(prefix, end)
        if world.rank != 0:
            return None
        return self._gather(prefix, case, end)

    def leave(self, code: int) -> int:
        """The first rank's exit code, for every process; the store lives until all have read it."""
        agreed = int(self.share("exit", lambda: str(code)))
        self._store.add("paceline/left", 1)
        if self.world.rank == 0:
            deadline = time.monotonic() + GATHER_SECONDS
            while self._store.add("paceline/left", 0) < self.world.size and time.monotonic() < deadline:
                time.sleep(0.05)
        return agreed

    def _publish(self, prefix: str, end: CaseEnd) -> None:
        words: dict[str, Any] = {}
        if end.failure is not None:
            words["failure"] = {
                "outcome": end.failure.outcome,
                "cause": end.failure.cause.model_dump(mode="json"),
            }
            self._store.set(f"{prefix}/failed", "1")
        elif self.world.rank in end.results:
            words["result"] = end.results[self.world.rank].model_dump(mode="json")
        self._store.set(f"{prefix}/rank/{self.world.rank}", json.dumps(words))

    def _gather(self, prefix: str, case: Case, own: CaseEnd) -> CaseEnd:
        failures: list[Failure] = []
        own.results = {}
        for rank in range(self.world.size):
            try:
                self._store.wait([f"{prefix}/rank/{rank}"], timedelta(seconds=GATHER_SECONDS))
                words = json.loads(bytes(self._store.get(f"{prefix}/rank/{rank}")))
            except Exception as error:  # torch raises types of its own for a wait that is over
                cause = Cause(kind=CauseKind.CRASHED, message=f"rank {rank} was not heard of again: {error}", rank=rank)
                failures.append(Failure(rank, Outcome.FAILED, cause, 0.0))
                continue
            if "result" in words:
                own.results[rank] = Result.model_validate(words["result"])
            elif "failure" in words:
                cause = Cause.model_validate(words["failure"]["cause"])
                failures.append(Failure(rank, Outcome(words["failure"]["outcome"]), cause, float(rank)))
        own.failure = min(failures, key=lambda failure: failure.order) if failures else None
        if own.failure is None and len(own.results) < self.world.size:
            cause = Cause(kind=CauseKind.ERROR, message="some ranks were ended before they had a result")
            own.failure = Failure(0, Outcome.FAILED, cause, 0.0)
        return own
