"""A run beside a peer: the order of the cases, what is refused, and a run that is interrupted and resumed."""

from __future__ import annotations

import json
import signal

import pytest

from support.cli import Sandbox


def measured(sandbox: Sandbox) -> list[tuple[int, str, int]]:
    return [(one.case.index, one.case.benchmark, one.case.repeat) for one in sandbox.load().records]


def test_every_case_that_fits_is_followed_by_its_peer(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "nap", "duration": ["20ms", "30ms"], "repeat": 2}, {"benchmark": "refuses"})
    shown = sandbox.ask("run", suite, "--peer", "doze", "--dry-run", "--json")
    assert shown.returncode == 0, shown.stderr
    cases = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [case["benchmark"] for case in cases] == ["nap", "doze"] * 4 + ["refuses"]
    assert [case["repeat"] for case in cases] == [1, 1, 2, 2, 1, 1, 2, 2, 1]
    assert [case["index"] for case in cases] == list(range(9))
    for ours, peer in zip(cases[:8:2], cases[1:8:2], strict=True):
        assert peer["parameters"] == ours["parameters"]
        assert peer["title"] == ours["title"]


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        ("exits", "it takes other parameters than nap; these fit: doze for nap"),
        ("nobody", "there is no such benchmark to compare with nap; these fit: doze for nap"),
        ("nap", "it is measured already, and nothing else here takes its parameters; these fit: doze for nap"),
    ],
)
def test_what_is_no_peer_is_refused_with_those_that_fit(sandbox: Sandbox, peer: str, words: str) -> None:
    done = sandbox.ask("run", "nap", "--peer", peer)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"paceline: --peer {peer}: {words}"]


@pytest.mark.long
def test_a_run_with_a_peer_is_resumed_with_it(sandbox: Sandbox) -> None:
    long = {"benchmark": "nap", "duration": "1500ms", "steps": 1}
    suite = sandbox.suite({"benchmark": "nap", "duration": "20ms"}, long)
    runner = sandbox.start("run", suite, "--peer", "doze", "--no-report", "--json")
    assert runner.stdout is not None
    ended = 0
    for line in runner.stdout:
        ended += json.loads(line)["event"] == "case_ended"
        if ended == 2:
            runner.send_signal(signal.SIGINT)
            break
    runner.communicate(timeout=30)
    assert [name for _, name, _ in measured(sandbox)][:2] == ["nap", "doze"]
    refused = sandbox.ask("run", "--resume", "last", "--peer", "doze")
    assert refused.returncode == 2
    assert "--peer" in refused.stderr
    assert sandbox.ask("run", "--resume", "last", "--no-report").returncode == 0
    assert measured(sandbox) == [(0, "nap", 1), (1, "doze", 1), (2, "nap", 1), (3, "doze", 1)]
