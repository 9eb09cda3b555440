"""What is to be done: generated workloads with Poisson arrivals, and traces out of a file."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import InputError, unknown
from paceline.service.scheduler.state import Device, Follower, Needs

Numbers = NDArray[np.float64]

MEAN = 288.0  # seconds, of every generated workload
SHORT, LONG, LONG_SHARE = 60.0, 1200.0, 0.2
KIND = "device"
COLUMNS = ("submitted", "seconds", "predicted", "priority", "devices", "nodes", "whole_node", "cpu_heavy")
_MOST = 1e12  # seconds


@dataclass(frozen=True)
class Workload:
    """Tasks in the order in which they come: when, how long each really takes, and how long it was predicted to."""

    name: str
    submitted: Numbers
    seconds: Numbers
    predicted: Numbers
    error: float  # of the predictions: the deviation of the logarithm of true over predicted
    needs: tuple[Needs, ...]  # one for all, or one for each
    priorities: tuple[int, ...] = (0,)

    def __len__(self) -> int:
        return len(self.submitted)

    def needs_of(self, place: int) -> Needs:
        return self.needs[place] if len(self.needs) > 1 else self.needs[0]

    def priority_of(self, place: int) -> int:
        return self.priorities[place] if len(self.priorities) > 1 else self.priorities[0]

    def device_counts(self, devices: int) -> Numbers:
        """How many devices each task occupies on followers of so many."""
        counts = [need.nodes * (devices if need.whole_node else need.count) for need in self.needs]
        return np.broadcast_to(np.array(counts, dtype=np.float64), (len(self),))


@dataclass(frozen=True)
class Fleet:
    """Followers that are all alike."""

    followers: int
    devices: int = 1

    @property
    def capacity(self) -> int:
        return self.followers * self.devices

    def members(self) -> list[Follower]:
        devices = (Device(KIND),) * self.devices
        return [Follower(f"follower-{place}", devices) for place in range(self.followers)]


def _exponential(generator: np.random.Generator, jobs: int) -> Numbers:
    return generator.exponential(MEAN, jobs)


def _lognormal(generator: np.random.Generator, jobs: int) -> Numbers:
    return generator.lognormal(math.log(MEAN) - 0.5, 1.0, jobs)


def _bimodal(generator: np.random.Generator, jobs: int) -> Numbers:
    return np.where(generator.random(jobs) < LONG_SHARE, LONG, SHORT)


WORKLOADS: dict[str, Callable[[np.random.Generator, int], Numbers]] = {
    "exponential": _exponential,
    "lognormal": _lognormal,
    "bimodal": _bimodal,
}


def generate(name: str, *, load: float, fleet: Fleet, jobs: int, error: float, seed: int) -> Workload:
    """Tasks of one device each; `load` is all their work over what the fleet can do until the last one comes."""
    if name not in WORKLOADS:
        raise unknown("workload", name, WORKLOADS)
    generator = np.random.default_rng([seed, list(WORKLOADS).index(name)])
    gaps = generator.exponential(1.0, jobs)
    seconds = WORKLOADS[name](generator, jobs)
    predicted = seconds * np.exp(generator.normal(0.0, error, jobs))
    # Gaps in proportion to exponential ones are those of a Poisson process with so many arrivals in so long a time.
    span = float(seconds.sum()) / (load * fleet.capacity)
    submitted = np.cumsum(gaps) * (span / float(gaps.sum()))
    return Workload(name, submitted, seconds, predicted, error, (Needs(kind=KIND),))


def read_trace(path: Path, *, fleet: Fleet, error: float, seed: int) -> Workload:
    """A workload out of a CSV file: `submitted` and `seconds` of each task, and what else is known of it."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            unexpected = set(reader.fieldnames or ()) - set(COLUMNS)
            missing = {"submitted", "seconds"} - set(reader.fieldnames or ())
            if unexpected or missing:
                wrong = f"no column '{min(missing)}'" if missing else f"the unknown column '{min(unexpected)}'"
                raise InputError(f"trace '{path}' has {wrong}; known are {', '.join(COLUMNS)}")
            rows = [_row(path, line, row, fleet) for line, row in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as failure:
        raise InputError(f"cannot read the trace '{path}': {failure}") from None
    if not rows:
        raise InputError(f"trace '{path}' has no tasks; write one on each line below the names of the columns")
    rows.sort(key=lambda row: row[0])  # stable: what comes at the same time keeps its order
    submitted, seconds, predicted, priorities, needs = zip(*rows, strict=True)
    guessed = np.array(seconds) * np.exp(np.random.default_rng(seed).normal(0.0, error, len(rows)))
    told = np.array([math.nan if value is None else value for value in predicted])
    return Workload(
        name=path.stem,
        submitted=np.array(submitted) - submitted[0],
        seconds=np.array(seconds),
        predicted=np.where(np.isnan(told), guessed, told),
        error=error,
        needs=needs,
        priorities=priorities,
    )


def load_of(workload: Workload, fleet: Fleet) -> float:
    """The work that comes over what the fleet can do while it comes."""
    span = float(workload.submitted[-1] - workload.submitted[0])
    work = float((workload.seconds * workload.device_counts(fleet.devices)).sum())
    return work / (fleet.capacity * span) if span else math.inf


_Row = tuple[float, float, float | None, int, Needs]


def _row(path: Path, line: int, row: dict[str, str | None], fleet: Fleet) -> _Row:
    def number(column: str, otherwise: float, least: float) -> float:
        text = row.get(column)
        try:
            value = float(text) if text not in (None, "") else otherwise
        except ValueError:
            value = math.nan
        if not least <= value <= _MOST:
            raise InputError(f"trace '{path}', line {line}: {column} = '{text}' must be a number of at least {least:g}")
        return value

    count, nodes = int(number("devices", 1, 1)), int(number("nodes", 1, 1))
    if count > fleet.devices or nodes > fleet.followers:
        raise InputError(
            f"trace '{path}', line {line}: {nodes} nodes with {count} devices each do not fit into {fleet.followers} "
            f"followers with {fleet.devices}; give more with --followers and --devices"
        )
    needs = Needs(
        kind=KIND,
        count=count,
        nodes=nodes,
        whole_node=bool(number("whole_node", 0, 0)),
        cpu_heavy=bool(number("cpu_heavy", 0, 0)),
    )
    predicted = number("predicted", 0, 0) or None
    return (
        number("submitted", math.nan, 0),
        number("seconds", math.nan, 1e-6),
        predicted,
        int(number("priority", 0, -_MOST)),
        needs,
    )
