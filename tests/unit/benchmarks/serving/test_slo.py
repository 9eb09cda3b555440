"""An SLO is met, or the report says why not."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from paceline.benchmarks.serving import trace_metrics
from paceline.benchmarks.serving.parameters import Slo, SloDecision
from paceline.benchmarks.serving.trace_metrics import PERCENTILES
from support.traces import trace

NEVER = math.nan


def test_all_percentiles_must_hold() -> None:
    slo = Slo(p50=0.2, p90=0.5)
    assert slo.judge(trace([0.1] * 9 + [0.4])).holds
    missed = slo.judge(trace([0.3] * 9 + [0.4]))
    assert not missed.holds
    assert missed.reason == "p50 is 300 ms, above 200 ms"


def test_exactly_the_allowed_part_may_be_late() -> None:
    slo = Slo(p90=0.2)
    assert slo.judge(trace([0.1] * 9 + [9.0])).holds
    assert not slo.judge(trace([0.1] * 8 + [9.0, 9.0])).holds


def test_a_request_without_an_answer_is_late_without_end() -> None:
    slo = Slo(p90=0.2, errors=0.5)
    failed = trace([0.1] * 8 + [NEVER, NEVER], status=[200] * 8 + [2, 503])
    verdict = slo.judge(failed)
    assert not verdict.holds
    assert verdict.reason == "p90 is without end, above 200 ms"


def test_too_many_errors_miss_it_whatever_the_latency() -> None:
    verdict = Slo(p50=1.0).judge(trace([0.1] * 98 + [NEVER] * 2, status=[200] * 98 + [3, 503]))
    assert verdict.reason == "2 of 100 requests failed or were shed"


def test_goodput_counts_answers_within_the_highest_bound() -> None:
    good = Slo(p50=0.1, p99=0.3).good(trace([0.05, 0.2, 0.31, NEVER], status=[200, 200, 200, 1]))
    assert good.tolist() == [True, True, False, False]


def test_tokens_have_bounds_of_their_own() -> None:
    tokens = [np.array([0.1, 0.2, 0.3]), np.array([0.6, 0.7, 0.8]), np.array([0.3, 0.8])]
    seen = trace([0.3, 0.7, 0.6], gap=0.1, chunks=tokens)
    assert Slo(first_token=0.3).good(seen).tolist() == [True, False, True]
    assert Slo(first_token=1.0, between_tokens=0.2).good(seen).tolist() == [True, True, False]
    assert Slo(between_tokens=0.2).judge(seen).reason == "1 of 3 requests missed the bounds on tokens"


def test_a_stream_that_only_began_has_no_first_token() -> None:
    """Servers send the head of an answer before they compute the first token, and some answers have none."""
    early = np.array([0.01, 0.11, 0.21])
    seen = trace([1.0] * 3, gap=0.1, first=early, chunks=[np.array([0.1, 0.9]), np.array([0.9, 1.0]), np.empty(0)])
    assert Slo(first_token=0.2).good(seen).tolist() == [True, False, False]


def test_bounds_on_tokens_are_not_kept_where_nobody_saw_tokens() -> None:
    seen = trace([0.1] * 10)
    assert not Slo(first_token=1.0).judge(seen).holds
    assert not Slo(between_tokens=1.0).judge(seen).holds


def test_the_percentile_in_the_reason_is_the_one_that_is_measured() -> None:
    seen = trace([0.1] * 494 + [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    p99 = next(one for one in trace_metrics.percentiles(seen) if one.metric is PERCENTILES["p99"])
    assert p99.value == pytest.approx(1.0)
    assert Slo(p99=0.5).judge(seen).reason == "p99 is 1 s, above 500 ms"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "an slo needs a bound"),
        ({"errors": 0.1}, "an slo needs a bound"),
        ({"p50": 0.2, "p99": 0.1}, "a higher percentile cannot have a shorter bound"),
        ({"p99": 0}, "greater than 0"),
        ({"p98": 0.1}, "p98"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Slo(**given)


def test_what_is_used_up_is_that_of_the_bound_that_is_nearest_to_its_limit() -> None:
    seen = trace([0.1] * 40 + [0.3] * 60)
    assert Slo(p50=0.2, p99=1.0).judge(seen).used == pytest.approx(60 / 50)
    assert Slo(p99=1.0).judge(seen).used == 0.0
    failed = trace([0.1] * 96 + [NEVER] * 4, status=[200] * 96 + [2] * 4)
    assert Slo(p50=0.2, errors=0.02).judge(failed).used == pytest.approx(2.0)
    assert Slo(p50=0.2, errors=0).judge(failed).used == math.inf


def test_an_slo_is_met_only_where_the_requests_show_it() -> None:
    """The same times in another order: apart from each other they show much, in clusters little."""
    apart = np.random.default_rng(2).exponential(0.01, 2000)
    clustered = np.sort(apart)
    assert Slo(p99=0.2).decide(trace(apart)) == SloDecision(True)
    undecided = Slo(p99=0.2).decide(trace(clustered))
    assert undecided.is_met is None
    assert re.fullmatch(r"not decidable yet: [\d,]+ more requests", undecided.reason)


def test_a_percentile_that_is_not_reported_is_not_met() -> None:
    assert Slo(p99=1.0).decide(trace([0.1, 0.2] * 60)) == SloDecision(None, "not decidable yet: 380 more requests")
    assert Slo(p90=1.0).decide(trace([0.1, 0.2] * 60)) == SloDecision(True)


def test_near_the_bound_it_is_open_and_far_beyond_missed() -> None:
    apart = np.random.default_rng(2).exponential(0.01, 2000)  # p99 is 46 ms
    near = Slo(p99=0.046).decide(trace(apart))
    assert near.is_met is None and near.reason.startswith("not decidable yet: ")
    assert Slo(p99=0.02).decide(trace(apart)).is_met is False
    assert Slo(p99=0.02).decide(trace(np.sort(apart))).is_met is False
    assert Slo(p50=1.0).decide(trace([0.1] * 198 + [NEVER] * 4, status=[200] * 198 + [503] * 4)) == SloDecision(
        False, "4 of 202 requests failed or were shed"
    )


def test_bounds_on_tokens_are_decided_by_the_requests_as_well() -> None:
    waits = np.random.default_rng(4).uniform(0.05, 0.06, 600)
    tokens = [np.array([0.1 * number + wait, 0.1 * number + 0.1]) for number, wait in enumerate(waits)]
    seen = trace([0.1] * 600, gap=0.1, chunks=tokens)
    assert Slo(first_token=0.2).decide(seen) == SloDecision(True)
    assert Slo(first_token=0.01).decide(seen).is_met is False
    few = trace([0.1] * 200, gap=0.1, chunks=tokens[:200])
    assert Slo(first_token=0.2).decide(few) == SloDecision(None, "not decidable yet: 300 more requests")
