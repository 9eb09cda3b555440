"""One case of a run in full, as a folded part of the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.analysis.figures import Figure
from paceline.analysis.summary import CaseRow, headline_of, sampled
from paceline.core.quantity import show_duration
from paceline.core.stats import Interval
from paceline.report.charts import Chart
from paceline.report.document import Badge, Cell, Column, Details, Finding, Item, Lines, Pairs, Table, Tone
from paceline.report.numbers import half_width, show_value
from paceline.report.render.html import is_table, show_fact
from paceline.report.run.columns import warning_badges
from paceline.report.run.samples_chart import distribution
from paceline.report.run.sweeps import all_tables
from paceline.report.text import humanize, one_line, when

PERCENTILES = ("90", "95", "99", "99.9")
_NOTE = (
    "The headline is bold. Percentile p of a rate is the rate at percentile p of the time, so p99 is slow. A dash "
    "stands for a percentile that the samples are too few to tell."
)


def case_key(row: CaseRow) -> str:
    """By what the page links to a case."""
    return f"case-{row.case.index}"


def case_details(row: CaseRow, *, is_open: bool) -> Details:
    """Everything that the page has of one case."""
    badges = list(warning_badges(row))
    if not row.ok:
        badges.append(Badge(row.outcome.value, Tone.BAD) if row.failed else Badge("not possible here", Tone.PLAIN))
    return Details(
        name=row.label,
        items=tuple(_items(row)),
        badges=tuple(badges),
        right=show_value(row.headline.value, row.headline.unit) if row.headline else "",
        key=case_key(row),
        is_open=is_open,
    )


def _items(row: CaseRow) -> Iterator[Item]:
    case, record = row.case, row.record
    if row.cause:
        yield Lines((row.cause.message,), Tone.TEXT)
        if row.cause.detail:
            yield Lines((row.cause.detail,), Tone.CODE)
    yield from (Finding(warning.kind, (warning.message,), (warning.remedy,)) for warning in row.warnings)
    chart = samples_chart(row)
    if chart:
        yield chart
    yield from _figures(row.figures)
    yield from (replace(table, is_folded=True) for table in all_tables(row))
    attempt = {
        "started": when(record.started_at),
        "took, start-up included": show_duration(record.seconds),
        "attempt": record.attempt,
        "repetition": case.repeat,
        "timeout": show_duration(case.timeout),
    }
    facts = {name: value for name, value in record.facts.items() if name != "trace"}
    blocks: dict[str, Any] = {
        "Parameters, after defaults": {"benchmark": case.benchmark, "target": case.target, "ranks": case.ranks}
        | dict(case.parameters),
        "The attempt": attempt,
    }
    yield Pairs(blocks | ({"Facts": facts} if facts else {}), is_blocks=True)
    if record.conditions:
        yield Table.of_lines(
            ("What", "Before", "After"), changes(record.conditions), 1, "Conditions before and after", is_folded=True
        )


def samples_chart(row: CaseRow) -> Chart | None:
    """The samples behind the headline of a case."""
    source = sampled(row.record, headline_of(row.record))
    return distribution(source) if source else None


def changes(conditions: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Every condition on a line, before and after; what is known neither before nor after is left out."""
    before, after = dict(_flat(conditions.get("before"))), dict(_flat(conditions.get("after")))
    names = [name for name in dict.fromkeys([*before, *after]) if (before.get(name), after.get(name)) != (None, None)]
    lines = []
    for name in names:
        key = name.rpartition(", ")[2]  # which says the unit
        lines.append((humanize(name), show_fact(before.get(name), key), show_fact(after.get(name), key)))
    return lines


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What nested mappings and lists of them hold, with joined names."""
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        items = value.items()
    elif is_table(value):
        items = enumerate(value)
    else:
        if prefix and value not in ([], {}):
            yield prefix, value
        return
    for key, inner in items:
        yield from _flat(inner, f"{prefix}, {key}" if prefix else str(key))


def _figures(figures: Sequence[Figure]) -> Iterator[Item]:
    estimates = [figure for figure in figures if figure.is_estimate]
    repeated = [figure for figure in figures if not figure.is_estimate and figure.count > 1]
    single = [figure for figure in figures if not figure.is_estimate and figure.count <= 1]
    if estimates:
        lines = [_estimate(figure) for figure in estimates]
        headers = ["Metric", "Value", "From", "To", "Confidence", "Observations"]
        yield _table("Estimated from many observations", headers, lines)
    if repeated:
        lines = [_repeated(figure) for figure in repeated]
        headers = ["Metric", "Mean", "Median", "Lowest", *(f"p{name}" for name in PERCENTILES)]
        yield _table("Measured repeatedly", [*headers, "Highest", "Samples", "Outliers"], lines)
        yield Lines((_NOTE,), Tone.NOTE)
    if single:
        yield Pairs({_name(figure): show_value(figure.value, figure.unit) for figure in single}, "Measured once")


def _table(title: str, headers: Sequence[str], lines: Sequence[Sequence[Cell]]) -> Table:
    columns = zip(headers, zip(*lines, strict=True), strict=True)
    return Table(
        tuple(Column(header, cells, numeric=header != "Metric") for header, cells in columns), title, is_dense=True
    )


def _estimate(figure: Figure) -> list[Cell]:
    texts = ["–", "–", "–"]
    if interval := figure.interval:
        low, high = bare(interval.low, figure.unit), bare(interval.high, figure.unit)
        texts = [low, high, f"{interval.confidence:.0%}"]
    value = Cell(show_value(figure.value, figure.unit), leads=True)
    return [Cell(_name(figure)), value, *map(Cell, texts), Cell(f"{figure.count:,}")]


def _repeated(figure: Figure) -> list[Cell]:
    summary, unit = figure.summary, figure.unit
    percentiles = [figure.percentile(name) for name in PERCENTILES]
    return [
        Cell(_name(figure)),
        Cell(_with_interval(summary.mean, unit, summary.mean_interval), leads=figure.value == summary.mean),
        Cell(_with_interval(summary.median, unit, summary.median_interval), leads=figure.value == summary.median),
        Cell(bare(summary.minimum, unit)),
        *(Cell(bare(value, unit) if value is not None else "–") for value in percentiles),
        Cell(bare(summary.maximum, unit)),
        Cell(f"{figure.count:,}"),
        Cell(str(summary.outliers)),
    ]


def _name(figure: Figure) -> str:
    return one_line(f"{humanize(figure.name)} {figure.scope}" if figure.scope else humanize(figure.name))


def _with_interval(value: float, unit: str, interval: Interval | None) -> str:
    width = half_width(interval.relative(value)) if interval is not None and value else ""
    return f"{show_value(value, unit)} {width}".rstrip()


def bare(value: float, unit: str) -> str:
    """A value next to one that says the unit already, unless its scale is its own."""
    shown = show_value(value, unit)
    return shown.removesuffix(f" {unit}") if unit not in ("s", "B", "%") else shown
