"""When requests are meant to go: absolute schedules, in seconds since the begin, drawn, read from a file or written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import InputError
from paceline.core.text import parse_json
from paceline.load.distribution import Distribution
from paceline.load.trace import Times

Generator = np.random.Generator
TIMESTAMPS = ("timestamp", "time", "arrival")
GAPS = ("gap", "interval")
# Lengths in traces of language models: Mooncake's, Azure's and BurstGPT's names of them.
PROMPT_LENGTHS = ("input_length", "contexttokens", "request tokens", "prompt_tokens")
OUTPUT_LENGTHS = ("output_length", "generatedtokens", "response tokens", "output_tokens")
BLOCKS = ("hash_ids",)
BLOCK = 512  # tokens that one hash stands for
MOST_TOKENS = 10_000_000
IN_MILLISECONDS = {"input_length", "hash_ids"}  # columns of Mooncake's format, whose timestamps are milliseconds


@dataclass(frozen=True)
class Schedule:
    """Intended times in order; which of the prepared requests each is, where the schedule itself says so."""

    intended: Times
    kind: NDArray[np.int32] | None = None
    prompt_tokens: NDArray[np.int32] | None = None  # of a trace of language models
    output_tokens: NDArray[np.int32] | None = None
    blocks: tuple[tuple[int, ...], ...] | None = None  # of each prompt: equal ones begin with equal blocks

    def __len__(self) -> int:
        return len(self.intended)

    def first(self, number: int) -> Schedule:
        """The first so many."""
        columns = {name: values for name, values in vars(self).items() if values is not None}
        return Schedule(**{name: values[:number] for name, values in columns.items()})

    @property
    def peak_rate(self) -> float:
        """Requests per second in the busiest tenth of a second."""
        if not len(self):
            return 0.0
        window = 0.1
        ends = np.searchsorted(self.intended, self.intended + window, side="left")
        return float((ends - np.arange(len(self))).max() / window)


def constant(rate: float, *, duration: float = 0.0, count: int | None = None) -> Times:
    """One request every 1/rate seconds, the first at once."""
    return np.arange(round(rate * duration) if count is None else count) / rate


def gamma(
    rate: float, burstiness: float, random: Generator, *, duration: float = 0.0, count: int | None = None
) -> Times:
    """Gamma gaps of this shape and the mean 1/rate: less than 1 comes in bursts, more is more even.

    1 is Poisson: independent users, exponential gaps.
    """
    scale = 1.0 / (rate * burstiness)
    if count is not None:
        return np.cumsum(random.gamma(burstiness, scale, count))
    return _until(duration, rate, lambda number: random.gamma(burstiness, scale, number))


def ramp(start: float, end: float, duration: float, random: Generator) -> Times:
    """Poisson with a rate that goes evenly from one value to the other."""
    return _changing(lambda t: start * t + (end - start) * t**2 / (2 * duration), duration, random)


def spike(rate: float, spike_rate: float, at: float, length: float, duration: float, random: Generator) -> Times:
    """Poisson at one rate, with one stretch at another."""

    def expected(t: Times) -> Times:
        return rate * t + (spike_rate - rate) * np.clip(t - at, 0.0, length)

    return _changing(expected, duration, random)


def diurnal(rate: float, amplitude: float, period: float, duration: float, random: Generator) -> Times:
    """Poisson whose rate swings around its mean as a sine that begins at the mean and rises."""
    turn = 2 * np.pi / period

    def expected(t: Times) -> Times:
        return rate * (t + amplitude / turn * (1.0 - np.cos(turn * t)))

    return _changing(expected, duration, random)


def on_off(rate: float, pause_rate: float, busy: float, pause: float, duration: float, random: Generator) -> Times:
    """Poisson that changes between two rates, the first one first."""

    def expected(t: Times) -> Times:
        cycles, within = np.divmod(t, busy + pause)
        spent_busy = cycles * busy + np.minimum(within, busy)
        return rate * spent_busy + pause_rate * (t - spent_busy)

    return _changing(expected, duration, random)


def scaled(intended: Times, rate: float) -> Times:
    """The same pattern, faster or slower, so that its mean rate is this one."""
    if len(intended) < 2 or intended[-1] <= intended[0]:
        return intended
    factor = (len(intended) - 1) / (rate * float(intended[-1] - intended[0]))
    return np.asarray(intended * factor)


def shares(number: int, workers: int) -> list[NDArray[np.int64]]:
    """Which requests of one schedule each worker sends: every request belongs to exactly one of them."""
    return [np.arange(worker, number, workers) for worker in range(workers)]


def _changing(expected: Callable[[Times], Times], duration: float, random: Generator) -> Times:
    """Poisson arrivals of which `expected(t)` are expected until t: that function's inverse of unit arrivals."""
    total = float(expected(np.array([duration]))[0])
    unit = _until(total, 1.0, lambda number: random.exponential(1.0, number))
    low, high = np.zeros_like(unit), np.full_like(unit, duration)
    for _ in range(60):  # halvings of the duration: beyond the precision of a double
        middle = (low + high) / 2
        is_before = expected(middle) < unit
        low, high = np.where(is_before, middle, low), np.where(is_before, high, middle)
    return high


