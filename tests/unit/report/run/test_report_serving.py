"""Reports of served models: their own columns and charts, and no table that nobody would read to its end."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from paceline.analysis.summary import CaseRow, summarize_run
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from paceline.report import charts
from paceline.report.run import serving_charts
from paceline.report.run.columns import CaseTable, case_tables
from paceline.report.run.document import show, to_html, to_markdown
from paceline.report.run.lead import answer
from paceline.report.run.sweeps import cold_start_table, stage_table, sweep_charts, sweep_tables
from paceline.report.text import told_apart
from support.micro_records import gemm
from support.records import STEP_TIME, run_of
from support.serving_records import ENGINES, capacity_run, rates_run, searched, served


def rows_of(run: RunRecords) -> tuple[CaseRow, ...]:
    return summarize_run(run).rows


def section_of(run: RunRecords) -> CaseTable:
    (found,) = case_tables(summarize_run(run))
    return found


def cells(section: CaseTable, key: str) -> list[str]:
    return [cell.text for column in section.columns if column.key == key for cell in column.cells]


@pytest.fixture(scope="module")
def page() -> str:
    return to_html(capacity_run())


def test_served_cases_have_columns_of_their_own() -> None:
    headers = [column.header for column in section_of(capacity_run()).columns]
    assert headers == [
        "Case", "Offered /s", "Capacity /s", "Throughput /s", "Goodput /s", "p50", "p95", "p99", "SLO", "Failed",
        "Batch", "CPU cores", "USD /1000", "Warnings",
    ]  # fmt: skip


def test_columns_without_values_vanish() -> None:
    keys = {column.key for column in section_of(rates_run()).columns}
    assert not keys & {"capacity", "gpu", "energy", "first_token", "p90", "warnings"}


def test_words_that_all_cases_share_are_told_once() -> None:
    section = section_of(rates_run())
    assert section.shared == "serve resnet18 embedded max_batch=8 poisson p99≤50ms"
    assert cells(section, "case")[:2] == ["torch 50/s", "torch 150/s"]


def test_words_stay_where_names_could_not_be_told_apart_without_them() -> None:
    assert told_apart(["serve a", "serve a b"]) == ("", ["serve a", "serve a b"])
    assert told_apart(["serve a"]) == ("serve a", ["serve a"])


def test_what_leads_a_row_is_marked_in_its_own_column() -> None:
    section = section_of(capacity_run())
    leading = [[cell.leads for cell in column.cells] for column in section.columns if column.key in ("capacity", "p99")]
    assert leading == [[True, True, False], [False, False, True]]
    assert cells(section, "capacity") == ["268 ± 3.0 %", "468 ± 3.0 %", ""]


def test_intervals_of_percentiles_are_notes() -> None:
    column = next(column for column in section_of(rates_run()).columns if column.key == "p99")
    notes = {cell.note for cell in column.cells}
    assert "" in notes  # of loads whose requests are not worth enough
    assert all(re.fullmatch(r"[\d.]+ ms to [\d.]+ ms, 95% confidence", note) for note in notes - {""})


def test_declined_and_failed_requests_are_one_figure() -> None:
    run = run_of([served(0, "torch", 50.0, **ENGINES["torch"], shed=0.25)])
    column = next(column for column in section_of(run).columns if column.key == "failed")
    assert column.cells[0].text.endswith(" %") and column.cells[0].note.startswith("0 % failed, 2")


def test_served_cases_stand_apart_from_others() -> None:
    found = case_tables(summarize_run(run_of([gemm(9, "bf16", 789e12, 79.8), *rates_run().records])))
    assert [section.title for section in found] == ["Serving", "Compute"]


def test_the_answer_names_the_capacity_and_counts_kept_promises() -> None:
    both = run_of(
        [searched(place, name, **ENGINES[name], capacity=268.0 + place) for place, name in enumerate(ENGINES)]
    )
    assert answer(summarize_run(both)) == (
        "All 2 cases measured; highest capacity: onnxruntime, 269 requests/s ± 3.0 %."
    )
    assert answer(summarize_run(rates_run())) == "All 6 cases measured; 5 of 6 loads met their SLO."
    one = answer(summarize_run(run_of([served(0, "torch", 300.0, **ENGINES["torch"])])))
    assert re.search(r"p99≤50ms: latency p99 [\d.]+ ms[^;]*; SLO missed\.", one)


def test_a_search_prints_few_lines_on_a_terminal() -> None:
    file = io.StringIO()
    show(capacity_run(), Console(file=file, width=100))
    lines = file.getvalue().splitlines()
    assert len(lines) < 20 and max(len(line) for line in lines) <= 100
    assert sum("± 3.0 %" in line.replace("+-", "±") for line in lines[3:]) == 2


def test_a_search_is_no_long_table_in_markdown() -> None:
    text = to_markdown(capacity_run())
    assert len(text.splitlines()) < 45
    assert "**Cold start**" in text and "| Send lateness |" in text
    assert "Over rate" not in text


def test_a_page_folds_the_trials(page: str) -> None:
    assert re.search(r'<details class="part sweep"><summary>Over rate: 10 points</summary>', page)


def test_generic_charts_and_tables_do_not_repeat_them() -> None:
    rows = rows_of(capacity_run())
    assert sweep_charts(rows) == []
    assert [table for row in rows for table in sweep_tables(row)] == []
    titles = [table.title for table in sweep_tables(rows[0], every=True)]
    assert titles[1:3] == ["Over batch: 8 points", "Over rate: 10 points"]


def test_the_page_has_every_chart_once(page: str) -> None:
    titles = re.findall(r"<title[^>]*>([^<:]+)", page[page.index("<main>") : page.index('id="cases"')])
    assert titles == [
        "Result of each case with its interval",
        "Latency over throughput",
        "How long requests took",
        "Where the time of a request goes",
        "Batches that formed",
        "Cost over latency",
    ]


def test_charts_draw_and_say_what_they_show() -> None:
    rows = rows_of(capacity_run())
    drawn = [*serving_charts.glance(rows), *serving_charts.details(rows)]
    for place, chart in enumerate(drawn):
        picture = charts.draw_svg(chart, f"chart-{place}")
        assert "NaN" not in picture and "undefined" not in picture
        assert chart.description
    assert "capacity 268 requests/s ± 3.0 %" in drawn[0].description


def test_charts_of_latency_over_load_mark_the_promise_and_the_capacity() -> None:
    (chart,) = serving_charts.glance(rows_of(capacity_run()))
    written = str(chart.spec)
    assert "p99 ≤ 50 ms" in written and "diamond" in written
    (chart,) = serving_charts.glance(rows_of(rates_run()))
    assert "diamond" not in str(chart.spec) and chart.notes == ()


def test_curves_are_thin_enough_for_a_page() -> None:
    chart = serving_charts.distributions(rows_of(rates_run()))
    assert chart is not None
    (values,) = [layer["data"]["values"] for layer in chart.spec["layer"] if layer["mark"]["type"] == "line"]
    assert len(values) <= 6 * 400


def test_more_cases_than_colours_are_drawn_in_parts() -> None:
    rows = rows_of(run_of([served(i, "torch", 40.0 + i, **ENGINES["torch"], count=150) for i in range(10)]))
    titles = [str(chart.spec["title"]["text"]) for chart in serving_charts.details(rows)]
    assert titles[:2] == ["How long requests took (1 of 2)", "How long requests took (2 of 2)"]


def test_batches_of_one_alone_are_not_drawn() -> None:
    rows = rows_of(run_of([served(0, "torch", 20.0, **ENGINES["torch"], most=1)]))
    assert serving_charts.batches(rows) is None
    assert serving_charts.stages(rows) is not None


def test_batches_of_one_size_in_each_case_are_not_drawn() -> None:
    records = [served(index, "torch", 20.0, **ENGINES["torch"]) for index in range(2)]
    assert serving_charts.batches(rows_of(run_of(records))) is not None
    alike = [
        one.model_copy(
            update={"measurements": [found for found in one.measurements if found.at.get("batch", size) == size]}
        )
        for one, size in zip(records, (1, 2), strict=True)
    ]
    assert serving_charts.batches(rows_of(run_of(alike))) is None


def test_one_case_alone_has_no_curve_but_cards_that_matter() -> None:
    run = run_of([served(0, "torch", 150.0, **ENGINES["torch"])])
    assert serving_charts.glance(rows_of(run)) == []
    page = to_html(run)
    cards = re.findall(r'<div class="label">([^<]+?)\s*<', page)
    assert cards == ["latency p99", "latency p50", "goodput", "throughput"]


def test_a_value_from_many_observations_has_an_interval_and_no_percentiles() -> None:
    row = rows_of(capacity_run())[0]
    estimates = {figure.name for figure in row.figures if figure.is_estimate}
    assert {"capacity", "latency_p50", "latency_p99"} <= estimates
    assert not estimates & {"throughput", "latency", "offered_rate"}
    assert not Measurement.of_samples(STEP_TIME, [0.1] * 20).is_estimate


def test_tables_of_parts_stand_side_by_side() -> None:
    rows = rows_of(rates_run())
    stages, start = stage_table(rows), cold_start_table(rows)
    assert stages is not None and start is not None
    assert stages.headers[0] == "Case" and stages.headers[-1] == "Together" and len(stages.lines) == 6
    assert start.lines[0] == ("torch 50/s", "3.21 s", "118 ms", "740 ms", "4.07 s")


def test_a_start_that_was_not_seen_to_its_end_has_no_sum() -> None:
    run = rates_run()
    first = run.records[0]
    kept = [m for m in first.measurements if m.at != {"part": "first answer to steady"}]
    table = cold_start_table(rows_of(run_of([first.model_copy(update={"measurements": kept}), *run.records[1:]])))
    assert table is not None and table.lines[0][-2:] == ("", "") and table.lines[1][-1] == "4.07 s"


def test_an_slo_that_is_open_says_what_would_decide_it() -> None:
    measured = served(0, "torch", 50.0, **ENGINES["torch"])
    assert measured.load is not None
    text = "not decidable yet: 1,400 more requests"
    load = measured.load.model_copy(update={"slo_met": None, "slo_missed_because": "", "slo_undecided": text})
    run = run_of([measured.model_copy(update={"load": load})])
    column = next(column for column in section_of(run).columns if column.key == "slo")
    assert (column.cells[0].text, column.cells[0].note) == ("open", text)
    assert answer(summarize_run(run)).endswith(f"; SLO {text}.")


def test_loads_whose_slo_is_open_are_listed_with_what_would_decide_each() -> None:
    run = rates_run()
    load = run.records[0].load
    assert load is not None
    undecided = {"slo_met": None, "slo_missed_because": "", "slo_undecided": "not decidable yet: 1,400 more requests"}
    first = run.records[0].model_copy(update={"load": load.model_copy(update=undecided)})
    text = to_markdown(run.model_copy(update={"records": [first, *run.records[1:]]}))
    head, _, rest = text.partition("SLOs that are open, and what would decide them\n")
    assert ", 1 not decidable yet" in head
    assert rest.strip().splitlines()[0].endswith("torch max\\_batch=8 poisson 50/s p99≤50ms: 1,400 more requests")
    assert "SLOs that are open" not in to_markdown(run)
