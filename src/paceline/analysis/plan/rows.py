"""The throughputs that are known of devices before a user measures any: LiBai's table, and one H200."""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib.resources import files
from typing import Literal

from paceline.analysis.plan.calibrate import Observation
from paceline.analysis.published.libai import libai_rows
from paceline.core.layout import Layout
from paceline.core.transformer import as_published, transformer

System = Literal["libai", "megatron"]


@lru_cache
def published_observations(system: System) -> tuple[Observation, ...]:
    """Every published row once, in the table's order, less those whose layout contradicts itself."""
    unique: dict[Layout, Observation] = {}
    for row in libai_rows():
        if not row.is_contradictory:
            model = as_published(transformer(row.layout.model, row.layout.layers))
            unique.setdefault(row.layout, Observation(model, row.layout, float(getattr(row, system))))
    return tuple(unique.values())


@lru_cache
def h200_observations() -> tuple[Observation, ...]:
    """What the benchmark `parallel` measured on one H200."""
    text = (files("paceline.analysis.plan") / "h200.csv").read_text(encoding="utf-8")
    observations = []
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        layout = Layout.parse(row["layout"])
        model = transformer(layout.model, layout.layers, int(row["hidden"]), int(row["heads"]))
        observations.append(Observation(model, layout, float(row["samples_per_s"])))
    return tuple(observations)
