"""What a leader keeps: one transaction for what belongs together, and nothing twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert

from paceline.store import open_reader, schema
from paceline.store.queue import AuditRow, Conflict, EventRow, FollowerRow, JobDocument, LogRow, TokenRow
from paceline.store.store import Store
from support.store_samples import a_record, a_run

AT = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
EVENT = EventRow(AT, "submitted", {"by": "ada"})


def a_job(name: str = "job-1", state: str = "queued", after: float = 0.0) -> dict[str, Any]:
    submitted_at = (AT + timedelta(seconds=after)).isoformat()
    columns = {"id": name, "state": state, "priority": 0, "submitted_at": submitted_at, "submitted_by": "ada"}
    return columns | {"version": 0, "suite": {"name": "x"}}


def submit(store: Store, job: JobDocument) -> bool:
    with store.queue.writing("submit a job") as writing:
        return writing.submit(job, EVENT)


def test_a_job_is_submitted_once_and_keeps_its_history(store: Store) -> None:
    assert submit(store, a_job())
    assert not submit(store, a_job() | {"other": True})
    assert store.queue.job("job-1") == a_job()
    assert store.queue.job("job-2") is None
    assert store.queue.events("job-1") == [EVENT]


def test_a_change_is_refused_when_somebody_else_was_faster(store: Store) -> None:
    submit(store, a_job())
    placed = EventRow(AT, "placed", {})
    with store.queue.writing("place a job") as writing:
        writing.save(a_job(state="placed") | {"version": 1}, placed)
    with (
        pytest.raises(Conflict, match="second leader"),
        store.queue.writing("place a job") as writing,
    ):
        writing.see_follower(FollowerRow("f-1", AT, {}))
        writing.save(a_job(state="cancelled") | {"version": 1}, placed)
    kept = store.queue.job("job-1")
    assert kept is not None and (kept["state"], kept["version"]) == ("placed", 1)
    assert store.queue.events("job-1") == [EVENT, placed]
    assert store.queue.followers() == []  # what was written with the refused change is not there either


def test_jobs_are_listed_by_page_and_state(store: Store) -> None:
    for place in range(5):
        submit(store, a_job(f"job-{place}", "queued" if place % 2 else "failed", after=place // 2))
    assert [job["id"] for job in store.queue.jobs()] == ["job-4", "job-3", "job-2", "job-1", "job-0"]
    first = store.queue.jobs(limit=2)
    rest = store.queue.jobs(before=(datetime.fromisoformat(first[-1]["submitted_at"]), first[-1]["id"]))
    assert [job["id"] for job in (*first, *rest)] == ["job-4", "job-3", "job-2", "job-1", "job-0"]
    assert [job["id"] for job in store.queue.jobs(["queued"])] == ["job-3", "job-1"]
    assert store.queue.counts() == {"queued": 2, "failed": 3}


def test_what_a_follower_tells_twice_is_kept_once(store: Store) -> None:
    submit(store, a_job())
    for _ in range(2):
        with store.queue.writing("take a report") as writing:
            writing.begin_run(a_run())
            writing.log("job-1", LogRow(1, 1, AT, "begins\n"))
            is_new = writing.add_record(a_record())
            heard = writing.acknowledge("job-1", 1, 2)
    assert (is_new, heard) == (False, False)
    assert store.queue.acknowledged("job-1", 1) == 2
    assert store.queue.acknowledged("job-1", 2) == 0
    assert store.load("run-1").records == [a_record()]
    assert [row.text for row in store.queue.logs("job-1")] == ["begins\n"]


def test_logs_go_on_where_a_reader_left_off(store: Store) -> None:
    submit(store, a_job())
    with store.queue.writing("keep lines") as writing:
        for attempt, number in ((1, 1), (1, 2), (2, 1)):
            writing.log("job-1", LogRow(attempt, number, AT, f"{attempt}.{number}"))
    assert [row.text for row in store.queue.logs("job-1", after=(1, 1))] == ["1.2", "2.1"]


def test_lines_of_several_followers_are_numbered_as_they_come(store: Store) -> None:
    submit(store, a_job())
    told = [("one", 1), ("two", 1), ("two", 2), ("one", 1), ("one", 2)]
    with store.queue.writing("keep lines") as writing:
        for follower, number in told:
            writing.log("job-1", LogRow(1, number, AT, f"{follower} {number}", follower))
    rows = store.queue.logs("job-1")
    assert [(row.number, row.text) for row in rows] == [(1, "one 1"), (2, "two 1"), (3, "two 2"), (4, "one 2")]
    assert [row.follower for row in rows] == ["one", "two", "two", "one"]


def test_followers_tokens_and_the_audit_log(store: Store) -> None:
    token = TokenRow("ci", "digest", ("read", "submit"), AT, AT + timedelta(days=1))
    with store.queue.writing("set up") as writing:
        writing.see_follower(FollowerRow("f-1", AT, {"gpus": 0}))
        writing.see_follower(FollowerRow("f-1", AT, {"gpus": 8}))
        writing.put_token(token)
        writing.note(AuditRow(AT, "ada", "submit", "job-1", "ok"))
        writing.note(AuditRow(AT, "bob", "cancel", "job-1", "refused"))
    assert store.queue.followers() == [FollowerRow("f-1", AT, {"gpus": 8})]
    assert store.queue.tokens() == [token]
    assert [row.who for row in store.queue.audited()] == ["bob", "ada"]
    with store.queue.writing("clean up") as writing:
        assert writing.revoke_token("ci")
        assert not writing.revoke_token("ci")
    (revoked,) = store.queue.tokens()
    assert revoked.revoked_at is not None, "that there was one is never forgotten"
    assert replace(revoked, revoked_at=None) == token


@pytest.mark.parametrize(("before", "most", "left"), [(2, 99, ["2", "3", "4"]), (0, 2, ["3", "4"]), (9, 99, [])])
def test_the_audit_log_is_pruned_by_age_and_by_count(store: Store, before: int, most: int, left: list[str]) -> None:
    with store.queue.writing("set up") as writing:
        for number in range(5):
            writing.note(AuditRow(AT + timedelta(days=number), str(number), "submit", "job", "ok"))
        writing.prune_audit(AT + timedelta(days=before), most)
    assert [row.who for row in reversed(store.queue.audited())] == left


def test_a_change_may_have_no_history(store: Store) -> None:
    submit(store, a_job())
    with store.queue.writing("change a job") as writing:
        writing.save(a_job() | {"version": 1}, None)
    assert store.queue.events("job-1") == [EVENT]


def test_reports_of_each_attempt_at_each_job_are_counted_apart(store: Store) -> None:
    for name in ("job-1", "job-2"):
        submit(store, a_job(name))
    with store.queue.writing("take reports") as writing:
        heard = [writing.acknowledge("job-1", 1, number) for number in (2, 2, 1, 3)]
        heard += [writing.acknowledge("job-1", 2, 1), writing.acknowledge("job-2", 1, 1)]
    assert heard == [True, False, False, True, True, True]
    numbers = [store.queue.acknowledged(*one) for one in (("job-1", 1), ("job-1", 2), ("job-2", 1), ("job-2", 2))]
    assert numbers == [3, 1, 1, 0]


def test_a_run_is_measured_when_each_of_its_cases_has_a_record(store: Store) -> None:
    with store.queue.writing("begin runs") as writing:
        writing.begin_run(a_run("run-1"))
        writing.begin_run(a_run("run-2", cases=1))
        states = [writing.is_measured("run-1")]
        for index, attempt in ((0, 1), (0, 2), (1, 1)):
            writing.add_record(a_record("run-1", index, attempt))
            states.append(writing.is_measured("run-1"))
        assert states == [False, False, False, True]
        assert not writing.is_measured("run-2")


@pytest.mark.parametrize(("is_whole", "status", "records"), [(True, "finished", 0), (False, "interrupted", 1)])
def test_a_run_that_was_cut_short_keeps_the_samples_of_its_case_in_flight(
    store: Store, is_whole: bool, status: str, records: int
) -> None:
    with store.queue.writing("run and close") as writing:
        writing.begin_run(a_run("run-1"))
        writing.begin_run(a_run("run-2"))
        writing.keep_samples("run-1", 0, 1, "step_time", "s", [1.0])
        writing.close_run("run-1", is_whole=is_whole)
        writing.close_run("never-begun", is_whole=is_whole)
    loaded = store.load("run-1")
    assert (loaded.run.status, len(loaded.records)) == (status, records)
    assert store.load("run-2").run.status == "running"
    with store.queue.writing("go on") as writing:
        writing.reopen_run("run-1")
    run = store.load("run-1").run
    assert (run.status, run.ended_at) == ("running", None)


def test_without_a_limit_a_list_has_so_many(store: Store) -> None:
    lines = [{"job_id": "a", "attempt": 0, "number": n, "told": n, "at": AT, "text": str(n)} for n in range(1, 1002)]
    notes = [vars(AuditRow(AT, "ada", "submit", str(number), "ok")) for number in range(101)]
    columns = ("id", "state", "priority", "submitted_by", "version")
    listed = [
        {name: a_job(f"job-{number:03}")[name] for name in columns} | {"submitted_at": AT, "document": {"id": number}}
        for number in range(101)
    ]
    submit(store, a_job("a"))
    with store.writing("fill the store") as connection:
        connection.execute(insert(schema.job_logs), lines)
        connection.execute(insert(schema.audit), notes)
        connection.execute(insert(schema.jobs), listed)
    assert [row.number for row in store.queue.logs("a")] == list(range(1, 1001))
    assert [row.subject for row in store.queue.audited()] == [str(number) for number in range(100, 0, -1)]
    assert [job["id"] for job in store.queue.jobs()] == list(range(100, 0, -1))
    assert len(store.queue.jobs(limit=None)) == 102


def test_runs_whose_follower_was_lost_are_found_with_the_time(url: str, store: Store) -> None:
    lost_at = AT + timedelta(hours=1)
    for name, run_id, kind in (("job-1", "run-1", "lost"), ("job-2", "run-2", "ended")):
        submit(store, a_job(name))
        for version, event in enumerate((EventRow(AT, "placed", {"run_id": run_id}), EventRow(lost_at, kind, {})), 1):
            with store.queue.writing("change a job") as writing:
                writing.save(a_job(name, "placed") | {"version": version}, event)
    with open_reader(url) as reader:
        assert reader.lost_runs() == [("run-1", lost_at)]


def test_the_latest_runs_are_listed_from_the_oldest_on_without_cases(url: str, store: Store) -> None:
    for day, name in enumerate(("run-a", "run-b", "run-c")):
        store.begin(a_run(name, started_at=AT + timedelta(days=day)))
    with open_reader(url) as reader:
        found = reader.run_list(2)
    assert [(run.id, run.cases) for run in found] == [("run-b", []), ("run-c", [])]
