"""SuperBench's names of what whole models measure.

Keys are `pytorch-MODEL/PRECISION_ACTION_METRIC[:rank]`; step times are in milliseconds. Training metrics come once, for
the slowest rank; inference metrics once per rank. Throughput is per rank, as there, but it is work over time where
SuperBench averages the rates of single steps, which noise inflates; percentiles of it follow SuperBench (p99 is a fast
step). `PRECISION_ACTION_global_throughput` of several ranks is Paceline's own.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from paceline.benchmarks._superbench import Values
from paceline.benchmarks.model.parameters import ModelParameters
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.stats import PERCENTILES
from paceline.core.subject import SUPERBENCH, Alias, key_word

Action = Literal["train", "inference"]


def superbench_names(record: Record, parameters: ModelParameters, action: Action) -> dict[str, Alias]:
    """Its names for a model's record; a model that is not full size says so in every key."""
    alias = Alias(
        group=f"model-benchmarks/pytorch-{key_word(parameters.model)}",
        prefix=f"{key_word(parameters.precision)}_{action}_",
        note="" if parameters.scale == "full" else f"scale={key_word(parameters.scale)}",
        is_model=True,
        values=_figures(record, action) if record.outcome is Outcome.OK else {},
    )
    return {SUPERBENCH: alias}


def _figures(record: Record, action: Action) -> Values:
    ranks = record.case.ranks
    times, rate = record.measurement("step_time"), record.measurement("throughput")
    scopes = [f"rank {rank}" for rank in range(ranks)]
    if action == "train":
        figures = _means(times, rate, ranks)
    elif ranks > 1 and all(record.measurement("step_time", scope) for scope in scopes):
        figures = {}
        for rank, scope in enumerate(scopes):
            own = _percentiles(record.measurement("step_time", scope), record.measurement("throughput", scope), 1)
            figures |= {f"{key}:{rank}": value for key, value in own.items()}
    else:
        figures = _percentiles(times, rate, ranks)
    return figures | ({"global_throughput": rate.value} if rate and ranks > 1 else {})


def _means(times: Measurement | None, rate: Measurement | None, ranks: int) -> Values:
    figures: Values = {}
    if times:
        figures["step_time"] = times.summary.mean * 1000
    if rate:
        figures["throughput"] = rate.value / ranks
    return figures


def _percentiles(times: Measurement | None, rate: Measurement | None, ranks: int) -> Values:
    figures = _means(times, rate, ranks)
    if times:
        figures |= {f"step_time_{name}": value * 1000 for name, value in times.summary.percentiles.items()}
    if times and rate and rate.work and len(times.samples) and min(times.samples) > 0:
        rates = rate.work / ranks / np.asarray(times.samples)
        figures |= {f"throughput_{p:g}": float(np.percentile(rates, p)) for p in PERCENTILES}
    return figures
