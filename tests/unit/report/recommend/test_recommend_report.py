"""A recommendation and a leaderboard, as people and programs read them."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from paceline.analysis.cost import Prices, read_price
from paceline.analysis.leaderboard import boards
from paceline.analysis.recommend.choice import Recommendation, recommend
from paceline.analysis.recommend.evidence import Evidence, Question, evidence, read_bounds
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from paceline.report import charts
from paceline.report.document import Document
from paceline.report.recommend import document as report
from paceline.report.recommend import leaderboard
from paceline.report.recommend.words import headline, what_if, why
from paceline.report.render import html as render_html
from paceline.report.render import markdown as render_markdown
from paceline.report.render import terminal
from paceline.report.text import show_usd
from support.compare_records import again
from support.records import STEP_TIME, hostile_run, literal_run, sample_run, throughput
from support.serving_records import capacity_run, rates_run


def found(source: RunRecords, *slo: str, **more: object) -> Recommendation:
    (one,) = evidence([source], Prices({}))
    return recommend(one, Question(bounds=read_bounds(slo), **more))  # type: ignore[arg-type]


def shown(page: Document, width: int = 100) -> str:
    file = io.StringIO()
    terminal.show(page, Console(file=file, width=width, highlight=False))
    return file.getvalue()


def test_the_answer_names_the_choice_its_figures_and_the_promise() -> None:
    told = headline(found(rates_run(), "p99=50ms"))
    assert told.startswith("Take onnxruntime: 29")
    assert "requests/s" in told and "meets p99 ≤ 50 ms with 95 % confidence" in told


def test_the_reasons_are_figures() -> None:
    lines = why(found(rates_run(), "p99=50ms"))
    assert any(re.search(r"p99 is [\d.]+ ms, between [\d.]+ ms and [\d.]+ ms", line) for line in lines)
    assert any("not asked for more than 300/s" in line for line in lines)


def test_it_says_what_would_change_the_choice() -> None:
    lines = what_if(found(rates_run(), "p99=50ms"))
    assert any(line.startswith("Next is torch") and "would win if it did" in line for line in lines)
    assert any(line.startswith("With p99 below") for line in lines)


def test_where_nothing_qualifies_it_says_so_and_names_the_nearest() -> None:
    one = found(rates_run(), "p99=1ms")
    told = headline(one)
    assert told.startswith("No configuration meets p99 ≤ 1 ms; the nearest is onnxruntime at 50/s: p99 is")
    assert "% above 1 ms" in told
    assert why(one) == []
    assert any(line.startswith("With p99 ≤") for line in what_if(one))


def test_a_fleet_is_counted_and_paid_for() -> None:
    one = found(rates_run(), "p99=50ms", rate=1000.0, by="cost")
    assert headline(one).startswith("Take 4 replicas of onnxruntime: 2.12 USD/h together")
    assert any("4 replicas answer 1,000 requests/s" in line for line in why(one))
    table = shown(report.document([one], 5))
    assert "Replicas" in table and "USD/h" in table


def test_a_searched_rate_says_that_it_was_searched() -> None:
    one = found(capacity_run())
    assert any("a search found the largest rate that meets p99 ≤ 50 ms" in line for line in why(one))
    assert "as in the run's own SLO" in shown(report.document([one], 5))


@pytest.mark.parametrize("source", [rates_run, capacity_run, literal_run])
def test_the_console_fits(source: object) -> None:
    one = found(source())  # type: ignore[operator]
    text = shown(report.document([one], 5))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert text.startswith("Take ")


def test_every_work_has_its_own_answer() -> None:
    every = [recommend(one, Question(bounds=read_bounds(()))) for one in evidence([sample_run()], Prices({}))]
    text = shown(report.document(every, 5))
    assert text.startswith("5 of 7 pieces of work have a configuration that can be recommended.")
    assert "Left out" in text and "out-of-memory" in text


def test_co2_is_shown_only_where_it_was_asked_for() -> None:
    (one,) = evidence([sample_run()], Prices({}), text="train resnet50")
    plain = recommend(one, Question(by="energy", bounds=read_bounds(())))
    with_carbon = recommend(one, Question(by="energy", carbon=400.0, bounds=read_bounds(())))
    assert "CO2" not in shown(report.document([plain], 5))
    assert "g CO2" in shown(report.document([with_carbon], 5), 160)
    assert "400 g/kWh, as you said" in shown(report.document([with_carbon], 5))


def test_markdown_keeps_commands_and_escapes_the_rest() -> None:
    text = render_markdown.render(report.document([found(rates_run(), "p99=50ms")], 5))
    assert "`paceline run serve`" in text
    assert "| \\# | Configuration |" in text


def test_json_has_every_figure_with_its_ends() -> None:
    (document,) = json.loads(report.to_json([found(rates_run(), "p99=50ms")], 5))
    best = document["recommended"]
    assert best["keeps"] == "sure" and best["choices"]["server.engine"] == "onnxruntime"
    figures = best["figures"]
    assert figures["p99"]["low"] <= figures["p99"]["value"] <= figures["p99"]["high"] <= 0.05
    assert figures["usd_per_1000"]["value"] > 0
    assert best["price"]["usd_per_hour"] == pytest.approx(0.53)
    assert document["slo"] == {"p99": 0.05, "error_rate": 0.01}


def test_what_may_be_without_end_is_no_number_for_programs() -> None:
    one = found(rates_run(), "p99=50ms")
    unsure = [replace(point, throughput=replace(point.throughput, low=-1.0)) for point in one.points]
    told = recommend(Evidence("serve m", True, points=unsure), one.question)
    (document,) = json.loads(report.to_json([told], 5))
    assert document["recommended"]["figures"]["usd_per_1000"]["high"] is None
    assert "inf" not in report.to_csv([told])
    assert shown(report.document([told], 5)).startswith("Take onnxruntime")


def test_csv_has_every_point_and_the_rank_of_those_that_are_options() -> None:
    one = found(rates_run(), "p99=50ms")
    rows = list(csv.DictReader(io.StringIO(report.to_csv([one]))))
    assert len(rows) == len(one.points) == 6
    assert sorted(row["rank"] for row in rows if row["rank"]) == ["1", "2"]
    assert {row["keeps"] for row in rows} == {"sure", "broken"}


def test_the_chart_marks_the_choice_in_shape_and_in_words() -> None:
    page = report.document([found(rates_run(), "p99=50ms")], 5)
    chart = next(iter(page.charts), None)
    assert chart is not None
    assert "chosen" in chart.description
    drawn = charts.draw_svg(chart, "c")
    assert "chosen, 0.000" in drawn and "p99 ≤ 50 ms" in drawn
    assert charts.draw_png(chart).startswith(b"\x89PNG")


def test_labels_of_the_chart_keep_apart() -> None:
    one = found(capacity_run())
    chart = next(iter(report.document([one], 5).charts), None)
    assert chart is not None
    assert charts.draw_svg(chart, "c").count("chosen") == 2  # its label, and in its description


def test_the_page_leads_with_the_answer_and_needs_nothing_else() -> None:
    page = render_html.render(report.document([found(rates_run(), "p99=50ms")], 5))
    assert page.index('id="answer"') < page.index('role="img"') < page.index("<table")
    assert not re.search(r"""(?:src|href)=["'](?!#)""", page)


