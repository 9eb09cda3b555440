"""What a report leads with: the models and what bounds them, next to what their machine does at most."""

from __future__ import annotations

import re

import pytest

from paceline.analysis.summary import RunSummary, summarize_run
from paceline.core.run import RunRecords
from paceline.report import vega
from paceline.report.charts import captioned
from paceline.report.document import Medium
from paceline.report.run import document as run_report
from paceline.report.run.columns import case_tables, placed_models
from paceline.report.run.document import document, machine_line, to_html, to_png
from paceline.report.run.lead import answer, cards, ceiling_cards, reached_chart
from support.insight_records import gpu_ceilings, inference, roofline_run
from support.micro_records import copy, gemm, micro_run
from support.records import literal_run, run_of, sample_run
from support.serving_records import rates_run

NEEDS_VEGA = pytest.mark.skipif(not vega.is_installed(), reason="needs vl-convert: pip install '.[charts]'")


@pytest.fixture(scope="module")
def mixed() -> RunSummary:
    """Products of matrices and models on one GPU."""
    return summarize_run(roofline_run(), gpu_ceilings())


def test_a_run_of_models_and_operations_is_about_the_models(mixed: RunSummary) -> None:
    assert answer(mixed) == (
        "All 8 cases measured; 4 model cases: 1 bound by compute, 1 nearest to compute, 1 bound by memory, "
        "1 bound by the host; 1 with warnings."
    )
    assert [card.label for card in cards(mixed)] == ["model-7", "model-5", "model-6", "model-4"]
    assert [table.title for table in case_tables(mixed)] == ["Training", "Inference", "Compute"]


def test_a_card_of_a_model_says_what_bounds_it(mixed: RunSummary) -> None:
    by_name = {card.label: card for card in cards(mixed)}
    assert by_name["model-4"].detail == "bound by memory: 80 % of 4 TB/s"
    assert by_name["model-4"].part == pytest.approx(0.8, abs=0.01)
    assert by_name["model-4"].what == "inference bf16"
    assert by_name["model-6"].detail.startswith("bound by the host: 3.8 % of 800 TFLOP/s")
    assert by_name["model-6"].has_warning


def test_the_ceilings_of_the_machine_stand_next_to_the_models(mixed: RunSummary) -> None:
    shown = [(card.label, f"{card.number} {card.unit}") for card in ceiling_cards(mixed)]
    assert shown == [("bf16 compute", "800 TFLOP/s"), ("fp32 compute", "50 TFLOP/s"), ("device memory", "4 TB/s")]
    page = to_html(roofline_run(), ceilings=gpu_ceilings())
    assert page.index('class="cards"') < page.index('class="ceilings"') < page.index('id="results-overview"')


def test_without_models_there_is_no_strip_of_ceilings() -> None:
    assert not list(ceiling_cards(summarize_run(micro_run())))
    assert not list(ceiling_cards(summarize_run(run_of([]))))


def test_the_table_of_models_says_what_bounds_each(mixed: RunSummary) -> None:
    inferred = case_tables(mixed)[1]
    column = next(column for column in inferred.columns if column.header == "Bound by")
    assert [cell.text for cell in column.cells] == ["memory, 80 %", "compute or memory, 43 %", "the host, 3.8 %"]
    assert column.cells[0].note == "bound by memory at 80 % of 4 TB/s"


def test_models_of_any_unit_share_one_scale(mixed: RunSummary) -> None:
    """A share of a ceiling is the one thing that images and tokens per second have in common."""
    chart = reached_chart(mixed.rows, placed_models(mixed))
    assert chart is not None
    panels = ["Bound by compute", "Nearest to compute", "Bound by memory", "Bound by the host"]
    assert [row["panel"] for row in chart.rows] == panels
    assert [row["value"] for row in chart.rows] == pytest.approx([61, 43, 80, 3.75], abs=1)
    widths = [float(found) for found in re.findall(r'<rect [^>]*width="([\d.]+)" height="15"', chart.svg)]
    assert widths[2] / widths[3] == pytest.approx(chart.rows[2]["value"] / chart.rows[3]["value"], rel=0.02)


