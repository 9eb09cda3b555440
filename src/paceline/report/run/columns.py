"""The columns of served cases: of language models in tokens and users, of all others in requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from paceline.analysis import serving
from paceline.analysis.roofline import Placed, rooflines
from paceline.analysis.serving import (
    BETWEEN,
    FIRST,
    JOULES,
    PER_USER,
    TOTAL,
    USD,
    TokenLoad,
    each_load,
    load_of,
    makes_tokens,
    tail_of,
)
from paceline.analysis.summary import CaseRow, RunSummary
from paceline.core.case import Category, is_micro, is_of_model
from paceline.core.grouping import group_by
from paceline.core.quantity import show_count
from paceline.core.record import Measurement
from paceline.core.stats import FEW
from paceline.report.document import Badge, Cell, Column, Tone
from paceline.report.run.sections.roofline import bound_words, verdict
from paceline.report.text import (
    bare_interval,
    heading,
    humanize,
    interval_ends,
    one_line,
    share,
    show_at,
    show_figure,
    show_usd,
    show_value,
    sortable,
    told_apart,
)

Filler = Callable[[CaseRow], Cell]


def _served(name: str, show: Callable[[float], str], *, is_below: bool = False) -> Filler:
    """One figure of a served case; its interval is below it, next to a rate, or a note to anything else."""

    def cell(row: CaseRow) -> Cell:
        figure = row.figure(name)
        if figure is None:
            return Cell()
        leads = row.headline is not None and row.headline.name == name
        is_beside = name in ("capacity", "throughput") and not is_below
        text = show_figure(figure, show) if is_beside else show(figure.value)
        below = one_line(bare_interval(figure)) if is_below else ""
        return Cell(one_line(text), sortable(figure.value), interval_ends(figure), leads, below)

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
        (f"{kind}_{percentile}", f"{words} {percentile}", _served(f"{kind}_{percentile}", _seconds, is_below=True))
        for kind, words in ((FIRST, "TTFT"), (BETWEEN, "ITL"))
        for percentile in dict.fromkeys(("p50", tails[kind]))
    ]
    return [
        *([] if apart_by_load(rows) else [("load", "Load", load)]),
        (TOTAL, "Tokens /s", _served(TOTAL, show_count, is_below=True)),
        (PER_USER, "Per user", _served(PER_USER, show_count, is_below=True)),
        *latencies,
        *(column for column in SERVED if column[0] in kept),
        ("queue", "Queue", _served("server_queue", lambda value: f"{value:.3g}")),
        ("kv", "KV cache", _served("kv_cache_use", _percent)),
        ("drafts", "Accepted drafts", _served("accepted_drafts", _percent)),
        ("energy", "J /token", _served(JOULES, lambda value: f"{value:.3g}")),
        ("cost", "USD /M tokens", _served(USD, show_usd)),
    ]


WITHHELD = "the samples follow one another so closely that they tell no interval; measure longer"

MOST_BADGES = 2  # in a row of a table; more are counted

_WORDS = {"metric", "slo", "pace", "bound"}  # columns that hold no numbers
_OBVIOUS = {"throughput", "compute_rate", "bandwidth", "time"}  # names that say no more than the unit
SPENT = {
    "batch",
    "cpu",
    "gpu",
    "queue",
    "kv",
    "drafts",
    "energy",
    "cost",
}  # of a served case, in a table of its own where there is room
_WIDE = {"samples", "offered", "goodput", "p95", *SPENT}  # not on a terminal
_SPARE = {"step": 1, "p99": 2, "memory": 3}  # of a model, on a narrow terminal
_SHORT = {"Device memory": "Memory", "Host memory": "Memory", "Step time": "Step"}  # on a terminal


@dataclass(frozen=True)
class CaseTable:
    """The cases of one category, with their table."""

    category: str
    title: str  # empty where the report has no other table
    rows: tuple[CaseRow, ...]
    columns: tuple[Column, ...]
    lines: tuple[CaseRow, ...]  # what each line is of: a case, or one load of it
    shared: str = ""  # words that the names of all its cases have, said once instead


def case_tables(summary: RunSummary) -> list[CaseTable]:
    """A table for each category that was measured; a run of models alone needs no more than one."""
    if not summary.measured:
        return []
    bounds = placed_models(summary)
    if not summary.is_sectioned:
        return [_table(summary, bounds, "", "", summary.measured)]
    tables = []
    for category in summary.categories:
        rows = [row for row in summary.measured if row.case.category == category]
        title = one_line(heading(humanize(category))) if len(summary.categories) > 1 else ""
        tables.append(_table(summary, bounds, category, title, rows))
    return tables


def placed_models(summary: RunSummary) -> dict[int, Placed]:
    """The cases of models under the ceilings of their devices, by their numbers."""
    every = rooflines(summary.source, summary.rows, summary.ceilings).rooflines
    cases = (one for roofline in every for one in roofline.placed)
    return {one.row.case.index: one for one in cases if is_of_model(one.row.case.category)}


def short_labels(rows: Sequence[CaseRow]) -> tuple[str, list[str]]:
    """Names of cases for a table or a chart: those of served ones, which are long, without the words they share."""
    labels = [one_line(row.label) for row in rows]
    is_served = len(rows) > 1 and all(row.case.category == Category.SERVING for row in rows)
    return told_apart(labels) if is_served else ("", labels)


def _table(
    summary: RunSummary, bounds: Mapping[int, Placed], category: str, title: str, rows: Sequence[CaseRow]
) -> CaseTable:
    is_tokens, cases = category == Category.SERVING and any(map(makes_tokens, rows)), tuple(rows)
    if category == Category.SERVING:
        rows = each_load(rows)
        fillers = token_columns(rows) if is_tokens else SERVED
    else:
        fillers = _micro_columns(rows, category) if is_micro(category) else _model_columns(rows, bounds)
    is_short = title and is_of_model(category) and len(rows) > 1
    # A run of models alone has one table, which is of no category.
    are_models = not category or (is_of_model(category) and category != Category.SERVING)
    shared, names = told_apart([one_line(row.label) for row in rows]) if is_short else short_labels(rows)
    columns = [Column("Case", tuple(Cell(name, name) for name in names), numeric=False, key="case")]
    if is_tokens and (loads := apart_by_load(rows)):  # one server: what tells its loads apart is how heavy they are
        shared = told_apart([one_line(row.label) for row in rows])[0] if len(rows) > 1 else one_line(rows[0].label)
        columns = [Column("Load", tuple(Cell(one.name, one.amount) for one in loads), key="case")]
    for key, header, fill in fillers:
        cells = tuple(fill(row) for row in rows)
        if key == "interval":
            header, cells = interval_column(cells)
        # On a terminal, figures that lead are worth their width; that no request failed goes without saying.
        is_wide = key in _WIDE
        if key == "failed":
            is_wide = not any(cell.sort for cell in cells)
        elif key == "pace":  # one pace of all cases sets none apart
            is_wide = len({cell.text for cell in cells}) == 1
        columns.append(
            Column(
                header,
                cells,
                numeric=key not in _WORDS,
                leads=key == "result",
                widest=is_wide and not any(cell.leads for cell in cells),
                key=key,
                short=_SHORT.get(header, ""),
                spare=_SPARE.get(key, 0) if are_models else 0,
            )
        )
    warnings = tuple(Cell(marks := summary.marks(row), marks, badges=_few_badges(row)) for row in rows)
    columns.append(Column("Warnings", warnings, numeric=False, key="warnings", short="?"))
    shown = tuple(column for column in columns if any(cell.text for cell in column.cells))
    return CaseTable(category, title, cases, shown, tuple(rows), shared)


def warning_badges(row: CaseRow) -> tuple[Badge, ...]:
    """A badge for each kind of warning, with the messages as its note."""
    kinds = sorted(group_by(row.warnings, lambda warning: warning.kind).items())
    return tuple(Badge(kind, note="; ".join(one.message for one in warnings)) for kind, warnings in kinds)


def _few_badges(row: CaseRow) -> tuple[Badge, ...]:
    badges = warning_badges(row)
    if len(badges) <= MOST_BADGES:
        return badges
    return (Badge(f"{len(badges)} warnings", note="; ".join(f"{badge.text}: {badge.note}" for badge in badges)),)


def _micro_columns(rows: Sequence[CaseRow], category: str) -> list[tuple[str, str, Filler]]:
    """Of single operations: what was measured, how near the peak it is, and how long one took."""
    names = {row.headline.name for row in rows if row.headline}
    alone = one_line(heading(humanize(next(iter(names))))) if len(names) == 1 else ""

    def metric(row: CaseRow) -> Cell:
        name = one_line(humanize(row.headline.name)) if row.headline else ""
        return Cell(name, name)

    def at(row: CaseRow) -> Cell:
        """The point of the sweep that the headline is from."""
        if row.point is None:
            return Cell()
        first = next(iter(row.point.at.values()))
        return Cell(show_at(row.point.at), None if isinstance(first, str) else first)

    def time(row: CaseRow) -> Cell:
        """The time of one call, at the headline's point where the case as a whole has none."""
        figure = row.figure("time") or (row.point.figure("time") if row.point else None)
        if figure is None or (row.headline is not None and row.headline.name == "time"):
            return Cell()
        return _number(figure.value, figure.unit)

    def rate(row: CaseRow) -> Cell:
        """Work over time, where the headline is the time itself."""
        if row.headline is None or row.headline.unit != "s":
            return Cell()
        return next((cell for name in ("compute_rate", "bandwidth") if (cell := _of(row, name)).text), Cell())

    # Of a disk it matters how many operations it does and how long the slow ones take.
    storage: list[tuple[str, str, Filler]] = [
        ("iops", "IOPS", lambda row: _of(row, "iops", show_count)),
        ("latency", "Latency", lambda row: _of(row, "latency")),
        ("p99", "p99", lambda row: _p99(row.figure("latency"))),
    ]
    columns: list[tuple[str, str, Filler]] = [
        ("result", alone or "Result", _result),
        ("interval", "±", _interval),
        ("at", "At", at),
        ("peak", "% of peak", lambda row: _of(row, "peak_share")),
        ("product", "% of product", lambda row: _of(row, "product_share")),
        ("rate", "Rate", rate),
        *(storage if category == Category.STORAGE else [("time", "Time", time)]),
        ("pace", "Pace", _pace),
        ("samples", "Samples", _samples),
    ]
    if not alone and not names <= _OBVIOUS:
        columns.insert(0, ("metric", "Metric", metric))
    return columns


