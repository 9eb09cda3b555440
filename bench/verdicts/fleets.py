"""What `paceline diagnose` says of fleets: who is accused, who is missed, and the smallest defect it claims to see.

Metrics are in five components. A fleet is judged twice. The first time, all defects but one are far too large to miss:
what the product then says of the smallest defect is the claim that the one more is held to. The second time every
defect is between that claim and half as much again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.verdicts.cell import Cell
from paceline.analysis.diagnose.judge import Diagnosis, diagnose
from paceline.analysis.diagnose.rules import default_rules
from paceline.analysis.diagnose.table import MetricColumn, NodeTable
from paceline.core.metric import Better

Fault = Literal["one metric", "one component", "whole node"]
Noise = Literal["normal", "t3"]

METRICS, COMPONENTS = 200, 5
LARGEST = 2_000_000  # values of all fleets of a cell, for 100 replicates: thousands of nodes have thousands of verdicts
FAULTY = 0.01  # part of the nodes, at least one
FAR = 150.0  # deviations
MOST_CLAIMED = 6.0  # deviations of the noise between nodes
# With heavy tails a single metric is far off by chance alone, and with a shared part a component: who knows the noise
# exactly could claim 48 of a metric.
HEAVY_CLAIMED = 150.0
OF = np.arange(METRICS) * COMPONENTS // METRICS
COLUMNS = tuple(
    MetricColumn(f"bench-{of}/metric-{place:03d}", better=Better.LOWER, component=f"part-{of}")
    for place, of in enumerate(OF.tolist())
)


def cells(replicates: int, seed: int) -> Iterator[Cell]:
    """Precision and recall of fleets of many kinds, and what was claimed."""
    kinds: list[tuple[int, float, Noise, float]] = [
        *((nodes, noise, "normal", 0.0) for nodes in (20, 100, 1_000, 10_000) for noise in (0.005, 0.02, 0.05)),
        *((nodes, 0.02, "normal", 0.5) for nodes in (20, 100, 1_000, 10_000)),
        *((nodes, 0.02, "t3", shared) for nodes in (100, 1_000, 10_000) for shared in (0.0, 0.5)),
    ]
    for nodes, noise, kind, shared in kinds:
        for fault in ("one metric", "one component", "whole node"):
            fleets = max(1, min(replicates, replicates * LARGEST // (100 * nodes * METRICS)))
            yield from fleet_cells(fleets, seed, nodes, noise, kind, shared, fault)


def fleet_cells(
    fleets: int, seed: int, nodes: int, noise: float, kind: Noise, shared: float, fault: Fault
) -> Iterator[Cell]:
    """Three cells of one kind of fleet."""
    random = np.random.default_rng([seed, nodes, int(1e4 * noise), len(kind), int(10 * shared), len(fault)])
    right = wrong = missed = 0
    claims = []
    for _ in range(fleets):
        values = _noise(random, nodes, kind, shared) * noise
        faulty = random.choice(nodes, max(1, int(FAULTY * nodes)), replace=False)
        where = [_place(random, fault) for _ in faulty]
        known = _judged(values, faulty[1:], where[1:], [FAR * noise] * (len(faulty) - 1))
        sizes = [_claimed(known, fault, places) for places in where]
        everywhere = np.arange(METRICS)[:, None] if fault == "one metric" else where
        claims.append(float(np.median([_claimed(known, fault, places) for places in everywhere])) / noise)
        found = _judged(values, faulty, where, [size * random.uniform(1.0, 1.5) for size in sizes])
        accused = {int(verdict.node) for verdict in found.defective}
        right += len(accused & set(faulty.tolist()))
        wrong += len(accused - set(faulty.tolist()))
        missed += len(set(faulty.tolist()) - accused)
    correlated = f", correlation {shared:g}" if shared else ""
    case = f"{nodes:,} nodes, {100 * noise:g} % {kind} noise{correlated}, {fault}"
    yield Cell("diagnose", case, "precision", 0.95, hits=right, tries=right + wrong)
    yield Cell("diagnose", case, "recall", 0.95, hits=right, tries=right + missed)
    is_heavy = kind == "t3" and (shared > 0.0 or fault == "one metric")
    bound = HEAVY_CLAIMED if is_heavy else MOST_CLAIMED
    bound = math.inf if nodes < 100 else bound  # so few do not show how far chance reaches
    yield Cell("diagnose", case, "claim, in deviations", bound, at_most=True, value=float(np.median(claims)))


def _noise(random: np.random.Generator, nodes: int, kind: Noise, shared: float) -> NDArray[np.float64]:
    def drawn(count: int) -> NDArray[np.float64]:
        if kind == "normal":
            return random.standard_normal((nodes, count))
        return np.asarray(random.standard_t(3, (nodes, count)) / np.sqrt(3.0))

    return np.asarray(np.sqrt(1.0 - shared) * drawn(METRICS) + np.sqrt(shared) * drawn(COMPONENTS)[:, OF])


def _place(random: np.random.Generator, fault: Fault) -> NDArray[np.int64]:
    if fault == "one metric":
        return random.integers(METRICS, size=1)
    return np.flatnonzero(random.integers(COMPONENTS) == OF) if fault == "one component" else np.arange(METRICS)


def _judged(
    noise: NDArray[np.float64], faulty: NDArray[np.int64], where: list[NDArray[np.int64]], sizes: list[float]
) -> Diagnosis:
    values = noise.copy()
    for node, places, size in zip(faulty.tolist(), where, sizes, strict=True):
        values[node, places] += size
    names = tuple(str(node) for node in range(len(values)))
    table = NodeTable(names, COLUMNS, np.exp(values), failures={}, environments={})
    return diagnose(table, default_rules())


def _claimed(diagnosis: Diagnosis, fault: Fault, places: NDArray[np.int64]) -> float:
    """The smallest defect that is said to be seen, as a logarithm."""
    if fault == "one metric":
        seen = diagnosis.judged[places[0]].seen_from
        return float(np.log1p(seen)) if seen is not None else np.inf
    sizes = {one.component: one.together for one in diagnosis.sensitivities}
    names = {COLUMNS[place].component for place in places.tolist()}
    return float(-np.log1p(-min(sizes[name] for name in names)))
