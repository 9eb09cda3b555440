"""Arrivals that somebody recorded: a CSV or JSON-lines file of timestamps or gaps, with an optional kind."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from paceline.benchmarks.serving.load.arrivals import Schedule
from paceline.core.errors import InputError

TIMESTAMPS = ("timestamp", "time", "arrival")
GAPS = ("gap", "interval")
KINDS = ("kind",)


def read_arrivals(path: Path) -> Schedule:
    """Times of the file's rows, the first one at zero, in order.

    A column `timestamp` (seconds, or a date and time) or `gap` (seconds since the row before), and a column `kind` (the
    number of a prepared request) if there are several; a CSV file without a header holds timestamps alone.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the file of arrivals '{path}' cannot be read: {error}") from None
    rows = list(_json_rows(lines, path) if lines and lines[0].lstrip().startswith("{") else _csv_rows(lines))
    if not rows:
        raise InputError(f"the file of arrivals '{path}' holds no arrivals")
    intended = _times(rows, path)
    order = np.argsort(intended, kind="stable")
    name = _column(rows[0], KINDS)
    kind = None
    if name is not None:
        kind = np.array([_kind(row.get(name), number, path) for number, row in enumerate(rows, 1)], np.int32)[order]
    return Schedule(intended[order] - intended[order[0]], kind)


def _times(rows: list[dict[str, Any]], path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    for names, is_gap in ((TIMESTAMPS, False), (GAPS, True)):
        name = _column(rows[0], names)
        if name is not None:
            values = np.array([_seconds(row.get(name), number, path) for number, row in enumerate(rows, 1)])
            if is_gap and values.min() < 0:
                number = int(np.argmin(values))
                raise InputError(
                    f"arrival {number + 1} of '{path}' has the gap {values[number]:g}; gaps are not negative"
                )
            return np.cumsum(values) if is_gap else values
    known = ", ".join((*TIMESTAMPS, *GAPS))
    raise InputError(f"the file of arrivals '{path}' has the columns {', '.join(rows[0])}; name one of them {known}")


def _seconds(value: Any, number: int, path: Path) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        try:
            seconds = datetime.fromisoformat(str(value)).timestamp()
        except ValueError:
            raise InputError(
                f"arrival {number} of '{path}' is {value!r}; write seconds, or a time like 2026-01-31 12:00:00.5"
            ) from None
    if not np.isfinite(seconds):
        raise InputError(f"arrival {number} of '{path}' is {value!r}, which is not finite")
    return seconds


def _kind(value: Any, number: int, path: Path) -> int:
    try:
        kind = int(value)
    except (TypeError, ValueError):
        kind = -1
    if not 0 <= kind < 2**31:
        raise InputError(f"arrival {number} of '{path}' has the kind {value!r}; kinds are numbers from 0")
    return kind


def _column(row: dict[str, Any], names: Iterable[str]) -> str | None:
    return next((key for key in row if key.strip().casefold() in names), None)


def _json_rows(lines: list[str], path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"line {number} of '{path}' is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"line {number} of '{path}' is no JSON object")
        yield row


def _csv_rows(lines: list[str]) -> Iterator[dict[str, Any]]:
    header = next(csv.reader(lines[:1]), [])
    try:
        float(header[0])
    except (ValueError, IndexError):
        yield from csv.DictReader(lines)
    else:
        yield from csv.DictReader(lines, fieldnames=[TIMESTAMPS[0]])
