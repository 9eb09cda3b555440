"""The columns of served cases: of language models in tokens and users, of all others in requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from paceline.analysis import serving
from paceline.analysis.summary import CaseRow
from paceline.analysis.token_loads import (
    BETWEEN,
    FIRST,
    JOULES,
    PER_USER,
    TOTAL,
    USD,
    TokenLoad,
    load_of,
    tail_of,
)
from paceline.core.quantity import show_count
from paceline.report.document import Badge, Cell, Tone
from paceline.report.numbers import bare_interval, interval_ends, show_figure, show_usd, show_value, sortable
from paceline.report.text import one_line

Filler = Callable[[CaseRow], Cell]


def _served(name: str, show: Callable[[float], str]) -> Filler:
    """One figure of a served case; its interval is next to a rate, and a note to anything else."""

    def cell(row: CaseRow) -> Cell:
        figure = row.figure(name)
        if figure is None:
            return Cell()
        text, leads = show(figure.value), row.headline is not None and row.headline.name == name
        if name in ("capacity", "throughput"):
            text = show_figure(figure, show)
        return Cell(one_line(text), sortable(figure.value), interval_ends(figure), leads)

    return cell


_seconds, _percent, _joules = (partial(show_value, unit=unit) for unit in ("s", "%", "J"))


def _p90(row: CaseRow) -> Cell:
    """Worth a column only where there are too few requests for a higher percentile."""
    cell = _served("latency_p90", _seconds)(row)
    return cell if cell.leads else Cell()


def _failed(row: CaseRow) -> Cell:
    """Requests without a good answer, whether they failed or were declined."""
    errors, shed = row.figure("error_rate"), row.figure("shed_rate")
    if errors is None or shed is None:
        return Cell()
    value = errors.value + shed.value
    note = f"{_percent(errors.value)} failed, {_percent(shed.value)} were declined because of load" if value else ""
    return Cell(_percent(value), value, note)


def _slo(row: CaseRow) -> Cell:
    is_met, undecided = serving.slo_met(row), serving.slo_undecided(row)
    if undecided:
        return Cell("open", "open", undecided, badges=(Badge("open", Tone.WARNING, undecided),))
    if is_met is None:
        return Cell()
    text = "met" if is_met else "missed"
    why = row.record.load.slo_missed_because if row.record.load else ""
    note = one_line(f"missed: {why}" if why else "met")
    return Cell(text, text, note, badges=() if is_met else (Badge(text, Tone.BAD, note),))


# Rates without their unit, which the header has: a served case has many figures.
SERVED: list[tuple[str, str, Filler]] = [
    ("offered", "Offered /s", _served("offered_rate", show_count)),
    ("capacity", "Capacity /s", _served("capacity", show_count)),
    ("throughput", "Throughput /s", _served("throughput", show_count)),
    ("goodput", "Goodput /s", _served("goodput", show_count)),
    ("p50", "p50", _served("latency_p50", _seconds)),
    ("p90", "p90", _p90),
    ("p95", "p95", _served("latency_p95", _seconds)),
    ("p99", "p99", _served("latency_p99", _seconds)),
    ("slo", "SLO", _slo),
    ("failed", "Failed", _failed),
    ("batch", "Batch", _served("batch_size", lambda value: f"{value:.3g}")),
    ("cpu", "CPU cores", _served("cpu_utilisation", lambda value: f"{value / 100:.2g}")),
    ("gpu", "GPU", _served("gpu_utilisation", _percent)),
    ("energy", "Energy", _served("energy_per_request", _joules)),
    ("cost", "USD /1000", _served("cost_per_thousand", lambda value: f"{value:.3g}")),
]


def apart_by_load(rows: Sequence[CaseRow]) -> list[TokenLoad]:
    """The load of each row, where all of them are of one server and differ in nothing else."""
    loads = [load for row in rows if (load := load_of(row)) is not None]
    settings = {row.record.load.setting for row in rows if row.record.load is not None}
    is_all = len(rows) == len(loads) == len({load.name for load in loads}) and len(settings) == 1
    return loads if is_all else []


def token_columns(rows: Sequence[CaseRow]) -> list[tuple[str, str, Filler]]:
    """Of language models: tokens in total and for each user, then how long users wait, with intervals below."""
    tails = {kind: tail_of(rows, kind) for kind in (FIRST, BETWEEN)}
    kept = ("capacity", "goodput", "slo", "failed", "batch", "cpu", "gpu")

    def load(row: CaseRow) -> Cell:
        one = load_of(row)
        return Cell(one.name, one.amount) if one is not None else Cell()

    latencies: list[tuple[str, str, Filler]] = [
        (f"{kind}_{percentile}", f"{words} {percentile}", _with_interval(f"{kind}_{percentile}", _seconds))
        for kind, words in ((FIRST, "TTFT"), (BETWEEN, "ITL"))
        for percentile in dict.fromkeys(("p50", tails[kind]))
    ]
    return [
        *([] if apart_by_load(rows) else [("load", "Load", load)]),
        (TOTAL, "Tokens /s", _with_interval(TOTAL, show_count)),
        (PER_USER, "Per user", _with_interval(PER_USER, show_count)),
        *latencies,
        *(column for column in SERVED if column[0] in kept),
        ("queue", "Queue", _served("server_queue", lambda value: f"{value:.3g}")),
        ("kv", "KV cache", _served("kv_cache_use", _percent)),
        ("drafts", "Accepted drafts", _served("accepted_drafts", _percent)),
        ("energy", "J /token", _served(JOULES, lambda value: f"{value:.3g}")),
        ("cost", "USD /M tokens", _served(USD, show_usd)),
    ]


def _with_interval(name: str, show: Callable[[float], str]) -> Filler:
    """A figure with its interval below."""

    def cell(row: CaseRow) -> Cell:
        figure = row.figure(name)
        if figure is None:
            return Cell()
        leads = row.headline is not None and row.headline.name == name
        shown, below = one_line(show(figure.value)), one_line(bare_interval(figure))
        return Cell(shown, sortable(figure.value), interval_ends(figure), leads, below)

    return cell
