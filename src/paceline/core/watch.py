"""What was seen of a machine and its devices while a case ran: series over time, each with one figure of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Figure = Literal["max", "mean", "new"]  # "new" is by how much a counter has grown
Readings = Mapping[tuple[str, str], float]  # by what it is of and by name


@dataclass(frozen=True)
class SeriesKind:
    """How readings of one name are kept."""

    figure: Figure
    unit: str = ""
    is_rate: bool = False  # the reading is a counter, of which the growth per second is kept
    most: float = math.inf  # of a rate; a counter of ticks may run ahead for a moment


KINDS: Mapping[str, SeriesKind] = {
    "temperature": SeriesKind("max", "°C"),
    "power": SeriesKind("mean", "W"),
    "sm_clock": SeriesKind("mean", "MHz"),
    "memory_clock": SeriesKind("mean", "MHz"),
    "throttled": SeriesKind("mean"),  # share of the readings at which heat or a fault held the clocks down
    "power_capped": SeriesKind("mean"),
    "xid": SeriesKind("max"),  # the number of the last error that the driver reported, 0 for none
    "ecc_corrected": SeriesKind("new"),
    "ecc_uncorrected": SeriesKind("new"),
    "remapped_rows": SeriesKind("new"),
    "nvlink_errors": SeriesKind("new"),
    "sent": SeriesKind("mean", "B/s", is_rate=True),
    "received": SeriesKind("mean", "B/s", is_rate=True),
    "errors": SeriesKind("new"),
    "drops": SeriesKind("new"),
    "frequency": SeriesKind("mean", "MHz"),
    "busy": SeriesKind("mean", is_rate=True, most=1.0),  # share of the time of all cores
    "steal": SeriesKind("mean", is_rate=True, most=1.0),
}


class WatchSeries(BaseModel):
    """One series."""

    model_config = ConfigDict(extra="ignore")

    of: str  # cpu, cuda:0, eth0, mlx5_0/1
    name: str
    unit: str = ""
    figure: Figure
    value: float  # of the figure, from all readings
    values: list[float | None]  # one for each time, or a single one that held throughout

    @property
    def metric(self) -> str:
        """The figure's name in the rules of a diagnosis."""
        return f"watch/{self.of}/{self.name}_{self.figure}"


class Watched(BaseModel):
    """Everything that was seen on one host while a case ran."""

    model_config = ConfigDict(extra="ignore")

    host: str = ""  # empty for that of the run
    times: list[float] = Field(default_factory=list)  # seconds since the watching began
    series: list[WatchSeries] = Field(default_factory=list)
    cpu_seconds: float = 0.0  # that watching took itself


def joined_figure(parts: Sequence[tuple[WatchSeries, float]]) -> WatchSeries:
    """The same series of several cases as one, each with its seconds; without the values."""
    first, total = parts[0][0], sum(seconds for _, seconds in parts)
    values = [one.value for one, _ in parts]
    if first.figure == "mean":
        weighted = sum(one.value * seconds for one, seconds in parts)
        value = weighted / total if total else sum(values) / len(values)
    else:
        value = max(values) if first.figure == "max" else sum(values)
    return first.model_copy(update={"value": value, "values": []})


def read_watched(conditions: Mapping[str, Any]) -> list[Watched]:
    """What a record's conditions have of it; another version's shape is nothing."""
    documents = conditions.get("watched")
    try:
        return [Watched.model_validate(one) for one in documents] if isinstance(documents, list) else []
    except ValueError:
        return []
