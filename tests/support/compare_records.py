"""Pairs of runs for comparisons: planted changes in noise of known size, all from fixed seeds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.core.run import RunRecords
from support.records import ENVIRONMENT, STARTED, STEP_TIME, case, record, run_of, throughput

IMAGES = throughput("images/s")
MODELS = ("resnet50", "bert-large", "gpt2-small", "vit-base", "lstm", "detr")
CHANGES = (1.0, 0.95, 1.0, 1.04, 1.0, 1.0)  # of the throughput


def trained(index: int, model: str, samples: Sequence[float], **more: Any) -> Record:
    """A training of 32 images a step."""
    own = {"precision": "bf16", "batch_size": 32, "scale": "full"} | {
        key: more.pop(key) for key in ("precision", "target", "ranks", "repeat", "budget") if key in more
    }
    times = Measurement.of_samples(STEP_TIME, samples)
    title = f"{model} {own['precision']}"
    found = case(index, "train", title, model=model, **own).model_copy(update={"category": "training"})
    return record(found, [Measurement.of_rate(IMAGES, 32, times), times], **more)


def noisy(rng: np.random.Generator, middle: float, count: int = 100, noise: float = 0.01) -> NDArray[np.float64]:
    """Step times around a middle."""
    return middle * (1 + noise * rng.standard_normal(count))


def side(seed: int, changes: Sequence[float] = (), *, run_id: str, **more: Any) -> RunRecords:
    """Six trainings; a change is that of the throughput."""
    rng = np.random.default_rng(seed)
    records = []
    for index, model in enumerate(MODELS):
        change = changes[index] if changes else 1.0
        records.append(trained(index, model, noisy(rng, 0.05 * (index + 1) / change)))
    made = run_of(records, **more)
    return renamed(made, run_id)


def renamed(run: RunRecords, run_id: str) -> RunRecords:
    """The same under another id."""
    records = [one.model_copy(update={"run_id": run_id}) for one in run.records]
    return RunRecords(run=run.run.model_copy(update={"id": run_id}), records=records)


def again(run: RunRecords, times: int = 3) -> tuple[RunRecords, ...]:
    """The same so many times in one session, under other ids: what nothing scatters."""
    return tuple(renamed(run, f"{run.run.id}-{number}") for number in range(times))


def apart(run: RunRecords) -> RunRecords:
    """The same in a session of its own."""
    return RunRecords(run=run.run.model_copy(update={"session": run.run.id}), records=run.records)


def before_and_after() -> tuple[tuple[RunRecords, ...], tuple[RunRecords, ...]]:
    """Three runs of each side, in sessions of their own, as those of a new driver are."""
    both = [_before_and_after(number) for number in range(3)]
    return tuple(apart(before) for before, _ in both), tuple(apart(after) for _, after in both)


def _before_and_after(number: int) -> tuple[RunRecords, RunRecords]:
    """One case got 5 % slower, one 4 % faster, one failed, one has warnings; driver and torch are newer."""
    before = side(
        1 + 10 * number, run_id=f"20260314-09000{number}-aaaa", started_at=STARTED + timedelta(minutes=number)
    )
    software = ENVIRONMENT["software"] | {"packages": {"torch": "2.10.0", "numpy": "2.3.5"}}
    environment = ENVIRONMENT | {"driver": {"version": "580.10.01", "cuda": "12.9"}, "software": software}
    later = STARTED + timedelta(days=1, minutes=number)
    run_id = f"20260315-09000{number}-bbbb"
    after = side(2 + 10 * number, CHANGES, run_id=run_id, environment=environment, started_at=later)
    warning = RecordWarning(kind="throttled", message="the clock fell by 9 %", remedy="improve the cooling")
    after.records[1] = after.records[1].model_copy(update={"warnings": [warning]})
    cause = Cause(kind=CauseKind.DEVICE_MEMORY, message="2.0 GiB more were asked for")
    after.records[5] = after.records[5].model_copy(
        update={"outcome": Outcome.OUT_OF_MEMORY, "cause": cause, "measurements": []}
    )
    return before, after
