"""The search for the largest rate that meets an SLO, in virtual time, against queues whose capacity is known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from bench.queues import Queue
from bench.verdicts.cell import Cell
from paceline.benchmarks.serving.search import LONGEST_PART, SETTLING, RateTrial, SearchResult, find_capacity

QUEUES = (Queue("M"), Queue("D"), Queue("LN"), Queue("H2"), Queue("M", 4), Queue("D", 4))
BUDGETS = (60.0, 150.0, 300.0, 600.0)  # seconds
SERVICES = {"fast": 0.002, "slow": 0.05}  # seconds
BOUND = 10.0  # service times
SHARE = 0.99
FIRST_PART = 0.5  # of what a server can do at most
FIRST = 2  # queues that are drawn most often
PARTS = 1, 20  # of the replicates, of these and of the others: a search is thousands of requests


def cells(replicates: int, seed: int) -> Iterator[Cell]:
    """Whether the interval covers, and whether the search keeps to its time, for every server and budget."""
    for place, queue in enumerate(QUEUES):
        count = max(1, replicates // PARTS[place >= FIRST])
        for name, service in SERVICES.items():
            truth = capacity(queue) * queue.servers / service
            for budget in BUDGETS:
                random = np.random.default_rng([seed, int(budget), int(1e4 * service), place])
                runs = [searched(queue, service, budget, random) for _ in range(count)]
                yield from _cells(f"{name} {queue.name}, {budget:g} s", truth, budget, runs)


def _cells(case: str, truth: float, budget: float, runs: list[tuple[SearchResult, float]]) -> Iterator[Cell]:
    found = [result for result, _ in runs if result.verdict == "found"]
    said = [result.interval for result, _ in runs if result.interval is not None]
    hits = sum(interval.low <= truth <= interval.high for interval in said)
    widths = [interval.high / max(interval.low, 1e-9) - 1.0 for interval in said]
    note = f"median width {np.median(widths):.0%}, {len(found)} found" if said else ""
    yield Cell(
        "largest rate", case, "covers", 0.93, hits=hits, tries=len(said), withheld=len(runs) - len(said), note=note
    )
    if found:
        hits = sum(one.interval is not None and one.interval.low <= truth <= one.interval.high for one in found)
        yield Cell("largest rate, found", case, "covers", 0.93, hits=hits, tries=len(found))
    late = sum(seconds > budget for _, seconds in runs)
    most = f"at most {max(seconds for _, seconds in runs):.0f} s"
    yield Cell("time of a search", case, "over budget", 0.01, at_most=True, hits=late, tries=len(runs), note=most)


def searched(queue: Queue, service: float, budget: float, random: np.random.Generator) -> tuple[SearchResult, float]:
    """One search with the product's own code, and the seconds that it would have taken."""
    spent = 0.0

    def probe(rate: float, requests: int) -> RateTrial:
        nonlocal spent
        extra = int(SETTLING * requests) + 1
        seconds, latency = queue.from_empty(rate * service / queue.servers, requests + extra, random)
        spent += seconds * service
        missed = int(np.count_nonzero(latency[extra:] > BOUND))
        answered = len(latency) / (seconds * service)
        return RateTrial(rate, requests, missed, answered, missed <= (1.0 - SHARE) * requests, "late")

    result = find_capacity(
        probe, SHARE, BOUND * service,
        first=FIRST_PART * queue.servers / service, ceiling=1e6,
        longest=LONGEST_PART * budget, left=lambda: budget - spent,
    )  # fmt: skip
    return result, spent


@lru_cache(maxsize=16)
def capacity(queue: Queue) -> float:
    """The load at which just so many requests are within the bound."""
    low, high = 0.05, 0.999
    while high - low > 1e-4:
        middle = (low + high) / 2.0
        low, high = (middle, high) if queue.percentile(middle, SHARE) <= BOUND else (low, middle)
    return low
