"""Percentiles of served latencies: queues whose percentiles are known, from their stationary distribution."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bench.queues import Queue
from bench.verdicts.cell import Cell
from paceline.core.tails import LEAST_EFFECTIVE, Tail, tails

QUEUES = (
    Queue("M"), Queue("D"), Queue("LN"), Queue("H2"), Queue("M", 4), Queue("M", 8), Queue("D", 4), Queue("D", 8)
)  # fmt: skip
FIRST = 2  # of them that are drawn most often
LOADS = (0.5, 0.7, 0.8, 0.9, 0.95)
COUNTS = (500, 1500, 6000)
LONG = {0.9: 60_000, 0.95: 240_000}  # requests that are enough at loads at which thousands are not
PART = 10  # of the replicates: of long series, and of queues beside the first two
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MOST_WIDTH = 1.3
LEAST_SHOWN = 0.5  # of the series, for their intervals to be compared in width
FEW = 0.1  # of the series, of which it is to be said that they are not like the others
BATCH = 1_200_000  # requests at a time


def cells(replicates: int, seed: int) -> Iterator[Cell]:
    """Coverage, width and upper ends for every queue, load and number of requests."""
    for place, queue in enumerate(QUEUES):
        for load in LOADS:
            is_first = place < FIRST
            for count in (*COUNTS, LONG[load]) if is_first and load in LONG else COUNTS:
                series = replicates if is_first and count in COUNTS else max(1, replicates // PART)
                random = np.random.default_rng([seed, place, count, int(100 * load)])
                yield from _cells(queue, load, count, series, random)


def _cells(queue: Queue, load: float, count: int, replicates: int, random: np.random.Generator) -> Iterator[Cell]:
    rows: list[list[Tail]] = []
    while len(rows) < replicates:
        drawn = queue.latencies(load, count, min(BATCH // count, replicates - len(rows)), random)
        rows += [tails(series, SHARES.values()) for series in drawn]
    for place, (name, share) in enumerate(SHARES.items()):
        truth, found = queue.percentile(load, share), [row[place] for row in rows]
        values = np.array([tail.value for tail in found])
        # One who knows the process knows between which ends 95 % of such estimates lie.
        known = float(np.diff(np.quantile(values, (0.025, 0.975), method="median_unbiased"))[0])
        ends = np.array([(one.interval.low, one.interval.high) for one in found if one.interval is not None])
        ends = ends.reshape(-1, 2)
        low, high = ends[:, 0] <= truth * (1 + 1e-9), ends[:, 1] >= truth * (1 - 1e-9)
        case = f"{name}, {queue.name} at load {load:g}, {count:,} requests"
        withheld = len(found) - len(ends)
        few = "only those that look quiet by chance" if 0 < len(ends) < FEW * len(found) else ""
        yield Cell(
            "percentile interval", case, "covers", 0.93,
            hits=int((low & high).sum()), tries=len(ends), withheld=withheld,
            width=float(np.median(ends[:, 1] - ends[:, 0])) / known if len(ends) and known > 1e-6 else None,
            most_width=MOST_WIDTH, least_shown=LEAST_SHOWN, note=few,
        )  # fmt: skip
        yield Cell(
            "upper end of a percentile", case, "below the truth", 0.05, at_most=True,
            hits=int((~high).sum()), tries=len(ends), withheld=withheld, note=few,
        )  # fmt: skip
        if load <= 0.7 and count == 6000 and queue.service in "MD":
            note = f"fewer than {LEAST_EFFECTIVE:g} effective"
            yield Cell(
                "percentile interval", case, "withheld", 0.0, at_most=True, hits=withheld, tries=len(found), note=note
            )
