"""Starts the ranks of a collective under mpirun and takes what they saw."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from paceline.benchmarks._micro.parameters import TIME
from paceline.benchmarks._micro.session import show_at
from paceline.benchmarks._micro.tools import ToolError, find_tool, follow_tool, garbled, last_words, run_tool
from paceline.core.benchmark import Context, Progress
from paceline.core.errors import InputError, MissingDependency, OutOfMemory, SilentCorruption, Unsupported
from paceline.core.record import RecordWarning

MARK = "PACELINE-MPI "  # mpirun and MPI libraries write to the same stream


class Line(BaseModel):
    """Base of what can be said."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def __str__(self) -> str:
        return MARK + self.model_dump_json()


class Begin(Line):
    """The ranks have met."""

    kind: Literal["begin"] = "begin"
    ranks: int = Field(ge=1)
    library: str  # which MPI


class PointLine(Line):
    """One size was measured: the samples of the slowest rank."""

    kind: Literal["point"] = "point"
    size: int = Field(ge=1)  # bytes
    samples: list[Annotated[float, Field(gt=0)]] = Field(min_length=1)  # seconds


class Corruption(Line):
    """A rank received something wrong; nothing follows."""

    kind: Literal["corruption"] = "corruption"
    message: str


class Failed(Line):
    """A rank could not go on; all of them end."""

    kind: Literal["failed"] = "failed"
    rank: int
    why: Literal["unsupported", "memory", "error"]
    message: str


class End(Line):
    """All sizes were measured."""

    kind: Literal["end"] = "end"
    points: int  # how many lines of them there must be
    facts: dict[str, Any]
    warnings: list[RecordWarning]


class Told(BaseModel):
    """All of it."""

    library: str
    points: list[PointLine]
    facts: dict[str, Any]
    warnings: list[RecordWarning]


AnyLine = Begin | PointLine | Corruption | Failed | End
_LINE: TypeAdapter[AnyLine] = TypeAdapter(Annotated[AnyLine, Field(discriminator="kind")])


def read(output: str, ranks: int) -> Told:
    """Understand the whole output; what is cut off, garbled or wrong is an error that says so."""
    marked = [line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)]
    if not marked:
        raise garbled("the ranks under mpirun", "no line of it is theirs", output)
    lines = [_read_line(line, output) for line in marked]
    corruption = next((line for line in lines if isinstance(line, Corruption)), None)
    if corruption is not None:
        raise SilentCorruption(corruption.message)
    begin, *points, end = lines if len(lines) > 1 else (*lines, None)
    if not isinstance(begin, Begin):
        raise garbled("the ranks under mpirun", "its beginning is missing", output)
    if begin.ranks != ranks:
        raise ToolError(
            f"mpirun started {ranks} processes, but {begin.ranks} of them met: mpirun and the MPI library that mpi4py "
            f"loads do not belong together ({begin.library}); install one MPI alone"
        )
    if not isinstance(end, End):
        raise garbled("the ranks under mpirun", f"it breaks off after {len(lines)} lines", output)
    measured = [line for line in points if isinstance(line, PointLine)]
    if not measured or len(measured) != len(points) or len(measured) != end.points:
        raise garbled("the ranks under mpirun", f"it has {len(measured)} sizes, but ends with {end.points}", output)
    return Told(library=begin.library, points=measured, facts=end.facts, warnings=end.warnings)


def read_point(line: str) -> PointLine | None:
    """A size that was measured, if the line tells of one."""
    said = _quietly(line)
    return said if isinstance(said, PointLine) else None


def first_failure(output: str) -> Failed | None:
    """What the rank that failed first said of it."""
    return next((said for line in output.splitlines() if isinstance(said := _quietly(line), Failed)), None)


def _quietly(line: str) -> AnyLine | None:
    """What a line says; nothing if it is not ours, or cut off, which `read` complains of in the end."""
    if not line.startswith(MARK):
        return None
    try:
        return _LINE.validate_json(line.removeprefix(MARK))
    except ValidationError:
        return None


def _read_line(line: str, output: str) -> AnyLine:
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        complaint = error.errors()[0]
        where = ".".join(map(str, complaint["loc"]))
        raise garbled("the ranks under mpirun", f"{complaint['msg']} {where}".strip(), output) from None


WORKER = "paceline.benchmarks.communication._mpi_worker"
VERSION_SECONDS = 30.0
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
_LAUNCHED = ("MASTER_", "TORCHELASTIC_", "PMI_", "PMIX_", "MPI_LOCAL")


def run(context: Context, hosts: str | None) -> Told:
    """Measure the case with as many MPI ranks as it has ranks."""
    mpirun = find_tool("mpirun", "openmpi-bin", purpose="starts the ranks of backend = mpi")
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingDependency("mpi4py", "pip install 'paceline[mpi]'")
    if hosts is not None:
        check_hosts(hosts)
    context.report(Progress(phase="measuring under mpirun"))

    def hear(line: str) -> None:
        point = read_point(line)
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
    return read(said.output, context.world_size)


def check_hosts(hosts: str) -> None:
    """Refuse a list of hosts that is not there."""
    if not Path(hosts).is_file():
        message = f"hosts = {hosts} is not a file: write one host a line, as mpirun reads it"
        raise InputError("missing-file", message, key="hosts", value=hosts)


def _explained(error: ToolError) -> Exception:
    """What the ranks say of their failure, where they could; mpirun itself only knows that they ended."""
    if error.said is None:
        return error
    failed = first_failure(error.said.output)
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
