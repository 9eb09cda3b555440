"""The list of runs: figures, filters in the address, and who may tag, note and pin."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paceline.core.run import Run, RunRecords
from paceline.service.api import tokens
from paceline.store.dashboard_queries import pin_and_note
from support.records import literal_run, sample_run
from support.scripted_followers import a_job

ARM = {"host": "arm-7", "cpu": {"model": "Neoverse-N1"}}


def keep(visited: Any, records: RunRecords, run_id: str, **changes: Any) -> None:
    fields = records.run.model_dump() | {"id": run_id, "status": "running", "ended_at": None} | changes
    visited.store.begin(Run.model_validate(fields))
    for record in records.records:
        visited.store.add(record.model_copy(update={"run_id": run_id}))
    visited.store.finish(run_id)


@pytest.fixture
def three(visited: Any) -> Any:
    keep(visited, sample_run(), "run-a", name="nightly", tags=["nightly", "main"])
    keep(visited, sample_run(), "run-b", name="nightly", tags=["nightly"])
    keep(visited, literal_run(), "run-c", name="arm check", environment=ARM)
    return visited


def ids(visited: Any, query: str) -> list[str]:
    return sorted(run["id"] for run in visited.json(f"/runs?{query}")["runs"])


def test_a_run_is_listed_with_its_figure_machine_warnings_and_tags(three: Any) -> None:
    page = three.page("/runs")
    assert "train gpt2-small bf16" in page and "and 6 more" in page
    assert "2 x NVIDIA H200" in page and "node-07" in page and "Neoverse-N1" in page
    assert "throttled" in page and "2 not ok" in page
    assert 'href="/runs?tag=main"' in page
    run = next(run for run in three.json("/runs")["runs"] if run["id"] == "run-a")
    assert run["figure"]["metric"] == "throughput" and run["warnings"]["throttled"] == 1
    assert (run["devices"], run["host"]) == ("2 x NVIDIA H200", "node-07")


@pytest.mark.parametrize(
    ("query", "runs"),
    [
        ("", ["run-a", "run-b", "run-c"]),
        ("tag=main", ["run-a"]),
        ("machine=neoverse", ["run-c"]),
        ("benchmark=inference", ["run-a", "run-b"]),
        ("search=RESNET50+throttled", ["run-a", "run-b"]),
        ("search=arm&machine=H200", []),
        ("status=running", []),
        ("status=pinned", ["run-b"]),
    ],
)
def test_filters_are_in_the_address(three: Any, query: str, runs: list[str]) -> None:
    three.send("/runs/run-b/pin", three.form("/runs") | {"pinned": "yes"})
    assert ids(three, query) == runs
    assert [f'id="run-{run}"' in three.page(f"/runs?{query}") for run in runs] == [True] * len(runs)


def test_a_filter_that_nothing_matches_leads_back_to_all(three: Any) -> None:
    page = three.page("/runs?search=tpu")
    assert "0 of 3 runs." in page and "No run is like that" in page
    assert 'value="tpu"' in page
    assert three.get("/runs?status=lost").status_code == 400


def test_what_there_is_to_choose_stays_whatever_is_chosen(three: Any) -> None:
    known = three.json("/runs?tag=main")["known"]
    assert known["tags"] == ["main", "nightly"]
    assert known["benchmarks"] == ["inference", "train"]
    assert known["devices"] == ["2 x NVIDIA H200", "Neoverse-N1"]
    assert ["arm-7, Neoverse-N1", "Neoverse-N1 · arm-7"] in known["machines"]


def test_a_list_says_what_came_later_although_it_is_kept(three: Any) -> None:
    before = three.json("/runs?search=throttled")["shown"]
    keep(three, sample_run(), "run-d")
    three.send("/runs/run-a/about", three.form("/runs/run-a") | {"tags": "better", "note": "fans fixed"})
    assert three.json("/runs?search=throttled")["shown"] == before + 1
    assert ids(three, "search=fans") == ids(three, "tag=better") == ["run-a"]


def test_ticked_runs_are_compared_with_the_first_of_them(three: Any) -> None:
    page = three.page("/compare?run=run-b&run=run-a")
    assert 'value="run-a"' in page and 'value="run-b"' in page
    compared = three.json("/compare?run=run-b&run=run-a")["comparisons"]
    assert [one["new"]["runs"] for one in compared] == [["run-b"]]
    keep(three, sample_run(), "run-d")
    several = three.json("/compare?run=run-d&run=run-b&run=run-a&reference=run-b")["comparisons"]
    assert [one["new"]["runs"] for one in several] == [["run-a"], ["run-d"]]
    assert "Reference of 3 runs" in three.page("/compare?run=run-d&run=run-b&run=run-a")
    assert "Compare with which run?" in three.page("/compare?run=run-b")
    assert three.get("/compare?run=run-a&run=nobody").status_code == 400
    many = "&".join(f"run=run-{number}" for number in range(13))
    assert "at most 12" in three.get(f"/compare?{many}").text


def test_the_address_of_a_comparison_has_its_runs_alone(three: Any) -> None:
    moved = three.client.get("/compare?run=run-a&run=run-b&tags=", follow_redirects=False)
    assert (moved.status_code, moved.headers["location"]) == (303, "/compare?run=run-a&run=run-b")


def test_a_run_is_pinned_tagged_and_noted_from_its_page(three: Any) -> None:
    form = three.form("/runs/run-a")
    assert three.send("/runs/run-a/pin", form | {"pinned": "yes"}).headers["location"] == "/runs/run-a"
    sent = three.send("/runs/run-a/about", form | {"tags": "main, before <b>", "note": "  fans\r\nat full speed "})
    assert sent.status_code == 303
    assert pin_and_note(three.store, "run-a") == (True, "fans at full speed")
    assert three.store.load("run-a", samples=False).run.tags == ["main", "before <b>"]
    page = three.page("/runs/run-a")
    assert "fans at full speed" in page and "before &lt;b&gt;" in page and "<b>" not in page.split("<header>")[0][-400:]
    three.send("/runs/run-a/pin", form | {"pinned": "no", "next": "/runs?tag=main"})
    three.send("/runs/run-a/about", form | {"tags": "", "note": ""})
    assert pin_and_note(three.store, "run-a") == (False, "")
    assert three.store.load("run-a", samples=False).run.tags == []


def test_ticked_runs_are_tagged_together(three: Any) -> None:
    fields = {"token": three.form("/runs")["token"], "run": "run-a,run-c", "tags": "before, now"}
    sent = three.send("/runs/tags?next=/runs%3Ftag%3Dnow", fields)
    assert (sent.status_code, sent.headers["location"]) == (303, "/runs?tag=now")
    assert ids(three, "tag=now") == ["run-a", "run-c"]
    assert three.send("/runs/tags", fields | {"tags": ""}).status_code == 400
    assert three.send("/runs/tags", fields | {"tags": "a\x07"}).status_code == 400
    assert three.send("/runs/tags", fields | {"tags": "x" * 65}).status_code == 400
    assert three.send("/runs/tags?next=//elsewhere", fields).headers["location"] == "/runs"


def test_a_form_of_another_site_changes_nothing(three: Any) -> None:
    for path in ("/runs/run-a/pin", "/runs/run-a/about", "/runs/tags"):
        sent = three.send(path, {"token": "guessed", "pinned": "yes", "tags": "mine", "run": "run-a"})
        assert sent.status_code == 403
    assert pin_and_note(three.store, "run-a") == (False, "")


def test_only_an_owner_and_an_admin_may_change_a_run(visited: Any) -> None:
    visited.leader.submit(a_job("mine", submitted_by="ann"))
    visited.leader.step()
    visited.engine.attempt("mine").all_of_it()
    visited.leader.step()
    run_id = visited.leader.job("mine").run_id
    keep(visited, literal_run(), "of-nobody")
    changed = {}
    for name, scope in {"ann": "submit", "bob": "submit", "eve": "read", "ada": "admin"}.items():
        token, row = tokens.make(name, tokens.Scope.of(scope), None)
        with visited.store.queue.writing("make a token") as writing:
            writing.put_token(row)
        visited.client.app.state.context.tokens._looked_at = None
        headers = {"accept": "text/html", "authorization": f"Bearer {token}"}
        page = visited.client.get("/runs", headers=headers).text
        fields = {"token": re.findall(r'name="token" value="([^"]*)"', page)[0], "pinned": "yes"}
        sent = [
            visited.client.post(f"/runs/{one}/pin", data=fields, headers=headers, follow_redirects=False).status_code
            for one in (run_id, "of-nobody")
        ]
        changed[name] = (sent, page.count("formaction") - page.count('formaction="/runs/tags'))
    assert changed == {
        "ann": ([303, 403], 1),
        "bob": ([403, 403], 0),
        "eve": ([403, 403], 0),
        "ada": ([303, 303], 2),
    }
