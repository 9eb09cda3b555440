"""Two settings measured in turns within one run, and compared turn by turn."""

from __future__ import annotations

import json

from support.cli import Sandbox, events


def test_a_run_in_turns_ends_with_the_paired_comparison(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "nap", "--steps", "4", "--ab", "duration=20ms", "--ab", "duration=60ms", "--rounds", "4",
                       "--no-report")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    records = sandbox.load().records
    assert [record.case.title[-2] for record in records] == list("ABBAABBA")
    assert "B (duration=0.06) against A (duration=0.02)" in done.stdout
    again = sandbox.ask("compare", "last", "--json")
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert document["paired"]
    (row,) = document["comparisons"][0]["rows"]
    assert row["verdict"] == "worse"
    assert row["low"] > 1.5  # a nap takes its time at least, and the longer one three times that
    assert row["reference_parts"] == 4


def test_programs_get_the_comparison_as_an_event(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "nap", "--ab", "duration=10ms", "--ab", "duration=30ms", "--rounds", "2", "--no-report",
                       "--json")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = [event for event in events(done.stdout) if event["event"] == "comparison"]
    assert len(told) == 1
    assert told[0]["comparisons"][0]["rows"][0]["metric"] == "step_time"


def test_cases_that_the_sides_do_not_touch_are_left_out(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "nap"}, {"benchmark": "refuses"})
    shown = sandbox.ask("run", suite, "--ab", "duration=10ms", "--ab", "duration=30ms", "--rounds", "2", "--dry-run",
                        "--json")  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    cases = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [case["benchmark"] for case in cases] == ["nap"] * 4


def test_what_cannot_be_in_turns_is_refused(sandbox: Sandbox) -> None:
    for words, told in (
        (("--ab", "duration=1ms"), "give it twice"),
        (
            ("--ab", "duration=1ms", "--ab", "duratio=2ms"),
            "--ab duratio: unknown key 'duratio': did you mean 'duration'?",
        ),
        (("--ab", "duration=1ms", "--ab", "duration=2ms", "--peer", "doze"), "nor --peer"),
        (("--ab", "duration=1ms", "--ab", "duration=2ms", "--repeat", "2"), "use --rounds"),
    ):
        done = sandbox.ask("run", "nap", *words)
        assert done.returncode == 2
        assert told in done.stderr
        assert len(done.stderr.splitlines()) == 1
