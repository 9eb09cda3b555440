"""The pages of a leader with results, in a real browser: runs are filtered, ticked, tagged and run again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from paceline.core.run import Run, RunRecords
from paceline.store import open_store
from paceline.store.store import Store
from support.cli import Sandbox, sandbox_in
from support.contrast import CONTRAST
from support.records import STARTED, literal_run, sample_run
from support.serving_records import rates_run
from support.trend_records import levels, runs_of

pytest.importorskip("fastapi", reason="install it with: pip install 'paceline[cluster]'")

PATIENCE = 120_000  # milliseconds; only what hangs takes so long
ARM = {"host": "arm-7", "cpu": {"model": "Neoverse-N1"}}
LOAD = """\
name: load
cases:
  - benchmark: serve
    model: generated/fc
    load: {arrival: poisson, rate: 20, duration: 600s}
    timeout: 20min
"""
PAGES = {
    "runs": "/runs",
    "filtered": "/runs?tag=nightly&machine=H200",
    "run": "/runs/run-a",
    "case": "/runs/run-a/cases/0",
    "served": "/runs/served/cases/0",
    "compare": "/compare?run=run-a&run=run-b",
    "trends": "/trends",
    "trend": "/trends?metric=throughput&case=slower",
    "leaderboard": "/leaderboard",
    "again": "/submit?run=run-a&case=0",
    "queue": "/",
    "machines": "/machines",
}
# A table is whole if it fits, or if what it is in scrolls by itself.
CUT = """() => [...document.querySelectorAll('table')].filter((table) => {
  if (!table.getClientRects().length) return false;
  const box = table.closest('.scroll');
  const fits = table.getBoundingClientRect().right <= innerWidth + 1;
  return !fits && !(box && ['auto', 'scroll'].includes(getComputedStyle(box).overflowX));
}).length"""


def keep(store: Store, records: RunRecords, run_id: str, **changes: Any) -> None:
    fields = records.run.model_dump() | {"id": run_id, "status": "running", "ended_at": None} | changes
    store.begin(Run.model_validate(fields))
    for record in records.records:
        store.add(record.model_copy(update={"run_id": run_id}))
    store.finish(run_id)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A store with results, and whatever is started on it."""
    with sandbox_in(tmp_path_factory.mktemp("pages") / "sandbox") as made:
        with open_store(made.store) as store:
            for records in runs_of({"slower": levels(8, (5, 1.3), seed=4), "steady": levels(8, seed=2)}):
                keep(store, records, records.run.id)
            for place, name in enumerate(("run-a", "run-b")):
                started = STARTED + timedelta(days=30 + place)
                keep(store, sample_run(), name, name="nightly", tags=["nightly"], started_at=started)
            keep(store, rates_run(), "served", name="serving", started_at=STARTED + timedelta(days=40))
            keep(store, literal_run(), "arm", name="check", environment=ARM, started_at=STARTED + timedelta(days=41))
        yield made


@pytest.fixture(scope="module")
def leader(sandbox: Sandbox) -> str:
    """Its address."""
    process = sandbox.start("leader", "--port", "0", "--store", str(sandbox.store))
    assert process.stdout is not None
    return process.stdout.readline().split()[-1]


@pytest.fixture
def page(browser: Any, leader: str) -> Iterator[Any]:
    """A page that complained about nothing."""
    opened = browser.new_page(viewport={"width": 1400, "height": 900}, base_url=leader)
    opened.set_default_timeout(PATIENCE)
    complaints = heard(opened)
    yield opened
    opened.close()
    assert complaints == []


def heard(page: Any) -> list[str]:
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints


def shown(page: Any) -> list[str]:
    return [one.get_attribute("id").removeprefix("run-") for one in page.locator("tr[id^='run-']").all()]


def test_ticked_runs_are_compared(page: Any) -> None:
    page.goto("/runs")
    button = page.locator("#compare-button")
    assert button.is_disabled()
    for run in ("run-a", "run-b"):
        page.check(f"input[name=run][value={run}]")
    assert button.inner_text() == "Compare 2 runs"
    button.click()
    page.wait_for_url("**/compare?run=run-b&run=run-a")
    assert page.input_value("#a") == "run-a" and page.input_value("#b") == "run-b"
    assert page.locator("svg.chart").first.is_visible()


def test_a_filter_is_an_address(page: Any) -> None:
    page.goto("/runs")
    page.select_option("#q-machine", label="Neoverse-N1")
    page.wait_for_url("**machine=Neoverse-N1*")
    assert shown(page) == ["arm"]
    page.goto("/runs?benchmark=inference")
    assert page.input_value("#q-benchmark") == "inference"
    assert shown(page) == ["run-b", "run-a"]
    page.fill("#q-search", "run-b throttled")
    page.press("#q-search", "Enter")
    page.wait_for_url("**search=run-b+throttled*")
    assert shown(page) == ["run-b"]
    page.click("a:text-is('Clear')")
    page.wait_for_url(re.compile(r"/runs$"))
    assert len(shown(page)) == 12