def _model_columns(rows: Sequence[CaseRow], bounds: Mapping[int, Placed]) -> list[tuple[str, str, Filler]]:
    names = {row.headline.name for row in rows if row.headline}
    header = one_line(heading(humanize(names.pop()))) if len(names) == 1 else "Result"
    on_device = any(row.figure("peak_device_memory") for row in rows)

    def result(row: CaseRow) -> Cell:
        cell = _result(row)
        if row.headline and header == "Result" and row.headline.name != "throughput":
            return Cell(one_line(f"{cell.text} ({humanize(row.headline.name)})"), cell.sort)
        return cell

    def step(row: CaseRow) -> Cell:
        figure = row.figure("step_time") or row.figure("time_per_output_token")
        return _number(figure.summary.median, figure.unit) if figure and figure is not row.headline else Cell()

    def memory(row: CaseRow) -> Cell:
        device, host = row.figure("peak_device_memory"), row.figure("peak_host_memory")
        figure = device or host
        if figure is None:
            return Cell()
        text = show_value(figure.value, figure.unit)
        return Cell(text if device or not on_device else f"{text} host", sortable(figure.value))

    def bound(row: CaseRow) -> Cell:
        if (placed := bounds.get(row.case.index)) is None:
            return Cell()
        return Cell(f"{bound_words(placed)}, {share(placed.share)}", placed.share, verdict(placed))

    def tail(row: CaseRow) -> Cell:
        return _p99(row.figure("step_time")) if row.case.category == Category.INFERENCE else Cell()

    return [
        ("result", header, result),
        ("interval", "±", _interval),
        ("bound", "Bound by", bound),
        ("step", "Step time", step),
        ("p99", "p99", tail),
        ("ttft", "TTFT", lambda row: _of(row, "ttft")),
        ("memory", "Device memory" if on_device else "Host memory", memory),
        ("mfu", "MFU", lambda row: _of(row, "mfu")),
        ("pace", "Pace", _pace),
        ("samples", "Samples", _samples),
    ]


