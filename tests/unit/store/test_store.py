"""What is kept comes back, on both databases."""

from __future__ import annotations

import json
import math
import os
import socket
import sqlite3
import struct
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DataError, IntegrityError, OperationalError, StatementError

from paceline.core.case import Case
from paceline.core.errors import InputError, StoreError
from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.core.run import RunStatus
from paceline.core.stats import Interval, Summary
from paceline.store import location, open_store
from paceline.store.store import Store, opening_error, reason, remedy
from support.refused import refused
from support.store_samples import START, a_case, a_failed_record, a_record, a_run


def test_a_run_with_its_records_comes_back_as_it_was(store: Store) -> None:
    run, ok, failed = a_run(), a_record(index=0), a_failed_record(index=1)
    store.begin(run)
    store.add(failed)
    store.add(ok)
    loaded = store.load("run-1")
    assert loaded.run == run
    assert loaded.records == [ok, failed]
    assert loaded.missing == []


def test_a_run_comes_back_without_samples_where_nobody_asks_for_them(store: Store) -> None:
    record = a_record(index=0)
    store.begin(a_run())
    store.add(record)
    (loaded,) = store.load("run-1", samples=False).records
    assert any(measured.samples for measured in record.measurements)
    bare = [replace(measured, samples=[]) for measured in record.measurements]
    assert loaded == record.model_copy(update={"measurements": bare})
    assert loaded.model_dump() == record.model_copy(update={"measurements": bare}).model_dump()


def test_a_field_that_was_changed_after_loading_changes_nothing_else(store: Store) -> None:
    store.begin(a_run())
    store.add(a_record(index=0))
    store.add(a_failed_record(index=1))
    first, second = store.load("run-1").records
    first.seconds, first.measurements[0].scope = -1.0, "rank 9"
    assert second == a_failed_record(index=1)
    assert store.load("run-1").records == [a_record(index=0), a_failed_record(index=1)]


def test_times_come_back_in_utc_to_the_microsecond(store: Store) -> None:
    elsewhere = START.astimezone(timezone(timedelta(hours=5, minutes=45)))
    store.begin(a_run(started_at=elsewhere))
    store.add(a_record(started_at=elsewhere))
    loaded = store.load("run-1")
    assert loaded.run.started_at == loaded.records[0].started_at == START
    assert loaded.run.started_at.tzinfo is UTC


def test_a_time_without_a_zone_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="no time zone"):
        store.begin(a_run(started_at=datetime(2024, 1, 1)))
    assert store.runs() == []
    store.begin(a_run())
    with pytest.raises(StoreError, match="no time zone"):
        store.add(a_record(started_at=datetime(2024, 1, 1)))


def test_facts_that_json_has_no_word_for_are_kept(store: Store) -> None:
    facts = {"nan": math.nan, "infinite": [-math.inf], "negative": -0.0}
    others = {"scalar": np.float32(0.5), "count": np.int64(3), "array": np.arange(2), "path": Path("/x"), "two": (1, 2)}
    store.begin(a_run())
    store.add(a_record().model_copy(update={"facts": facts | others}))
    (loaded,) = store.load("run-1").records
    plain = {"scalar": 0.5, "count": 3, "array": [0, 1], "path": "/x", "two": [1, 2]}
    assert bits(loaded.facts) == bits(facts | plain)


UNCLEAN = {"lone surrogate": "caf\udce9", "NUL": "a\x00b", "escape \x1b[2J": "\x9b2J", "line ends": "a\tb\r\nc"}
CLEAN = {"lone surrogate": r"caf\udce9", "NUL": r"a\x00b", r"escape \x1b[2J": r"\x9b2J", "line ends": "a\tb\nc"}


