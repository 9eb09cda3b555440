"""The pages of a real leader in a real browser: a job is submitted, runs and shows its report; all of it offline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.cli import Sandbox, sandbox_in
from support.contrast import CONTRAST

pytest.importorskip("fastapi", reason="install it with: pip install '.[cluster]'")

PATIENCE = 120_000  # milliseconds; only what hangs takes so long
NAPS = "name: naps\ncases:\n  - benchmark: nap\n    duration: [0.2s, 0.3s, 0.4s]\n"
LONG = "name: long\ncases:\n  - benchmark: nap\n    duration: 600s\n"
PAGES = ["/", "/submit", "/submit?kind=benchmark&name=serve", "/submit?kind=yaml", "/runs", "/compare", "/trends"]
PAGES += ["/leaderboard", "/machines"]


@pytest.fixture(scope="module")
def leader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`paceline leader` as a user starts it; its address."""
    with sandbox_in(tmp_path_factory.mktemp("leader") / "sandbox") as sandbox:
        yield started(sandbox)


def started(sandbox: Sandbox) -> str:
    process = sandbox.start("leader", "--port", "0")
    assert process.stdout is not None
    return process.stdout.readline().split()[-1]


@pytest.fixture
def page(browser: Any, leader: str) -> Iterator[Any]:
    """A page of the leader; it asked nobody else for anything, and complained about nothing."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, base_url=leader)
    opened.set_default_timeout(PATIENCE)
    elsewhere: list[str] = []
    complaints: list[str] = []
    opened.on("request", lambda asked: elsewhere.append(asked.url) if not asked.url.startswith(leader) else None)
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    opened.close()
    assert [url for url in elsewhere if not url.startswith("data:")] == []
    assert complaints == []


def submit(page: Any, suite: str) -> None:
    page.goto("/submit?kind=yaml")
    page.fill("#f-yaml", suite)
    page.click("#submission button")
    page.wait_for_url("**/jobs/*")


def test_a_job_from_the_form_runs_and_shows_its_report(page: Any) -> None:
    submit(page, NAPS)
    page.wait_for_selector("#answer:has-text('succeeded')")  # without a reload
    assert page.locator("#answer").inner_text() == "naps succeeded: 3 of 3 cases measured."
    assert page.locator("#log").inner_text().count("ok after") == 3
    assert page.locator(".events").inner_text().count("\n") >= 4
    page.click("a.button")
    assert page.locator("#answer").inner_text().startswith("All 3 cases measured")
    assert page.locator("svg.chart").first.is_visible()
    page.click("#results thead button >> nth=1")
    assert page.locator("#results thead th").nth(1).get_attribute("aria-sort") == "ascending"
    page.click("nav.site a[href='/']")
    assert page.locator("#over ~ .scroll").inner_text().count("naps") == 1


def test_the_form_tells_what_is_wrong_as_one_types(page: Any) -> None:
    page.goto("/submit?kind=benchmark&name=gemm")
    page.fill("[name='p.size']", "larg")
    page.wait_for_selector("[data-error='p.size']:not(:empty)")
    assert page.get_attribute("[name='p.size']", "aria-invalid") == "true"
    page.fill("[name='p.size']", "64, 128")
    page.wait_for_selector("#verdict:has-text('2 cases')")
    assert page.get_attribute("[name='p.size']", "aria-invalid") is None
    page.select_option("#choose-benchmark", "stream")
    page.wait_for_url("**name=stream")
    assert "bandwidth" in page.locator(".said").inner_text()


@pytest.mark.long
def test_a_running_job_is_seen_and_cancelled(page: Any) -> None:
    submit(page, LONG)
    page.wait_for_selector(".badge.state.running >> nth=1")
    page.goto("/")
    assert page.locator("#answer").inner_text().startswith("1 job runs on 1 of 1 machine")
    page.click("main a:text-is('long')")
    page.click("details.confirm summary")
    page.click("button.bad")
    page.wait_for_selector("#answer:has-text('was cancelled')")


@pytest.mark.long
def test_the_queue_changes_without_a_reload(page: Any, browser: Any, leader: str) -> None:
    page.goto("/")
    page.evaluate("window.stays = true")
    page.focus("main a[href^='/machines/']")
    other = browser.new_page(base_url=leader)
    submit(other, NAPS.replace("naps", "seen from elsewhere"))
    other.close()
    page.wait_for_selector("main a:text-is('seen from elsewhere')")
    assert page.evaluate("window.stays") is True
    assert page.evaluate("document.activeElement.getAttribute('href')").startswith("/machines/")
    page.wait_for_selector("#over ~ .scroll a:text-is('seen from elsewhere')")


def test_without_scripts_it_works_by_links_and_buttons(browser: Any, leader: str) -> None:
    context = browser.new_context(java_script_enabled=False, base_url=leader)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto("/submit?kind=yaml")
    page.fill("#f-yaml", NAPS.replace("duration", "durtion"))
    page.click("#submission button")
    assert "did you mean 'duration'" in page.locator("[data-error=yaml]").inner_text()
    page.fill("#f-yaml", NAPS)
    page.click("#submission button")
    assert "naps" in page.locator("#answer").inner_text()
    context.close()


@pytest.mark.parametrize("path", PAGES)
def test_every_page_fits_a_phone_and_can_be_read(browser: Any, leader: str, path: str) -> None:
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme, base_url=leader)
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate(CONTRAST) == []
        unnamed = "[...document.querySelectorAll('input:not([type=hidden]):not([hidden]), select, textarea')]"
        assert page.evaluate(f"{unnamed}.filter((one) => !one.labels.length && !one.ariaLabel).length") == 0
        page.close()


def test_the_keyboard_reaches_the_pages(page: Any) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/submit")
