"""Jobs over HTTP: submitted once however often they are sent, listed in pages, stopped, and their logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import StoreError
from paceline.service.engines.base import AttemptProgress, AttemptReport
from paceline.service.jobs import FailureKind, JobFailure
from support.leading import GEMM, Served, served_in


def test_a_job_is_taken_and_shown(served: Served) -> None:
    answer = served.submit("job-1", priority=3, tags=["nightly"], overrides={"size": 32})
    assert answer.status == 201
    assert (answer.json["id"], answer.json["state"], answer.json["submitted_by"]) == ("job-1", "queued", "local")
    shown = served.ask("GET", "jobs/job-1").json
    assert (shown["priority"], shown["tags"], shown["overrides"]) == (3, ["nightly"], {"size": 32})
    assert shown["suite"] == GEMM
    assert [entry["kind"] for entry in shown["history"]] == ["submitted"]


def test_the_same_id_again_submits_nothing_new(served: Served) -> None:
    assert [served.submit("job-1").status for _ in range(3)] == [201, 200, 200]
    assert len(served.ask("GET", "jobs").json["jobs"]) == 1


def test_the_same_id_with_another_suite_is_a_conflict(served: Served) -> None:
    served.submit("job-1")
    answer = served.submit("job-1", suite="overhead")
    assert (answer.status, answer.error["code"]) == (409, "duplicate-job")
    assert served.ask("GET", "jobs/job-1").json["suite"] == GEMM


def test_some_cases_of_a_suite_are_another_job_than_all_of_them(served: Served) -> None:
    assert served.submit("job-1", only=["gemm"]).status == 201
    assert served.ask("GET", "jobs/job-1").json["only"] == ["gemm"]
    assert [served.submit("job-1", only=words).status for words in (["gemm"], [])] == [200, 409]
    refused = served.submit("job-2", only=["gemv"])
    assert refused.status == 422
    assert refused.error == {
        "code": "no-such-case",
        "message": refused.error["message"],
        "key": "--only",
        "value": "gemv",
    }


@pytest.mark.parametrize("name", ["quick", "gemm"])
def test_a_suite_or_a_benchmark_that_ships_is_named(served: Served, name: str) -> None:
    answer = served.submit("job-1", suite=name)
    assert (answer.status, answer.json["name"]) == (201, name)
    assert answer.json["suite"]["cases"]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"suite": "quik"}, {"code": "unknown-suite-or-benchmark", "value": "quik", "suggestion": "quick"}),
        ({"suite": "../../etc/passwd.yaml"}, {"code": "unknown-suite-or-benchmark", "key": "suite"}),
        (
            {"suite": {"name": "x", "cases": [{"benchmark": "gemm"}, {"benchmark": "gemm", "sise": 3}]}},
            {"code": "unknown-key", "case": 2, "key": "sise", "suggestion": "size"},
        ),
        (
            {"suite": {"name": "x", "cases": [{"benchmark": "gemn"}]}},
            {"code": "unknown-benchmark", "case": 1, "key": "benchmark", "value": "gemn", "suggestion": "gemm"},
        ),
        (
            {"suite": {"name": "x", "cases": [{"benchmark": "gemm", "size": "big"}]}},
            {"code": "invalid-value", "case": 1, "key": "size", "value": "big"},
        ),
        (
            {"suite": {"name": "x", "cases": [{"benchmark": "train", "model": "os:system"}]}},
            {"code": "not-from-network", "case": 1, "key": "model", "value": "os:system"},
        ),
        ({"suite": {"name": "x", "cases": []}}, {"code": "no-cases", "key": "cases"}),
        ({"suite": {"name": "x" * 201, "cases": GEMM["cases"]}}, {"code": "name-too-long", "key": "name"}),
        ({"overrides": {"sise": 3}}, {"code": "unknown-key", "key": "sise", "suggestion": "size"}),
        ({"priority": 101}, {"code": "invalid-value", "key": "priority"}),
        ({"priority": True}, {"code": "invalid-value", "key": "priority"}),
        ({"tags": ["a b"]}, {"code": "invalid-value", "key": "tags.0"}),
        ({"tags": [f"t{n}" for n in range(17)]}, {"code": "invalid-value", "key": "tags"}),
        ({"needs": {"gpu": "h200", "colour": "red"}}, {"code": "unknown-key", "key": "needs.colour"}),
        ({"needs": {"labels": ["x" * 5000]}}, {"code": "too-many-characters"}),
        ({"needs": {"memory_gib": 2**70}}, {"code": "too-many-digits"}),
        ({"colour": "red"}, {"code": "unknown-key", "key": "colour"}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_code_and_fields(
    shared: Served, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    answer = shared.submit("job-1", **body)
    assert answer.status == 422
    assert fields.items() <= answer.error.items()
    assert answer.error["message"]
    assert shared.ask("GET", "jobs").json["jobs"] == []


@pytest.mark.parametrize("bad", ["", "-a", "a/b", "a b", "a" * 41, "ä", "a.b", "a_b"])
def test_an_id_that_could_not_name_a_folder_is_refused(shared: Served, bad: str) -> None:
    assert shared.submit(bad).status == 422


def test_unreadable_json_is_400_and_other_bodies_415(shared: Served) -> None:
    answer = shared.ask("POST", "jobs", b"{not json", Content_Type="application/json")
    assert (answer.status, answer.error["code"]) == (400, "unreadable")
    answer = shared.ask("POST", "jobs", b"id=job-1", Content_Type="application/x-www-form-urlencoded")
    assert (answer.status, answer.error["code"]) == (415, "not-json")


@pytest.mark.parametrize("path", ["jobs/nobody", "jobs/nobody/logs", "runs/nobody", "runs/nobody/report", "nothing"])
def test_what_is_not_there_is_404_in_the_one_shape(shared: Served, path: str) -> None:
    answer = shared.ask("GET", path)
    assert (answer.status, answer.error["code"]) == (404, "not-found")


def test_pages_of_jobs_follow_each_other_without_gaps(served: Served) -> None:
    names = [f"job-{n}" for n in range(7)]
    for name in names:
        served.submit(name)
    served.ask("POST", "jobs/job-3/cancel")
    seen, path = [], "jobs?limit=3"
    while True:
        page = served.ask("GET", path).json
        seen += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        path = f"jobs?limit=3&cursor={page['next']}"
    assert seen == names[::-1]
    assert [job["id"] for job in served.ask("GET", "jobs?state=cancelled").json["jobs"]] == ["job-3"]
    assert page["counts"] == {"queued": 6, "cancelled": 1}
    assert served.ask("GET", "jobs?state=odd").status == 422
    assert served.ask("GET", f"jobs?cursor={10**17 - 1}_x").status in (200, 422)


def test_a_job_goes_through_its_states(served: Served) -> None:
    served.submit("job-1")
    served.leader.step()
    shown = served.ask("GET", "jobs/job-1").json
    assert (shown["state"], shown["followers"]) == ("placed", ["one"])
    assert shown["expected_end"] is not None
    busy = served.ask("GET", "followers").json["followers"][0]
    assert (busy["id"], busy["present"], [job["job"] for job in busy["jobs"]]) == ("one", True, ["job-1"])
    served.engine.say("job-1", "first\n")
    served.leader.step()
    page = served.ask("GET", "jobs/job-1/logs").json
    assert ([line["text"] for line in page["lines"]], page["is_over"]) == (["first\n"], False)
    assert [line["follower"] for line in page["lines"]] == ["one"]
    served.engine.say("job-1", "second\n")
    served.engine.end("job-1", JobFailure(kind=FailureKind.CASES, message="1 of 1 cases did not succeed"))
    served.leader.step()
    page = served.ask("GET", f"jobs/job-1/logs?after={page['next']}").json
    assert ([line["text"] for line in page["lines"]], page["is_over"]) == (["second\n"], True)
    shown = served.ask("GET", "jobs/job-1").json
    assert (shown["state"], shown["failure"]["kind"]) == ("failed", "cases")
    assert "paceline logs" in shown["failure"]["remedy"]
    assert [entry["kind"] for entry in shown["history"]] == ["submitted", "placed", "ended"]


def test_a_job_is_stopped_whether_it_waits_or_runs(served: Served) -> None:
    served.engine.present = []
    served.submit("waits")
    assert served.ask("POST", "jobs/waits/cancel").json["state"] == "cancelled"
    served.engine.present = ["one"]
    served.submit("runs")
    served.leader.step()
    answer = served.ask("POST", "jobs/runs/cancel").json
    assert (answer["state"], answer["stop_asked"]) == ("placed", True)
    served.leader.step()
    assert ("runs", 1) in served.engine.stopped
    assert served.ask("POST", "jobs/nobody/cancel").status == 404


def test_nothing_is_taken_while_nothing_can_be_kept(served: Served) -> None:
    served.leader.trouble = "could not take a report: the disk is full; make room"
    answer = served.submit("job-1")
    assert (answer.status, answer.error["code"]) == (503, "unavailable")
    assert "the disk is full" in answer.error["message"]
    assert int(answer.headers["retry-after"]) > 0
    health = served.ask("GET", "health")
    assert health.status == 503
    assert b"disk" not in health.body  # anybody may ask
    served.leader.trouble = ""
    assert (served.submit("job-1").status, served.ask("GET", "health").status) == (201, 200)


def test_a_store_that_fails_is_503_with_its_own_words(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreError("could not list jobs: the database is gone; start it again")

    monkeypatch.setattr("paceline.store.queue.JobQueue.counts", fail)
    answer = served.ask("GET", "jobs")
    assert (answer.status, "the database is gone" in answer.error["message"]) == (503, True)


def test_a_job_that_is_kept_but_not_placed_is_placed_later(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.leader.step()  # the follower is known

    def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr("paceline.store.queue.Writing.save", fail)
        assert served.submit("job-1").status == 201
        assert served.ask("GET", "jobs/job-1").json["state"] == "queued"
    served.leader.step()
    assert served.ask("GET", "jobs/job-1").json["state"] == "placed"
    assert [assignment.job_id for assignment in served.engine.begun] == ["job-1"]


def test_the_last_page_of_jobs_has_none_after_it(served: Served) -> None:
    for number in range(2):
        served.submit(f"job-{number}")
    assert served.ask("GET", "jobs?limit=2").json["next"] is None
    assert served.ask("GET", "jobs?limit=1").json["next"].endswith("_job-1")
    answer = served.ask("GET", "jobs?cursor=99999999999999999_x")
    assert (answer.status, len(answer.json["jobs"])) == (200, 2)


def test_a_log_is_over_when_the_job_has_ended_and_no_line_may_follow(served: Served) -> None:
    served.submit("job-1")
    served.leader.step()
    served.engine.say("job-1", "first\n")
    served.engine.say("job-1", "second\n")
    served.engine.end("job-1")
    served.leader.step()
    pages = []
    after = "0.0"
    for _ in range(3):
        page = served.ask("GET", f"jobs/job-1/logs?limit=1&after={after}").json
        after = page["next"]
        pages.append(([line["text"] for line in page["lines"]], after, page["is_over"]))
    assert pages == [(["first\n"], "1.1", False), (["second\n"], "1.2", False), ([], "1.2", True)]
    assert served.ask("GET", "jobs/job-1/logs?limit=3").json["is_over"] is True


def test_how_far_a_job_has_come_is_shown_while_it_runs(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = AttemptProgress(title="gemm 64", cases_done=1, cases=3)

    def poll(*_: object) -> Sequence[AttemptReport]:
        items = tuple(served.engine.told.get(("job-1", 1), ()))
        return [AttemptReport(job_id="job-1", attempt=1, items=items, progress=progress)]

    monkeypatch.setattr(served.engine, "poll", poll)
    served.submit("job-1")
    for _ in range(2):
        served.leader.step()
    shown = served.ask("GET", "jobs/job-1").json
    assert (shown["progress"]["title"], shown["progress"]["cases"], shown["waits_for"]) == ("gemm 64", 3, "")
    served.engine.end("job-1")
    served.leader.step()
    assert served.ask("GET", "jobs/job-1").json["progress"]["cases"] == 0


def test_a_job_says_which_machine_it_waits_for(served: Served) -> None:
    served.leader.step()
    served.submit("job-1", needs={"gpu": "h200"})
    shown = served.ask("GET", "jobs/job-1").json
    assert (shown["state"], shown["expected_end"]) == ("queued", None)
    assert shown["waits_for"] == "the only machine here, one, has no GPU"
    assert [job["waits_for"] for job in served.ask("GET", "jobs").json["jobs"]] == [shown["waits_for"]]


def test_machines_that_are_here_come_first_and_as_they_are_now(served: Served, tmp_path: Path) -> None:
    def shown(answering: Served) -> list[tuple[Any, ...]]:
        views = answering.ask("GET", "followers").json["followers"]
        return [(one["id"], one["host"], one["present"], one["jobs"]) for one in views]

    served.engine.present, served.engine.on = ["a-gone", "one"], "earlier"
    served.leader.step()
    assert shown(served) == [("a-gone", "earlier", True, []), ("one", "earlier", True, [])]
    served.engine.present, served.engine.on = ["one"], "now"
    served.leader.step()
    after: list[tuple[Any, ...]] = [("one", "now", True, []), ("a-gone", "earlier", False, [])]
    assert shown(served) == after
    served.leader.close()
    with served_in(tmp_path, engine=served.engine) as next_one:
        next_one.leader.step()
        assert shown(next_one) == after, "as it was when it was let in"


def test_a_job_that_does_not_say_which_devices_it_has_is_not_shown_on_its_machine(served: Served) -> None:
    served.submit("job-1")
    served.leader.step()
    assert len(served.ask("GET", "followers").json["followers"][0]["jobs"]) == 1
    job = served.leader.job("job-1")
    changed = job.model_copy(update={"devices": (), "version": job.version + 1})
    with served.store.queue.writing("change a job") as writing:
        writing.save(changed.model_dump(mode="json"), None)
    answer = served.ask("GET", "followers")
    assert (answer.status, answer.json["followers"][0]["jobs"]) == (200, [])


def test_a_path_with_a_slash_too_many_is_not_there(shared: Served) -> None:
    assert shared.ask("GET", "jobs/").status == 404


def test_a_job_is_cancelled_by_who_submitted_it_or_by_an_admin(served: Served) -> None:
    tokens = {
        name: served.add_token(name, scope) for name, scope in (("ann", "submit"), ("bob", "submit"), ("boss", "admin"))
    }
    for name in ("first", "second"):
        assert served.submit(name, token=tokens["ann"]).status == 201
    refused = served.ask("POST", "jobs/first/cancel", token=tokens["bob"])
    assert (refused.status, refused.error["code"]) == (403, "not-yours")
    assert refused.error["message"] == "job 'first' is of 'ann', and 'bob' may cancel its own alone"
    assert not served.leader.job("first").state.is_final
    assert served.ask("POST", "jobs/first/cancel", token=tokens["ann"]).json["state"] == "cancelled"
    assert served.ask("POST", "jobs/second/cancel", token=tokens["boss"]).json["state"] == "cancelled"
    assert ("bob", "POST /api/v1/jobs/first/cancel", "first", "403") in served.audit()


def test_a_job_beyond_the_quota_of_its_token_is_refused_and_an_admin_has_none(served: Served) -> None:
    boss, ann = served.add_token("boss", "admin"), served.add_token("ann", "submit", max_queued=1, max_priority=0)
    assert served.submit("one", token=ann).status == 201
    refused = served.submit("two", token=ann)
    assert (refused.status, refused.error["code"], refused.error["key"]) == (403, "over-quota", "max_queued")
    assert served.submit("one", token=ann).status == 200
    assert served.submit("three", token=boss, priority=100).status == 201


class TestHealth:
    """Live, ready, and in figures."""

    def test_a_leader_in_trouble_is_live_and_not_ready(self, served: Served) -> None:
        told = {"status": "ok", "live": True, "ready": True}
        assert [served.ask("GET", path).json for path in ("health", "health/live", "health/ready")] == [told] * 3
        served.leader.trouble = "the disk of /home/ann is full"
        answers = [served.ask("GET", path) for path in ("health", "health/live", "health/ready")]
        assert [answer.status for answer in answers] == [503, 200, 503]
        assert [answers[n].error["code"] for n in (0, 2)] == ["not-ready", "not-ready"]
        assert answers[1].json == {"status": "not-ready", "live": True, "ready": False}
        assert not any(b"ann" in answer.body for answer in answers), "anybody may ask"

    def test_a_leader_whose_thread_stands_still_is_not_live(
        self, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("paceline.service.leader.DEAD", -1.0)
        with served.leader._is_leading:
            assert served.ask("GET", "health/live").status == 503
        assert served.ask("GET", "health/live").status == 200

    def test_the_leader_itself_is_shown_as_metrics(self, served: Served) -> None:
        served.leader.step()
        for name in ("one", "two"):
            served.submit(name)
        answer = served.ask("GET", "metrics")
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        text = answer.body.decode()
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert values['paceline_leader_jobs{state="placed"}'] == "1.0"
        assert values['paceline_leader_jobs{state="queued"}'] == "1.0"
        assert values["paceline_leader_leases"] == values["paceline_leader_followers"] == "1.0"
        assert values["paceline_leader_followers_refused"] == "0.0"
        assert 0 < float(values["paceline_leader_lease_left_seconds"]) <= 30
        assert float(values["paceline_leader_store_writes_total"]) >= 3
        assert float(values["paceline_leader_store_write_seconds_total"]) > 0
        assert float(values["paceline_leader_connections"]) >= 1
        assert text.endswith("# EOF\n")