def test_text_that_no_database_takes_is_written_out(store: Store) -> None:
    cause = Cause(kind=CauseKind.ERROR, message=os.fsdecode(b"d\xff"), detail="\x00\x1b[31mred")
    store.begin(a_run().model_copy(update={"name": "caf\udce9\x00"}))
    store.add(a_failed_record().model_copy(update={"facts": UNCLEAN, "cause": cause}))
    store.keep_partial("run-1", 1, 1, "step\udcff\x00time", "s", [1.0])
    assert [one.name for one in store.recover("run-1")[0].measurements] == [r"step\udcff\x00time"]
    loaded = store.load("run-1")
    assert loaded.run.name == r"caf\udce9\x00"
    record = loaded.records[0]
    assert record.facts == CLEAN
    assert record.cause is not None
    assert (record.cause.message, record.cause.detail) == (r"d\udcff", r"\x00\x1b[31mred")


def test_text_that_an_earlier_version_stored_can_be_read(store: Store) -> None:
    store.begin(a_run())
    store.add(a_failed_record())
    old = {"cause": json.dumps({"kind": "error", "message": os.fsdecode(b"d\xff")})}
    with store.writing("write as earlier versions did") as connection:
        value = "CAST(:cause AS JSON)" if connection.dialect.name == "postgresql" else ":cause"
        connection.execute(text(f"UPDATE records SET cause = {value}"), old)
    (record,) = store.load("run-1").records
    assert record.cause is not None
    assert record.cause.message == r"d\udcff"


def test_beginning_is_all_or_nothing(store: Store) -> None:
    with pytest.raises(StoreError, match="run-1"):
        store.begin(a_run().model_copy(update={"cases": [a_case(), a_case()]}))
    assert store.runs() == []
    store.begin(a_run())
    with pytest.raises(StoreError, match="another run id"):
        store.begin(a_run())


def test_adding_the_same_attempt_twice_keeps_it_once(store: Store) -> None:
    store.begin(a_run())
    store.add(a_record())
    store.add(a_record())
    assert store.attempts("run-1", 0) == [a_record()]


def test_the_last_attempt_counts_and_all_are_kept(store: Store) -> None:
    store.begin(a_run())
    first, second = a_failed_record(attempt=1), a_record(attempt=2)
    store.add(first)
    store.add(second)
    assert store.load("run-1").records == [second]
    assert store.attempts("run-1", 0) == [first, second]


@pytest.mark.parametrize("record", [a_record("no-such-run"), a_record(index=7)])
def test_a_record_that_nobody_planned_is_refused(store: Store, record: Record) -> None:
    store.begin(a_run())
    with pytest.raises(StoreError):
        store.add(record)
    assert not any(path.exists() for path in store.location.spools)


def test_partial_samples_of_a_dead_runner_become_an_interrupted_record(store: Store) -> None:
    store.begin(a_run())
    store.keep_partial("run-1", 1, 2, "step_time", "s", [1.0, 2.0])
    store.keep_partial("run-1", 1, 2, "energy", "J", [5e-324])
    store.keep_partial("run-1", 1, 2, "step_time", "s", [3.0])
    store.keep_partial("run-1", 1, 2, "step_time", "s", [])
    (record,) = store.recover("run-1")
    assert (record.case, record.attempt, record.outcome) == (a_case(1), 2, Outcome.FAILED)
    assert record.cause is not None
    assert record.cause.kind is CauseKind.INTERRUPTED
    assert "its 4 samples are kept" in record.cause.message
    times = record.measurement("step_time")
    assert times is not None
    assert (times.samples, times.value, times.metric.unit) == ([1.0, 2.0, 3.0], 2.0, "s")
    assert store.load("run-1").records == [record]
    assert [case.index for case in store.load("run-1").missing] == [0, 1]
    assert store.recover("run-1") == []


def test_a_record_takes_the_place_of_its_partials(store: Store) -> None:
    store.begin(a_run())
    store.keep_partial("run-1", 0, 1, "step_time", "s", [1.0])
    store.keep_partial("run-1", 1, 1, "step_time", "s", [1.0])
    store.add(a_record(index=0))
    assert [record.case.index for record in store.recover("run-1")] == [1]
    assert store.load("run-1").records[0] == a_record(index=0)


def test_what_really_happened_replaces_an_interrupted_record_but_not_the_reverse(store: Store) -> None:
    store.begin(a_run())
    store.keep_partial("run-1", 0, 1, "step_time", "s", [1.0])
    store.recover("run-1")
    store.add(a_record())
    store.keep_partial("run-1", 0, 1, "step_time", "s", [1.0])
    assert store.recover("run-1") == []
    assert store.attempts("run-1", 0) == [a_record()]


