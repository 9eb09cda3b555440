"""A comparison in every format: the answer first, the same figures everywhere, and text that stays text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from paceline.analysis.compare.sides import compare
from paceline.analysis.compare.significance import Ratio
from paceline.analysis.compare.verdicts import (
    Broken,
    Comparison,
    ComparisonRow,
    Limit,
    Matched,
    Mean,
    Pairing,
    Side,
    undecided,
    violations,
)
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from paceline.core.stats import Interval
from paceline.core.uncertainty import Level
from paceline.report.charts import COLUMN, draw_png, text_width
from paceline.report.compare import document as pages
from paceline.report.compare import words
from paceline.report.compare.document import COLUMNS, csv_text, forest, json_text
from paceline.report.compare.words import answer, undecided_words, verdict_words, violation_words
from paceline.report.render import html as render_html
from paceline.report.render import markdown as render_markdown
from paceline.report.render import terminal
from support.compare_records import again, before_and_after, renamed, side
from support.records import HOSTILE, case, hostile_run, record, run_of


def compared(one: RunRecords, other: RunRecords) -> Comparison:
    return compare([Side("main", again(one)), Side("my-branch", again(other))])


@pytest.fixture(scope="module")
def planted() -> Comparison:
    before, after = before_and_after()
    return compare([Side("main", before), Side("my-branch", after)])


def printed(comparison: Comparison) -> str:
    file = io.StringIO()
    terminal.show(pages.document(comparison), Console(file=file, width=100, highlight=False))
    return file.getvalue()


def test_the_answer_leads(planted: Comparison) -> None:
    told = answer(planted.pairings[0])
    assert told.startswith("1 of 5 worse (train bert-large bf16, slower by 4.")
    assert "; 1 better (train vit-base bf16, faster by " in told
    assert "; in 3 any difference larger than 0." in told
    assert printed(planted).startswith("1 of 5 worse")


def test_no_change_is_said_plainly() -> None:
    same = compare([Side(name, tuple(side(10 * n + seed, run_id=f"{name}{n}") for n in range(3)))
                    for seed, name in ((1, "a"), (2, "b"))])  # fmt: skip
    assert answer(same.pairings[0]).startswith("In all 6 any difference larger than 0.")


def test_the_console_fits_100_columns_and_names_what_matters(planted: Comparison) -> None:
    text = printed(planted)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "torch differs: 2.9.1 in the reference, 2.10.0 in the new" in text
    assert "T: throttled in 0 of the reference's and 1 of the new figures" in text
    assert "train detr bf16: not in my-branch, where it ended as out-of-memory" in text
    assert "6 cases matched: the same benchmark, parameters and target." in text
    assert "its interval comes from how sessions differ" in " ".join(text.split())


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
    assert "train bert-large bf16: slower by 4." in chart.description
    assert len(chart.spec["data"]["values"]) == 5
    assert draw_png(chart).startswith(b"\x89PNG")


def test_long_words_beside_the_ratios_fit_into_the_column() -> None:
    rows = (
        literal_row((0.753, 1.498), label="inference wide_resnet50_2 bf16 batch 32"),
        literal_row((1.3, 1.4), label="a"),
    )
    empty = Side("main", ())
    chart = forest(Pairing(empty, Side("new", ()), Matched((), (), ()), (), (), rows=rows, means=()))
    assert chart is not None
    values = chart.spec["data"]["values"]
    left, right = (max(text_width(value[key]) for value in values) for key in ("case", "text"))
    assert "cannot be decided: 24.7 % slower to 49.8 % faster" in [value["text"] for value in values]
    assert left + chart.spec["width"] + 10 + right < COLUMN


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((1e-19, 8.4e18), "more than 1,000,000x slower to more than 1,000,000x faster"),
        ((0.0, 5000.0), "more than 1,000,000x slower to 5,000x faster"),
        ((0.4, 5.0), "2.5x slower to 5x faster"),
    ],
)
def test_factors_without_meaning_are_not_spelt_out(interval: tuple[float, float], words: str) -> None:
    assert verdict_words(literal_row(interval)) == f"cannot be decided: {words}"


def test_an_end_too_small_for_a_number_is_still_told() -> None:
    row = literal_row((0.0, 0.25), is_significant=True)
    assert verdict_words(row) == "4x to more than 1,000,000x slower"


def test_a_wide_range_of_ratios_is_drawn_by_factors() -> None:
    chart = forest(compared(side(1, run_id="a"), side(2, [0.1, 1, 1, 1, 1, 10], run_id="b")).pairings[0])
    assert chart is not None
    assert chart.spec["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"


def test_an_interval_without_meaning_leaves_the_others_a_scale() -> None:
    pairing = compared(side(1, run_id="a"), side(2, run_id="b")).pairings[0]
    chart = forest(replace(pairing, rows=[literal_row((1e-300, 1e300)), literal_row((0.9, 1.1))]))
    assert chart is not None
    low, high = chart.spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert 1e-7 < low < 1e-6 < 1e6 < high < 1e7


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
    assert slower.startswith("throughput<0.97: train bert-large bf16: throughput slower by 4.9 to 5.")
    assert "(ratio 0.950, 0.9" in slower
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


def one_row(better: Better, unit: str, before: Sequence[float], after: Sequence[float]) -> Comparison:
    """A metric of one case in runs of one session, a value each."""
    metric = Metric(name="score", unit=unit, better=better)

    def runs(name: str, values: Sequence[float]) -> tuple[RunRecords, ...]:
        made = (
            run_of([record(case(0, "train", "x", model="x"), [Measurement.of_value(metric, one)])]) for one in values
        )
        return tuple(renamed(run, f"{name}{number}") for number, run in enumerate(made))

    return compare([Side("main", runs("a", before)), Side("new", runs("b", after))], metrics=["score"])


THREE = (99.0, 100.0, 101.0)


@pytest.mark.parametrize(
    ("better", "unit", "before", "after", "sentence", "remedy"),
    [
        (Better.HIGHER, "images/s", THREE, (119.0, 120.0, 121.0), "faster by 17.5 to 22.6 %", ""),
        (Better.LOWER, "s", THREE, (119.0, 120.0, 121.0), "slower by 14.9 to 18.4 %", ""),
        (Better.HIGHER, "images/s", THREE, (299.0, 300.0, 301.0), "2.93x to 3.07x faster", ""),
        (Better.LOWER, "B", THREE, (119.0, 120.0, 121.0), "higher by 17.5 to 22.6 %, worse", ""),
        (Better.NEITHER, "", THREE, (119.0, 120.0, 121.0), "higher by 17.5 to 22.6 %", ""),
        (Better.HIGHER, "images/s", THREE, THREE, "any difference larger than 2.3 % is ruled out", ""),
        (
            *(Better.HIGHER, "images/s", (90.0, 100.0, 110.0), (95.0, 100.0, 107.0)),
            "cannot be decided: 18.0 % slower to 24.1 % faster",
            "about 24 runs of each side would show a difference of 5 %",
        ),
        (
            *(Better.HIGHER, "images/s", (100.0,), (300.0,)),
            "cannot be decided from one run each",
            "repeat with at least 3 runs of each side within an hour",
        ),
        (Better.HIGHER, "images/s", (100.0,), (0.0,), "no ratio: a value is zero, negative or not a number", ""),
    ],
)
def test_every_verdict_has_one_of_few_forms(
    better: Better, unit: str, before: Sequence[float], after: Sequence[float], sentence: str, remedy: str
) -> None:
    (row,) = one_row(better, unit, before, after).rows
    assert (verdict_words(row), words.remedy(row)) == (sentence, remedy)


def literal_row(
    interval: tuple[float, float] | None,
    *,
    label: str = "train x",
    published: tuple[bool, bool] = (False, False),
    units: int = 1,
    is_significant: bool = False,
) -> ComparisonRow:
    """A rate that is a third higher on the new side."""
    ends = Interval(low=interval[0], high=interval[1], confidence=0.95) if interval else None
    return ComparisonRow(
        label=label,
        category="training",
        metric=Metric(name="throughput", unit="images/s", better=Better.HIGHER),
        scope="",
        at={},
        ratio=Ratio(
            *(90.0, 120.0, 120.0 / 90.0, ends, 0.02 if ends else None, 2.0, 0.2 if ends else None),
            *(Level.SESSION, (units, units), (units, units), 0.0009),
        ),
        parts=(units, units),
        samples=(units, units),
        warnings=((), ()),
        is_significant=is_significant,
        published=published,
    )


@pytest.mark.parametrize(
    ("row", "is_paired", "sentence", "remedy"),
    [
        (literal_row(None, units=2), True, "cannot be decided from 2 rounds", "measure more rounds"),
        (
            *(literal_row((0.9, 1.1)), True, "cannot be decided: 10.0 % slower to 10.0 % faster"),
            "about 5 rounds of each side would show a difference of 5 %",
        ),
        (
            *(literal_row(None, published=(True, True)), False, "cannot be decided from one published figure each"),
            "measure both sides, as published figures come without their scatter",
        ),
        (
            *(literal_row(None, published=(True, False)), False, "cannot be decided from one run each"),
            "measure the published side too, or yours in at least 3 sessions",
        ),
        (
            *(literal_row((0.9, 1.1), published=(True, False)), False),
            "cannot be decided: 10.0 % slower to 10.0 % faster",
            "measure the published side too: about 5 sessions of each would show a difference of 5 %",
        ),
    ],
)
def test_rounds_and_published_figures_have_remedies_of_their_own(
    row: ComparisonRow, is_paired: bool, sentence: str, remedy: str
) -> None:
    assert (verdict_words(row), words.remedy(row, is_paired=is_paired)) == (sentence, remedy)


def test_the_answer_of_many_cases_has_a_part_for_each_verdict() -> None:
    rows = (
        literal_row((1.3, 1.4), label="a", is_significant=True),
        literal_row((1.2, 1.5), label="b", is_significant=True),
        literal_row((0.99, 1.02), label="c"),
        literal_row(None, label="d"),
    )
    mean = Mean("", 4, 1.1, Interval(low=0.98, high=1.03, confidence=0.95))
    empty = Side("main", ())
    broken = (Broken("e", "new", True, "out-of-memory"),)
    pairing = Pairing(empty, Side("new", ()), Matched((), (), ()), (), broken, rows=rows, means=(mean,))
    assert answer(pairing) == (
        "2 of 4 better (most of all a, faster by 30.0 to 40.0 %); in 1 any difference larger than 2.0 % is ruled out; "
        "1 cannot be decided from one run each: repeat with at least 3 runs of each side within an hour; "
        "1 succeeded on one side only; any difference larger than 3.0 % ruled out on the geometric mean "
        "(0.980 to 1.030)."
    )
    wide = replace(
        pairing, rows=rows[2:], broken=(), means=(Mean("", 2, 1.1, Interval(low=0.9, high=9.0, confidence=0.95)),)
    )
    assert answer(wide).endswith("; not decided on the geometric mean (0.900 to 9.000).")
    unsure = replace(pairing, rows=rows[2:], broken=(), means=(Mean("", 2, 1.1, None),))
    assert answer(unsure).endswith("; 10.0 % better on the geometric mean, which is not decided.")
    level = replace(unsure, means=(Mean("", 2, 1.0004, None),))
    assert answer(level).endswith("; equal on the geometric mean, which is not decided.")


def test_sides_in_one_session_each_are_asked_to_share_one() -> None:
    sides = [
        Side(name, tuple(RunRecords(run=one.run.model_copy(update={"session": name}), records=one.records)
                         for one in again(side(seed, run_id=name))))
        for seed, name in ((1, "monday"), (2, "tuesday"))
    ]  # fmt: skip
    comparison = compare(sides)
    row = next(iter(comparison.rows))
    assert verdict_words(row) == "cannot be decided from one session each"
    assert words.remedy(row) == "repeat with both sides in one session, or with at least 3 sessions of each"
    assert "may be a shift of the session as well as a change" in printed(comparison)


def test_a_line_of_an_open_gate_says_what_would_close_it() -> None:
    comparison = one_row(Better.HIGHER, "images/s", THREE, (98.0, 99.0, 100.0))
    (one,) = undecided(comparison, [Limit.parse("score<0.98")])
    assert undecided_words(one) == (
        "score<0.98: train x: score any difference larger than 3.4 % is ruled out: its interval 0.967 to 1.013 "
        "reaches beyond the bound: repeat with more runs [new against main]"
    )
