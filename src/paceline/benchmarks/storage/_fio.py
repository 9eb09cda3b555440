"""Jobs for fio, and what it reports about them in JSON."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

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
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
WITHOUT_QUEUE = ("psync", "sync")  # engines that have one operation in flight at a time
_START = re.compile(r"^\{", re.MULTILINE)  # fio writes notes before its JSON


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
            size = (
                self.region if self.is_random else min(self.region - window.offset, max(window.work, self.block_size))
            )
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


@dataclass(frozen=True)
class Side:
    """The reads, or the writes, of one window."""

    bytes: int
    operations: int
    mean: float  # of the latency, in seconds; as are the next
    deviation: float
    fastest: float
    slowest: float
    bins: Mapping[int, int]  # nanoseconds: how many


@dataclass(frozen=True)
class FioWindow:
    """One window as fio reports it."""

    seconds: float
    reads: Side | None
    writes: Side | None

    @property
    def sides(self) -> list[Side]:
        return [side for side in (self.reads, self.writes) if side is not None]

    @property
    def bytes(self) -> int:
        return sum(side.bytes for side in self.sides)


class _Json(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class _Latency(_Json):
    N: int = Field(ge=0)
    mean: float = Field(ge=0)
    stddev: float = Field(ge=0)
    min: float = Field(ge=0)
    max: float = Field(ge=0)
    bins: dict[int, int] = Field(default_factory=dict)


class _Direction(_Json):
    io_bytes: int = Field(ge=0)
    total_ios: int = Field(ge=0)
    runtime: int = Field(ge=0)  # milliseconds
    lat_ns: _Latency


class _Job(_Json):
    error: int
    read: _Direction
    write: _Direction


class _Output(_Json):
    jobs: list[_Job] = Field(min_length=1)


def parse(text: str, count: int) -> list[FioWindow]:
    """What fio reports of `count` windows; anything else is a ToolError."""
    start = _START.search(text)
    if start is None:
        raise garbled("fio", "there is no JSON in it", text)
    try:
        document, _ = json.JSONDecoder().raw_decode(text, start.start())
        jobs = _Output.model_validate(document).jobs
    except (ValueError, RecursionError) as error:  # pydantic's and json's errors are ValueErrors
        raise garbled("fio", error, text) from None
    if len(jobs) != count:
        raise garbled("fio", f"it reports {len(jobs)} jobs instead of {count}", text)
    windows = []
    for job in jobs:
        if job.error:
            raise garbled("fio", f"a job ended with error {job.error}", text)
        milliseconds = max(job.read.runtime, job.write.runtime)
        window = FioWindow(milliseconds / 1e3, _side(job.read, text), _side(job.write, text))
        if not window.sides or not milliseconds:
            raise garbled("fio", "a job moved nothing, or took no time", text)
        windows.append(window)
    return windows


def _side(direction: _Direction, text: str) -> Side | None:
    if direction.total_ios == 0:
        return None
    latency = direction.lat_ns
    if not direction.io_bytes or not latency.bins or min(latency.bins.values()) < 1 or min(latency.bins) < 0:
        raise garbled("fio", f"{direction.total_ios} operations without bytes or latencies", text)
    return Side(
        bytes=direction.io_bytes,
        operations=direction.total_ios,
        mean=latency.mean / 1e9,
        deviation=latency.stddev / 1e9,
        fastest=latency.min / 1e9,
        slowest=latency.max / 1e9,
        bins=latency.bins,
    )


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
        percentiles={f"{p:g}": _quantile(bins, p) for p in PERCENTILES},
        outliers=sum(number for distance, number in distances.items() if distance > far),
    )


def _merged(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    total: Counter[int] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))


def _quantile(bins: Mapping[int, int], percentile: float) -> float:
    """The latency, in seconds, that so many percent of the operations did not exceed."""
    rank = sum(bins.values()) * percentile / 100.0
    covered = 0
    for value, count in bins.items():
        covered += count
        if covered >= rank - 1e-9:
            return value / 1e9
    raise ValueError("no operations")


def _mean(sides: Sequence[Side]) -> float:
    return math.fsum(side.mean * side.operations for side in sides) / sum(side.operations for side in sides)


def _around(interval: Interval | None, value: float) -> Interval | None:
    """The interval, stretched to hold the value of all windows together if it does not."""
    if interval is None:
        return None
    low, high = min(max(0.0, interval.low), value), max(interval.high, value)
    return Interval(low=low, high=high, confidence=interval.confidence)