def test_a_run_finishes_and_is_reopened(store: Store) -> None:
    store.begin(a_run())
    before = datetime.now(UTC)
    store.finish("run-1", "interrupted")
    run = store.load("run-1").run
    assert run.status == "interrupted"
    assert run.ended_at is not None
    assert before <= run.ended_at <= datetime.now(UTC)
    store.reopen("run-1")
    assert store.load("run-1").run == a_run(session="run-1")
    for change in (store.finish, store.reopen, store.recover):
        with pytest.raises(StoreError, match="no-such-run"):
            change("no-such-run")


def test_a_run_is_found_by_id_beginning_or_last(store: Store) -> None:
    with refused("empty-store"):
        store.find_run("last")
    for minutes, run_id in enumerate(["Ab_1", "Ab_12", "abx"]):
        store.begin(a_run(run_id, minutes=-minutes))
    assert store.find_run("last") == "Ab_1"
    assert store.find_run("Ab_1") == "Ab_1"
    assert store.find_run("ab") == "abx"
    assert store.find_run("Ab_12") == "Ab_12"
    with pytest.raises(InputError, match="2 runs: Ab_1, Ab_12") as caught:
        store.find_run("Ab")
    assert caught.value.code == "ambiguous-run"
    with refused("unknown-run", value="abz", suggestion="abx"):
        store.find_run("abz")
    with refused("unknown-run", value="", suggestion=None):
        store.find_run("")
    for look in (store.load, store.is_alive):
        with refused("unknown-run", value="abz", suggestion="abx"):
            look("abz")


def test_the_list_counts_the_last_attempts(store: Store) -> None:
    store.begin(a_run("older", cases=4))
    store.begin(a_run("newer", cases=1, minutes=1))
    store.add(a_failed_record("older", 0, 1))
    store.add(a_record("older", 0, 2))
    store.add(a_record("older", 1, 1))
    store.add(a_failed_record("older", 1, 2))
    store.add(a_record("older", 2))
    newer, older = store.runs()
    assert (newer.id, newer.cases, newer.ok, newer.not_ok, newer.missing) == ("newer", 1, 0, 0, 1)
    assert (older.id, older.cases, older.ok, older.not_ok, older.missing) == ("older", 4, 2, 1, 1)
    assert older.started_at == START
    assert [row.id for row in store.runs(limit=1)] == ["newer"]


def test_a_run_whose_runner_is_gone_is_interrupted(url: str, store: Store) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from support.store_samples import a_run; from paceline.store import open_store\n"
        "open_store(sys.argv[1]).begin(a_run('dead'))"
    )
    subprocess.run([sys.executable, "-c", script, url, str(Path(__file__).parents[2])], check=True)
    store.begin(a_run("mine"))
    assert {row.id: row.status for row in store.runs()} == {"dead": "interrupted", "mine": "running"}
    assert store.load("dead").run.status == "interrupted"
    assert (store.is_alive("dead"), store.is_alive("mine")) == (False, True)
    store.finish("dead", "finished")
    assert store.load("dead").run.status == "finished"


def test_liveness_knows_a_recycled_process_number_and_does_not_judge_other_hosts() -> None:
    mine = location.this_runner()
    assert location.is_alive(mine)
    assert not location.is_alive(mine | {"started": psutil.boot_time() - 100})
    assert location.is_alive(mine | {"host": socket.gethostname() + "-other", "pid": 2**22 + 1})


def test_a_second_opening_sees_what_the_first_one_kept(url: str) -> None:
    with open_store(url) as first, open_store(url) as second:
        first.begin(a_run())
        second.add(a_record())
        assert first.load("run-1").records == [a_record()]