def test_hostile_names_stay_text() -> None:
    every = [recommend(one, Question(bounds=read_bounds(()))) for one in evidence([hostile_run()], Prices({}))]
    page = render_html.render(report.document(every, 5))
    ranked = render_html.render(leaderboard.document(boards([hostile_run()], Prices({})), 10))
    assert "<script>" not in page + ranked
    text = shown(report.document(every, 5)) + shown(leaderboard.document(boards([hostile_run()], Prices({})), 10))
    assert "\x1b[31m" not in text


def test_a_board_says_who_leads_and_by_how_much() -> None:
    (board,) = boards(again(literal_run()), Prices({}), text="resnet50")
    assert leaderboard.headline(board) == "fp16: 320 images/s, 100 % ahead of fp32."
    (lower,) = boards(again(literal_run()), Prices({}), metric="step_time")
    assert leaderboard.headline(lower) == "fp16: 100 ms, 50.0 % below fp32."
    (once,) = boards([literal_run()], Prices({}), text="resnet50")
    assert leaderboard.headline(once) == (
        "fp16: 320 images/s; that it is ahead of fp32 cannot be decided from one run each: "
        "repeat with at least 3 runs of each."
    )
    level = literal_run()
    level.records[1].measurements = level.records[0].measurements
    (tied,) = boards(again(level), Prices({}), text="resnet50")
    assert leaderboard.headline(tied) == "fp16: 320 images/s; fp32 cannot be distinguished from it."
    far = literal_run()
    times = Measurement.of_samples(STEP_TIME, [80.0] * 20)
    far.records[1].measurements = [Measurement.of_rate(throughput("images/s"), 32, times), times]
    (board,) = boards(again(far), Prices({}), text="resnet50")
    assert leaderboard.headline(board) == "fp16: 320 images/s, 800 times as much as fp32."


def test_boards_fit_the_console_and_show_what_is_known() -> None:
    prices = Prices({}, (read_price("4 USD/h", {}),))
    text = shown(leaderboard.document(boards([sample_run()], prices), 10))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "Images per USD" in text and "Images/s per W" in text and "drifting" in text


def test_boards_for_programs() -> None:
    found = boards([sample_run()], Prices({}))
    documents = json.loads(leaderboard.to_json(found, 10))
    assert [len(one["entries"]) for one in documents] == [2, 2, 1, 1, 1]
    rows = list(csv.DictReader(io.StringIO(leaderboard.to_csv(found))))
    assert len(rows) == 7
    assert json.loads(rows[0]["software"])["torch"] == "2.9.1"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0000831, "0.0000831"), (0.000163, "0.000163"), (2.5, "2.5"), (0.0, "0"), (12345.6, "12,346")]
)
def test_dollars_are_never_powers_of_ten(value: float, text: str) -> None:
    assert show_usd(value) == text