def _number(value: float, unit: str) -> Cell:
    return Cell(show_value(value, unit), sortable(value))


def _of(row: CaseRow, name: str, show: Callable[[float], str] | None = None) -> Cell:
    """A figure of a case, unless it is the headline; in its unit, unless the header has that."""
    figure = row.figure(name)
    if figure is None or figure is row.headline:
        return Cell()
    return Cell(show(figure.value), sortable(figure.value)) if show else _number(figure.value, figure.unit)


def _p99(figure: Measurement | None) -> Cell:
    """The tail of a time, where the samples are enough for it."""
    value = figure.percentile("99") if figure else None
    return _number(value, "s") if value is not None else Cell()


def _result(row: CaseRow) -> Cell:
    return _number(row.headline.value, row.headline.unit) if row.headline else Cell()


def _pace(row: CaseRow) -> Cell:
    """Whether the device kept it up: sustained, burst or short."""
    pace = row.record.pace
    return Cell(pace.kind, pace.kind, pace.reason) if pace else Cell()


def _samples(row: CaseRow) -> Cell:
    return Cell(f"{row.headline.count:,}", row.headline.count) if row.headline else Cell()


def _interval(row: CaseRow) -> Cell:
    figure = row.headline
    if figure is None or figure.statistic == "single":
        return Cell()
    if figure.relative is None:
        return Cell("unknown", note=WITHHELD) if figure.summary.count >= FEW else Cell()
    return Cell(bare_interval(figure), figure.relative, interval_ends(figure))


def interval_column(cells: Sequence[Cell]) -> tuple[str, tuple[Cell, ...]]:
    """The header of a column of intervals, and its cells: where all are half-widths, the header says so for them."""
    if all(not cell.text or cell.text.startswith("± ") for cell in cells):
        return "±", tuple(replace(cell, text=cell.text.removeprefix("± ")) for cell in cells)
    return "Interval", tuple(cells)