def _until(end: float, rate: float, gaps: Callable[[int], Times]) -> Times:
    """Sums of gaps as long as they are before `end`."""
    expected = end * rate
    number = int(expected + 6 * np.sqrt(expected)) + 16
    times = np.cumsum(gaps(number))
    while times[-1] < end:
        times = np.concatenate([times, times[-1] + np.cumsum(gaps(number))])
    return times[times < end]


def read_arrivals(path: Path) -> Schedule:
    """Times of the file's rows, the first one at zero, in order.

    A column `timestamp` (seconds, or a date and time) or `gap` (seconds since the row before), and a column `kind` (the
    number of a prepared request) if there are several; a CSV file without a header holds timestamps alone. Traces of
    language models have lengths in tokens; those in Mooncake's format count time in milliseconds.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid("unreadable-file", f"the file of arrivals '{path}' cannot be read: {error}", str(path)) from None
    rows = _json_rows(lines, path) if lines and lines[0].lstrip().startswith("{") else _csv_rows(lines)
    if not rows:
        raise _invalid("no-arrivals", f"the file of arrivals '{path}' holds no arrivals", str(path))

    def column(names: Sequence[str]) -> str | None:
        return next((name for name in rows[0] if str(name).strip().casefold() in names), None)

    timestamp, gap, kind_column = column(TIMESTAMPS), column(GAPS), column(("kind",))
    time_column = timestamp or gap
    if time_column is None:
        names = ", ".join((*TIMESTAMPS, *GAPS))
        message = (
            f"the file of arrivals '{path}' has the columns {', '.join(map(str, rows[0]))}; name one of them {names}"
        )
        raise _invalid("missing-column", message, str(path))
    scale = 1e-3 if {str(name).strip().casefold() for name in rows[0]} & IN_MILLISECONDS else 1.0
    times, kinds = [], []
    for number, row in enumerate(rows, 1):
        arrival = f"arrival {number} of '{path}'"
        seconds = _seconds(row.get(time_column), arrival)
        if timestamp is None and seconds < 0:
            raise _invalid("negative-gap", f"{arrival} has the gap {seconds:g}; gaps are not negative", seconds)
        times.append(scale * seconds)
        if kind_column is not None:
            try:
                kind = int(row[kind_column])
            except (LookupError, TypeError, ValueError):
                kind = -1
            if not 0 <= kind < 2**31:
                value = row.get(kind_column)
                raise _invalid("not-a-kind", f"{arrival} has the kind {value!r}; kinds are numbers from 0", value)
            kinds.append(kind)
    with np.errstate(over="ignore", invalid="ignore"):  # LoadParameters refuses what is too long
        intended = np.array(times) if timestamp is not None else np.cumsum(times)
        order = np.argsort(intended, kind="stable")
        since_first = intended[order] - intended[order[0]]
    in_order = None if kind_column is None else np.array(kinds, np.int32)[order]
    lengths = [_lengths(rows, column(names), path) for names in (PROMPT_LENGTHS, OUTPUT_LENGTHS)]
    prompts, outputs = (None if one is None else one[order] for one in lengths)
    blocks = _blocks(rows, column(BLOCKS), path)
    in_blocks = None if blocks is None else tuple(blocks[row] for row in order)
    return Schedule(since_first, in_order, prompts, outputs, in_blocks)


def _lengths(rows: list[dict[str, Any]], column: str | None, path: Path) -> NDArray[np.int32] | None:
    """Tokens of each row; one without any, as a request that failed, has one."""
    if column is None:
        return None
    lengths = []
    for number, row in enumerate(rows, 1):
        try:
            length = int(row[column])
        except (LookupError, TypeError, ValueError):
            length = -1
        if not 0 <= length <= MOST_TOKENS:
            message = f"arrival {number} of '{path}': {column} is {row.get(column)!r}; write 0 to {MOST_TOKENS:,}"
            raise _invalid("not-a-length", message, row.get(column))
        lengths.append(max(1, length))
    return np.array(lengths, np.int32)


def _blocks(rows: list[dict[str, Any]], column: str | None, path: Path) -> list[tuple[int, ...]] | None:
    if column is None:
        return None
    blocks = []
    for number, row in enumerate(rows, 1):
        given = row.get(column)
        if not isinstance(given, list) or not all(type(one) is int and 0 <= one < 2**63 for one in given):
            message = f"arrival {number} of '{path}': {column} is {given!r:.80}; it is a list of numbers from 0"
            raise _invalid("not-hashes", message, given)
        blocks.append(tuple(given))
    return blocks


def prefix_share(blocks: Sequence[Sequence[int]], lengths: Sequence[int]) -> float:
    """The part of all tokens that a cache of prefixes without limits would know from the prompts before."""
    known: dict[tuple[int, int], int] = {}  # a block after a prefix is the next prefix
    cached = 0
    for hashes, length in zip(blocks, lengths, strict=True):
        prefix, is_known = 0, True
        for index, block in enumerate(hashes):
            is_known = is_known and (prefix, block) in known
            cached += max(0, min(BLOCK, length - index * BLOCK)) if is_known else 0
            prefix = known.setdefault((prefix, block), len(known) + 1)
    return cached / max(1, sum(lengths))


def _invalid(code: str, message: str, value: object) -> InputError:
    return InputError(code, message, key="load.file", value=value)


def _seconds(value: Any, arrival: str) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        try:
            seconds = datetime.fromisoformat(str(value)).timestamp()
        except ValueError:
            example = "write seconds, or a time like 2026-01-31 12:00:00.5"
            raise _invalid("not-a-time", f"{arrival} is {value!r}; {example}", value) from None
    if not np.isfinite(seconds):
        raise _invalid("not-finite", f"{arrival} is {value!r}, which is not finite", value)
    return seconds


def _json_rows(lines: list[str], path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
        except ValueError as error:
            raise _invalid("invalid-json", f"line {number} of '{path}' is not valid JSON: {error}", line) from None
        if not isinstance(row, dict):
            raise _invalid("not-a-mapping", f"line {number} of '{path}' is not a JSON object", row)
        rows.append(row)
    return rows


def _csv_rows(lines: list[str]) -> list[dict[str, Any]]:
    header = next(csv.reader(lines), [])
    try:
        float(header[0])
    except (ValueError, IndexError):
        return list(csv.DictReader(lines))
    return list(csv.DictReader(lines, fieldnames=["timestamp"]))


_LOOKED_AT = 8  # earlier prompts of a drawn trace, of which the longest is continued
_EPOCH = datetime(2026, 1, 1)


def drawn_trace(
    requests: int,
    rate: float,
    burstiness: float,
    prompt_tokens: Distribution,
    output_tokens: Distribution,
    share: float,
    seed: int,
) -> Schedule:
    """Arrivals with lengths, and prompts that share so much of their tokens with earlier ones."""
    random = np.random.default_rng(seed)
    prompts = prompt_tokens.draw(requests, random).astype(np.int32)
    return Schedule(
        gamma(rate, burstiness, random, count=requests),
        prompt_tokens=prompts,
        output_tokens=output_tokens.draw(requests, random).astype(np.int32),
        blocks=tuple(_shared_blocks(prompts.tolist(), share, random)),
    )


def _shared_blocks(lengths: Sequence[int], share: float, random: np.random.Generator) -> list[tuple[int, ...]]:
    """Of each prompt: it begins as an earlier one does, as far as the share of all so far asks for."""
    new, made = count(), list[tuple[int, ...]]()
    total, shared = 0, 0
    for length in lengths:
        total += length
        wanted = max(0, min(length // BLOCK, round((share * total - shared) / BLOCK)))
        earlier: tuple[int, ...] = ()
        if made and wanted:
            looked_at = random.integers(0, len(made), _LOOKED_AT).tolist()
            # The last block of a prompt may not be full, and is its own.
            earlier = max((made[one][: lengths[one] // BLOCK] for one in looked_at), key=len)[:wanted]
        made.append((*earlier, *(next(new) for _ in range(-(-length // BLOCK) - len(earlier)))))
        shared += BLOCK * len(earlier)
    return made


def statistics(trace: Schedule) -> str:
    """What a trace has, in words."""
    assert trace.prompt_tokens is not None and trace.output_tokens is not None and trace.blocks is not None
    share = prefix_share(trace.blocks, trace.prompt_tokens.tolist())
    return (
        f"{len(trace)} requests in {trace.intended[-1]:.1f} s, {trace.prompt_tokens.mean():.0f} prompt and "
        f"{trace.output_tokens.mean():.0f} output tokens on average, {100 * share:.1f} % of the prompts' tokens known"
    )


def _rows(trace: Schedule) -> list[tuple[float, int, int]]:
    assert trace.prompt_tokens is not None and trace.output_tokens is not None
    columns = trace.intended.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist()
    return list(zip(*columns, strict=True))


def _mooncake(trace: Schedule) -> str:
    lines = []
    for (seconds, prompt, output), blocks in zip(_rows(trace), trace.blocks or (), strict=True):
        row = {"timestamp": round(1000 * seconds), "input_length": prompt, "output_length": output}
        lines.append(json.dumps(row | {"hash_ids": list(blocks)}))
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return file.getvalue()


def _azure(trace: Schedule) -> str:
    rows = [(_EPOCH + timedelta(seconds=seconds), prompt, output) for seconds, prompt, output in _rows(trace)]
    return _table(("TIMESTAMP", "ContextTokens", "GeneratedTokens"), rows)


def _burstgpt(trace: Schedule) -> str:
    names = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
    rows = [
        (round(seconds, 3), "ChatGPT", prompt, output, prompt + output, "Conversation log")
        for seconds, prompt, output in _rows(trace)
    ]
    return _table(names, rows)


# Traces of language models as Mooncake, Azure and BurstGPT publish them.
FORMS: dict[str, Callable[[Schedule], str]] = {"mooncake": _mooncake, "azure": _azure, "burstgpt": _burstgpt}
