"""Starts the ranks of a collective under mpirun and takes what they saw."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.benchmarks.communication import _mpi_output
from paceline.benchmarks.micro.metrics import TIME
from paceline.benchmarks.micro.session import show_at
from paceline.benchmarks.micro.tools import ToolError, find_tool, follow_tool, last_words, run_tool
from paceline.core.benchmark import Context, Progress
from paceline.core.errors import InputError, MissingDependency, OutOfMemory, Unsupported

WORKER = "paceline.benchmarks.communication._mpi_worker"
VERSION_SECONDS = 30.0
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
_LAUNCHED = ("MASTER_", "TORCHELASTIC_", "PMI_", "PMIX_", "MPI_LOCAL")


def run(context: Context, hosts: str | None) -> _mpi_output.Told:
    """Measure the case with as many MPI ranks as it has ranks."""
    mpirun = find_tool("mpirun", "openmpi-bin", purpose="starts the ranks of backend = mpi")
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingDependency("mpi4py", "pip install 'paceline[mpi]'")
    if hosts is not None:
        check_hosts(hosts)
    context.report(Progress(phase="measuring under mpirun"))

    def hear(line: str) -> None:
        point = _mpi_output.read_point(line)
        if point is not None:  # so that what was measured is kept, whatever happens later
            label = show_at({"size": point.size})
            context.report(Progress("measuring " + label, f"{TIME.name} {label}", TIME.unit, tuple(point.samples)))

    with _outside_of_launchers():
        version = run_tool([mpirun, "--version"], timeout=VERSION_SECONDS).output
        start = [*command(mpirun, version, context.world_size, hosts), context.case.model_dump_json()]
        try:
            said = follow_tool(start, hear, environment=_permissions())
        except ToolError as error:
            raise _explained(error) from None
    return _mpi_output.read(said.output, context.world_size)


def check_hosts(hosts: str) -> None:
    """Refuse a list of hosts that is not there."""
    if not Path(hosts).is_file():
        message = f"hosts = {hosts} is not a file: write one host a line, as mpirun reads it"
        raise InputError("missing-file", message, key="hosts", value=hosts)


def _explained(error: ToolError) -> Exception:
    """What the ranks say of their failure, where they could; mpirun itself only knows that they ended."""
    if error.said is None:
        return error
    failed = _mpi_output.first_failure(error.said.output)
    if failed is None:
        return ToolError(f"{error.message}: {_own_words(error.said.errors)}")
    where = f"rank {failed.rank} under mpirun"
    match failed.why:
        case "unsupported":
            return Unsupported(f"{failed.message} ({where})")
        case "memory":
            return OutOfMemory(f"the memory of the host did not suffice for {where}: use smaller sizes", "host")
    unforeseen = RuntimeError(f"{where}: {failed.message}")
    unforeseen.add_note(error.said.errors)  # the traceback is there
    return unforeseen


def _own_words(errors: str) -> str:
    """What mpirun says without the frames around it, the advice for its own users, and tracebacks of Python."""
    lines = [line for line in errors.splitlines() if line.strip(" -") and "help" not in line]
    verdict = [line for line in lines if "noticed that process" in line]  # of a rank that somebody or a fault ended
    return last_words("\n".join(verdict or [line for line in lines if not line.startswith(("  ", "Traceback"))]))


def command(mpirun: str, version: str, ranks: int, hosts: str | None) -> list[str]:
    """How the ranks are started, all but the case itself."""
    is_open_mpi = "Open MPI" in version or "OpenRTE" in version
    more = ["--oversubscribe"] if is_open_mpi else []  # others put more ranks than cores on a host unasked
    if hosts is not None:
        more += ["--hostfile" if is_open_mpi else "-f", str(Path(hosts).resolve())]
    return [mpirun, "-n", str(ranks), *more, sys.executable, "-P", "-m", WORKER]


def _permissions() -> dict[str, str]:
    """Open MPI asks root twice; whoever runs Paceline as root, as in a container, has answered."""
    if os.geteuid() != 0:
        return {}
    return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@contextmanager
def _outside_of_launchers() -> Iterator[None]:
    """Hide what launched this process: mpirun would take itself for a part of that.

    Settings for Open MPI that a user made in the environment stay, unless mpirun launched this process: then they
    cannot be told from its own.
    """
    launched = (*_LAUNCHED, "OMPI_") if "OMPI_COMM_WORLD_SIZE" in os.environ else _LAUNCHED
    hidden = {name: value for name, value in os.environ.items() if name in _RANKS or name.startswith(launched)}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
