"""Levels of memory on processors whose cores run two threads each."""

from __future__ import annotations

from typing import Any

from paceline.analysis.roofline import ceilings_of
from paceline.core.benchmark import described
from paceline.core.environment import Environment
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement
from support.records import case, record, run_of

KIB, MIB = 1024, 1024**2
# As the kernel tells of 16 cores with two threads each: it counts logical CPUs.
CACHES = [
    {"level": 1, "kind": "Data", "size": 32 * KIB, "shared_by": 2},
    {"level": 2, "kind": "Unified", "size": MIB, "shared_by": 2},
    {"level": 3, "kind": "Unified", "size": 32 * MIB, "shared_by": 16},
]
BANDWIDTH = Metric(name="triad_bandwidth", unit="B/s", better=Better.HIGHER)


def level_sizes(threads: int) -> dict[str, float]:
    """The data that stand for each level, three arrays of which were swept over by so many threads."""
    sizes = [2**power for power in range(12, 28)]
    points = [Measurement.of_value(BANDWIDTH, float(3 * size), at={"size": size}) for size in sizes]
    facts: dict[str, Any] = {"device": "cpu", "threads": threads}
    swept = record(case(0, "stream", "", target="cpu", sizes=sizes), points, facts=facts)
    cpu = {"model": "x", "caches": CACHES, "physical_cores": 16, "logical_cores": 32}
    environment = Environment.model_validate({"cpu": cpu})
    ceilings, _ = ceilings_of(run_of([described(swept, environment)], environment=environment))
    return {one.name: one.value for one in ceilings}


def test_one_thread_on_each_core_reaches_every_cache() -> None:
    found = level_sizes(16)
    assert 16 * 32 * KIB / 4 <= found["L1"] <= 0.75 * 16 * 32 * KIB
    assert 2 * 16 * 32 * KIB <= found["L2"] <= 0.75 * 16 * MIB
    # Half of what the second level holds would come from there.
    assert 2 * 16 * MIB <= found["L3"] <= 0.75 * 2 * 32 * MIB


def test_a_second_thread_on_a_core_brings_no_cache_along() -> None:
    assert level_sizes(32) == level_sizes(16)
