"""The reports that people see first, on a wide screen, a laptop and a phone, in both colour schemes.

Nothing scrolls sideways but a box of its own, no table is cut, charts use their column, and the browser says nothing.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.analysis.compare.sides import compare
from paceline.analysis.compare.verdicts import Side
from paceline.analysis.diagnose.judge import diagnose
from paceline.analysis.diagnose.rules import default_rules
from paceline.analysis.diagnose.superbench import read_nodes
from paceline.analysis.diagnose.table import assemble
from paceline.report import diagnose as diagnoses
from paceline.report.compare import document as comparisons
from paceline.report.export.jsonl import parse
from paceline.report.render import html
from paceline.report.run.document import to_html
from support.browsing import watched
from support.compare_records import before_and_after
from support.contrast import CONTRAST
from support.recordings import DATA

WIDTHS = (1400, 1100, 390)
PHONE = 390


def recorded_run(name: str) -> str:
    lines = gzip.decompress((DATA / "reports" / f"{name}.jsonl.gz").read_bytes()).decode().splitlines()
    (run,) = parse(lines, name)
    return to_html(run)


def comparison() -> str:
    before, after = before_and_after()
    return html.render(comparisons.document(compare([Side("main", before), Side("my-branch", after)]), full=True))


def diagnosis() -> str:
    nodes = read_nodes(DATA / "superbench" / "results-summary.jsonl")
    return html.render(diagnoses.document(diagnose(assemble(nodes), default_rules())))


REPORTS = {
    "quick": lambda: recorded_run("quick"),
    "serving-quick": lambda: recorded_run("serving-quick"),
    "compare": comparison,
    "diagnose": diagnosis,
}


@pytest.fixture(params=list(REPORTS), scope="module")
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / f"{request.param}.html"
    path.write_text(REPORTS[request.param](), encoding="utf-8")
    return path


@pytest.fixture(params=WIDTHS, scope="module")
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Any, report: Path, width: int) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=request.param)
    yield from watched(opened, report)


# Tables whose end nobody can get to, cells whose text is beyond them, and tables that need scrolling at all.
TABLES = """() => [...document.querySelectorAll("table")].filter((table) => table.offsetWidth).map((table) => {
  const box = table.parentElement, style = getComputedStyle(box);
  const end = Math.max(...[...table.querySelectorAll("td, th")].map((cell) => cell.getBoundingClientRect().right));
  return {
    name: table.id || table.innerText.slice(0, 40),
    reachable: end <= box.getBoundingClientRect().right + 1 || ["auto", "scroll"].includes(style.overflowX),
    fits: table.scrollWidth <= box.clientWidth + 1,
    spilt: [...table.querySelectorAll("td")].filter((cell) => cell.scrollWidth > cell.clientWidth + 2).length,
  };
})"""

CHARTS = """() => [...document.querySelectorAll("section > figure")].map((figure) => {
  const shown = [...figure.querySelectorAll("svg")].find((one) => one.getBoundingClientRect().width);
  return {
    column: figure.clientWidth,
    width: shown.getBoundingClientRect().width,
    left: shown.getBoundingClientRect().left - figure.getBoundingClientRect().left,
  };
})"""


def test_it_is_whole_and_readable(page: Any, report: Path, width: int) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    tables = page.evaluate(TABLES)
    assert tables
    assert [table["name"] for table in tables if not table["reachable"] or table["spilt"]] == []
    results = [table for table in tables if table["name"].startswith("results")]
    assert bool(results) == (report.stem in ("quick", "serving-quick"))
    assert [table["name"] for table in results if not table["fits"]] == [], (
        "what was measured is seen without scrolling"
    )
    assert page.evaluate(CONTRAST) == []


def test_charts_begin_at_one_place_and_use_their_column(page: Any, width: int) -> None:
    charts = page.evaluate(CHARTS)
    assert charts
    assert all(abs(chart["left"]) < 2 for chart in charts)
    assert all(chart["width"] >= 0.9 * chart["column"] for chart in charts), charts


def test_a_phone_has_bars_of_its_own_size(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "quick.html"
    path.write_text(recorded_run("quick"), encoding="utf-8")
    opened = browser.new_page(viewport={"width": PHONE, "height": 800})
    for page in watched(opened, path):
        bars = page.locator("section[aria-labelledby='results-overview'] .narrow svg")
        assert bars.is_visible()
        assert not page.locator("section[aria-labelledby='results-overview'] svg.chart").is_visible()
        sizes = bars.evaluate("(one) => [...one.querySelectorAll('text')].map((t) => t.getBoundingClientRect().height)")
        assert min(sizes) >= 10, "letters that can be read"
        box = bars.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE


def test_quick_leads_with_models_and_the_ceilings_of_the_machine(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "quick.html"
    path.write_text(recorded_run("quick"), encoding="utf-8")
    for page in watched(browser.new_page(viewport={"width": 1400, "height": 900}), path):
        titles = page.locator(".card .label").all_inner_texts()
        assert any(title.startswith("resnet50") for title in titles)
        detail = page.locator(".card .detail").first.inner_text()
        assert detail.startswith("nearest to compute: 39\u00a0% of"), (
            "at less than 60 % of a ceiling it is not bound by it"
        )
        ceilings = page.locator(".ceilings")
        assert ceilings.bounding_box()["y"] < 600
        assert "main memory" in ceilings.inner_text()
        headings = [text for text in page.locator("h2").all_inner_texts() if text in ("Training", "Compute", "Harness")]
        assert headings == ["Training", "Compute", "Harness"]
