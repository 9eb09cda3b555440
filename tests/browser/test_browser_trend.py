"""The page of a history in a real browser: offline, quiet, in both colour schemes, and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.analysis.trend.series import history
from paceline.report import trend
from paceline.report.render import html as render_html
from support.records import HOSTILE
from support.trend_records import four_series, levels, runs_of

pytestmark = pytest.mark.long


def written(path: Path, runs: Any, metric: str = "throughput") -> Path:
    path.write_text(render_html.render(trend.document(history(runs, metric))), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("trend") / "trend.html", four_series())


@pytest.fixture(scope="module")
def restless_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many steps close together, so that their words are near each other."""
    values = np.array(levels(120, seed=5))
    for place in range(60, 120, 8):
        values[place:] *= 1.08 if place % 16 else 0.93
    return written(tmp_path_factory.mktemp("trend") / "restless.html", runs_of({"resnet50": values.tolist()}))


def opened(browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """The page; nothing but itself was fetched, and nothing was complained about."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    yield page
    page.close()
    assert set(requests) == {path.as_uri()}
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_answer_and_the_first_chart_are_seen_at_once(browser: Any, page_file: Path, scheme: str) -> None:
    for page in opened(browser, page_file, scheme=scheme):
        answer = page.locator("#answer")
        assert answer.inner_text().replace("\u00a0", " ").startswith("2 of 8 series of throughput")
        assert answer.bounding_box()["y"] < 300
        chart = page.locator("svg.chart").first
        assert chart.bounding_box()["y"] < 600
        assert page.locator("svg.chart").count() == 8
        assert chart.locator("title").inner_html().startswith("Throughput over runs: train resnet50 fp16")
        assert chart.get_by_text("worse −").count() == 1


COLOUR = "(node) => getComputedStyle(node).fill"
PAPER = "getComputedStyle(document.body).backgroundColor"


def luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_of_the_charts_can_be_read(browser: Any, page_file: Path, scheme: str) -> None:
    for page in opened(browser, page_file, scheme=scheme):
        paper = luminance(page.evaluate(PAPER))
        words = page.locator("svg.chart text").all()
        assert len(words) > 40
        for colour in {word.evaluate(COLOUR) for word in words}:
            own = luminance(colour)
            assert (max(own, paper) + 0.05) / (min(own, paper) + 0.05) >= 4.5, colour


CROSSING = """() => [...document.querySelectorAll("svg.chart")].flatMap((chart) => {
  const boxes = [...chart.querySelectorAll("text")]
    .filter((text) => text.textContent.trim() && text.getBBox().width)
    .map((text) => [text.textContent, text.getBoundingClientRect()]);
  const across = (a, b) => a.left < b.right - 1 && b.left < a.right - 1;
  const along = (a, b) => a.top < b.bottom - 3 && b.top < a.bottom - 3;
  return boxes.flatMap(([name, a], place) => boxes.slice(place + 1)
    .filter(([, b]) => across(a, b) && along(a, b))
    .map(([other]) => `${name} / ${other}`));
})"""


def test_words_do_not_cover_each_other(browser: Any, page_file: Path, restless_file: Path) -> None:
    for path in (page_file, restless_file):
        for page in opened(browser, path):
            assert page.evaluate(CROSSING) == []


def test_the_marks_differ_in_more_than_colour(browser: Any, page_file: Path) -> None:
    for page in opened(browser, page_file):
        recovered = page.locator("svg.chart").nth(2)
        assert recovered.get_by_text("worse −").count() == 1
        assert recovered.get_by_text("better +").count() == 1


def test_a_phone_scrolls_in_one_direction_only(browser: Any, page_file: Path, restless_file: Path) -> None:
    for path in (page_file, restless_file):
        for page in opened(browser, path, width=390):
            assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_hostile_names_run_nothing(browser: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "hostile.html", runs_of({HOSTILE: levels(30, (15, 1.1))}))
    for page in opened(browser, path):
        assert page.locator("script").count() == 0
