"""The error that a calibrated plan states of itself, put to the test on published layouts and on a known cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.verdicts.cell import Cell
from paceline.analysis.plan import Cluster
from paceline.analysis.plan_calibration import (
    V100_NODES,
    Observation,
    System,
    calibration,
    miss,
    published_observations,
    samples_per_second,
)

MOST_REPLICATES = 60  # a replicate is a fit for each row and one more
ROWS = 12
NOISE = 0.03  # of a row, whatever the formulas say
SYSTEMS: dict[System, str] = {"libai": "LiBai", "megatron": "Megatron-LM"}


def cells(replicates: int, seed: int) -> Iterator[Cell]:
    """First the published rows, each left out once; then what is stated against what fresh layouts show."""
    for system, name in SYSTEMS.items():
        yield _published(system, name)
    yield _stated(min(replicates, MOST_REPLICATES), np.random.default_rng(seed))


def _published(system: System, name: str) -> Cell:
    made = calibration(published_observations(system), V100_NODES)
    errors = np.abs(made.misses)
    return Cell(
        part="plan, error out of sample",
        case=f"{name}, {errors.size} published layouts, each left out once",
        claim="median error",
        bound=0.05,
        at_most=True,
        value=float(np.median(errors)),
        error=float(1.25 * np.std(errors) / np.sqrt(errors.size)),
        note=f"worst {errors.max():.0%}",
    )


def _stated(replicates: int, random: np.random.Generator) -> Cell:
    """The stated error over that of layouts which the fit never saw; below one is surer than it may be."""
    ratios = [_ratio(random) for _ in range(replicates)]
    return Cell(
        part="plan, error out of sample",
        case=f"{ROWS} layouts of up to 8 GPUs, {NOISE:.0%} noise",
        claim="stated over actual, median",
        bound=0.8,
        value=float(np.median(ratios)),
        error=float(1.25 * np.std(ratios) / np.sqrt(replicates)),
        note=f"{replicates} replicates",
    )


def _ratio(random: np.random.Generator) -> float:
    pool = [one for one in published_observations("libai") if one.layout.nodes == 1]
    truth = _cluster(random)
    measured = [_measured(pool[index], truth, random) for index in random.permutation(len(pool))]
    made = calibration(measured[:ROWS], V100_NODES)
    actual = np.median([abs(miss(one, made.cluster)) for one in measured[ROWS:]])
    assert made.typical_miss is not None
    return float(made.typical_miss / actual)


def _cluster(random: np.random.Generator) -> Cluster:
    names = ("rate", "intra_bandwidth", "intra_latency", "layer_overhead", "head_cost", "attention_cost")
    factors = np.exp(random.normal(0.0, 0.5, len(names)))
    drawn = {name: getattr(V100_NODES, name) * factor for name, factor in zip(names, factors, strict=True)}
    return replace(V100_NODES, **drawn)


def _measured(one: Observation, truth: Cluster, random: np.random.Generator) -> Observation:
    rate = samples_per_second(one.model, one.layout, truth)
    return replace(one, samples_per_s=rate * float(np.exp(random.normal(0.0, NOISE))))
