"""Runs of the same cases over weeks, whose levels are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from paceline.core.record import Measurement
from paceline.core.run import Run, RunRecords
from paceline.store import open_store
from support.records import ENVIRONMENT, STARTED, STEP_TIME, case, record, throughput

NOISE = 0.01


def runs_of(
    series: Mapping[str, Sequence[float]],
    environments: Mapping[int, Mapping[str, Any]] | None = None,
    *,
    samples: int = 12,
    seed: int = 1,
    **more: Any,
) -> list[RunRecords]:
    """A run a day; each case has the step times told, and an environment from a place on that differs as told."""
    rng = np.random.default_rng(seed)
    environment: dict[str, Any] = dict(ENVIRONMENT)
    made = []
    for place in range(max(len(values) for values in series.values())):
        environment = environment | dict((environments or {}).get(place, {}))
        commit = {"git": {"commit": f"{0xABC0000000 + place:040x}"[::-1], "dirty": False}}
        records = []
        run_id = f"run-{place:03d}"
        for index, (title, values) in enumerate(series.items()):
            if place >= len(values):
                continue
            times = Measurement.of_samples(STEP_TIME, values[place] * (1 + 0.01 * rng.normal(size=samples)))
            measured = [Measurement.of_rate(throughput("images/s"), 32, times), times]
            own = record(case(index, "train", title, model=title), measured)
            records.append(own.model_copy(update={"run_id": run_id}))
        run = Run(
            id=run_id,
            name="nightly",
            status="finished",
            started_at=STARTED + timedelta(days=place),
            ended_at=STARTED + timedelta(days=place, minutes=5),
            version="0.1.0",
            environment=environment | commit,
            cases=[one.case for one in records],
            **more,
        )
        made.append(RunRecords(run=run, records=records))
    return made


def levels(count: int, *steps: tuple[int, float], start: float = 0.1, seed: int = 0) -> list[float]:
    """Step times at a level that is multiplied at each step, with noise of one percent."""
    rng = np.random.default_rng(seed)
    values = np.full(count, start)
    for place, factor in steps:
        values[place:] *= factor
    return [float(value) for value in values * np.exp(NOISE * rng.normal(size=count))]


def four_series() -> list[RunRecords]:
    """Sixty runs: one case got slower when torch changed, one drifted, one recovered, one is steady; then a new GPU."""
    drifting = np.array(levels(60, seed=4)) * np.exp(0.18 * np.clip((np.arange(60) - 15) / 18, 0, 1))
    newer = {"software": ENVIRONMENT["software"] | {"packages": {"torch": "2.10.0", "numpy": "2.3.4"}}}
    other = {"gpus": [{**gpu, "name": "NVIDIA H100"} for gpu in ENVIRONMENT["gpus"]]}
    return runs_of(
        {
            "resnet50 fp16": levels(60, (38, 1.05), seed=11),
            "gpt2-small bf16": levels(60, seed=2),
            "bert-large bf16": levels(60, (20, 1.2), (40, 1 / 1.2), seed=3),
            "vit fp32": drifting.tolist(),
        },
        {38: newer, 50: other},
    )


def stored(path: object, runs: Sequence[RunRecords]) -> str:
    """The runs in a store at this path."""
    with open_store(str(path)) as store:
        for records in runs:
            store.begin(records.run)
            for one in records.records:
                store.add(one)
            store.finish(records.run.id)
    return str(path)
