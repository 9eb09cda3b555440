"""Which of the sizes that a sweep went through belong to which level of the memory that a CPU sees."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.core.environment import Cache, Environment
from paceline.core.record import Record
from paceline.core.subject import MAIN_MEMORY, CeilingKind, ShownCeiling
from paceline.devices import Device, kind_of
from paceline.devices.datasheet import pcie_bandwidth
from paceline.measure.memory import Peak

BEYOND_CACHE = 4


def pcie_peak(target: str, *, ways: int) -> Peak | None:
    """The PCIe link of a GPU at its best, in so many directions; an idle link slows down, so not as it is just now."""
    link = kind_of(target).link(target)
    rate = pcie_bandwidth(*link) if link else None
    if link is None or rate is None:
        return None
    generation, width = link
    both = ", both directions" if ways == 2 else ""
    return Peak(ways * rate, f"PCIe generation {generation} x{width}{both}, before packet headers, from the driver")


def is_beyond_cache(device: Device, size: int) -> bool:
    """Whether data of this size is too large for the GPU's cache to matter."""
    return size >= BEYOND_CACHE * device.cache_size()


# Data that fill more of a cache than this share it with too much else; less than this many times the level below
# come partly from there.
FITS = 0.75
OUTGROWS = 2.0


@dataclass(frozen=True)
class Level:
    """A level of the memory that a CPU sees."""

    name: str
    low: float  # bytes of data that no longer fit the level below
    high: float  # bytes that still fit this one


def levels(caches: Sequence[Cache], cores: int, *, threads_per_core: float = 1.0) -> list[Level]:
    """The caches for data that `cores` cores reach together, and what lies behind them; empty where none is known.

    A cache is said to be shared by so many logical CPUs, of which a core may have several.
    """
    hierarchy: list[Level] = []
    below = 0.0
    data = [cache for cache in caches if cache.kind != "Instruction" and cache.size]
    for cache in sorted(data, key=lambda cache: cache.level):
        sharing_cores = max(1.0, (cache.shared_by or 1) / threads_per_core)
        capacity = float(cache.size or 0) * math.ceil(cores / sharing_cores)
        hierarchy.append(Level(f"L{cache.level}", OUTGROWS * below, FITS * capacity))
        below = capacity
    return [*hierarchy, Level(MAIN_MEMORY, OUTGROWS * below, math.inf)] if hierarchy else []


def of_machine(environment: Environment, cores: int) -> list[Level]:
    """The levels that so many cores of a machine see."""
    physical, logical = environment.cpu.physical_cores, environment.cpu.logical_cores
    threads_per_core = max(1.0, logical / physical) if physical and logical else 1.0
    return levels(environment.cpu.caches, min(cores, physical or cores), threads_per_core=threads_per_core)


def shown(
    record: Record, metric: str, kind: CeilingKind, hierarchy: Sequence[Level], *, arrays: int
) -> Iterator[ShownCeiling]:
    """Of a sweep over the sizes of so many arrays: for each level of memory, the largest data that belong to it."""
    points = [m.at for m in record.measurements if m.metric.name == metric and not m.scope and "size" in m.at]
    for level in hierarchy:
        inside = [at for at in points if level.low <= arrays * float(at["size"]) <= level.high]
        if inside:
            at = max(inside, key=lambda at: float(at["size"]))
            yield ShownCeiling(kind=kind, name=level.name, metric=metric, at=at)
