"""The records as JSON lines: one object per record, with every sample and the run it belongs to; and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from paceline.core.errors import InputError
from paceline.core.record import Record
from paceline.core.run import Run, RunRecords
from paceline.core.text import parse_json
from paceline.report.export import Export


def render(records: RunRecords) -> str:
    """One line per record: its own fields, and under `run` those of the run without its list of cases.

    NaN and infinity (a loss that diverged) are written as null, since JSON has neither.
    """
    run = json.loads(records.run.model_dump_json(exclude={"cases"}))
    ordered = sorted(records.records, key=lambda record: record.case.index)
    lines = [json.dumps(json.loads(record.model_dump_json()) | {"run": run}, allow_nan=False) for record in ordered]
    return "".join(f"{line}\n" for line in lines)


def is_ours(first_line: str) -> bool:
    """Whether a file that begins with this line was written by `render`."""
    try:
        document = parse_json(first_line)
    except ValueError:
        return first_line.startswith('{"run_id":')  # cut off, as on a full disk: `parse` says where
    return isinstance(document, dict) and {"run", "case", "measurements"} <= set(document)


def parse(lines: Iterable[str], name: str) -> list[RunRecords]:
    """The runs of a file that `render` wrote, or of several such files in one; `name` is for the message."""
    runs: dict[str, RunRecords] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document: dict[str, Any] = parse_json(line)
            for measurement in document.get("measurements", ()):
                _restore_nan(measurement)
            run = Run.model_validate(document.pop("run"))
            record = Record.model_validate(document)
        except (ValidationError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            message = f"it is not a record of `paceline report --jsonl`: {reason}"
            raise InputError("not-a-record", message, where=f"line {number} of '{name}'") from None
        runs.setdefault(run.id, RunRecords(run=run, records=[])).records.append(record)
    for loaded in runs.values():
        loaded.run.cases = [record.case for record in loaded.records]
    return list(runs.values())


def _restore_nan(measurement: dict[str, Any]) -> None:
    """Put NaN where a line says null for a number."""

    def numbers(values: dict[str, float | None]) -> dict[str, float]:
        return {key: math.nan if value is None else value for key, value in values.items()}

    measurement["samples"] = [math.nan if sample is None else sample for sample in measurement["samples"]]
    summary = measurement["summary"]
    summary |= numbers({key: summary[key] for key in ("mean", "median", "minimum", "maximum", "deviation")})
    summary["percentiles"] = numbers(summary["percentiles"])
    for key in ("mean_interval", "median_interval"):
        if summary[key] is not None:
            summary[key] = numbers(summary[key])


EXPORT = Export("jsonl", "one JSON object per record, with every sample", render, suffixes=(".jsonl",), order=20)
