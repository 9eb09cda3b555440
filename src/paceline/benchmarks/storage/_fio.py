"""Jobs for fio, and what it reports about them in JSON."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, AliasPath, BaseModel, ConfigDict, Field

from paceline.benchmarks._micro.tools import garbled
from paceline.core.stats import Interval, Summary, summarize

RW = {
    "read": "read",
    "write": "write",
    "random-read": "randread",
    "random-write": "randwrite",
    "mixed": "rw",
    "random-mixed": "randrw",
}
WITHOUT_QUEUE = ("psync", "sync")  # engines that have one operation in flight at a time


@dataclass(frozen=True)
class Window:
    """One of several equal pieces of work that a single fio does one after another."""

    work: int  # bytes, of each job
    offset: int = 0
    seed: int = 0


@dataclass(frozen=True)
class FioJob:
    """What fio is to do, in its own terms; every job has its own part of the file."""

    filename: str
    rw: str
    block_size: int
    engine: str
    direct: bool
    depth: int
    jobs: int
    region: int  # bytes of the file that belong to each job
    read_share: int | None = None  # percent, for mixed patterns

    @property
    def is_random(self) -> bool:
        return self.rw.startswith("rand")

    @property
    def writes(self) -> bool:
        return not self.rw.endswith("read")

    def options(self) -> list[str]:
        """The options that all windows share."""
        chosen = {
            "filename": self.filename.replace(":", "\\:"),  # a colon parts names
            "rw": self.rw,
            "bs": str(self.block_size),
            "ioengine": self.engine,
            "direct": str(int(self.direct)),
            "iodepth": str(self.depth),
            "numjobs": str(self.jobs),
            "thread": "1",  # as processes, which fio gives groups of their own, its jobs would outlive it
            "offset_increment": str(self.region),
            "randrepeat": "0",  # or fio goes to the same blocks in every start, whatever the seed
        }
        if self.read_share is not None:
            chosen["rwmixread"] = str(self.read_share)
        if self.writes and not self.direct:
            chosen["end_fsync"] = "1"  # or the figure would be the page cache's
        return [f"--{name}={value}" for name, value in chosen.items()]

    def command(self, fio: str, windows: Sequence[Window]) -> list[str]:
        """fio that does these windows one after another and reports each of them."""
        command = [fio, "--output-format=json+", *([] if self.writes else ["--readonly"])]
        command += ["--name=global", *self.options(), "--group_reporting"]
        command += ["--lat_percentiles=1", "--clat_percentiles=0"]
        for number, window in enumerate(windows):
            size = self.region
            if not self.is_random:
                size = min(size - window.offset, max(window.work, self.block_size))
            command += [
                f"--name=window{number}",
                f"--size={size}",
                f"--offset={window.offset}",
                f"--io_size={window.work}",
                f"--randseed={window.seed}",
                "--stonewall",
            ]
        return command

    def windows(self, count: int, work: int, first: int, seed: int) -> list[Window]:
        """Equal windows that move through the file, so that one does not read what the last one left in a cache."""
        slots = 1 if self.is_random else max(1, self.region // work)
        numbers = range(first, first + count)
        return [Window(work, offset=number % slots * work, seed=seed + number) for number in numbers]


# fio counts nanoseconds.
_Seconds = Annotated[float, Field(ge=0), AfterValidator(lambda nanoseconds: nanoseconds / 1e9)]


class _Json(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class Side(_Json):
    """The reads, or the writes, of one window; all but the first three fields are of their latency."""

    bytes: int = Field(ge=0, validation_alias="io_bytes")
    operations: int = Field(ge=0, validation_alias="total_ios")
    milliseconds: int = Field(ge=0, validation_alias="runtime")
    mean: _Seconds = Field(validation_alias=AliasPath("lat_ns", "mean"))
    deviation: _Seconds = Field(validation_alias=AliasPath("lat_ns", "stddev"))
    fastest: _Seconds = Field(validation_alias=AliasPath("lat_ns", "min"))
    slowest: _Seconds = Field(validation_alias=AliasPath("lat_ns", "max"))
    bins: dict[int, int] = Field(default_factory=dict, validation_alias=AliasPath("lat_ns", "bins"))  # ns: how many


class FioWindow(_Json):
    """One window as fio reports it."""

    error: int
    reads: Side = Field(validation_alias="read")
    writes: Side = Field(validation_alias="write")

    @property
    def sides(self) -> list[Side]:
        """Those of the two that happened."""
        return [side for side in (self.reads, self.writes) if side.operations]

    @property
    def seconds(self) -> float:
        return max(self.reads.milliseconds, self.writes.milliseconds) / 1e3

    @property
    def bytes(self) -> int:
        return sum(side.bytes for side in self.sides)


class _Output(_Json):
    jobs: list[FioWindow] = Field(min_length=1)


def parse(text: str, count: int) -> list[FioWindow]:
    """What fio reports of `count` windows; anything else is a ToolError."""
    start = re.search(r"^\{", text, re.MULTILINE)  # fio writes notes before its JSON
    if start is None:
        raise garbled("fio", "it contains no JSON", text)
    try:
        document, _ = json.JSONDecoder().raw_decode(text, start.start())
        windows = _Output.model_validate(document).jobs
    except (ValueError, RecursionError) as error:  # pydantic's and json's errors are ValueErrors
        raise garbled("fio", error, text) from None
    if len(windows) != count:
        raise garbled("fio", f"it reports {len(windows)} jobs instead of {count}", text)
    for window in windows:
        if window.error:
            raise garbled("fio", f"a job ended with error {window.error}", text)
        for side in window.sides:
            if not side.bytes or not side.bins or min(side.bins.values()) < 1 or min(side.bins) < 0:
                raise garbled("fio", f"{side.operations} operations without bytes or latencies", text)
        if not window.sides or not window.seconds:
            raise garbled("fio", "a job moved nothing, or took no time", text)
    return windows


def pooled_latency(windows: Sequence[Sequence[Side]]) -> Summary:
    """The latencies of all operations of some windows; intervals come from how the windows differ.

    fio counts operations in bins about one percent wide, so percentiles are that exact.
    """
    sides = [side for window in windows for side in window]
    count = sum(side.operations for side in sides)
    mean = _mean(sides)
    spread = math.fsum((side.deviation**2 + (side.mean - mean) ** 2) * side.operations for side in sides) / count
    bins = _merged(side.bins for side in sides)
    median = _quantile(bins, 50.0)
    per_window = [_merged(side.bins for side in window) for window in windows if window]
    medians = summarize([_quantile(one, 50.0) for one in per_window])
    means = summarize([_mean(window) for window in windows if window])
    # Outliers as everywhere: further from the median than 5 scaled median absolute deviations and than 2 %.
    distances = _merged({abs(round(value - median * 1e9)): number} for value, number in bins.items())
    far = max(5.0 * 1.4826 * _quantile(distances, 50.0) * 1e9, 0.02 * median * 1e9)
    return Summary(
        count=count,
        effective_count=float(len(per_window)),
        mean=mean,
        median=median,
        minimum=min(side.fastest for side in sides),
        maximum=max(side.slowest for side in sides),
        deviation=math.sqrt(spread),
        mean_interval=_around(means.mean_interval, mean),
        median_interval=_around(medians.median_interval, median),
        percentiles={f"{p:g}": _quantile(bins, p) for p in (50.0, 90.0, 95.0, 99.0, 99.9)},
        outliers=sum(number for distance, number in distances.items() if distance > far),
    )


def _merged(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    return dict(sorted(sum(map(Counter, parts), Counter[int]()).items()))


def _quantile(bins: Mapping[int, int], percentile: float) -> float:
    """The latency, in seconds, that so many percent of the operations did not exceed."""
    covered = np.cumsum(list(bins.values()))
    index = int(np.searchsorted(covered, covered[-1] * percentile / 100.0 - 1e-9))
    return list(bins)[index] / 1e9


def _mean(sides: Sequence[Side]) -> float:
    return math.fsum(side.mean * side.operations for side in sides) / sum(side.operations for side in sides)


def _around(interval: Interval | None, value: float) -> Interval | None:
    """The interval, stretched to hold the value of all windows together if it does not."""
    if interval is None:
        return None
    low, high = min(max(0.0, interval.low), value), max(interval.high, value)
    return Interval(low=low, high=high, confidence=interval.confidence)
