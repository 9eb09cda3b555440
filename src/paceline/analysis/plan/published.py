"""The published throughputs of LiBai and Megatron-LM as observations: what a plan without measurements rests on."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from paceline.analysis.plan.calibrate import Observation
from paceline.analysis.plan.cluster import Cluster
from paceline.analysis.plan.transformer import Transformer, transformer
from paceline.analysis.published.table import published_rows
from paceline.core.errors import InputError
from paceline.core.layout import Layout

System = Literal["libai", "megatron"]
FAMILIES = {"BERT": "bert", "GPT-2": "gpt2"}

# Nodes of eight V100: what its datasheet says of rate and memory, and a usual network, as the place to start from.
START = Cluster(
    gpus_per_node=8,
    memory=32 * 1024**3,
    rate=50e12,
    peak=125e12,
    memory_bandwidth=900e9,
    intra_bandwidth=60e9,
    intra_latency=20e-6,
    inter_bandwidth=12e9,
    inter_latency=50e-6,
    neighbours=4,
    layer_overhead=1e-4,
    head_cost=1.0,
    attention_cost=2.0,
    overlap=0.5,
    contention=0.3,
    skips_masked=False,
    reduced_bytes=2,
)


# The same, fitted to every row of LiBai's.
LIBAI = replace(
    START,
    rate=6.23e13,
    intra_bandwidth=7.43e10,
    intra_latency=3.4e-4,
    inter_bandwidth=2.18e10,
    layer_overhead=1.99e-4,
    head_cost=0.178,
    attention_cost=4.4,
    overlap=0.0291,
    contention=0.944,
)


def observations(system: System) -> list[Observation]:
    """Every published row once, in the table's order, less those whose layout contradicts itself."""
    found: dict[Layout, Observation] = {}
    for row in published_rows("libai_vs_megatron"):
        layout = Layout.parse(f"{FAMILIES[row['model']]}/{row['case']}")
        try:
            layout.check()
        except InputError:
            continue
        measured = float(row[f"{system}_samples_per_s"])
        found.setdefault(layout, Observation(as_published(transformer(layout.model, layout.layers)), layout, measured))
    return list(found.values())


def as_published(model: Transformer) -> Transformer:
    """As both systems train it: the head over every token, and equally many layers on each stage."""
    return replace(model, scored=model.sequence, even_stages=True)
