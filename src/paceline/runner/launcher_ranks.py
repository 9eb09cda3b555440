"""Processes that torchrun, mpirun or srun started run one suite together, each its own rank of every case.

Every process expands the same suite. A key-value store at the rendezvous carries, for each case, the port of its
own rendezvous, the order in which ranks failed, and every rank's result; the first rank stores the records.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psutil

from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.network import free_port, is_loopback, shown_address
from paceline.core.record import Cause, CauseKind, Outcome
from paceline.runner.execute import CaseEnd, CaseExecution, Failure, rank_environment
from paceline.runner.fork_client import WarmServer
from paceline.runner.run import execute_here, imports_of

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore


def interface_of(address: str) -> str | None:
    """The name of the interface that has this address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address.partition("%")[0] for one in addresses):
            return name
    return None


def bound_to(address: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that make collectives use the interface with this address; what the user has set stands."""
    interface = interface_of(address)
    if interface is None:
        return {}
    # NCCL takes a name for the beginning of one, unless `=` asks for exactly this one.
    variables = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return {name: value for name, value in variables.items() if name not in environment}


# Steps that do not launch tasks: the shell of an interactive allocation, a batch script, those of Slurm itself.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
# Below the ports that kernels give away by themselves.
_FIRST_PORT, _PORTS = 15_000, 15_000

_RANGES = re.compile(r"\[(\d+)[^\]]*\]")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def first_host(compressed: str) -> str:
    """Of `node[01-03,7],gpu5`, node01."""
    first = _RANGES.sub(r"\1", compressed).partition(",")[0]
    if not first or "[" in first:
        raise ValueError(f"the list of nodes '{compressed}' names none")
    return first


def expand_tasks(compressed: str) -> list[int]:
    """`2(x3),1` as the tasks of each node."""
    matches = [_TASKS.fullmatch(part) for part in compressed.split(",")]
    if None in matches:
        raise ValueError(f"the tasks per node '{compressed}' are not like 2(x3),1")
    return [int(match[1]) for match in matches if match for _ in range(int(match[2] or 1))]


DEFAULT_PORT = 29500
ABORT_LOOK_SECONDS = 0.5
JOIN_SECONDS = 300.0  # a launcher starts all at once, but imports from a slow disk take their time
PATIENCE_SECONDS = 24 * 3600.0  # others may wait as long as the first process measures alone
GATHER_SECONDS = 30.0  # ranks end together; one that is this late after its timeout is lost


# How a launcher names the rank, the number of ranks, and the same on this host.
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")


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

    @property
    def nodes(self) -> int:
        """Over how many hosts the processes are spread, as far as this host tells."""
        return -(-self.size // self.local_size)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> World | None:
        """What torchrun, mpirun or srun says; None in a process that was started plainly."""
        try:
            world = cls._of_any(environment)
        except (KeyError, ValueError, IndexError) as error:
            message = f"the launcher's environment cannot be read: {error}"
            raise InputError("unreadable-launcher-environment", message) from None
        return world if world is not None and world.size > 1 else None

    @classmethod
    def _of_any(cls, environment: Mapping[str, str]) -> World | None:
        for names in (_TORCHRUN, _OPEN_MPI):
            if names[0] in environment and names[1] in environment:
                return cls._of_launcher(names, environment)
        # mpiexec starts its helpers with srun, and srun may speak as MPICH does: who counts local ranks is in charge.
        step = environment.get("SLURM_STEP_ID", "")
        # Outside of a step are the script of sbatch and the shell of salloc.
        is_step = step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP and "SLURM_PROCID" in environment
        if is_step and _MPICH[2] not in environment:
            return cls._of_slurm(int(step), environment)
        is_mpich = _MPICH[0] in environment and _MPICH[1] in environment
        return cls._of_launcher(_MPICH, environment) if is_mpich else None

    @classmethod
    def _of_slurm(cls, step: int, environment: Mapping[str, str]) -> World:
        host = first_host(environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"])
        tasks = expand_tasks(environment.get("SLURM_STEP_TASKS_PER_NODE") or environment["SLURM_TASKS_PER_NODE"])
        job = int(environment.get("SLURM_JOB_ID") or environment["SLURM_JOBID"])
        return cls(
            rank=int(environment["SLURM_PROCID"]),
            size=int(environment.get("SLURM_STEP_NUM_TASKS") or environment["SLURM_NTASKS"]),
            local_rank=int(environment["SLURM_LOCALID"]),
            local_size=tasks[int(environment["SLURM_NODEID"])],
            address=environment.get("MASTER_ADDR", host if len(tasks) > 1 else "127.0.0.1"),
            port=int(environment.get("MASTER_PORT", _FIRST_PORT + (31 * job + step) % _PORTS)),
            agent_store=False,
        )

    @classmethod
    def _of_launcher(cls, names: tuple[str, str, str, str], environment: Mapping[str, str]) -> World:
        rank, size, local_rank, local_size = names
        world = cls(
            rank=int(environment[rank]),
            size=int(environment[size]),
            local_rank=int(environment.get(local_rank, environment[rank])),
            local_size=int(environment.get(local_size, environment[size])),
            address=environment.get("MASTER_ADDR", "127.0.0.1"),
            port=int(environment.get("MASTER_PORT", DEFAULT_PORT)),
            agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
        if world.nodes > 1 and "MASTER_ADDR" not in environment:
            message = (
                f"{world.size} processes were started on {world.nodes} hosts, but nothing says where they meet: "
                "set MASTER_ADDR to an address of the first rank's host (mpirun: -x MASTER_ADDR=...)"
            )
            raise InputError("missing-master-address", message, key="MASTER_ADDR")
        return world


_CASES = "paceline/cases"


class JoinedRanks:
    """Runs cases together with the other processes of the world."""

    def __init__(self, world: World) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self.world = world
        self.size, self.nodes = world.size, world.nodes
        self._lost: dict[int, Failure] = {}  # by rank: those whose process is gone for good
        try:
            self._store: TCPStore = TCPStore(
                world.address,
                world.port,
                world.size,
                is_master=world.rank == 0 and not world.agent_store,
                timeout=timedelta(seconds=JOIN_SECONDS),
            )
            self._network = self._find_network() if world.nodes > 1 else {}
        except (RuntimeError, OSError) as error:  # torch's own are RuntimeErrors
            message = (
                f"rank {world.rank} did not meet the other {world.size - 1} at {world.address}:{world.port}: "
                f"{str(error).splitlines()[0]}; set MASTER_ADDR and MASTER_PORT to where all of them reach rank 0"
            )
            raise InputError("ranks-did-not-meet", message, key="MASTER_ADDR", value=world.address) from None
        self._store.set_timeout(timedelta(seconds=PATIENCE_SECONDS))

    def announce(self, cases: Sequence[Case]) -> None:
        """Announce to the others which cases are to be measured; only the first announcement counts."""
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
        port = self.share(f"case/{case.index}/port", lambda: "" if self._lost else str(free_port("")))
        if not port:
            return CaseEnd(failure=next(iter(self._lost.values()))) if world.rank == 0 else None
        variables = rank_environment(world.rank, world.local_rank, world.size, world.local_size, world.address, port)
        environment = self._network | variables | {"TORCHELASTIC_USE_AGENT_STORE": "False"}
        looked_at, turn = 0.0, 0

        def somebody_failed() -> bool:
            nonlocal looked_at
            if time.monotonic() - looked_at < ABORT_LOOK_SECONDS:
                return False
            looked_at = time.monotonic()
            return bool(self._store.check([f"{prefix}/failed"]))

        def take_turn() -> None:
            nonlocal turn
            turn = self._store.add(f"{prefix}/turns", 1)

        execution = CaseExecution(
            server,
            case,
            ranks={world.rank: environment},
            world_size=world.size,
            on_progress=on_progress,
            abort=somebody_failed,
            on_failure=take_turn,
        )
        end = execution.run(imports_of(case))
        self._store.set(f"{prefix}/rank/{world.rank}", json.dumps(end.words() | {"turn": turn}))
        if end.failure is not None:
            self._store.set(f"{prefix}/failed", "1")
        return self._gather(prefix, end) if world.rank == 0 else None

    def leave(self, code: int) -> int:
        """The first rank's exit code, for every process; the store lives until all have read it."""
        agreed = int(self.share("exit", lambda: str(code)))
        self._store.add("paceline/left", 1)
        if self.world.rank == 0:
            deadline = time.monotonic() + GATHER_SECONDS
            others = self.world.size - len(self._lost)
            while self._store.add("paceline/left", 0) < others and time.monotonic() < deadline:
                time.sleep(0.05)
        return agreed

    def _find_network(self) -> dict[str, str]:
        """Which interface the ranks' collectives take: the one that leads to the first rank's host, and from there."""

        def gather(address: str) -> list[str]:
            self._store.set(f"paceline/address/{self.world.rank}", address)
            return [bytes(self._store.get(f"paceline/address/{rank}")).decode() for rank in range(self.world.size)]

        address = shown_address(self.world.address, gather)
        return {} if is_loopback(address) else bound_to(address)

    def _gather(self, prefix: str, merged: CaseEnd) -> CaseEnd:
        failures: list[Failure] = []
        deadline = time.monotonic() + GATHER_SECONDS
        merged.results, merged.warnings = {}, []
        for rank in range(self.world.size):
            left = max(0.1, deadline - time.monotonic())
            try:
                self._store.wait([f"{prefix}/rank/{rank}"], timedelta(seconds=left))
            except Exception:  # torch raises types of its own for a wait that is over
                message = f"rank {rank} was not heard of again: its process or its host is gone"
                cause = Cause(kind=CauseKind.INTERRUPTED, message=message, rank=rank)
                # It took no turn: after those who say why they failed, before those who only miss somebody.
                self._lost[rank] = Failure(rank, Outcome.FAILED, cause, math.inf)
                failures.append(self._lost[rank])
                continue
            words = json.loads(bytes(self._store.get(f"{prefix}/rank/{rank}")))
            end = CaseEnd.of_words(words, at=words["turn"])
            merged.results |= end.results
            merged.warnings += end.warnings
            failures += [end.failure] if end.failure is not None else []
        merged.failure = min(failures, key=lambda failure: failure.order) if failures else None
        if merged.failure is None and len(merged.results) < self.world.size:
            cause = Cause(kind=CauseKind.ERROR, message="some ranks were ended before they had a result")
            merged.failure = Failure(0, Outcome.FAILED, cause, 0.0)
        return merged
