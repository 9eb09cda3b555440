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


_LINE: TypeAdapter[Begin | PointLine | Corruption | End] = TypeAdapter(
    Annotated[Begin | PointLine | Corruption | End, Field(discriminator="kind")]
)


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


def _read_line(line: str, output: str) -> Begin | PointLine | Corruption | End:
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        complaint = error.errors()[0]
        where = ".".join(map(str, complaint["loc"]))
        raise garbled("the ranks under mpirun", f"{complaint['msg']} {where}".strip(), output) from None
