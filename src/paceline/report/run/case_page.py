"""The page of one case: all that its record has, and the same case in other runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from paceline.analysis.summary import headline_of, summarize_run
from paceline.analysis.trend.series import TrendSeries, history, machine
from paceline.core.errors import InputError
from paceline.core.quantity import show_interval
from paceline.core.record import Record
from paceline.core.run import RunRecords
from paceline.report.charts import Chart
from paceline.report.document import (
    Card,
    Cell,
    Column,
    Document,
    Item,
    Lines,
    Medium,
    Section,
    Table,
    Tone,
)
from paceline.report.run import document as run_report
from paceline.report.run.case import case_details
from paceline.report.run.lead import token_sentence
from paceline.report.text import humanize, one_line, show_figure, show_value, when
from paceline.report.trend import chart_of, commit_of, state_of

LISTED = 50  # runs, the newest


@dataclass(frozen=True)
class CasePage:
    """A case with its history."""

    records: RunRecords  # this case alone
    earlier: tuple[RunRecords, ...]  # the same case on such a machine, by run

    @property
    def record(self) -> Record:
        """What was measured."""
        return self.records.records[0]

    @property
    def metric(self) -> str:
        """That leads; empty where nothing was measured."""
        headline = headline_of(self.record)
        return headline.name if headline else ""


def case_of(records: RunRecords, index: int) -> RunRecords:
    """A run with one case of it alone; InputError says which there are."""
    record = next((record for record in records.records if record.case.index == index), None)
    if record is None:
        message = f"run '{records.run.id}' has no result of case {index}: it has {len(records.records)} results"
        raise InputError("unknown-case", message, key="case", value=index)
    run = records.run.model_copy(update={"cases": [record.case], "status": "finished"})
    return RunRecords(run=run, records=[record])


def same_case(case: RunRecords, runs: Sequence[RunRecords]) -> tuple[RunRecords, ...]:
    """The runs that measured the same case on the same kind of machine, with that case alone."""
    record = case.records[0]
    where = machine(case.run.environment, record.case.target)
    found = []
    for other in runs:
        same = [one for one in other.records if one.case.key == record.case.key]
        if same and machine(other.run.environment, same[0].case.target) == where:
            found.append(other.model_copy(update={"records": same}))
    return tuple(found)


def document(page: CasePage, *, every: str) -> Document:
    """The page; `every` is the address of a case of a run, with `{run}` and `{case}` in it."""
    row = summarize_run(page.records).rows[0]
    made = run_report.document(page.records, Medium.HTML)
    block = made.blocks[0]
    samples = Section("Samples and figures", case_details(row, is_open=True).items, key="samples")
    past = Section("The same case in other runs", tuple(_history(page, every)), key="history")
    told = ("cases", "command-line", "warnings", "failed", "impossible")  # among its samples and figures
    others = [one for one in block.sections if one.key not in told]
    charts = [Section(one.title, tuple(item for item in one.items if isinstance(item, Chart))) for one in others[:-1]]
    words = token_sentence(row.record) or (
        f"{humanize(page.metric)} {show_figure(row.headline)}" if row.headline else ""
    )
    answer = f"{row.label}: {words}" if words and row.ok else ""
    answer = answer or f"{row.label}: {row.record.cause.message if row.record.cause else row.record.outcome}"
    sections = (*(one for one in charts if one.items), samples, past, others[-1])
    # The page is about one case, and names it once.
    cards = (_of_one_case(one, one_line(row.label)) for one in made.cards)
    return replace(made, cards=tuple(cards), blocks=(replace(block, answer=one_line(answer), sections=sections),))


def _of_one_case(card: Card, name: str) -> Card:
    if card.what == name:
        card = replace(card, what=card.interval, interval="")
    return replace(card, has_warning=False)


def _history(page: CasePage, every: str) -> Iterator[Item]:
    series = next((one for one in history(page.earlier, page.metric).series if not one.at), None)
    if series is None:
        yield Lines(("No other run measured it on such a machine yet.",), Tone.NOTE)
        return
    where, count = one_line(series.machine), len(series.points)
    yield Lines((f"{humanize(page.metric)} in {count} runs on {where}: {state_of(series)}",), Tone.LEAD)
    yield chart_of(series)
    yield _runs(page, series, every)


def _runs(page: CasePage, series: TrendSeries, every: str) -> Table:
    index_of = {other.run.id: other.records[0].case.index for other in page.earlier}
    points, unit = list(reversed(series.points))[:LISTED], series.metric.unit
    this, shown = page.records.run.id, partial(show_value, unit=unit)
    columns = (
        Column(
            "Run",
            tuple(Cell(one.run_id, link=every.format(run=one.run_id, case=index_of[one.run_id])) for one in points),
            numeric=False,
        ),
        Column.of("Started", [when(one.started_at) for one in points], numeric=False),
        Column(
            humanize(page.metric).capitalize(),
            tuple(Cell(show_value(one.value, unit), leads=one.run_id == this) for one in points),
        ),
        Column.of("95 %", [show_interval(one.value, one.interval, shown) for one in points]),
        Column.of("Commit", [commit_of(one) for one in points], numeric=False),
        Column.of("Warnings", [", ".join(one.warnings) for one in points], numeric=False),
    )
    return Table(tuple(one for one in columns if any(cell.text for cell in one.cells)), is_dense=True)
