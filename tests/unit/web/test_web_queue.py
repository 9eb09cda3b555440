"""The queue, a job and the machines: what is told, as a page and as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from paceline.core.record import Outcome
from paceline.service.api import tokens
from paceline.service.engines.base import Meeting
from paceline.service.jobs import FailureKind, JobFailure, MachineNeeds
from paceline.web.pages import queue
from support.scripted_followers import a_job

GEMM = {"name": "small", "cases": [{"benchmark": "gemm", "size": 64}]}


def job(visited: Any, name: str, **more: Any) -> None:
    made = a_job(name, datetime.now(UTC), suite=GEMM, **more)
    visited.leader.submit(made.model_copy(update={"name": name}))


def test_an_idle_leader_says_so(visited: Any) -> None:
    assert "2 machines are here and idle; nothing waits." in visited.page("/")


def test_who_runs_what_and_who_waits_in_the_order_of_turns(visited: Any) -> None:
    for name in ("first", "second"):
        job(visited, name)
    job(visited, "later")
    job(visited, "urgent", priority=9)
    visited.leader.step()
    seen = visited.json("/")
    assert seen["answer"] == "2 jobs run on 2 of 2 machines; 2 jobs wait."
    assert {machine["id"]: machine["running"][0]["name"] for machine in seen["machines"]} == {
        "one": "first",
        "two": "second",
    }
    assert [waiting["name"] for waiting in seen["waiting"]] == ["urgent", "later"]
    page = visited.page("/")
    assert page.index(">urgent<") < page.index(">later<")


def test_a_job_that_no_machine_can_run_says_what_it_waits_for(visited: Any) -> None:
    job(visited, "small")
    job(visited, "large", needs={"gpu": "h200", "gpus": 64})
    visited.leader.step()
    (waiting,) = visited.json("/")["waiting"]
    assert waiting["name"] == "large"
    assert waiting["waits_for"]
    assert waiting["waits_for"] in visited.page("/")


def test_a_long_queue_is_shown_page_by_page(visited: Any) -> None:
    for number in range(122):
        job(visited, f"job-{number:03}")
    first, last = visited.json("/"), visited.json("/?page=3")
    assert (len(first["waiting"]), first["pages"], len(last["waiting"])) == (50, 3, 20)
    assert last["waiting"][0]["place"] == 101
    assert visited.json("/?page=99")["page"] == 3
    assert visited.page("/").count('<td class="num muted">') == 50
    assert visited.get("/?page=none").status_code == 400


def test_all_who_look_share_one_look_until_something_changes(visited: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    waiting = visited.leader.waiting

    def counted(limit: int) -> Any:
        asked.append(limit)
        return waiting(limit)

    monkeypatch.setattr(visited.leader, "waiting", counted)
    for number in range(queue.WAITING + 3):
        job(visited, f"job-{number:03}")
    assert [len(visited.json("/")["waiting"]) for _ in range(2)] == [50] * 2
    assert len(asked) == 1
    job(visited, "one-more")
    assert visited.json("/")["counts"]["queued"] == queue.WAITING + 4 - 2  # the machines have two
    assert len(asked) == 2


def test_of_a_long_queue_all_see_the_order_of_a_moment_ago(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "LONG", 2)
    monkeypatch.setattr(queue, "FRESH", 3600.0)
    visited = request.getfixturevalue("visited")
    for number in range(3):
        job(visited, f"job-{number}")
    before = visited.json("/")["waiting"]
    job(visited, "later")
    assert visited.json("/")["waiting"] == before


def test_who_may_only_read_does_not_see_the_part_of_who_may_submit(visited: Any) -> None:
    parts = []
    for name, scope in (("ann", tokens.Scope.SUBMIT), ("bob", tokens.Scope.READ)) * 2:
        token, row = tokens.make(name, scope, None)
        with visited.store.queue.writing("make a token") as writing:
            writing.put_token(row)
        visited.client.app.state.context.tokens._looked_at = None
        headers = {"accept": "text/html", "authorization": f"Bearer {token}"}
        parts.append(visited.client.get("/?part=live", headers=headers).text)
    assert ['href="/submit"' in part for part in parts] == [True, False] * 2


def test_only_the_changing_part_is_fetched_again(visited: Any) -> None:
    part = visited.page("/?part=live")
    assert part.lstrip().startswith('<div id="live"')
    assert "<script" not in part and "<style" not in part


def test_a_job_tells_what_happened(visited: Any) -> None:
    job(visited, "mine", submitted_by="ada")
    visited.leader.step()
    where = visited.leader.job("mine").followers[0]
    visited.engine.attempt("mine").begin(cases=2)
    visited.engine.attempt("mine").record()
    visited.leader.step()
    running = visited.json("/jobs/mine")
    assert running["answer"] == f"mine runs on {where}: 1 of 2 cases measured."
    assert [case["state"] for case in running["cases"]] == ["ok", "waiting"]
    assert f'href="/runs/{running["job"]["run_ids"][0]}"' in visited.page("/jobs/mine")
    visited.engine.present.remove(where)
    visited.leader.step()
    visited.leader.step()
    visited.engine.attempt("mine", 2).begin()
    visited.engine.attempt("mine", 2).end(JobFailure(kind=FailureKind.CASES, message="1 of 1 cases did not succeed"))
    visited.leader.step()
    told = [one["text"] for one in visited.json("/jobs/mine")["history"]]
    other = "two" if where == "one" else "one"
    assert told == [
        "Submitted by ada",
        f"Placed on {where}",
        "Began to measure",
        f"Lost: follower {where} is gone; it waits again",
        f"Attempt 2: placed on {other}",
        "Began to measure",
        "Failed: 1 of 1 cases did not succeed",
    ]
    assert 'id="live" data-over' in visited.page("/jobs/mine")


def test_a_job_that_failed_does_not_say_that_all_was_measured(visited: Any) -> None:
    job(visited, "mine")
    visited.leader.step()
    attempt = visited.engine.attempt("mine")
    attempt.begin(cases=2)
    attempt.record()
    attempt.record(1, Outcome.FAILED)
    attempt.end(JobFailure(kind=FailureKind.CASES, message="1 of 2 cases did not succeed"))
    visited.leader.step()
    ended = visited.json("/jobs/mine")
    assert ended["answer"] == "mine failed: 1 of 2 cases measured."
    assert (ended["done"], ended["total"]) == (2, 2)


def test_the_end_of_the_log_is_shown(visited: Any) -> None:
    job(visited, "mine")
    visited.leader.step()
    attempt = visited.engine.attempt("mine")
    for line in range(250):
        attempt.tell("log", text=f"line {line}\n")
    visited.leader.step()
    log = visited.json("/jobs/mine")["log"].splitlines()
    assert (log[0], log[-1], len(log)) == ("line 50", "line 249", 200)


def test_lines_of_a_job_on_several_machines_say_whose_they_are(visited: Any) -> None:
    job(visited, "ours", needs=MachineNeeds(nodes=2))
    visited.leader.step()
    placed = visited.leader.job("ours").followers
    second = visited.engine.attempts[placed[1]]["ours", 1]
    second.meeting = Meeting(address="127.0.0.1", port=1, secret="s")
    second.tell("log", text="waits\n")
    visited.leader.step()
    visited.leader.step()
    visited.engine.attempt("ours").tell("log", text="begins\nand goes on\n")
    visited.leader.step()
    log = visited.json("/jobs/ours")["log"].splitlines()
    assert log == [f"{placed[1]} | waits", f"{placed[0]} | begins", f"{placed[0]} | and goes on"]


@pytest.mark.parametrize(
    ("kind", "words"), [(FailureKind.TIMEOUT, "Out of time"), (FailureKind.MEMORY, "Out of memory")]
)
def test_a_job_that_ran_out_of_something_says_of_what_and_what_helps(
    visited: Any, kind: FailureKind, words: str
) -> None:
    job(visited, "mine")
    visited.leader.step()
    visited.engine.attempt("mine").begin()
    visited.engine.attempt("mine").record()
    visited.engine.attempt("mine").end(JobFailure(kind=kind, message="1 of 1 cases did not succeed"))
    visited.leader.step()
    page = visited.page("/jobs/mine")
    assert f"<b>{words}:</b> 1 of 1 cases did not succeed." in page
    assert "What helps: " in page
    told = visited.json("/jobs/mine")["job"]["failure"]
    assert (told["kind"], bool(told["remedy"])) == (kind.value, True)
    assert visited.json("/")["over"][0]["message"] == f"{words}: 1 of 1 cases did not succeed"


@pytest.mark.parametrize("is_running", [False, True])
def test_a_job_is_cancelled_by_its_button(visited: Any, is_running: bool) -> None:
    job(visited, "mine")
    if is_running:
        visited.leader.step()
    else:
        for name in ("a", "b"):
            job(visited, name, priority=50)
    sent = visited.send("/jobs/mine/cancel", visited.form("/jobs/mine"))
    assert (sent.status_code, sent.headers["location"]) == (303, "/jobs/mine")
    stopped = visited.leader.job("mine")
    assert stopped.stop_asked or stopped.state == "cancelled"
    assert visited.json("/jobs/mine")["history"][-1]["text"] in ("Stop asked by local", "Cancelled by local")
    assert visited.store.queue.audited()[0].subject == "mine"


def test_machines_tell_what_they_have_and_did(visited: Any) -> None:
    job(visited, "mine")
    visited.leader.step()
    where = visited.leader.job("mine").followers[0]
    visited.engine.attempt("mine").all_of_it()
    visited.leader.step()
    seen = visited.json(f"/machines/{where}")
    assert seen["answer"] == f"{where} is idle."
    assert [(given["name"], given["state"]) for given in seen["given"]] == [("mine", "succeeded")]
    assert f'href="/runs/{seen["given"][0]["run_id"]}"' in visited.page(f"/machines/{where}")
    visited.engine.present.remove(where)
    visited.leader.step()
    assert visited.json("/machines")["answer"] == "1 machine here, 1 gone."
    assert visited.json(f"/machines/{where}")["answer"] == f"{where} is not here."


def test_a_refused_machine_is_shown_with_the_reason(visited: Any) -> None:
    visited.leader.step()
    why = "its token was revoked on 2030-01-01 at 00:00 UTC"
    visited.engine.refused = {"one": why, "<b>stranger</b>": "it shows no token"}
    visited.engine.present.append("<b>stranger</b>")
    visited.leader.step()
    listed = visited.json("/machines")
    assert listed["answer"] == "1 machine here, 2 refused."
    reasons = {one["machine"]["id"]: (one["machine"]["refused"], one["is_here"]) for one in listed["machines"]}
    assert reasons == {"two": ("", True), "one": (why, False), "<b>stranger</b>": ("it shows no token", False)}
    page = visited.page("/machines")
    assert f'<span class="badge">refused</span> <div class="muted small">{why}</div>' in page
    assert "<b>stranger" not in page
    assert visited.json("/machines/one")["answer"] == f"one is refused: {why}."
    assert visited.json("/")["refused"] == ["<b>stranger</b>", "one"]
    assert '2 machines refused: see <a href="/machines">' in visited.page("/")
    answer = visited.json("/api/v1/followers")
    assert {one["id"]: (one["present"], bool(one["refused"])) for one in answer["followers"]} == {
        "two": (True, False),
        "one": (False, True),
        "<b>stranger</b>": (False, True),
    }
    assert visited.json("/api/v1/jobs")["refused"]["one"] == why


@pytest.mark.parametrize("path", ["/jobs/none", "/runs/none", "/machines/none"])
def test_what_does_not_exist_is_a_page_that_says_so(visited: Any, path: str) -> None:
    answer = visited.get(path)
    assert answer.status_code == 404
    assert "Not found" in answer.text and "none" in answer.text
    assert visited.client.get(f"{path}?format=json").json()["status"] == 404
