"""Starts the ranks of a collective under mpirun and takes what they saw."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.benchmarks.communication import _mpi_output
from paceline.benchmarks.micro.tools import find_tool, run_tool
from paceline.core.benchmark import Context, Progress
from paceline.core.errors import MissingDependency, Unsupported

WORKER = "paceline.benchmarks.communication._mpi_worker"
VERSION_SECONDS = 30.0
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
_LAUNCHED = ("MASTER_", "TORCHELASTIC_", "PMI_", "PMIX_", "MPI_LOCAL")


def run(context: Context, hosts: str | None) -> _mpi_output.Told:
    """Measure the case with as many MPI ranks as it has ranks."""
    mpirun = find_tool("mpirun", "openmpi-bin", purpose="starts the ranks of backend = mpi")
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingDependency("mpi4py", "pip install 'paceline[mpi]'")
    if hosts is not None and not Path(hosts).is_file():
        raise Unsupported(f"hosts = {hosts} is no file: write one host a line, as mpirun reads it")
    context.report(Progress(phase="measuring under mpirun"))
    with _outside_of_launchers():
        version = run_tool([mpirun, "--version"], timeout=VERSION_SECONDS).output
        said = run_tool(
            [*command(mpirun, version, context.world_size, hosts), context.case.model_dump_json()],
            timeout=context.case.timeout,
            environment=_permissions(),
        )
    return _mpi_output.read(said.output, context.world_size)


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
