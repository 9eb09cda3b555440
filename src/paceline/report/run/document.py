"""The report of a run: the answer, a table for each kind of case, what the run says beyond them, and what went wrong.

A page has each case in full, too, with the environment and the command. Its charts are also files of their own: each as
a picture, and next to it the data that it draws as comma-separated values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.analysis import serving
from paceline.analysis.roofline import KnownCeilings
from paceline.analysis.serving import makes_tokens
from paceline.analysis.summary import CaseRow, RunSummary, summarize_run
from paceline.core.case import Category, is_of_model
from paceline.core.errors import InputError
from paceline.core.files import write_atomic
from paceline.core.gc_pause import no_garbage
from paceline.core.quantity import show_duration
from paceline.core.run import RunRecords
from paceline.core.stats import SKEWED
from paceline.core.tails import NOT_DECIDABLE
from paceline.report import vega
from paceline.report.charts import Chart, captioned, draw_png
from paceline.report.document import Block, Document, Finding, Item, Lines, Medium, Pairs, Section, Table, Tone
from paceline.report.render import html, markdown
from paceline.report.run import serving_charts
from paceline.report.run.case import case_details, case_key
from paceline.report.run.columns import SPENT, CaseTable, case_tables, placed_models, short_labels
from paceline.report.run.lead import answer, cards, ceiling_cards, overview, reached_chart
from paceline.report.run.sections import report_sections
from paceline.report.run.sweeps import cold_start_table, stage_table, sweep_charts, sweep_tables
from paceline.report.text import one_line, when

if TYPE_CHECKING:
    from rich.console import Console
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.analysis.summary import sampled
from paceline.report.export.csv import csv_text
from paceline.report.run.samples_chart import distribution

# Cases that a terminal and a page list: a page of thousands would be too large to open. Markdown has all of them.
LISTED = {Medium.TERMINAL: 100, Medium.HTML: 500}
ALL_IN_FULL, SOME_IN_FULL = 300, 100  # cases that a page shows in full: all of so many, or of more so many
FEW_LINES = 6  # of the message of a failed case, which then stand one below the other
MOST_OPEN = 12  # loads whose SLO is open
MOST_INSTANCES = 4  # cases with a warning that are not folded


def show(
    records: RunRecords, console: Console | None = None, *, ceilings: KnownCeilings | None = None, every: bool = False
) -> None:
    """Show a run on a terminal or in a pipe: of very many cases those that say the most, or `every` one."""
    from paceline.report.render import terminal  # which pages do without

    terminal.show(document(records, Medium.TERMINAL, ceilings=ceilings, every=every), console)


def to_markdown(records: RunRecords, *, ceilings: KnownCeilings | None = None) -> str:
    """The report as Markdown."""
    return markdown.render(document(records, Medium.MARKDOWN, ceilings=ceilings))


def to_html(records: RunRecords, *, ceilings: KnownCeilings | None = None) -> str:
    """The report as one HTML file that needs nothing else."""
    with no_garbage():
        return html.render(document(records, Medium.HTML, ceilings=ceilings))


def write_html(records: RunRecords, path: str | Path, *, ceilings: KnownCeilings | None = None) -> Path:
    """Write the page; the path is returned."""
    return write_atomic(path, to_html(records, ceilings=ceilings))


def to_png(records: RunRecords, *, ceilings: KnownCeilings | None = None) -> bytes:
    """What a run shows at a glance as one picture: its overview, and the charts of what it says beyond its cases."""
    summary = summarize_run(records, ceilings)
    first = _reached(summary, summary.measured) or overview(summary.measured)
    if first is None:
        message = f"run '{records.run.id}' has no result to draw; see 'paceline report {records.run.id}'"
        raise InputError("nothing-to-draw", message, value=records.run.id)
    others = [item for section in report_sections(summary) for item in section.items if isinstance(item, Chart)]
    return draw_png(captioned([first, *others], one_line(records.run.name), machine_line(summary)))


def machine_line(summary: RunSummary) -> str:
    """What was measured, where and when: the devices that compute, the host and the date."""
    run = summary.source.run
    # Where files lie is a fact of their own cases; a page is about what computes.
    names = [row.record.subject.device for row in summary.rows if row.case.category != Category.STORAGE]
    names = [run.environment.cpu.model or name if name == "cpu" else name for name in names]
    devices = ", ".join(dict.fromkeys(one_line(name) for name in names if name)) or run.environment.cpu.model or ""
    return " · ".join(text for text in (devices, run.environment.host_name, when(run.started_at)) if text)


def document(
    records: RunRecords, medium: Medium, *, ceilings: KnownCeilings | None = None, every: bool = False
) -> Document:
    """The report for one medium; `ceilings` are what is known of the machine in addition to the run."""
    run, summary = records.run, summarize_run(records, ceilings)
    limit = None if every else LISTED.get(medium)
    listed = summary.rows if limit is None else summary.notable(limit)
    sections = [
        *_results(summary, listed, medium),
        *report_sections(summary),
        Section(
            "SLOs that are open, and what would decide them", tuple(_open_slos(summary)), Tone.WARNING, "open-slos"
        ),
        Section("Warnings, and what to do", tuple(_warnings(summary, medium)), Tone.WARNING, "warnings"),
        Section("Did not succeed", tuple(_failed(summary, medium)), Tone.BAD, "failed"),
        Section("Not possible here", tuple(_impossible(summary, medium)), Tone.WARNING, "impossible"),
    ]
    if medium is Medium.TERMINAL and summary.not_run:
        titles = ", ".join(one_line(case.title or case.benchmark) for case in summary.not_run)
        sections.append(Section(items=(Lines((f"Not run: {titles}",), Tone.WARNING),)))
    elif medium is Medium.MARKDOWN:
        origin = f"on {run.environment.host_name}, {when(run.started_at)}, Paceline {run.version}".replace("`", "'")
        command = f": `{shlex.join(run.command).replace('`', chr(39))}`" if run.command else ""
        sections.append(Section(items=(Lines((f"Run `{run.id}` {origin}{command}",), Tone.TEXT),)))
    elif medium is Medium.HTML:
        environment: Item = Lines(("No environment was recorded.",), Tone.NOTE)
        if run.environment.is_known:
            environment = Pairs(run.environment.model_dump(mode="json", exclude_none=True), is_blocks=True)
        sections += [_cases(summary, len(listed)), Section("Environment", (environment,), key="environment")]
        if run.command:
            sections.append(Section("Command", (Lines((shlex.join(run.command),), Tone.CODE),), key="command-line"))
    took = f"took {show_duration((run.ended_at - run.started_at).total_seconds())}" if run.ended_at else ""
    return Document(
        title=one_line(run.name),
        blocks=(Block(answer(summary), "", tuple(sections)),),
        cards=tuple(cards(summary)) if medium is Medium.HTML else (),
        ceilings=tuple(ceiling_cards(summary)) if medium is Medium.HTML else (),
        is_titled=True,
        subtitle=" · ".join(text for text in (machine_line(summary), took) if text),
        status=run.status if run.status != "finished" else "",
        footer=f"Run {run.id}",
        version=run.version,
    )


def _open_slos(summary: RunSummary) -> Iterator[Item]:
    """Loads whose requests leave it undecided; of a single one the answer has said it."""
    lines = [
        f"{row.label}: {text.removeprefix(NOT_DECIDABLE).removeprefix(': ')}"
        for row in summary.measured
        if (text := serving.slo_undecided(row)) and (summary.total > 1 or row.figure("capacity"))
    ]
    more = [f"{len(lines) - MOST_OPEN} more"] if len(lines) > MOST_OPEN else []
    if lines:
        yield Lines((*lines[:MOST_OPEN], *more))


def _results(summary: RunSummary, listed: tuple[CaseRow, ...], medium: Medium) -> Iterator[Section]:
    tables = case_tables(replace(summary, rows=listed))
    reached = _reached(summary, listed) if medium is Medium.HTML else None
    if reached:
        yield Section("At a glance", (reached,), key="results-overview")
    linked = {row.case.index for row in detailed_rows(summary)} if medium is Medium.HTML else set()
    for place, table in enumerate(tables):
        before, after = section_charts(table, is_drawn=reached is not None) if medium is Medium.HTML else ([], [])
        yield Section("At a glance", tuple(before), key="results-overview")
        name = f"-{place + 1}" if table.title else ""
        first, *columns = table.columns
        links = (case_key(row) if row.case.index in linked else "" for row in table.lines)
        names = tuple(replace(cell, link=link) for cell, link in zip(first.cells, links, strict=True))
        named = replace(first, cells=names)
        spent = [column for column in columns if column.key in SPENT] if medium is Medium.HTML else []
        columns = [column for column in columns if column not in spent]
        items: list[Item] = [
            Lines((table.shared,) if table.shared else (), Tone.NOTE),
            Table((named, *columns), is_sortable=True, key=f"results{name}"),
        ]
        if medium is Medium.HTML:
            items += [*_notes(summary, table, is_first=place == 0), *after]
        if medium is Medium.MARKDOWN:
            items += [
                replace(points, title=f"{one_line(row.label)}, {points.title[:1].lower()}{points.title[1:]}")
                for row in table.rows
                for points in sweep_tables(row)
            ]
        if medium is not Medium.TERMINAL:
            if spent:
                items.append(Table((named, *spent), "What the server used, and what that costs", is_sortable=True))
            if stages := stage_table([row for row in table.rows if not makes_tokens(row)]):
                items.append(replace(stages, is_folded=medium is Medium.HTML))
            if start := cold_start_table(table.rows):
                items.append(start)
        elif place == len(tables) - 1 and len(listed) < len(summary.rows):
            more = len(summary.rows) - len(listed)
            note = f"{more:,} more cases were measured; --all, --md and --csv list all of them"
            items.append(Lines((note,), Tone.NOTE))
        title = table.title or ("Results" if medium is Medium.HTML else "")
        yield Section(title, tuple(items), key=f"results-table{name}")


def _reached(summary: RunSummary, rows: Sequence[CaseRow]) -> Chart | None:
    """Of a run that measured models and what is under them: how near each model comes to it."""
    return reached_chart(rows, placed_models(summary)) if summary.is_micro else None


def section_charts(table: CaseTable, *, is_drawn: bool = False) -> tuple[list[Chart], list[Chart]]:
    """The charts before a table, and after it: bars before the only table of a page; sweeps always after.

    Models that are drawn already, next to their ceilings, are not drawn again.
    """
    rows = table.rows
    first: list[Chart | None]
    if table.category == Category.SERVING:
        # Tails at different loads are no contest: the curve over load shows them.
        rates = [row for row in rows if row.headline and row.headline.unit.endswith("/s") and not makes_tokens(row)]
        _, names = short_labels(rates)
        named = [replace(row, label=name) for row, name in zip(rates, names, strict=True)]
        first = [*([overview(named)] if len(named) > 1 else []), *serving_charts.glance(rows)]
        others = serving_charts.details(rows)
    elif table.title:
        plain = [row for row in rows if row.headline and not row.sweeps]  # a line tells more than its end
        benchmarks = dict.fromkeys(row.case.benchmark for row in rows)
        families = [[row for row in plain if row.case.benchmark == benchmark] for benchmark in benchmarks]
        if is_drawn and is_of_model(table.category):
            families = []
        first, others = [overview(family) for family in families if len(family) > 1], sweep_charts(rows)
    else:
        several = sum(row.headline is not None for row in rows) > 1  # a single bar tells nothing
        first, others = [overview(rows)] if several else [], sweep_charts(rows)
    drawn = [chart for chart in first if chart]
    return ([], [*drawn, *others]) if table.title else (drawn, others)


def _notes(summary: RunSummary, table: CaseTable, *, is_first: bool) -> Iterator[Lines]:
    """What a reader must know about the figures of a table."""
    if is_first:
        note = (
            "± is the larger half of the interval that holds the true value with 95 % confidence, or the most that "
            "few samples allow; samples that resemble their neighbours count less. Where one half is more than "
            f"{SKEWED:g} times as wide as the other, the interval is given from end to end; it is unknown where "
            "samples follow one another too closely to tell it. "
            f"{'A rate is' if summary.is_micro else 'Throughput is'} all work over all time."
        )
        rows = [row for row in summary.measured if row.case.category != Category.SERVING]
        if vega.is_installed() and any(sweep.is_line for row in rows for sweep in row.sweeps):
            note += (
                " In charts over sizes, the shade around a line is the interval of each point; where none is seen, it "
                "is narrower than the line, or a single sample gave none."
            )
        yield Lines((note,), Tone.NOTE)
    if table.category == Category.SERVING and any(map(makes_tokens, table.rows)):
        note = (
            "TTFT is the time to the first token, from the time at which a request was meant to be sent; ITL the mean "
            "time between the tokens of a request. Percentiles are of all requests; one without an answer counts as "
            "late without end. Tokens are output tokens; per user is 1 over the median ITL."
        )
        yield Lines((note,), Tone.NOTE)
    elif table.category == Category.SERVING:
        note = (
            "Latency counts from the time at which a request was meant to be sent until its whole answer; one without "
            "an answer counts as late without end. Offered is what was to be sent, goodput what was answered within "
            "the SLO. The bold figure leads: capacity where it was searched, the tail where the rate was chosen."
        )
        yield Lines((note,), Tone.NOTE)


def _warnings(summary: RunSummary, medium: Medium) -> Iterator[Finding]:
    for kind in summary.warnings:
        if medium is Medium.TERMINAL:
            yield Finding(f"{kind.mark}  {one_line(kind.kind)}", ("; or ".join(kind.remedies),))
        elif medium is Medium.MARKDOWN:
            yield Finding(f"{kind.mark} {kind.kind}", (f"in {', '.join(kind.labels)}",), ("; or ".join(kind.remedies),))
        else:
            instances = tuple(
                Finding(row.label, (warning.message,), link=case_key(row))
                for row in summary.rows
                for warning in row.warnings
                if warning.kind == kind.kind
            )
            cases = len({instance.link for instance in instances})
            fold = f"{cases} cases, with what was seen in each" if cases > MOST_INSTANCES else ""
            yield Finding(kind.kind, todo=kind.remedies, instances=instances, fold=fold)


def _failed(summary: RunSummary, medium: Medium) -> Iterator[Finding]:
    for row in summary.failed:
        remedy = row.remedy("in its details below" if medium is Medium.HTML else "")
        cause, outcome = row.record.cause, row.record.outcome.value
        rank = f" (rank {cause.rank})" if cause and cause.rank is not None else ""
        message = cause.message + rank if cause else "no cause was recorded"
        lines = message.splitlines() if message.count("\n") < FEW_LINES else [message]  # long ones flow as one
        yield Finding(row.label, tuple(lines), (remedy,) if remedy else (), outcome, case_key(row))
    for case in summary.not_run:
        yield Finding(case.title or case.benchmark, status="not run", medium=Medium.FILES)


def _impossible(summary: RunSummary, medium: Medium) -> Iterator[Finding | Lines]:
    """What a machine cannot do has few remedies; they are said once, except in Markdown, whose lists stand alone."""
    for row in summary.impossible:
        cause = row.record.cause.message if row.record.cause else "no cause was recorded"
        todo = (row.remedy(),) if row.remedy() and medium is Medium.MARKDOWN else ()
        yield Finding(row.label, (cause,), todo, link=case_key(row))
    remedies = tuple(dict.fromkeys(remedy for row in summary.impossible if (remedy := row.remedy())))
    yield Lines(remedies, Tone.TODO, Medium.TERMINAL | Medium.HTML)


def detailed_rows(summary: RunSummary) -> tuple[CaseRow, ...]:
    """The cases that a page shows in full."""
    return summary.rows if len(summary.rows) <= ALL_IN_FULL else summary.notable(SOME_IN_FULL)


def _cases(summary: RunSummary, listed: int) -> Section:
    rows, total = detailed_rows(summary), len(summary.rows)
    items: list[Item] = []
    if len(rows) < total:
        tables = f" The tables above list {listed:,} of them." if listed < total else ""
        note = (
            f"{len(rows)} of {total:,} cases are shown in full: what failed, what has warnings and what leads comes "
            f"first.{tables} All of them, with every sample: `paceline report {summary.source.run.id} --jsonl`"
        )
        items.append(Lines((note,), Tone.TEXT))
    items += [case_details(row, is_open=total == 1) for row in rows]
    return Section("Each case in full", tuple(items), key="cases")


LONGEST_NAME = 80

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class ChartFile:
    """A chart with its name for files and the rows behind it."""

    name: str
    title: str
    chart: Chart
    rows: Rows


def write_charts(records: RunRecords, folder: str | Path, *, ceilings: KnownCeilings | None = None) -> list[Path]:
    """Write all of them into the folder, which is made if need be; the paths, a picture before its data."""
    files = chart_files(records, ceilings=ceilings)
    machine = machine_line(summarize_run(records, ceilings))
    if not files:
        message = f"run '{records.run.id}' has no result to draw; see 'paceline report {records.run.id}'"
        raise InputError("nothing-to-draw", message, value=records.run.id)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for one in files:
        written.append(write_atomic(target / f"{one.name}.png", draw_png(captioned([one.chart], one.title, machine))))
        written.append(write_atomic(target / f"{one.name}.csv", chart_csv(one.rows)))
    return written


def chart_files(records: RunRecords, *, ceilings: KnownCeilings | None = None) -> list[ChartFile]:
    """The charts in the order of the page; their names begin with their place, so that no two are the same."""
    page = document(records, Medium.HTML, ceilings=ceilings)
    # Samples are drawn anew, of more cases than a page shows and with their data.
    charts = [(chart, chart.title, _rows_of(chart)) for chart in page.charts if chart.rows or not chart.svg]
    charts += list(_of_samples(summarize_run(records, ceilings)))
    digits = len(str(len(charts)))
    return [
        ChartFile(f"{place:0{digits}d}-{_slug(title)}", f"{one_line(records.run.name)}: {title}", chart, rows)
        for place, (chart, title, rows) in enumerate(charts, start=1)
    ]


def chart_csv(rows: Rows) -> str:
    """The rows under every name that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return csv_text(columns, ({name: _cell(value) for name, value in row.items()} for row in rows))