texts = names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)  # others are written out
finite = st.floats(allow_nan=False, allow_infinity=False)
floats = st.floats(allow_nan=True, allow_infinity=True)
documents = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)
intervals = st.none() | st.builds(Interval, low=floats, high=floats, confidence=floats)
measurements = st.builds(
    Measurement,
    metric=st.builds(
        Metric, name=names, unit=texts, better=st.sampled_from(Better), merge=st.sampled_from(Merge), description=texts
    ),
    scope=names,
    statistic=st.sampled_from(["median", "mean", "single"]),
    summary=st.builds(
        Summary,
        count=st.integers(0, 10**12),
        effective_count=floats,
        mean=floats,
        median=floats,
        minimum=floats,
        maximum=floats,
        deviation=floats,
        mean_interval=intervals,
        median_interval=intervals,
        percentiles=st.dictionaries(texts, floats, max_size=3),
        outliers=st.integers(0, 10),
    ),
    samples=st.lists(floats, max_size=8),
    derived_from=names,
    work=st.none() | st.floats(min_value=5e-324, allow_nan=False),
)
some_records = st.builds(
    Record,
    run_id=st.just("run"),
    case=st.builds(Case, index=st.just(0), benchmark=texts, parameters=documents, title=texts, timeout=floats),
    attempt=st.just(1),
    outcome=st.sampled_from(Outcome),
    cause=st.none() | st.builds(Cause, kind=st.sampled_from(CauseKind), message=texts, detail=texts),
    started_at=st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    seconds=st.floats(min_value=0.0, allow_nan=False),
    measurements=st.lists(measurements, max_size=3),
    facts=documents,
    warnings=st.lists(st.builds(RecordWarning, kind=texts, message=texts, remedy=texts), max_size=2),
    conditions=documents,
)


def bits(value: object) -> object:
    """The value with every float as its bits, so that NaN equals NaN and -0.0 differs from 0.0."""
    match value:
        case float():
            return "nan" if math.isnan(value) else struct.pack("<d", value)
        case dict():
            return {key: bits(item) for key, item in value.items()}
        case list():
            return [bits(item) for item in value]
        case _:
            return value


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(record=some_records)
def test_any_record_comes_back_to_the_bit(store: Store, record: Record) -> None:
    run_id = f"run-{len(store.runs(limit=None))}"
    record = record.model_copy(update={"run_id": run_id})
    store.begin(a_run(run_id, cases=1))
    store.add(record)
    (loaded,) = store.load(run_id).records
    assert bits(loaded.model_dump()) == bits(record.model_dump())


def test_a_run_is_there_or_not(store: Store) -> None:
    store.begin(a_run("one"))
    assert (store.has("one"), store.has("other")) == (True, False)


def test_the_twenty_newest_runs_are_listed(store: Store) -> None:
    for number in range(21):
        store.begin(a_run(f"run-{number}", cases=0, minutes=number))
    assert [row.id for row in store.runs()] == [f"run-{number}" for number in range(20, 0, -1)]
    assert len(store.runs(limit=None)) == 21


@pytest.mark.parametrize(("count", "listed"), [(10, "a0, .*, a9; type more"), (11, "a0, .*, a9 and 1 more; type")])
def test_of_many_runs_that_begin_alike_ten_are_named(tmp_path: Path, count: int, listed: str) -> None:
    with open_store(tmp_path / "paceline.db") as store:
        for number in range(count):
            store.begin(a_run(f"a{number}", cases=0, minutes=-number))
        with refused("ambiguous-run", says=f"is the beginning of {count} runs: {listed}", value="a"):
            store.find_run("a")


def test_runs_are_found_by_their_tag_or_as_one(store: Store) -> None:
    for minutes, (run_id, tags) in enumerate({"a": ["odd"], "b": [], "c": ["odd"], "odder": []}.items()):
        store.begin(a_run(run_id, minutes=minutes, tags=tags))
    assert (store.find_runs("odd"), store.find_runs("b")) == (["a", "c"], ["b"])


@pytest.mark.parametrize(("off", "is_alive"), [(0.0, True), (4.5, True), (-4.5, True), (5.0, False), (5.5, False)])
def test_a_runner_is_known_by_when_it_started_to_a_few_seconds(off: float, is_alive: bool) -> None:
    mine = location.this_runner()
    assert location.is_alive(mine | {"started": mine["started"] - off}) is is_alive


