"""Traces out of tests/data, and facts of cases that were traced."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from paceline.core.run import RunRecords
from paceline.core.trace_events import TimeSpent, TraceEvent, read_events, time_spent
from support.records import described_here, literal_run

TRACES = Path(__file__).parents[1] / "data" / "traces"


def events_of(name: str) -> list[TraceEvent]:
    """The events of a stored trace."""
    path = TRACES / name
    content = path.read_bytes()
    return read_events(json.loads(gzip.decompress(content) if path.suffix == ".gz" else content))


def gpu_spent() -> TimeSpent:
    """60 % compute, 19 % memory, 16 % exposed communication, 5 % idle, in two steps of 0.1 ms."""
    spent = time_spent(events_of("gpu-two-streams.json"), on_device=True, steps_queue=True)
    assert spent is not None
    return spent


def trace_facts(spent: TimeSpent, **more: Any) -> dict[str, Any]:
    """The fact of a case that was traced."""
    told = {"spent": spent.model_dump(mode="json"), "slowdown": 1.02, "bytes": 90_000, "file": "~/traces/01.json.gz"}
    return {"trace": told | more}


def traced_run() -> RunRecords:
    """Two cases that were traced, one of them slowed down by it."""
    run = literal_run()
    facts = (trace_facts(gpu_spent(), slowdown=slowdown) for slowdown in (1.02, 1.4))
    traced = [
        described_here(record.model_copy(update={"facts": record.facts | more}))
        for record, more in zip(run.records, facts, strict=True)
    ]
    return run.model_copy(update={"records": traced})