def _of_samples(summary: RunSummary) -> Iterator[tuple[Chart, str, Rows]]:
    for row in detailed_rows(summary):
        source = sampled(row.record, row.headline)
        if source is not None and (chart := distribution(source)):
            name, unit = source.metric.name, source.metric.unit
            samples = enumerate(source.samples, start=1)
            rows: Rows = [{"sample": place, name: value, "unit": unit} for place, value in samples]
            yield chart, f"{row.label} {name}", rows


def _rows_of(chart: Chart) -> Rows:
    """What the chart draws; of several sets of data each row tells its own."""
    if chart.rows:
        return list(chart.rows)
    sets = [rows for rows in _data_in(chart.spec) if rows]
    if len(sets) == 1:
        return sets[0]
    return [{"part": place, **row} for place, rows in enumerate(sets, start=1) for row in rows]


def _data_in(part: Any) -> Iterator[Rows]:
    if isinstance(part, Mapping):
        data = part.get("data")
        values = data.get("values") if isinstance(data, Mapping) else None
        if isinstance(values, list):
            yield [row for row in values if isinstance(row, dict) and any(cell is not None for cell in row.values())]
        for name, inner in part.items():
            if name != "data":
                yield from _data_in(inner)
    elif isinstance(part, Sequence) and not isinstance(part, str):
        for inner in part:
            yield from _data_in(inner)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _slug(title: str) -> str:
    """A title as the name of a file that every system takes."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower())[:LONGEST_NAME].strip("-") or "chart"
