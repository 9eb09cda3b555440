"""One case that fails ends itself alone, with an outcome and a cause that a person can act on."""

from __future__ import annotations

from paceline.core.record import CauseKind, Outcome
from support.cli import Sandbox, ended, events

NAP = {"benchmark": "nap", "duration": "20ms"}


def test_every_case_beside_failing_ones_is_measured_and_each_failure_has_its_own_cause(sandbox: Sandbox) -> None:
    failing = [
        ({"benchmark": "crash", "how": "abort"}, Outcome.FAILED, CauseKind.CRASHED, "SIGABRT"),
        ({"benchmark": "crash", "how": "segfault"}, Outcome.FAILED, CauseKind.CRASHED, "SIGSEGV"),
        ({"benchmark": "exits", "code": 3}, Outcome.FAILED, CauseKind.CRASHED, "code 3"),
        ({"benchmark": "exits", "code": 0}, Outcome.FAILED, CauseKind.CRASHED, "code 0"),
        ({"benchmark": "raises"}, Outcome.FAILED, CauseKind.ERROR, "ValueError"),
        ({"benchmark": "needs"}, Outcome.UNSUPPORTED, CauseKind.MISSING_DEPENDENCY, "a_library_that_nobody_has"),
        ({"benchmark": "refuses"}, Outcome.UNSUPPORTED, CauseKind.UNSUPPORTED, "flux capacitor"),
        ({"benchmark": "hungry"}, Outcome.OUT_OF_MEMORY, CauseKind.HOST_MEMORY, "memory"),
    ]
    suite = [entry for case, *_ in failing for entry in (case, NAP)]

    done = sandbox.ask("run", sandbox.suite(*suite), "--no-report", "--json")

    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    said = events(done.stdout)
    assert said[-1]["event"] == "run_ended"
    assert said[-1]["ok"] is False
    stored = sandbox.load()
    assert stored.run.status == "finished"
    assert stored.missing == []
    assert [(r.case.index, r.outcome) for r in ended(said)] == [(r.case.index, r.outcome) for r in stored.records]
    assert len(stored.records) == len(suite)
    for record in stored.records[1::2]:
        assert record.outcome is Outcome.OK
        assert record.cause is None
        step_time = record.measurement("step_time")
        assert step_time is not None
        assert len(step_time.samples) == 5
    for record, (_, outcome, kind, words) in zip(stored.records[::2], failing, strict=True):
        assert record.outcome is outcome
        assert record.cause is not None
        assert record.cause.kind is kind
        assert words in record.cause.message
    assert sandbox.left_behind() == []


def test_a_crash_keeps_the_samples_and_the_last_words_of_the_process(sandbox: Sandbox) -> None:
    assert sandbox.ask("run", "crash", "--no-report").returncode == 1
    (record,) = sandbox.load().records
    assert record.cause is not None
    assert "the last words of native code" in record.cause.detail
    step_time = record.measurement("step_time")
    assert step_time is not None
    assert step_time.samples == [0.25]


def test_retrying_what_failed_leaves_what_is_ok_alone(sandbox: Sandbox) -> None:
    assert sandbox.ask("run", sandbox.suite(NAP, {"benchmark": "exits"}), "--no-report").returncode == 1
    run_id = sandbox.load().run.id
    nothing_missing = sandbox.ask("run", "--resume", run_id, "--no-report", "--json")
    assert events(nothing_missing.stdout)[0]["todo"] == []
    assert nothing_missing.returncode == 1
    again = sandbox.ask("run", "--resume", run_id, "--retry-failed", "--no-report", "--json")
    assert events(again.stdout)[0]["todo"] == [1]
    assert again.returncode == 1
    assert [record.attempt for record in sandbox.attempts(run_id, 0)] == [1]
    assert [record.attempt for record in sandbox.attempts(run_id, 1)] == [1, 2]
