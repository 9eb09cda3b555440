"""Recommendations and leaderboards in a real browser: offline, quiet, readable in both schemes and on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.analysis.cost import Prices, read_price
from paceline.analysis.leaderboard import boards
from paceline.analysis.recommend.choice import recommend
from paceline.analysis.recommend.evidence import Question, evidence, read_bounds
from paceline.report.document import Document
from paceline.report.recommend import document as report
from paceline.report.recommend import leaderboard
from paceline.report.render import html as render_html
from support.records import hostile_run, sample_run
from support.serving_records import capacity_run, rates_run

PRICES = Prices({}, (read_price("0.5 USD/h", {}),))

CROSSING = """() => [...document.querySelectorAll("svg.chart")].flatMap((chart) => {
  const boxes = [...chart.querySelectorAll("text")]
    .filter((text) => text.textContent.trim() && text.getBBox().width)
    .map((text) => [text.textContent, text.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
  return boxes.flatMap(([name, a], place) => boxes.slice(place + 1)
    .filter(([, b]) => meet(a, b)).map(([other]) => `${name} / ${other}`));
})"""

pytestmark = pytest.mark.long


def pages() -> dict[str, Document]:
    asked = Question(bounds=read_bounds(["p99=50ms"]), rate=1000.0)
    plain = Question(bounds=read_bounds(()))
    return {
        "rates": report.document([recommend(one, asked) for one in evidence([rates_run()], PRICES)], 5),
        "searched": report.document([recommend(one, asked) for one in evidence([capacity_run()], PRICES)], 5),
        "training": report.document([recommend(one, plain) for one in evidence([sample_run()], PRICES)], 5),
        "boards": leaderboard.document(boards([sample_run()], PRICES), 10),
        "hostile": leaderboard.document(boards([hostile_run()], PRICES), 10),
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("answers")
    found = {}
    for name, page in pages().items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(render_html.render(page), encoding="utf-8")
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["rates", "searched", "training", "boards", "hostile"])
def test_the_page_is_offline_quiet_and_clear(browser: Any, written: dict[str, Path], name: str, scheme: str) -> None:
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    requests: list[str] = []
    complaints: list[str] = []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(written[name].as_uri())
    assert opened.locator("#answer").bounding_box()["y"] < 300
    assert opened.evaluate(CROSSING) == []
    assert opened.evaluate("document.documentElement.scrollWidth") <= 1280
    for chart in opened.locator("svg.chart").all():
        assert chart.locator("title").first.text_content() and chart.locator("desc").first.text_content()
    opened.close()
    assert requests == [written[name].as_uri()]
    assert complaints == []


@pytest.mark.parametrize("name", ["rates", "training", "boards"])
def test_a_phone_scrolls_in_one_direction_only(browser: Any, written: dict[str, Path], name: str) -> None:
    opened = browser.new_page(viewport={"width": 390, "height": 800})
    opened.goto(written[name].as_uri())
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    opened.close()


def test_the_chart_has_the_choice_and_the_promise(browser: Any, written: dict[str, Path]) -> None:
    opened = browser.new_page()
    opened.goto(written["rates"].as_uri())
    texts = opened.locator("svg.chart text").all_text_contents()
    assert any(text.startswith("chosen") for text in texts)
    assert "p99 ≤ 50 ms" in texts
    opened.close()
