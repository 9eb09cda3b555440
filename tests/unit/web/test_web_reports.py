"""Reports within the site: a run as it happens, comparisons, trends, leaderboards."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.run import RunRecords
from support.records import sample_run
from support.trend_records import levels, runs_of

SUITE = {"name": "naps", "cases": [{"benchmark": "gemm", "size": 64}]}


def keep(visited: Any, records: RunRecords, run_id: str) -> None:
    visited.store.begin(records.run.model_copy(update={"id": run_id, "status": "running", "ended_at": None}))
    for record in records.records:
        visited.store.add(record.model_copy(update={"run_id": run_id}))
    visited.store.finish(run_id)


@pytest.fixture
def two_runs(visited: Any) -> Any:
    for run_id in ("run-a", "run-b"):
        keep(visited, sample_run(), run_id)
    return visited


def test_a_report_is_within_the_site(two_runs: Any) -> None:
    page = two_runs.page("/runs/run-a")
    assert page.count("<!doctype html>") == page.count("<body>") == page.count("</body>") == 1
    assert page.index('class="site"') < page.index('id="answer"')
    assert "Content-Security-Policy" not in page  # the answer's header has it, with the hashes of both scripts
    assert "7 of 9 cases measured" in page
    assert two_runs.get("/runs/run").status_code == 404  # the beginning of two


def test_runs_are_listed_newest_first_and_as_json(two_runs: Any) -> None:
    listed = two_runs.json("/runs?limit=1")
    assert (listed["total"], listed["shown"], listed["runs"][0]["id"]) == (2, 1, "run-b")
    assert 'href="/runs/run-b"' in two_runs.page("/runs?limit=1")
    full = two_runs.json("/runs/run-a")
    assert len(full["records"]) == len(sample_run().records)
    assert all("samples" not in one for record in full["records"] for one in record["measurements"])


def test_a_running_report_tells_how_far_it_is_and_counts_nothing_as_failed(visited: Any) -> None:
    records = sample_run()
    visited.store.begin(records.run.model_copy(update={"id": "now", "status": "running", "ended_at": None}))
    assert "has measured nothing yet" in visited.page("/runs/now")
    good = next(record for record in records.records if record.is_success and record.measurements)
    visited.store.add(good.model_copy(update={"run_id": "now"}))
    page = visited.page("/runs/now")
    assert f"1 of {len(records.run.cases)} cases measured." in page
    assert 'id="going"' in page and "not run" not in page
    assert visited.json("/runs/now/progress") == {"status": "running", "done": 1, "total": len(records.run.cases)}
    visited.store.finish("now", "interrupted")
    assert 'id="going"' not in visited.page("/runs/now")


def test_two_runs_are_compared(two_runs: Any) -> None:
    page = two_runs.page("/compare?a=run-a&b=run-b")
    assert 'class="site"' in page and 'value="run-a"' in page
    assert two_runs.json("/compare?a=run-a&b=run-b")["comparisons"][0]["new"]["runs"] == ["run-b"]
    assert two_runs.get("/compare?a=run-a&b=run-a").status_code == 400
    assert "are the same records" in two_runs.get("/compare?run=run-b&run=last").text  # which is run-b
    assert "Compare runs" in two_runs.page("/compare")
    assert two_runs.get("/compare?a=run-a&b=../../etc/passwd").status_code == 400


def test_trends_and_leaderboards(two_runs: Any) -> None:
    assert "throughput" in two_runs.json("/trends")["metrics"]
    assert 'class="site"' in two_runs.page("/trends?metric=throughput")
    assert two_runs.json("/trends?metric=throughput")["runs"] == 2
    wrong = two_runs.get("/trends?metric=througput")
    assert wrong.status_code == 400 and "throughput" in wrong.text
    assert 'class="site"' in two_runs.page("/leaderboard")
    assert two_runs.json("/leaderboard?top=1")
    assert "No result has" in two_runs.page("/leaderboard?case=nothing-like-this")


def test_pages_of_an_empty_store_say_so(visited: Any) -> None:
    for path in ("/runs", "/trends"):
        assert "Nothing was measured yet" in visited.page(path)
    assert "There is no result to rank yet" in visited.page("/leaderboard")


def test_trends_open_on_what_matters(visited: Any) -> None:
    series = {"slower": levels(12, (7, 1.3), seed=4), "new": levels(3, seed=5), "steady": levels(12, seed=2)}
    for records in runs_of(series):
        keep(visited, records, records.run.id)
    lines = visited.json("/trends")["lines"]
    assert [(line["case"], line["standing"]) for line in lines] == [
        ("train slower", "worse"),
        ("train new", "undecided"),
        ("train steady", "steady"),
    ]
    page = visited.page("/trends")
    assert "1 got worse, 1 undecided, 1 steady." in page
    assert page.index("Got worse") < page.index("Undecided") < page.index("Steady")
    assert visited.get(lines[0]["address"]).status_code == 200
    assert [one["case"] for one in visited.json("/trends?case=new")["lines"]] == ["train new"]
    assert visited.json("/trends?machine=TPU")["lines"] == []
    assert visited.json("/trends?metric=throughput&case=slower")["series"][0]["is_worse"] is True
    assert "No case with &#39;tpu&#39;" in visited.page("/trends?metric=throughput&case=tpu")
