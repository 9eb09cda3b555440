"""The report as one HTML file that needs nothing else: no network, no fonts, no other file."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline.analysis.figures import Figure
from paceline.analysis.roofline import KnownCeilings
from paceline.analysis.summary import (
    CaseRow,
    Highlight,
    RunSummary,
    WarningKind,
    headline_of,
    sampled,
    summarize_run,
)
from paceline.core.case import Category
from paceline.core.files import write_atomic
from paceline.core.gc_pause import no_garbage
from paceline.core.record import Measurement, RecordWarning
from paceline.core.run import RunRecords
from paceline.core.stats import Interval
from paceline.report import charts
from paceline.report.document import Card
from paceline.report.numbers import half_width, show_value
from paceline.report.render.html import Drawing, bare, draw, is_table, page_templates, render_page, showing
from paceline.report.run import serving_charts
from paceline.report.run.columns import Section, sections
from paceline.report.run.overview import overview
from paceline.report.run.samples_chart import distribution
from paceline.report.run.section import report_sections
from paceline.report.run.sweep_charts import sweep_charts
from paceline.report.run.sweeps import SweepTable, all_tables, cold_start_table, stage_table
from paceline.report.run.words import answer, short_labels, superlative
from paceline.report.text import humanize, one_line


@dataclass(frozen=True)
class Change:
    """One condition, before and after the measurement."""

    name: str
    key: str  # the last part of the name, which tells the unit
    before: Any
    after: Any


def changes(conditions: Mapping[str, Any]) -> list[Change]:
    """Every condition on a line of its own; what is known neither before nor after is left out."""
    before, after = dict(_flat(conditions.get("before"))), dict(_flat(conditions.get("after")))
    names = [name for name in dict.fromkeys([*before, *after]) if (before.get(name), after.get(name)) != (None, None)]
    return [Change(name, name.rpartition(", ")[2], before.get(name), after.get(name)) for name in names]


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


PERCENTILES = ("50", "90", "95", "99", "99.9")
_CARDS = 4
# A page of thousands of cases would be too large to open: so many stand in its tables, and so many are shown in full.
LISTED = 500
_ALL_IN_FULL, _SOME_IN_FULL = 300, 100
_SERVED = ("latency_p99", "latency_p50", "goodput", "throughput")  # what a single served case shows beside its headline


@dataclass(frozen=True)
class Table:
    """One table of cases, with the charts that stand before and after it."""

    section: Section
    before: list[Drawing]
    after: list[Drawing]
    folded: list[SweepTable]  # what a chart shows too
    small: list[SweepTable]


@dataclass(frozen=True)
class Warned:
    """One kind of warning, and what was seen in each case that has it."""

    kind: WarningKind
    seen: list[tuple[CaseRow, RecordWarning]]

    @property
    def cases(self) -> int:
        """How many cases have it."""
        return len({row.case.index for row, _ in self.seen})


def render(records: RunRecords, *, ceilings: KnownCeilings | None = None) -> str:
    """The whole page; `ceilings` are what is known of the machine beside the run."""
    with no_garbage():
        return _render(records, ceilings)


def _render(records: RunRecords, ceilings: KnownCeilings | None) -> str:
    _add_filters()
    summary = summarize_run(records, ceilings)
    drawn = charts.available()
    listed, detailed = summary.telling(LISTED), detailed_rows(summary)
    run = records.run
    return render_page(
        "report.html",
        with_script=True,
        version=run.version,
        summary=summary,
        run=run,
        answer=answer(summary),
        host=run.environment.host_name,
        devices=_devices(summary),
        seconds=(run.ended_at - run.started_at).total_seconds() if run.ended_at else None,
        command=shlex.join(run.command),
        cards=_cards(summary),
        tables=[_table(section, drawn) for section in sections(replace(summary, rows=listed))],
        listed=len(listed),
        beyond=report_sections(summary),
        **showing(),
        warnings=_warned(summary),
        swept=drawn
        and any(
            sweep.is_line for row in summary.measured for sweep in row.sweeps if row.case.category != Category.SERVING
        ),
        charts_missing=not drawn,
        detailed=detailed,
        linked={row.case.index for row in detailed},
        drawings={row.case.index: _samples(row) for row in detailed},
        percentiles=PERCENTILES,
    )


def detailed_rows(summary: RunSummary) -> tuple[CaseRow, ...]:
    """The cases that are shown in full."""
    return summary.rows if len(summary.rows) <= _ALL_IN_FULL else summary.telling(_SOME_IN_FULL)


def _table(section: Section, drawn: bool) -> Table:
    """The section with its charts: bars before the only table of a page, else after it; sweeps always after."""
    name = section.category or "results"
    before, after = section_charts(section) if drawn else ([], [])
    stages, start = stage_table(section.rows), cold_start_table(section.rows)
    return Table(
        section=section,
        before=[made for place, chart in enumerate(before) if (made := _draw(chart, f"overview-{place}"))],
        after=[made for place, chart in enumerate(after) if (made := _draw(chart, f"{name}-{place}"))],
        folded=[stages] if stages else [],
        small=[start] if start else [],
    )


def section_charts(section: Section) -> tuple[list[charts.Chart | None], list[charts.Chart | None]]:
    """The charts of a section that stand before its table, and after it."""
    rows = section.rows
    plain = [row for row in rows if row.headline and not row.sweeps]  # a line tells more than its end
    if section.category == Category.SERVING:
        # Tails at different loads are no contest: the curve over load shows them.
        rates = [row for row in rows if row.headline and row.headline.unit.endswith("/s")]
        _, names = short_labels(rates)
        named = [replace(row, label=name) for row, name in zip(rates, names, strict=True)]
        contest = [overview(named)] if len(named) > 1 else []
        first = [*contest, *serving_charts.glance(rows)]
        others = serving_charts.details(rows)
        return ([], [*first, *others]) if section.title else (list(first), list(others))
    if section.title:
        benchmarks = dict.fromkeys(row.case.benchmark for row in rows)
        families = [[row for row in plain if row.case.benchmark == benchmark] for benchmark in benchmarks]
        return [], [*(overview(family) for family in families if len(family) > 1), *sweep_charts(rows)]
    several = sum(row.headline is not None for row in rows) > 1  # a single bar tells nothing
    return [overview(rows)] if several else [], list(sweep_charts(rows))


def write(
    records: RunRecords,
    path: str | Path,
    *,
    ceilings: KnownCeilings | None = None,
) -> Path:
    """Write the page; the path is returned."""
    return write_atomic(path, render(records, ceilings=ceilings))


@lru_cache(maxsize=1)
def _add_filters() -> None:
    """What the templates of a run need beyond those of every page."""
    page_templates().filters |= {
        "mean": lambda figure: _with_interval(figure, figure.summary.mean, figure.summary.mean_interval),
        "median": lambda figure: _with_interval(figure, figure.summary.median, figure.summary.median_interval),
        "percentile": _percentile,
        "changes": changes,
        "sweeps": all_tables,
    }


def _percentile(figure: Figure, name: str) -> str:
    value = figure.percentile(name)
    return bare(value, figure.unit) if value is not None else "–"


def _with_interval(figure: Figure, value: float, interval: Interval | None) -> str:
    width = half_width(interval.relative(value)) if interval is not None and value else ""
    return f"{show_value(value, figure.unit)} {width}".rstrip()


def _warned(summary: RunSummary) -> list[Warned]:
    seen = [(row, warning) for row in summary.rows for warning in row.warnings]
    return [Warned(kind, [one for one in seen if one[1].kind == kind.kind]) for kind in summary.warnings]


def _devices(summary: RunSummary) -> str:
    # Where files lie is a fact of their own cases; a page is about what computes.
    names = [row.record.subject.device for row in summary.rows if row.case.category != Category.STORAGE]
    return ", ".join(dict.fromkeys(one_line(name) for name in names if name))


def _cards(summary: RunSummary) -> list[Card]:
    """The leader of each group; a run with one result shows that case's other figures instead."""
    results = [row for row in summary.measured if row.headline]
    if len(results) == 1:
        row = results[0]
        whole = [figure for figure in row.figures if not figure.scope]
        if row.case.category == Category.SERVING:
            whole = sorted(whole, key=lambda figure: (figure is not row.headline, _place(figure.name, _SERVED)))
        return [_card(figure, humanize(figure.name), row) for figure in whole[:_CARDS]]
    if summary.is_micro and len(summary.groups) > 1:
        return [_highlight(found) for found in summary.highlights[:_CARDS]]
    _, names = short_labels(summary.rows)
    labels = {row.case.index: name for row, name in zip(summary.rows, names, strict=True)}
    cards = []
    for group in summary.groups[:_CARDS]:
        figure = group.best.headline
        if figure is not None:
            alone = len(group.rows) == 1
            what = (
                humanize(figure.name) if alone else f"{superlative(group)} of {len(group.rows)} {group.benchmark} cases"
            )
            cards.append(replace(_card(figure, what, group.best), label=labels[group.best.case.index]))
    return cards


def _place(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _highlight(found: Highlight) -> Card:
    assert found.row.headline is not None
    share = found.row.figure("peak_share")
    what = f"fastest of {found.of}, {found.category}" if found.of > 1 else found.category
    if share is not None:
        what += f" · {show_value(share.value, share.unit)} of peak"
    return _card(found.row.headline, what, found.row)


def _card(figure: Figure, what: str, row: CaseRow) -> Card:
    number, _, unit = show_value(figure.value, figure.unit).partition(" ")
    return Card(number, unit, half_width(figure.relative), what, one_line(row.label), bool(row.warnings))


def _samples(row: CaseRow) -> Drawing | None:
    headline = headline_of(row.record)
    source: Measurement | None = sampled(row.record, headline)
    return _draw(distribution(source), f"case-{row.case.index}-samples") if source else None


def _draw(chart: charts.Chart | None, name: str) -> Drawing | None:
    return draw(chart, name) if chart else None
