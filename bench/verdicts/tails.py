"""Percentiles of served latencies: queues whose percentiles are known, from their stationary distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bench.verdicts.cell import Cell
from paceline.core.tails import LEAST_EFFECTIVE, tails

Array = NDArray[np.float64]
LOADS = (0.5, 0.7, 0.9, 0.95)
COUNTS = (500, 1500, 6000)
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MOST_WIDTH = 1.3
BATCH = 100  # series at a time
GRID, STEPS = 0.002, 1 << 18  # service times, and how many of them, for the waits of M/D/1


def cells(replicates: int, seed: int) -> Iterator[Cell]:
    """Coverage, width and upper ends for every queue, load and number of requests."""
    for kind in ("M/M/1", "M/D/1"):
        for load in LOADS:
            for count in COUNTS:
                yield from _cells(kind, load, count, replicates, np.random.default_rng([seed, count, int(100 * load)]))


def _cells(kind: str, load: float, count: int, replicates: int, random: np.random.Generator) -> Iterator[Cell]:
    rows = []
    for begin in range(0, replicates, BATCH):
        drawn = sojourns(kind, load, count, min(BATCH, replicates - begin), random)
        rows += [tails(series, SHARES.values()) for series in drawn]
    for place, (name, share) in enumerate(SHARES.items()):
        truth, found = percentile(kind, load, share), [row[place] for row in rows]
        values = np.array([tail.value for tail in found])
        # One who knows the process knows between which ends 95 % of such estimates lie.
        known = float(np.quantile(values, 0.975) - np.quantile(values, 0.025))
        ends = np.array([(one.interval.low, one.interval.high) for one in found if one.interval is not None])
        ends = ends.reshape(-1, 2)
        low, high = ends[:, 0] <= truth * (1 + 1e-9), ends[:, 1] >= truth * (1 - 1e-9)
        case = f"{name}, {kind} at load {load:g}, {count:,} requests"
        withheld = len(found) - len(ends)
        yield Cell(
            "percentile interval", case, "covers", 0.93,
            hits=int((low & high).sum()), tries=len(ends), withheld=withheld,
            width=float(np.median(ends[:, 1] - ends[:, 0])) / known if len(ends) and known > 0 else None,
            most_width=MOST_WIDTH if len(ends) > 0.05 * len(found) else None,
        )  # fmt: skip
        yield Cell(
            "upper end of a percentile", case, "below the truth", 0.05, at_most=True,
            hits=int((~high).sum()), tries=len(ends), withheld=withheld,
        )  # fmt: skip
        if load <= 0.7 and count == 6000:
            note = f"fewer than {LEAST_EFFECTIVE:g} effective"
            yield Cell(
                "percentile interval", case, "withheld", 0.0, at_most=True, hits=withheld, tries=len(found), note=note
            )


def sojourns(kind: str, load: float, count: int, series: int, random: np.random.Generator) -> Array:
    """Latencies of requests to a queue that has always been there; the service time is 1 on average."""
    # What the first request meets is a geometric sum of rests of service times (Pollaczek and Khinchine).
    ladder = random.geometric(1.0 - load, series) - 1
    if kind == "M/M/1":
        first = np.where(ladder > 0, random.gamma(np.maximum(ladder, 1)), 0.0)
        service = random.exponential(1.0, (series, count))
    else:
        first = np.array([random.random(rests).sum() for rests in ladder])
        service = np.ones((series, count))
    gaps = random.exponential(1.0 / load, (series, count - 1))
    walk = np.cumsum(np.column_stack([first, service[:, :-1] - gaps]), axis=1)
    return walk - np.minimum(0.0, np.minimum.accumulate(walk, axis=1)) + service


@lru_cache(maxsize=64)
def percentile(kind: str, load: float, share: float) -> float:
    """The true one, in service times."""
    if kind == "M/M/1":
        return -math.log(1.0 - share) / (1.0 - load)
    below = _waits_below(load)
    return 1.0 + GRID * float(np.searchsorted(below, share - 1e-9))


@lru_cache(maxsize=8)
def _waits_below(load: float) -> Array:
    """The distribution of the wait in M/D/1: the same sum, by its characteristic function on a grid."""
    rest = np.zeros(STEPS)
    rest[: round(1.0 / GRID)] = GRID
    centred = np.fft.fft(rest) * np.exp(-1j * np.pi * np.fft.fftfreq(STEPS))
    return np.cumsum(np.fft.ifft((1.0 - load) / (1.0 - load * centred)).real)
