"""The page in a real browser: offline, quiet, sortable, in both colour schemes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.report.run.document import write_html
from support.browsing import watched
from support.contrast import CONTRAST
from support.insight_records import gpu_ceilings, grid_run, roofline_run, scaling_run
from support.micro_records import micro_run
from support.profiled import traced_run
from support.records import hostile_run, run_of, sample_run
from support.serving_records import capacity_run, rates_run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_html(sample_run(), tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Any, report: Path) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=request.param)
    yield from watched(opened, report)


def column(page: Any, index: int) -> list[str]:
    return [text.strip() for text in page.locator(f"#results tbody td:nth-child({index})").all_inner_texts()]


def test_the_answer_is_seen_at_once(page: Any) -> None:
    answer = page.locator("#answer")
    assert answer.is_visible()
    assert answer.inner_text().replace("\u00a0", " ").startswith("7 of 9 cases measured")
    assert answer.bounding_box()["y"] < 300
    assert page.locator(".card .number").first.is_visible()


def test_the_table_sorts_by_number_and_by_name(page: Any) -> None:
    head = page.locator("#results thead th").nth(1)
    before = column(page, 2)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    rising = [float(text.split()[0].replace(",", "")) for text in column(page, 2)]
    assert rising == sorted(rising)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    falling = [float(text.split()[0].replace(",", "")) for text in column(page, 2)]
    assert falling == rising[::-1]
    assert sorted(before) == sorted(column(page, 2))
    page.locator("#results thead th").nth(0).locator("button").click()
    assert column(page, 1) == sorted(column(page, 1))
    assert head.get_attribute("aria-sort") is None


def test_empty_cells_sort_last_both_ways(page: Any) -> None:
    headers = page.locator("#results thead th").all_inner_texts()
    place = headers.index("p99")
    for _ in range(2):
        page.locator("#results thead th").nth(place).locator("button").click()
        cells = column(page, place + 1)
        assert cells[0] and cells[1] and not any(cells[2:])


def test_a_link_in_the_table_opens_its_case(page: Any) -> None:
    assert not page.locator("#case-4 svg.chart").is_visible()
    page.locator("#results a[href='#case-4']").click()
    assert page.locator("#case-4 svg.chart").is_visible()


def test_the_table_sorts_by_keyboard(page: Any) -> None:
    page.locator("#results thead button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.locator("#results thead th").nth(1).get_attribute("aria-sort") == "ascending"


def test_all_text_has_enough_contrast(page: Any) -> None:
    assert page.evaluate(CONTRAST) == []


def test_the_schemes_differ(browser: Any, report: Path) -> None:
    colours = []
    for scheme in ("light", "dark"):
        opened = browser.new_page(color_scheme=scheme)
        opened.goto(report.as_uri())
        bar = "getComputedStyle(document.querySelector('.chart [fill=\"#2a66c8\"]')).fill"
        colours.append((opened.evaluate("getComputedStyle(document.body).backgroundColor"), opened.evaluate(bar)))
        opened.close()
    assert colours[0][0] == "rgb(255, 255, 255)"
    assert colours[0][0] != colours[1][0] and colours[0][1] != colours[1][1]


def test_a_phone_scrolls_in_one_direction_only(browser: Any, report: Path) -> None:
    opened = browser.new_page(viewport={"width": 390, "height": 800})
    for page in watched(opened, report):
        page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_hostile_text_runs_nothing(browser: Any, tmp_path: Path) -> None:
    opened = browser.new_page()
    dialogs: list[str] = []
    opened.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for page in watched(opened, write_html(hostile_run(), tmp_path / "report.html")):
        assert page.locator("script").count() == 1
    assert dialogs == []


@pytest.fixture(scope="module")
def micro_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_html(micro_run(), tmp_path_factory.mktemp("micro") / "report.html")


@pytest.fixture(params=["light", "dark"])
def micro_page(request: pytest.FixtureRequest, browser: Any, micro_report: Path) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=request.param)
    yield from watched(opened, micro_report)


def test_every_table_of_a_sectioned_page_sorts_alone(micro_page: Any) -> None:
    tables = micro_page.locator("table.sortable")
    assert tables.count() == 3
    others = [tables.nth(index).inner_text() for index in (0, 2)]
    before = tables.nth(1).inner_text()
    tables.nth(1).locator("thead button").nth(2).click()
    rows = tables.nth(1).locator("tbody td.result").all_inner_texts()
    assert rows[0].endswith("ns") and rows[-1].endswith("TB/s")
    assert tables.nth(1).inner_text() != before
    assert [tables.nth(index).inner_text() for index in (0, 2)] == others


def test_the_points_of_a_sweep_are_folded_until_they_are_asked_for(micro_page: Any) -> None:
    case = micro_page.locator("#case-9")
    case.locator("summary").first.click()
    table = case.locator(".sweep table")
    assert not table.is_visible()
    case.locator(".sweep summary").click()
    assert table.is_visible()
    assert table.locator("tbody tr").count() == 10


def test_text_of_a_sectioned_page_has_enough_contrast(micro_page: Any) -> None:
    assert micro_page.evaluate(CONTRAST) == []


CROSSING = """() => [...document.querySelectorAll("section > figure svg.chart")].flatMap((chart) => {
  const boxes = [...chart.querySelectorAll("text")]
    .filter((text) => text.textContent.trim() && text.getBBox().width)
    .map((text) => [text.textContent, text.getBoundingClientRect()]);
  const across = (a, b) => a.left < b.right - 1 && b.left < a.right - 1;
  const along = (a, b) => a.top < b.bottom - 3 && b.top < a.bottom - 3;
  return boxes.flatMap(([name, a], place) => boxes.slice(place + 1)
    .filter(([, b]) => across(a, b) && along(a, b))
    .map(([other]) => `${name} / ${other}`));
})"""


def test_labels_of_charts_do_not_cover_each_other(micro_page: Any) -> None:
    crossing = micro_page.evaluate(CROSSING)
    assert crossing == []


def test_lines_differ_in_both_schemes(browser: Any, micro_report: Path) -> None:
    for scheme in ("light", "dark"):
        opened = browser.new_page(color_scheme=scheme)
        opened.goto(micro_report.as_uri())
        strokes = opened.evaluate(
            """[...document.querySelectorAll("svg.chart path[stroke][stroke-width='2']")]
              .map((path) => getComputedStyle(path).stroke)"""
        )
        assert len(set(strokes)) >= 5
        opened.close()


def test_a_sectioned_page_fits_a_phone(browser: Any, micro_report: Path) -> None:
    opened = browser.new_page(viewport={"width": 390, "height": 800})
    for page in watched(opened, micro_report):
        page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.fixture(params=[rates_run, capacity_run], scope="module")
def serving_report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_html(request.param(), tmp_path_factory.mktemp("serving") / "report.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_of_served_models_is_clear(browser: Any, serving_report: Path, scheme: str) -> None:
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    for page in watched(opened, serving_report):
        table = page.locator("#results")
        assert table.evaluate("(node) => node.offsetWidth <= node.parentElement.clientWidth")
        assert page.locator("#results td.result").count() == table.locator("tbody tr").count()
        assert page.evaluate(CROSSING) == []
        assert page.evaluate(CONTRAST) == []


def test_a_page_of_served_models_fits_a_phone(browser: Any, serving_report: Path) -> None:
    opened = browser.new_page(viewport={"width": 390, "height": 800})
    for page in watched(opened, serving_report):
        page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_name_without_spaces_stays_on_a_phone(browser: Any, tmp_path: Path) -> None:
    long = {"title": "generated/transformer:layers=2,width=128,sequence=32 embedded"}
    first = rates_run().records[0]
    named = first.model_copy(update={"case": first.case.model_copy(update=long)})
    path = write_html(run_of([named]), tmp_path / "report.html")
    for page in watched(browser.new_page(viewport={"width": 390, "height": 800}), path):
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


INSIGHTS = {
    "roofline": (roofline_run, gpu_ceilings),
    "scaling": (scaling_run, lambda: None),
    "heatmap": (grid_run, lambda: None),
    "time": (traced_run, lambda: None),
}


@pytest.fixture(params=list(INSIGHTS), scope="module")
def insight_report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    run, known = INSIGHTS[request.param]
    path = tmp_path_factory.mktemp("insight") / "report.html"
    return request.param, write_html(run(), path, ceilings=known())


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_answers_beyond_the_cases_are_clear(browser: Any, insight_report: tuple[str, Path], scheme: str) -> None:
    key, path = insight_report
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    for page in watched(opened, path):
        section = page.locator(f"section[aria-labelledby='{key}']")
        assert section.locator(".lead").first.is_visible()
        chart = section.locator("svg.chart").first
        assert chart.bounding_box()["width"] > 250
        assert chart.locator("title").text_content()
        assert page.evaluate(CROSSING) == []
        assert page.evaluate(CONTRAST) == []


@pytest.mark.long
def test_answers_beyond_the_cases_fit_a_phone(browser: Any, insight_report: tuple[str, Path]) -> None:
    opened = browser.new_page(viewport={"width": 390, "height": 800})
    for page in watched(opened, insight_report[1]):
        page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
