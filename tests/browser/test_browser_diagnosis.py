"""A diagnosis in a real browser: offline, quiet, readable in both colour schemes and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.analysis.diagnose.judge import diagnose
from paceline.analysis.diagnose.rules import default_rules
from paceline.analysis.diagnose.superbench import read_nodes
from paceline.analysis.diagnose.table import assemble
from paceline.report.diagnose import document
from paceline.report.render import html
from support.browsing import watched

DATA = Path(__file__).parents[1] / "data" / "superbench" / "results-summary.jsonl"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diagnosis") / "diagnosis.html"
    found = diagnose(assemble(read_nodes(DATA)), default_rules())
    path.write_text(html.render(document(found)), encoding="utf-8")
    return path


@pytest.fixture(params=[("light", 1280), ("dark", 1280), ("light", 390)], ids=lambda value: f"{value[0]}-{value[1]}")
def page(request: pytest.FixtureRequest, browser: Any, page_file: Path) -> Iterator[Any]:
    scheme, width = request.param
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    yield from watched(opened, page_file)


def test_the_answer_then_the_chart_then_the_table(page: Any) -> None:
    places = [page.locator(what).first.bounding_box()["y"] for what in ("#answer", "svg.chart", "#defects")]
    assert places == sorted(places)
    assert page.locator("#answer").inner_text().startswith("2 of 8 nodes are defective: node-03")


def test_defective_nodes_are_told_in_words_and_in_the_chart(page: Any) -> None:
    assert page.locator("#defects tbody tr").count() == 2
    assert page.locator("#defects .badge.bad").all_inner_texts() == ["defective"] * 2
    assert "node-03 -29.3 %" in page.locator("svg.chart").text_content()
    assert "node-03" in page.locator("svg.chart desc").text_content()


def test_the_page_scrolls_in_one_direction_only(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_the_table_sorts(page: Any) -> None:
    page.locator("#defects thead button").first.click()
    page.locator("#defects thead button").first.click()
    assert page.locator("#defects tbody tr td:first-child").all_inner_texts() == ["node-06", "node-03"]


def test_names_in_the_chart_do_not_cover_each_other(page: Any) -> None:
    crossing = page.evaluate(
        """() => {
          const boxes = [...document.querySelectorAll("svg.chart text")]
            .filter((text) => text.textContent.trim() && text.getBBox().width)
            .map((text) => [text.textContent, text.getBoundingClientRect()]);
          const across = (a, b) => a.left < b.right - 1 && b.left < a.right - 1;
          const along = (a, b) => a.top < b.bottom - 3 && b.top < a.bottom - 3;
          return boxes.flatMap(([name, a], place) => boxes.slice(place + 1)
            .filter(([, b]) => across(a, b) && along(a, b))
            .map(([other]) => `${name} / ${other}`));
        }"""
    )
    assert crossing == []
