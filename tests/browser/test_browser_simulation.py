"""The page of a simulation in a real browser: offline, quiet, readable in both schemes and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli.main import paceline
from support.browsing import watched
from support.contrast import CONTRAST

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("simulation") / "simulation.html"
    arguments = ["simulate", "--jobs", "200", "--seeds", "2", "--load", "0.5,0.9", "--html", "-o", str(path)]
    ended = CliRunner().invoke(paceline, arguments)
    assert ended.exit_code == 0, ended.output
    return path


@pytest.fixture(params=[("light", 1280), ("dark", 1280), ("light", 390)], ids=lambda value: f"{value[0]}-{value[1]}")
def page(request: pytest.FixtureRequest, browser: Any, page_file: Path) -> Iterator[Any]:
    scheme, width = request.param
    yield from watched(browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme), page_file)


def test_the_answer_leads_to_charts_and_tables_that_can_be_read(page: Any) -> None:
    assert "round-robin" in page.locator("#answer").inner_text()
    charts = page.locator("svg.chart")
    assert charts.count() >= 1
    assert all(charts.nth(place).locator("title").first.text_content() for place in range(charts.count()))
    assert page.locator("table tbody tr").count() > 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CONTRAST) == []
