"""What the ranks under mpirun say about a collective: one JSON object per marked line, written and read here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from paceline.benchmarks.micro.tools import ToolError, garbled
from paceline.core.errors import SilentCorruption
from paceline.core.record import Doubt

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
    doubts: list[Doubt]


class Told(BaseModel):
    """All of it."""

    library: str
    points: list[PointLine]
    facts: dict[str, Any]
    doubts: list[Doubt]


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
    return Told(library=begin.library, points=measured, facts=end.facts, doubts=end.doubts)


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
