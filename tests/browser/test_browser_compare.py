"""The page of a comparison in a real browser: offline, quiet, readable in both schemes and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.analysis.compare.sides import compare
from paceline.analysis.compare.verdicts import Side
from paceline.report.compare import document as pages
from paceline.report.render import html as render_html
from support.browsing import watched
from support.compare_records import before_and_after, renamed, side
from support.records import hostile_run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    before, after = before_and_after()
    other = side(3, [1, 1, 0.2, 1, 1, 4], run_id="20260316-090000-cccc")
    sides = [Side("main", before), Side("my-branch", after), Side("other", (other,))]
    path = tmp_path_factory.mktemp("compare") / "compare.html"
    path.write_text(render_html.render(pages.document(compare(sides), full=True)), encoding="utf-8")
    return path


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Any, report: Path) -> Iterator[Any]:
    yield from watched(browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=request.param), report)


def test_the_answer_is_seen_at_once(page: Any) -> None:
    answer = page.locator("#answer")
    assert answer.inner_text().replace("\u00a0", " ").startswith("1 of 5 worse (train bert-large bf16, slower by 4.")
    assert answer.bounding_box()["y"] < 300


def test_every_side_has_its_chart_with_words(page: Any) -> None:
    charts = page.locator("svg.chart")
    assert charts.count() == 2
    for place in range(2):
        assert charts.nth(place).is_visible()
        assert "is ruled out" in charts.nth(place).locator("desc").text_content()


OVERLAPS = """() => [...document.querySelectorAll("svg.chart")].flatMap((chart) => {
  const boxes = [...chart.querySelectorAll("text")]
    .filter((text) => text.textContent.trim() && text.getBBox().width)
    .map((text) => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([name, a], place) => boxes.slice(place + 1)
    .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
    .map(([other]) => `${name} / ${other}`));
})"""


def test_words_in_charts_do_not_cover_each_other(page: Any) -> None:
    assert page.evaluate(OVERLAPS) == []


def test_points_that_got_worse_differ_in_colour_from_the_others(page: Any) -> None:
    colours = page.evaluate(
        """() => ["#b45f06", "#2a66c8", "#5b6675"].map((colour) => {
          const point = document.querySelector(`svg.chart path[fill="${colour}"]`);
          return point && getComputedStyle(point).fill;
        })"""
    )
    assert None not in colours
    assert len(set(colours)) == 3


def test_a_phone_scrolls_in_one_direction_only(browser: Any, report: Path) -> None:
    for page in watched(browser.new_page(viewport={"width": 390, "height": 800}), report):
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_hostile_text_runs_nothing(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "compare.html"
    found = compare([Side("a", (hostile_run(),)), Side("b", (renamed(hostile_run(), "other"),))])
    path.write_text(render_html.render(pages.document(found, full=True)), encoding="utf-8")
    opened = browser.new_page()
    dialogs: list[str] = []
    opened.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for page in watched(opened, path):
        assert page.locator("script").count() == 0
    assert dialogs == []
