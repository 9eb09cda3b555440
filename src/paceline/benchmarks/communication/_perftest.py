"""The tables that the programs of perftest print."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from paceline.benchmarks.micro.tools import garbled

_COLUMN = re.compile(r"#\w+|BW \w+\[[^\]]*\]|MsgRate\[[^\]]*\]|t_\w+\[[^\]]*\]|[\d.]+% percentile\[[^\]]*\]")
_RULE = "-" * 20
# What one of a unit is in bytes per second; its "MB" have always been 2^20 bytes, and newer versions say so.
_UNITS = {"MB/sec": 2.0**20, "MiB/sec": 2.0**20, "Gb/sec": 1e9 / 8}
_MICRO = 1e-6


@dataclass(frozen=True)
class Bandwidth:
    """One row of a bandwidth test, in bytes per second."""

    size: int
    iterations: int
    average: float
    peak: float | None  # not told where it was not looked for


@dataclass(frozen=True)
class Latency:
    """One row of a latency test, in seconds."""

    size: int
    iterations: int
    typical: float
    minimum: float
    maximum: float
    average: float | None  # older versions tell less
    p99: float | None
    p999: float | None


Row = TypeVar("Row", Bandwidth, Latency)


def parse_bandwidth(text: str) -> list[Bandwidth]:
    """The rows of ib_write_bw and its like; anything else is a ToolError."""
    header, rows = _table(text)
    unit = next((column.partition("[")[2].rstrip("]") for column in header if column.startswith("BW average")), "")
    if unit not in _UNITS:
        raise garbled("perftest", f"no column 'BW average' in a known unit ({', '.join(header)})", text)
    average_at, peak_at = header.index(f"BW average[{unit}]"), _index(header, f"BW peak[{unit}]")
    found = []
    for row in rows:
        average, peak = row[average_at], row[peak_at] if peak_at is not None else 0.0
        if average > 0:  # too slow for the digits that are printed: not a figure
            told = peak * _UNITS[unit] if peak > 0 else None
            found.append(Bandwidth(int(row[0]), int(row[1]), average * _UNITS[unit], told))
    return _some(found, text)


def parse_latency(text: str) -> list[Latency]:
    """The rows of ib_write_lat and its like; anything else is a ToolError."""
    header, rows = _table(text)
    places = {name: _index(header, f"{name}[usec]") for name in ("t_min", "t_max", "t_typical")}
    if None in places.values():
        raise garbled("perftest", f"no columns of latencies in microseconds ({', '.join(header)})", text)

    def tell(row: list[float], name: str) -> float | None:
        at = _index(header, f"{name}[usec]")
        return row[at] * _MICRO if at is not None and row[at] > 0 else None

    found = []
    for row in rows:
        typical, minimum, maximum = (tell(row, name) for name in ("t_typical", "t_min", "t_max"))
        if typical is None or minimum is None or maximum is None:
            continue
        average, p99, p999 = (tell(row, name) for name in ("t_avg", "99% percentile", "99.9% percentile"))
        found.append(Latency(int(row[0]), int(row[1]), typical, minimum, maximum, average, p99, p999))
    return _some(found, text)


def _table(text: str) -> tuple[list[str], list[list[float]]]:
    """The names of the columns and the rows; a table whose last rule is missing was cut off."""
    lines = iter(text.splitlines())
    header = next((_COLUMN.findall(line) for line in lines if line.lstrip().startswith("#bytes")), None)
    if header is None or header[:2] != ["#bytes", "#iterations"]:
        raise garbled("perftest", "there is no table in it", text)
    rows: list[list[float]] = []
    for line in lines:
        if line.strip().startswith(_RULE):
            return header, rows
        words = line.split()
        # Warnings about the clocks of the processor stand between the rows.
        if words and words[0].isdecimal():
            rows.append(list(_numbers(words, len(header), text)))
    raise garbled("perftest", "its table breaks off", text)


def _numbers(words: list[str], least: int, text: str) -> Iterator[float]:
    if len(words) < least:
        raise garbled("perftest", f"a row has {len(words)} of {least} columns", text)
    for number, word in enumerate(words):
        try:
            value = float(word)
        except ValueError:
            raise garbled("perftest", f"'{word[:20]}' is no number", text) from None
        if not math.isfinite(value) or value < 0 or (number < 2 and not 1 <= value == int(value)):
            raise garbled("perftest", f"'{word[:20]}' cannot be", text)
        yield value


def _index(header: list[str], name: str) -> int | None:
    return header.index(name) if name in header else None


def _some(rows: list[Row], text: str) -> list[Row]:
    if not rows:
        raise garbled("perftest", "its table has no figures", text)
    return rows
