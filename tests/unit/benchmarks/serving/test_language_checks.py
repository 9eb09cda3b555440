"""Loads of language models that cannot be sent, or whose rates would not mean what they say, are refused beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.serve import Serve
from paceline.core.case import Case
from support.refused import refused

THEIRS = {"kind": "url", "url": "http://gpu7:8000/v1", "model": "llama"}


def check(**given: Any) -> None:
    parameters = ServeParameters.read({"server": THEIRS, "wire": "openai-chat"} | given)
    Serve.check(parameters, Case(index=0, benchmark="serve", parameters={}, title="", origin="local"))


@pytest.mark.parametrize("load", [{"slo": {"p99": "1s"}}, {"load": {"arrival": "sweep", "over": "rate"}}])
def test_a_rate_of_requests_is_not_looked_for_in_conversations(load: dict[str, Any]) -> None:
    check(**load)
    with refused("conflicting-keys", key="requests.turns"):
        check(**load, requests={"turns": 2})


def test_a_sweep_over_users_takes_conversations() -> None:
    check(load={"arrival": "sweep"}, requests={"turns": 2})


def test_a_trace_that_says_which_request_goes_takes_no_conversations(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("timestamp,kind\n0,0\n1,1\n")
    check(load={"arrival": "trace", "file": file})
    with refused("conflicting-keys", key="requests.turns"):
        check(load={"arrival": "trace", "file": file}, requests={"turns": 2})


def test_a_trace_of_lengths_has_nothing_to_rank(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 10}\n{"timestamp": 9, "input_length": 30}\n')
    check(load={"arrival": "trace", "file": file}, wire="openai-embeddings")
    with refused("conflicting-keys", key="wire"):
        check(load={"arrival": "trace", "file": file}, wire="rerank")
