"""What a history says: the sentence, the table, the chart, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from paceline.analysis.trend.series import History, history
from paceline.core.stats import Interval
from paceline.report import trend
from paceline.report.charts import Chart, draw_png, draw_svg
from paceline.report.document import Document, Section
from paceline.report.render import html as render_html
from paceline.report.render import terminal
from paceline.report.trend import PLAIN_BARS, answer, chart_of, sparkline
from support.records import HOSTILE
from support.trend_records import four_series, levels, runs_of


@pytest.fixture(scope="module")
def told() -> History:
    return history(four_series(), "throughput")


def shown(page: Document) -> str:
    file = io.StringIO()
    terminal.show(page, Console(file=file, width=100, highlight=False))
    return file.getvalue()


def test_the_sentence_names_what_got_worse_the_most_and_since_when(told: History) -> None:
    sentence = answer(told)
    assert sentence.startswith("2 of 8 series of throughput over 60 runs got worse; the most: train vit fp32: ")
    assert "% lower (" in sentence
    assert "since run run-0" in sentence


def test_the_sentence_of_one_series_and_of_none_that_got_worse() -> None:
    one = history(runs_of({"resnet50": levels(30, (20, 1.08))}), "step_time")
    assert answer(one).startswith("train resnet50: step time 8.")
    assert "since run run-020 (commit " in answer(one)
    steady = history(runs_of({"resnet50": levels(30)}), "step_time")
    assert answer(steady) == "Nothing got worse in step time over 30 runs."
    better = history(runs_of({"a": levels(30, (20, 0.9)), "b": levels(30, seed=3)}), "step_time")
    assert answer(better) == "Nothing got worse in 2 series of step time over 30 runs: 1 improved."
    few = history(runs_of({"resnet50": levels(3)}), "step_time")
    assert answer(few).startswith("Too few runs to detect a change of step time")


def test_the_terminal_has_a_line_of_text_for_each_series_and_fits_100_columns(told: History) -> None:
    text = shown(trend.text_document(told, ascii_only=True))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert text.isascii()
    assert "2 x NVIDIA H200 with AMD EPYC 9654 96-Core Processor" in text
    assert "2 x NVIDIA H100 with AMD EPYC 9654 96-Core Processor" in text
    assert "Each machine has series of its own" in text
    assert "Regression, step: " in text and "Regression, drift over " in text and "Improvement, step: " in text
    assert "torch 2.9.1 -> 2.10.0" in text
    rows = [line for line in text.splitlines() if line.startswith("train ") and "|" in line]
    assert len(rows) == 8


def test_a_line_of_text_rises_where_the_series_does_and_noise_leaves_it_flat() -> None:
    (series,) = history(runs_of({"a": levels(60, (40, 1.2))}), "step_time").series
    line = sparkline(series, PLAIN_BARS)
    assert len(line) == 24
    assert set(line[:14]) <= {"_", "."} and set(line[14:]) <= {"'", '"'}
    (steady,) = history(runs_of({"a": levels(60)}), "step_time").series
    assert not {"_", '"'} & set(sparkline(steady, PLAIN_BARS))
    (constant,) = history(runs_of({"a": [0.1, 0.1]}, samples=2), "step_time").series
    assert len(sparkline(constant)) == 2


def test_the_page_leads_with_the_charts_of_what_changed_and_ends_with_the_warnings(told: History) -> None:
    page = trend.document(told)
    assert page.answer == answer(told)
    charted = [block for block in page.blocks if isinstance(next(iter(block.sections[0].items), None), Chart)]
    assert [block.answer.partition(":")[0] for block in charted[:3]] == [
        "train resnet50 fp16",
        "train vit fp32",
        "train bert-large bf16",
    ]
    assert len(charted) == 8
    assert page.blocks[-1].answer == "How far to trust it"
    text = render_html.render(page)
    assert text.count('class="chart" role="img"') == 8
    assert "http" not in text.replace("http-equiv", "")


def words_in(spec: Any) -> list[str]:
    if isinstance(spec, dict):
        own = [spec["text"]] if isinstance(spec.get("text"), str) else []
        return own + [word for value in spec.values() for word in words_in(value)]
    return [word for value in spec for word in words_in(value)] if isinstance(spec, list) else []


def test_changes_are_marked_by_shape_and_words(told: History) -> None:
    chart = chart_of(told.series[0])
    layers = chart.spec["layer"]
    shapes = [layer["mark"].get("shape") for layer in layers if layer["mark"]["type"] == "point"]
    assert "triangle-down" in shapes
    assert any(word.startswith("worse −") for word in words_in(layers))
    assert "train resnet50 fp16" in chart.title
    assert "worse" in chart.description
    assert 'class="chart" role="img"' in draw_svg(chart, "one")


def test_all_charts_are_one_picture(told: History) -> None:
    drawn = draw_png(trend.picture(told), scale=0.5)
    assert drawn.startswith(b"\x89PNG")


def test_json_has_series_points_and_changes(told: History) -> None:
    document = json.loads(trend.to_json(told))
    assert (document["metric"], document["runs"], document["worse"]) == ("throughput", 60, 2)
    first = document["series"][0]
    assert first["is_worse"] and first["better"] == "higher" and len(first["points"]) == 50
    (change,) = first["changes"]
    assert change["verdict"] == "regression"
    assert change["low"] < change["factor"] < change["high"] < 1
    assert change["first_run"]["run"] == "run-038"
    assert change["first_run"]["commit"]
    assert {"name": "torch", "before": "2.9.1", "after": "2.10.0"} in change["changed"]
    assert first["points"][0].keys() >= {"run", "started_at", "value", "low", "high", "commit", "environment", "level"}


def test_csv_has_a_row_for_each_run_of_each_series(told: History) -> None:
    rows = list(csv.DictReader(io.StringIO(trend.to_csv(told))))
    assert len(rows) == 4 * 60
    begun = {(row["case"], row["change"]): row["run"] for row in rows if row["change"]}
    assert begun["train resnet50 fp16", "regression"] == "run-038"
    assert begun["train bert-large bf16", "regression"] == "run-020"
    assert begun["train bert-large bf16", "improvement"] == "run-040"
    first = [row for row in rows if row["case"] == "train resnet50 fp16"][:50]
    assert [row["segment"] for row in first] == ["0"] * 38 + ["1"] * 12
    assert float(first[0]["low"]) < float(first[0]["value"]) < float(first[0]["high"])


def test_hostile_names_are_text_everywhere() -> None:
    runs = runs_of({HOSTILE: levels(30, (15, 1.1))}, {0: {"cpu": {"model": HOSTILE}, "kernel": HOSTILE}})
    told = history(runs, "step_time")
    text = render_html.render(trend.document(told))
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "\x1b[31m" not in shown(trend.text_document(told))
    assert draw_png(trend.picture(told), scale=0.2).startswith(b"\x89PNG")
    json.loads(trend.to_json(told))


def test_a_skewed_interval_of_a_run_is_shown_from_low_to_high() -> None:
    series = history(runs_of({"resnet50": levels(30, (20, 1.08))}), "step_time").series[0]
    first = series.points[20]
    skewed = replace(first, value=0.1, interval=Interval(low=0.095, high=0.16, confidence=0.95))
    points = (*series.points[:20], skewed, *series.points[21:])
    text = render_text(trend._runs_around(replace(series, points=points)))
    assert "95 to 160 ms" in text
    assert "95 to 160 ms" not in render_text(trend._runs_around(series))


def render_text(section: Section) -> str:
    return " ".join(cell.text for table in section.items for column in table.columns for cell in column.cells)
