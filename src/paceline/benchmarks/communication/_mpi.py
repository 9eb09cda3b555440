"""Starts the ranks of a collective under mpirun and reads what they measured."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from paceline.benchmarks._micro.parameters import TIME
from paceline.benchmarks._micro.session import show_at
from paceline.benchmarks._micro.tools import ToolError, find_tool, garbled, last_words, run_tool
from paceline.core.benchmark import Context, Progress
from paceline.core.errors import InputError, MissingDependency, OutOfMemory, SilentCorruption, Unsupported
from paceline.core.record import RecordWarning

MARK = "PACELINE-MPI "  # mpirun and MPI libraries write to the same stream
WORKER = "paceline.benchmarks.communication._mpi_worker"
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
_LAUNCHED = ("MASTER_", "TORCHELASTIC_", "PMI_", "PMIX_", "MPI_LOCAL")


class Line(BaseModel):
    """Base of the lines that the ranks write."""

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


class Failed(Line):
    """A rank could not go on, or received something wrong; all of them end, and nothing follows."""

    kind: Literal["failed"] = "failed"
    rank: int
    why: Literal["corruption", "unsupported", "memory", "error"]
    message: str


class End(Line):
    """All sizes were measured."""

    kind: Literal["end"] = "end"
    points: int  # how many lines of them there must be
    facts: dict[str, Any]
    warnings: list[RecordWarning]


class MpiSweep(BaseModel):
    """What the ranks measured."""

    library: str
    points: list[PointLine]
    facts: dict[str, Any]
    warnings: list[RecordWarning]


AnyLine = Begin | PointLine | Failed | End
_LINE: TypeAdapter[AnyLine] = TypeAdapter(Annotated[AnyLine, Field(discriminator="kind")])


def read(output: str, ranks: int) -> MpiSweep:
    """Understand the whole output; what is cut off, garbled or wrong is an error that says so."""
    source = "the ranks under mpirun"
    marked = [line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)]
    if not marked:
        raise garbled(source, "no line of it is theirs", output)
    try:
        lines = [_LINE.validate_json(line) for line in marked]
    except ValidationError as error:
        raise garbled(source, error, output) from None
    for line in lines:
        if isinstance(line, Failed) and line.why == "corruption":
            raise SilentCorruption(line.message)
    begin, *points, end = lines if len(lines) > 1 else (*lines, None)
    if not isinstance(begin, Begin):
        raise garbled(source, "its beginning is missing", output)
    if begin.ranks != ranks:
        raise ToolError(
            f"mpirun started {ranks} processes, but {begin.ranks} of them met: mpirun and the MPI library that mpi4py "
            f"loads do not belong together ({begin.library}); install one MPI alone"
        )
    if not isinstance(end, End):
        raise garbled(source, f"it breaks off after {len(lines)} lines", output)
    measured = [line for line in points if isinstance(line, PointLine)]
    if not measured or len(measured) != len(points) or len(measured) != end.points:
        raise garbled(source, f"it has {len(measured)} sizes, but ends with {end.points}", output)
    return MpiSweep(library=begin.library, points=measured, facts=end.facts, warnings=end.warnings)


def _read_line(line: str) -> AnyLine | None:
    """What a line says; nothing if it is not ours, or cut off, which `read` reports in the end."""
    try:
        return _LINE.validate_json(line.removeprefix(MARK)) if line.startswith(MARK) else None
    except ValidationError:
        return None


def run(context: Context, hosts: str | None) -> MpiSweep:
    """Measure the case with as many MPI ranks as it has ranks."""
    mpirun = find_tool("mpirun", "openmpi-bin", purpose="starts the ranks of backend = mpi")
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingDependency("mpi4py", "pip install '.[mpi]'")
    if hosts is not None:
        check_hosts(hosts)
    context.report(Progress(phase="measuring under mpirun"))

    def report_point(text: str) -> None:
        line = _read_line(text)
        if isinstance(line, PointLine):  # reported at once, so that it is recorded whatever happens later
            label = show_at({"size": line.size})
            context.report(Progress("measuring " + label, f"{TIME.name} {label}", TIME.unit, tuple(line.samples)))

    version = run_tool([mpirun, "--version"], timeout=30.0, environment=environment()).output
    start = [*command(mpirun, version, context.world_size, hosts), context.case.model_dump_json()]
    try:
        written = run_tool(start, on_line=report_point, environment=environment())
    except ToolError as error:
        raise _explained(error) from None
    return read(written.output, context.world_size)


def check_hosts(hosts: str) -> None:
    """Refuse a list of hosts that is missing."""
    if not Path(hosts).is_file():
        message = f"hostfile = {hosts} is not a file: write one host a line, as mpirun reads it"
        raise InputError("missing-file", message, key="hostfile", value=hosts)


def _explained(error: ToolError) -> Exception:
    """What the ranks say of their failure, where they could; mpirun itself only knows that they ended."""
    if error.written is None:
        return error
    lines = map(_read_line, error.written.output.splitlines())
    failed = next((line for line in lines if isinstance(line, Failed)), None)
    if failed is None:
        # Without mpirun's frames around it, the advice for its own users, and tracebacks of Python.
        words = [line for line in error.written.errors.splitlines() if line.strip(" -") and "help" not in line]
        verdict = [line for line in words if "noticed that process" in line]  # of a rank that a signal or a fault ended
        plain = verdict or [line for line in words if not line.startswith(("  ", "Traceback"))]
        summary = last_words("\n".join(plain))
        return ToolError(f"{error.message}: {summary}")
    where = f"rank {failed.rank} under mpirun"
    match failed.why:
        case "unsupported":
            return Unsupported(f"{failed.message} ({where})")
        case "memory":
            return OutOfMemory(f"the memory of the host did not suffice for {where}: use smaller sizes", "host")
    unforeseen = RuntimeError(f"{where}: {failed.message}")
    unforeseen.add_note(error.written.errors)  # the traceback is there
    return unforeseen


def command(mpirun: str, version: str, ranks: int, hosts: str | None) -> list[str]:
    """How the ranks are started, all but the case itself."""
    is_open_mpi = "Open MPI" in version or "OpenRTE" in version
    more = ["--oversubscribe"] if is_open_mpi else []  # others put more ranks than cores on a host unasked
    if hosts is not None:
        more += ["--hostfile" if is_open_mpi else "-f", str(Path(hosts).resolve())]
    return [mpirun, "-n", str(ranks), *more, sys.executable, "-P", "-m", WORKER]


def environment() -> dict[str, str]:
    """Of this process, without what launched it: mpirun would take itself for a part of that.

    Settings for Open MPI that a user made in the environment stay, unless mpirun launched this process: then they
    cannot be distinguished from its own.
    """
    launched = (*_LAUNCHED, "OMPI_") if "OMPI_COMM_WORLD_SIZE" in os.environ else _LAUNCHED
    own = {name: value for name, value in os.environ.items() if name not in _RANKS and not name.startswith(launched)}
    # Open MPI asks root twice; whoever runs Paceline as root, as in a container, has answered.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    return own | root
