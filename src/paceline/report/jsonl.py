"""The records as JSON lines: one object per record, with every sample and the run it belongs to."""

from __future__ import annotations

import json

from paceline.core.run import RunRecords


def render(records: RunRecords) -> str:
    """One line per record: its own fields, and under `run` those of the run without its list of cases.

    What is no number (a loss that diverged) is written as null, since JSON has no word for it.
    """
    run = json.loads(records.run.model_dump_json(exclude={"cases"}))
    ordered = sorted(records.records, key=lambda record: record.case.index)
    lines = [json.dumps(json.loads(record.model_dump_json()) | {"run": run}, allow_nan=False) for record in ordered]
    return "".join(f"{line}\n" for line in lines)
