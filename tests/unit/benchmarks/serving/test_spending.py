"""What a case says that it sends, and limits that hold for all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from paceline.api.cases import expand_here
from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.serve import Serve
from paceline.benchmarks.serving.spending import SendPlan, Spending, SpendLimits
from paceline.core.suite import Suite
from paceline.load.trace import CANCELLED, OK, UNSENT
from support.refused import refused
from support.traces import trace

THEIRS = {"kind": "url", "url": "http://gpu7:8000/v1", "model": "llama"}
HTTP = {"kind": "url", "url": "http://gpu7:8000/predict", "body": "{}"}
PRICES = {"usd_per_million_prompt_tokens": 1.0, "usd_per_million_output_tokens": 4.0}


def plan(**given: Any) -> SendPlan:
    chat = {"server": THEIRS, "wire": "openai-chat"} if "server" not in given else {}
    return SendPlan.of(ServeParameters.read(chat | given))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"load": {"rate": 5, "requests": 100}}, "sends 100 requests, after 4 to warm up: about 3,328 prompt tokens"),
        ({"load": {"rate": 5, "requests": 100}, "warm_up": 0}, "sends 100 requests, after 1 to warm up"),
        (
            {"load": {"rate": 5, "requests": 100}, "warm_up": "2s"},
            "sends 100 requests, after a warm-up; about 32 prompt",
        ),
        ({"load": {"arrival": "constant", "rate": 5, "duration": "4s"}}, "sends 20 requests, after 4"),
        ({"load": {"rate": 5, "duration": "4s"}, "server": HTTP}, "sends about 15 requests, after 5 to warm up"),
        ({"load": {"arrival": "closed", "users": 3}}, "sends requests of 3 users for 10 s, after 4"),
        ({"slo": {"p99": "1s"}}, "sends requests at many rates for 2 min 00 s at most"),
        (
            {"load": {"rate": 5, "requests": 9}, "requests": {"turns": "{1: 0.5, 3: 0.5}", "prompt_tokens": 10}},
            # 4 turns of two conversations have 3 turns before them, of 10 and 16 tokens each.
            "sends 18 requests of 9 conversations, after 4 to warm up: about 649 prompt tokens and about 352 output",
        ),
        ({"load": {"rate": 5, "requests": 10}, "server": HTTP}, "sends 10 requests, after 5 to warm up"),
        ({"load": {"rate": 5, "requests": 10}, "server": {"kind": "embedded"}}, "sends 10 requests, after a warm-up"),
    ],
)
def test_what_is_going_to_be_sent_is_said(given: dict[str, Any], says: str) -> None:
    assert str(plan(**given)).startswith(says)


def test_of_arrivals_that_are_drawn_anew_no_number_of_tokens_is_the_most() -> None:
    load = {"rate": 5, "duration": "4s"}
    assert "at most" not in str(plan(load=load))
    assert "at most" in str(plan(load=load | {"arrival": "constant"}))


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"load": {"rate": 5, "duration": "2h"}}, 7200.0),
        ({"load": {"rate": 5, "requests": 100}, "warm_up": "2s"}, 22.0),
        ({"load": {"arrival": "closed", "users": 3, "requests": 9}}, None),
        ({"load": {"arrival": "closed", "users": 3, "requests": 900, "think_time": "20s"}}, 6000.0),
        ({"load": {"arrival": "sweep", "users": 8, "duration": "30s"}}, 120.0),
        ({"load": {"arrival": "sweep", "over": "rate", "users": 8, "points": 5, "duration": "30s"}}, 210.0),
        ({"slo": {"p99": "1s"}, "search_budget": "90s"}, 90.0),
    ],
)
def test_how_long_it_takes_is_known_before_where_answers_do_not_decide(
    given: dict[str, Any], seconds: float | None
) -> None:
    asked = {"server": THEIRS, "wire": "openai-chat"} | given
    assert ServeParameters.read(asked).planned_seconds == seconds


def test_a_long_trace_is_not_cut_off_by_a_timeout_that_nobody_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("timestamp\n0\n3000\n")
    entry = {"benchmark": "serve", "server": THEIRS, "load": {"arrival": "trace", "file": str(file)}}
    suite = {"name": "replay", "cases": [entry, entry | {"timeout": "60s"}]}
    long, cut = expand_here(Suite.model_validate(suite), {})
    assert long.expected is not None and 3000.0 < long.expected < 3100.0
    assert (long.timeout, cut.timeout) == (2 * long.expected, 60.0)


def test_a_trace_of_requests_at_once_has_trials_of_fewer_requests(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("timestamp\n5\n5\n5\n5\n")
    whole = ServeParameters.read({"server": THEIRS, "load": {"arrival": "trace", "file": str(file)}})
    trial = Serve.shortened(whole, 0.5).load
    assert trial is not None
    assert len(trial.recorded()) == 2


def test_lengths_of_a_trace_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"timestamp": 0, "input_length": 1000, "output_length": 10}\n{"timestamp": 9, "input_length": 3000}\n'
    )
    with refused("not-a-length", key="load.file"):
        plan(load={"arrival": "trace", "file": file})
    file.write_text('{"timestamp": 0, "input_length": 1000}\n{"timestamp": 9, "input_length": 3000}\n')
    assert "about 12,000 prompt tokens and at most 96 output" in str(plan(load={"arrival": "trace", "file": file}))


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ({"requests": 103}, "limits.requests"),
        ({"tokens": 104 * 48 - 1}, "limits.tokens"),
        ({"usd": 104 * (32 + 4 * 16) / 1e6 * 0.99, **PRICES}, "limits.usd"),
    ],
)
def test_what_is_beyond_a_limit_is_refused(limits: dict[str, Any], key: str) -> None:
    hundred = plan(load={"rate": 5, "requests": 100})
    with refused("beyond-limit", key=key):
        hundred.check(SpendLimits(**limits))
    more = {name: value * 1.02 if name == "usd" else value + 1 for name, value in limits.items() if name not in PRICES}
    hundred.check(SpendLimits(**more, **{name: value for name, value in limits.items() if name in PRICES}))


def test_money_needs_prices() -> None:
    with pytest.raises(ValidationError, match="usd_per_million_prompt_tokens"):
        SpendLimits(usd=1.0, usd_per_million_output_tokens=1.0)


def test_every_request_counts_and_what_is_left_is_what_may_be_sent() -> None:
    spending = Spending(SpendLimits(requests=10))
    assert spending.allowed([], []) == 10
    spending.count(trace([0.1] * 4, status=[OK, OK, 500, UNSENT], retried=2), [], [])
    assert (spending.requests, spending.allowed([], [])) == (5, 5)
    spending.count(trace([0.1] * 9), [], [])
    assert spending.allowed([], []) == 0
    assert Spending(SpendLimits()).allowed([32], [16]) is None


def test_tokens_are_those_that_were_counted_or_else_asked_for() -> None:
    spending = Spending(SpendLimits(tokens=1000, usd=1.0, **PRICES))
    assert spending.allowed([32], [16]) == 1000 // (48 + 16)  # a word may be more than a token, until some were counted
    counted = {"prompt_tokens": np.array([40, -1], np.int32), "output_tokens": np.array([5, -1], np.int32)}
    spending.count(trace([0.1] * 2, **counted), [32], [16])
    assert spending.facts() == {"requests": 2, "prompt_tokens": 80, "output_tokens": 21, "usd": 0.000164}
    assert spending.allowed([32], [16]) == (1000 - 101) // (40 + 16)


def test_an_answer_that_was_closed_counts_as_long_as_it_may_have_become() -> None:
    spending = Spending(SpendLimits(tokens=1000))
    counted = {"prompt_tokens": np.array([32, 32, 32], np.int32), "output_tokens": np.array([5, 1, 20], np.int32)}
    spending.count(trace([0.1] * 3, status=[OK, CANCELLED, CANCELLED], **counted), [32], [16])
    assert spending.output_tokens == 5 + 16 + 20