def test_one_model_alone_is_not_drawn(mixed: RunSummary) -> None:
    assert reached_chart(mixed.rows[:5], placed_models(mixed)) is None


def test_nothing_leads_what_is_measured_in_another_unit() -> None:
    """Of one category only rates in one unit are ranked, however large another unit's numbers are."""
    moved = copy(1, "d2d", 4e15)
    odd = moved.model_copy(update={"case": moved.case.model_copy(update={"category": "compute"})})
    summary = summarize_run(run_of([gemm(0, "bf16", 7e14, None), odd, copy(2, "h2d", 5e10)]))
    assert [(one.category, one.row.label, one.of) for one in summary.highlights] == [
        ("compute", "gemm bf16", 1),
        ("memory", "copy h2d", 1),
    ]


def test_repetitions_of_one_case_are_no_contest() -> None:
    records = [gemm(index, "bf16", rate, None) for index, rate in enumerate((7e14, 9e14, 8e14))]
    repeated = [
        one.model_copy(update={"case": one.case.model_copy(update={"repeat": number, "parameters": {}})})
        for number, one in enumerate(records, 1)
    ]
    told = answer(summarize_run(run_of(repeated)))
    assert told == "All 3 cases measured; gemm bf16, measured 3 times: 699.1 TFLOP/s to 900.4 TFLOP/s."


def test_a_repeated_case_leads_by_its_middle_repetition() -> None:
    rates = {"bf16": (7e14, 9e14, 8e14), "fp16": (7.5e14, 7.6e14, 7.7e14)}
    records = [
        gemm(index, name, rate, None)
        for index, (name, rate) in enumerate((name, rate) for name in rates for rate in rates[name])
    ]
    repeated = [one.model_copy(update={"case": one.case.model_copy(update={"parameters": {}})}) for one in records]
    summary = summarize_run(run_of(repeated))
    (group,) = summary.groups
    assert (group.best.case.index, group.cases) == (2, 2), "the 800, and not the 900 that chance favoured"
    assert [(one.row.case.index, one.of) for one in summary.highlights] == [(2, 2)]


def test_cards_of_operations_are_titled_by_their_kind() -> None:
    labels = [card.label for card in cards(summarize_run(micro_run()))]
    assert labels == ["Compute", "Memory", "Communication"]


@pytest.mark.parametrize("run", [sample_run(), micro_run(), rates_run(), roofline_run(), literal_run()])
def test_titles_of_cards_are_short(run: RunRecords) -> None:
    shown = document(run, Medium.HTML).cards
    assert shown
    assert all(len(card.label) <= 24 for card in shown), [card.label for card in shown]


def test_the_title_of_a_generated_model_is_its_kind() -> None:
    name = "generated/transformer:layers=2,width=128,sequence=32"
    one, other = (inference(index, 1e6, 1e9, 1e-3) for index in range(2))
    made = one.model_copy(
        update={
            "subject": one.subject.model_copy(update={"model": name}),
            "case": one.case.model_copy(update={"title": f"{name} bf16"}),
        }
    )
    card = next(iter(cards(summarize_run(run_of([made, other])))))
    assert (card.label, card.what) == ("generated/transformer", "inference bf16")


def test_a_picture_says_what_it_shows_of_which_machine_and_when() -> None:
    run = literal_run()
    summary = summarize_run(run)
    about = machine_line(summary)
    assert about.endswith(" · node-07 · 2026-03-14 09:26 UTC")
    (chart, *_) = document(run, Medium.HTML).charts
    drawn = captioned([chart], run.run.name, about).svg
    assert drawn.index(">node-check<") < drawn.index(about) < drawn.index("Throughput, images/s")


@NEEDS_VEGA
def test_pictures_of_single_charts_have_their_caption() -> None:
    (first, *_) = run_report.chart_files(literal_run())
    assert first.title == "node-check: Result of each case with its interval"
    assert to_png(roofline_run(), ceilings=gpu_ceilings()).startswith(b"\x89PNG")


def test_colours_of_bars_have_a_legend() -> None:
    charts = document(sample_run(), Medium.HTML).charts
    drawn = " ".join(chart.svg for chart in charts)
    assert "higher is better; orange: with warnings" in drawn