def test_runs_are_pinned_tagged_and_noted(page: Any) -> None:
    page.goto("/runs?search=served")
    page.click("[aria-label='pin served']")
    page.wait_for_selector("[aria-label='unpin served']")
    assert "search=served" in page.url
    page.check("input[name=run][value=served]")
    page.fill("#new-tags", "before, quiet")
    page.click("button:text-is('Add')")
    page.wait_for_selector("a.badge:text-is('quiet')")
    page.click("#run-served b")
    page.click("summary:text-is('Tags and note')")
    page.fill("#note", "fans at full speed")
    page.click("button:text-is('Save')")
    page.wait_for_selector(".note-text:text-is('fans at full speed')")
    assert page.locator(".about-run .badge").all_inner_texts() == ["before", "quiet"]
    page.click("[aria-label='Unpin this run']")
    page.wait_for_selector("[aria-label='Pin this run']")


def test_a_report_leads_to_a_case_its_history_and_the_form(page: Any) -> None:
    page.goto("/runs/run-b")
    page.click("#case-0 summary")
    page.click("#case-0 a:text-is('Samples, history, run again')")
    page.wait_for_url("**/runs/run-b/cases/0")
    assert page.locator("#samples ~ figure svg").first.is_visible()
    page.click("#history ~ .scroll a:text-is('run-a')")
    page.wait_for_url("**/runs/run-a/cases/0")
    page.click("button:text-is('Run again')")
    page.wait_for_url("**/submit?run=run-a&case=0")
    assert page.input_value("[name='p.model']") == "gpt2-small"
    assert page.is_checked("[name='p.precision'][value=bf16]")
    page.wait_for_selector("#verdict:has-text('1 case')")


def test_trends_open_on_what_got_worse(page: Any) -> None:
    page.goto("/trends")
    assert page.locator("tr.group").first.inner_text().startswith("Got worse")
    page.click("main a:text-is('train slower')")
    page.wait_for_url("**/trends?metric=*slower*")
    assert "train slower" in page.locator("#answer").inner_text()


def test_without_scripts_runs_are_compared_tagged_and_filtered(browser: Any, leader: str) -> None:
    context = browser.new_context(java_script_enabled=False, base_url=leader)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto("/runs")
    for run in ("run-a", "run-b"):
        page.check(f"input[name=run][value={run}]")
    page.click("#compare-button")
    page.wait_for_url("**/compare?run=run-b&run=run-a")
    page.goto("/runs")
    page.check("input[name=run][value=arm]")
    page.fill("#new-tags", "slow")
    page.click("button:text-is('Add')")
    page.wait_for_selector("#run-arm a.badge:text-is('slow')")
    page.select_option("#q-tag", "nightly")
    page.click("button:text-is('Filter')")
    assert shown(page) == ["run-b", "run-a"]
    context.close()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [390, *(pytest.param(width, marks=pytest.mark.long) for width in (1100, 1400))])
def test_every_page_fits_and_can_be_read(browser: Any, leader: str, name: str, width: int) -> None:
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, base_url=leader)
        complaints = heard(page)
        page.goto(PAGES[name])
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT) == 0
        assert page.evaluate(CONTRAST) == []
        assert complaints == []
        page.close()


@pytest.mark.long
def test_a_load_is_drawn_while_it_runs(page: Any) -> None:
    pytest.importorskip("torch", reason="install it with: pip install 'paceline[torch]'")
    page.goto("/submit?kind=yaml")
    page.fill("#f-yaml", LOAD)
    page.click("#submission button")
    page.wait_for_url("**/jobs/*")
    page.wait_for_selector(".live-chart:has-text('Latency, p99')")  # without a reload
    names = page.locator(".live-chart figcaption span").all_inner_texts()
    assert names == ["Rate", "Latency, p50", "Latency, p99", "Failures"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1400
    page.click("details.confirm summary")
    page.click("button.bad")
    page.wait_for_selector("#answer:has-text('was cancelled')")


@pytest.mark.long
def test_a_page_says_how_old_it_is_while_the_leader_does_not_answer(browser: Any, sandbox: Sandbox) -> None:
    process = sandbox.start("leader", "--port", "0", "--store", str(sandbox.folder / "other.db"))
    assert process.stdout is not None
    page = browser.new_page(base_url=process.stdout.readline().split()[-1])
    page.set_default_timeout(PATIENCE)
    page.goto("/")
    assert page.locator("#stale").is_hidden()
    process.kill()
    process.wait()
    page.wait_for_selector("#stale:has-text('the leader does not answer')")
    assert re.search(r"What you see is \d+ s old", page.locator("#stale").inner_text())
    page.close()
