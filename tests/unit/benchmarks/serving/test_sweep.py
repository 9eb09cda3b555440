"""A sweep: which loads it has, when it ends, and what it makes of them."""

from __future__ import annotations

import pytest

from paceline.benchmarks.serving.sweep import SweepPoint, run_sweep, together, why_stop
from paceline.core.errors import CaseError
from paceline.core.record import Measurement, RecordWarning, Result
from paceline.load.parameters import LoadParameters
from paceline.load.trace import CANCELLED, TIMED_OUT
from support.token_records import result_of, token_trace


def point(amount: float, throughput: float, latency: float, failed: float = 0.0, axis: str = "users") -> SweepPoint:
    return SweepPoint(axis, amount, throughput, latency, failed, Result())


def test_users_double_up_to_the_most() -> None:
    assert LoadParameters(arrival="sweep").swept_users == [1, 2, 4, 8, 16, 32, 64]
    assert LoadParameters(arrival="sweep", users=6).swept_users == [1, 2, 4, 6]
    assert LoadParameters(arrival="sweep", users=1).swept_users == [1]
    assert LoadParameters(arrival="sweep", over="rate", users=16).swept_users == [1, 16]


def test_each_load_is_as_long_as_the_sweep_says() -> None:
    load = LoadParameters(arrival="sweep", requests=40, network="lan")
    closed, paced = load.of_sweep(users=4), load.of_sweep(rate=2.5)
    assert (closed.arrival, closed.users, closed.requests, closed.network) == ("closed", 4, 40, "lan")
    assert (paced.arrival, paced.rate, paced.requests) == ("poisson", 2.5, 40)


def test_a_sweep_ends_where_throughput_no_longer_rises_while_latency_doubles() -> None:
    rising = [point(1, 100, 0.1), point(2, 190, 0.105), point(4, 300, 0.13)]
    assert why_stop(rising) == ""
    assert "saturated at 8 users" in why_stop([*rising, point(8, 305, 0.26)])
    assert why_stop([*rising, point(8, 380, 0.26)]) == ""  # it still rises
    assert why_stop([*rising, point(8, 301, 0.15)]) == ""  # it does not, but nobody waits longer


def test_a_sweep_ends_where_too_many_requests_fail() -> None:
    assert why_stop([point(1, 100, 0.1, failed=0.2)]).startswith("20 % of the requests failed at 1 user")
    assert why_stop([point(1, 100, 0.1, failed=0.2)], most_errors=0.5) == ""


def test_requests_that_were_closed_on_purpose_have_not_failed() -> None:
    trace = token_trace(1, each=4)
    trace.status[:2] = [CANCELLED, TIMED_OUT]
    assert SweepPoint.of("users", 1, trace, result_of(trace)).failed == pytest.approx(1 / 3)


def test_a_sweep_over_rates_goes_from_what_one_user_gets_to_what_many_get() -> None:
    sent: list[tuple[str, float]] = []

    def measure(axis: str, amount: float, load: LoadParameters) -> SweepPoint:
        sent.append((axis, amount))
        trace = token_trace(int(amount) if axis == "users" else 2, each=20)
        return SweepPoint.of(axis, amount, trace, result_of(trace))

    points, _ = run_sweep(LoadParameters(arrival="sweep", over="rate", users=8, points=4), measure)
    ends = [one.value for each in points[:2] for one in each.result.measurements if one.metric.name == "throughput"]
    assert sent[:2] == [("users", 1), ("users", 8)]
    rates = [amount for axis, amount in sent if axis == "rate"]
    assert rates == sorted(rates) and rates[0] == pytest.approx(ends[0], rel=1e-3)
    assert len(rates) < 4 or rates[-1] == pytest.approx(ends[1], rel=1e-3)


def test_what_was_measured_before_a_server_ended_stays() -> None:
    def measure(axis: str, amount: float, load: LoadParameters) -> SweepPoint:
        if amount > 2:
            raise CaseError("the server ended under load")
        trace = token_trace(int(amount), each=20)
        return SweepPoint.of(axis, amount, trace, result_of(trace))

    points, stopped = run_sweep(LoadParameters(arrival="sweep"), measure)
    assert ([one.amount for one in points], stopped) == ([1, 2], "the server ended under load")
    with pytest.raises(CaseError, match="ended under load"):
        run_sweep(LoadParameters(arrival="sweep"), lambda *_: measure("users", 4, LoadParameters(arrival="sweep")))


def test_the_headline_is_that_of_the_load_with_the_most_tokens() -> None:
    points = [SweepPoint.of("users", users, trace, result_of(trace)) for users, trace in TRACES.items()]
    made = together(points, "users", "")
    whole = {one.metric.name: one.value for one in made.measurements if not one.at}
    assert whole["token_throughput"] == max(point.throughput for point in points)
    assert made.facts["headline_at"] == "4 users"
    assert {one.at["users"] for one in made.measurements if one.at.keys() == {"users"}} == {1, 4}
    assert [one["at"] for one in made.facts["loads"]] == [1, 4]


def test_a_load_that_missed_its_slo_does_not_lead() -> None:
    verdicts = {1: "held", 4: "missed: first token"}
    points = [
        SweepPoint.of("users", users, trace, result_of(trace, facts={"slo": verdicts[users]}))
        for users, trace in TRACES.items()
    ]
    made = together(points, "users", "")
    assert (made.facts["headline_at"], made.facts["slo"]) == ("1 user", "held")
    assert [one["slo"] for one in made.facts["loads"]] == list(verdicts.values())


def test_loads_with_the_same_warning_are_one_warning() -> None:
    points = [SweepPoint.of("users", users, trace, result_of(trace)) for users, trace in TRACES.items()]
    for one in points:
        one.result.warnings.append(RecordWarning(kind="contended", message="others ran", remedy="quieten"))
    (warning,) = together(points, "users", "").warnings
    assert warning.message == "at 1 user: others ran (and at 4 users)"


TRACES = {users: token_trace(users, each=30) for users in (1, 4)}


def test_a_model_without_tokens_is_swept_by_its_requests() -> None:
    trace = token_trace(2, each=20)
    whole = [one for one in result_of(trace).measurements if "token" not in one.metric.name]
    made = SweepPoint.of("users", 2, trace, Result(measurements=whole))
    throughput = next(one for one in whole if one.metric.name == "throughput")
    assert isinstance(throughput, Measurement) and made.throughput == throughput.value