def test_a_runner_that_has_ended_is_not_alive_while_its_parent_has_not_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        started = psutil.Process(process.pid).create_time()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        runner = location.this_runner() | {"pid": process.pid, "started": started}
        assert not location.is_alive(runner)


FILE, SERVER = location.locate("/nowhere/paceline.db"), location.locate("postgresql://host/db")


@pytest.mark.parametrize(
    ("error", "where", "advice"),
    [
        (IntegrityError("", {}, Exception("UNIQUE")), FILE, "this contradicts what the store holds already"),
        (DataError("", {}, Exception("out of range")), FILE, "change the value that it refuses"),
        (StatementError("no time zone", "", {}, ValueError()), FILE, "change the value that it refuses"),
        (OperationalError("", {}, Exception("database or disk is FULL")), FILE, "free some space"),
        (sqlite3.OperationalError("database is locked"), FILE, "another process keeps it locked"),
        (sqlite3.DatabaseError("it is odd"), FILE, "check that the file is intact"),
        (OperationalError("", {}, Exception("gone")), SERVER, "check that the server runs and lets you in"),
    ],
)
def test_an_error_comes_with_what_to_do_about_it(error: Exception, where: location.Location, advice: str) -> None:
    assert remedy(error, where).startswith(advice)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Exception("two\n  lines"), "two lines"),
        (Exception(), "Exception"),
        (OperationalError("SELECT 1", {}, Exception("it is gone")), "it is gone"),
        (StatementError("it is odd", "SELECT 1", {}, None), "it is odd"),
    ],
)
def test_an_error_is_told_in_one_line_in_the_databases_words(error: Exception, message: str) -> None:
    assert reason(error).startswith(message)


@pytest.mark.parametrize(
    ("where", "message", "kind"),
    [
        (FILE, "file is not a database", InputError),
        (FILE, "disk I/O error", StoreError),
        (SERVER, "this is not a database", StoreError),
    ],
)
def test_only_a_file_of_another_kind_is_the_users_mistake(
    where: location.Location, message: str, kind: type[Exception]
) -> None:
    assert type(opening_error(where, sqlite3.DatabaseError(message))) is kind


def test_an_error_shows_no_values(store: Store) -> None:
    store.begin(a_run())
    with pytest.raises(StoreError) as caught:
        store.begin(a_run())
    assert "node-check" not in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("status", "is_there", "shown"),
    [
        ("running", True, "running"),
        ("running", False, "interrupted"),
        ("finished", True, "finished"),
        ("finished", False, "finished"),
    ],
)
def test_only_a_run_that_should_go_on_is_interrupted_by_the_end_of_its_runner(
    status: RunStatus, is_there: bool, shown: RunStatus
) -> None:
    runner = location.this_runner()
    assert location.status_of(status, runner if is_there else runner | {"started": 0.0}) == shown


def test_runs_in_a_row_are_one_session_and_earlier_ones_of_the_machine_are_read(store: Store) -> None:
    machine = {"host": "n1", "cpu": {"model": "EPYC"}, "boot": "one"}
    start = a_run().started_at
    stored = []
    for name, minutes, environment in (
        ("a", 0, machine),
        ("b", 30, machine),
        ("c", 300, machine),
        ("d", 310, machine | {"boot": "two"}),
        ("e", 315, machine | {"host": "n2"}),
    ):
        at = start + timedelta(minutes=minutes)
        run = a_run(name, started_at=at, ended_at=at, environment=environment)
        store.begin(run)
        store.add(a_record(run_id=name))
        stored.append(store.load(name).run)
    assert [run.session for run in stored] == ["a", "a", "c", "d", "e"]
    metric = a_record().measurements[0].metric.name
    earlier = store.earlier([stored[3]], [metric])
    assert [one.run.id for one in earlier] == ["a", "b", "c"]
    assert {m.metric.name for one in earlier for record in one.records for m in record.measurements} == {metric}
    assert store.earlier([stored[4]], [metric]) == []
    assert store.earlier(stored[:1], []) == []
