"""A comparison in every format: the answer first, the same figures everywhere, and text that stays text."""

from __future__ import annotations

import csv
import io
import json

import pytest
from rich.console import Console

from paceline.analysis.compare.matching import Side
from paceline.analysis.compare.verdicts import Comparison, Limit, compare, violations
from paceline.core.run import RunRecords
from paceline.report.charts import draw_png
from paceline.report.compare import document as pages
from paceline.report.compare.document import COLUMNS, answer, csv_text, forest, json_text, violation_words
from paceline.report.render import html as render_html
from paceline.report.render import markdown as render_markdown
from paceline.report.render import terminal
from support.compare_records import before_and_after, renamed, side
from support.records import HOSTILE, hostile_run


def compared(one: RunRecords, other: RunRecords) -> Comparison:
    return compare([Side("main", (one,)), Side("my-branch", (other,))])


@pytest.fixture(scope="module")
def planted() -> Comparison:
    return compared(*before_and_after())


def printed(comparison: Comparison) -> str:
    file = io.StringIO()
    terminal.show(pages.document(comparison), Console(file=file, width=100, highlight=False))
    return file.getvalue()


def test_the_answer_leads(planted: Comparison) -> None:
    told = answer(planted.pairings[0])
    assert told.startswith("1 of 5 worse (train bert-large bf16, 5.1 % slower); 1 better (train vit-base bf16, ")
    assert printed(planted).startswith("1 of 5 worse")


def test_no_change_is_said_plainly() -> None:
    same = compared(side(1, run_id="a"), side(2, run_id="b"))
    assert answer(same.pairings[0]).startswith("No significant change in any of 6 cases; ")


def test_the_console_fits_100_columns_and_names_what_matters(planted: Comparison) -> None:
    text = printed(planted)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "torch differs: 2.9.1 in the reference, 2.10.0 in the new" in text
    assert "T: throttled in 0 of the reference's and 1 of the new figures" in text
    assert "train detr bf16: not in my-branch, where it ended as out-of-memory" in text
    assert "6 cases matched: the same benchmark, parameters and target." in text
    assert "how runs differ among themselves is not in it" in " ".join(text.split())


def test_a_terminal_shows_what_changed_most_and_says_how_to_see_the_rest(
    planted: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pages.MOST_ROWS, False, 2)
    text = printed(planted)
    assert "train bert-large bf16" in text
    assert "3 more rows, all that changed are here: `--all` shows them, `--csv` and `--json` have them." in text
    monkeypatch.setitem(pages.MOST_ROWS, False, 1)
    assert "4 more rows, 1 of them changed, but by less: `--all` shows them" in printed(planted)
    file = io.StringIO()
    terminal.show(pages.document(planted, every=True), Console(file=file, width=100, highlight=False))
    assert "more rows" not in file.getvalue()


def test_the_chart_has_every_ratio_in_words(planted: Comparison) -> None:
    chart = forest(planted.pairings[0])
    assert chart is not None
    assert "train bert-large bf16: 5.1 % slower" in chart.description
    assert len(chart.spec["data"]["values"]) == 5
    assert draw_png(chart).startswith(b"\x89PNG")


def test_a_wide_range_of_ratios_is_drawn_by_factors() -> None:
    chart = forest(compared(side(1, run_id="a"), side(2, [0.1, 1, 1, 1, 1, 10], run_id="b")).pairings[0])
    assert chart is not None
    assert chart.spec["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"


def test_the_page_holds_answer_chart_table_warning_and_environments(planted: Comparison) -> None:
    page = render_html.render(pages.document(planted, full=True))
    places = (
        [page.index(word) for word in ('id="answer"', '<svg class="chart"', "<table", "Warnings", "Environments")]
        if '<svg class="chart"' in page
        else []
    )
    assert places == sorted(places)
    assert "http" not in page.replace("http-equiv", "")


def test_files_for_programs_have_the_same_figures(planted: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(planted))))
    assert tuple(rows[0]) == COLUMNS
    document = json.loads(json_text(planted, violations(planted, [Limit.parse("throughput<0.97")])))
    told = document["comparisons"][0]["rows"]
    assert [float(row["ratio"]) for row in rows] == [row["ratio"] for row in told]
    assert [row["verdict"] for row in rows].count("no significant change") == 3
    assert [one["case"] for one in document["violations"]] == ["train bert-large bf16", "train detr bf16"]


def test_a_violation_is_one_clear_line(planted: Comparison) -> None:
    slower, gone = (violation_words(one) for one in violations(planted, [Limit.parse("throughput<0.97")]))
    assert slower.startswith("throughput<0.97: train bert-large bf16: throughput ratio 0.949, 0.9")
    assert "5.1 % slower" in slower
    assert gone.startswith("train detr bf16: did not succeed any more (out-of-memory")


def test_hostile_text_stays_text() -> None:
    hostile = compared(hostile_run(), renamed(hostile_run(), "other"))
    page = render_html.render(pages.document(hostile, full=True))
    assert "<script" not in page
    assert "\x1b" not in printed(hostile)
    assert "\x1b" not in render_markdown.render(pages.document(hostile, full=True))
    for row in csv.DictReader(io.StringIO(csv_text(hostile))):
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row.values() if cell)
    assert HOSTILE in json.loads(json_text(hostile))["comparisons"][0]["rows"][0]["case"]
