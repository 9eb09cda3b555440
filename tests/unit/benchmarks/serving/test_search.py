"""The search for the largest rate that holds, against servers whose capacity is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from paceline.benchmarks.serving.search import (
    FEWEST_AROUND,
    LONGEST_PART,
    LOWEST_RATE,
    MOST_AROUND,
    Crossing,
    Probe,
    RateTrial,
    crossing,
    find_capacity,
)

SERVICE = 0.001
LIMIT = 0.01
SHARE = 0.99


def queue(rate: float, count: int, rng: np.random.Generator) -> tuple[float, np.ndarray]:
    """A server that takes a fixed time for each of its Poisson requests, one after another."""
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    position = np.arange(count) * SERVICE
    # Each request ends when the busiest stretch that it is in has been worked off.
    ends = np.maximum.accumulate(arrivals - position) + position + SERVICE
    return float(ends[-1]), ends - arrivals


def simulated(seed: int) -> Probe:
    rng = np.random.default_rng(seed)

    def probe(rate: float, requests: int) -> RateTrial:
        took, latency = queue(rate, requests + requests // 10, rng)
        missed = int(np.count_nonzero(latency[-requests:] > LIMIT))  # the queue was empty at first
        return RateTrial(rate, requests, missed, len(latency) / took, missed <= (1 - SHARE) * requests, "late")

    return probe


@pytest.fixture(scope="module")
def capacity() -> float:
    """The rate at which one percent of a very long run is late, by bisection."""
    rng = np.random.default_rng(2026)
    low, high = 0.5 / SERVICE, 1.0 / SERVICE
    for _ in range(12):
        middle = (low + high) / 2
        late = float(np.mean(queue(middle, 2_000_000, rng)[1] > LIMIT))
        low, high = (middle, high) if late <= 1 - SHARE else (low, middle)
    return low


@pytest.mark.parametrize("first", [3.0, 120.0, 20_000.0])
def test_finds_a_known_capacity_within_three_percent(capacity: float, first: float) -> None:
    results = [find_capacity(simulated(seed), SHARE, LIMIT, first=first, ceiling=1e5) for seed in range(6)]
    errors = np.array([abs((one.rate or 0.0) / capacity - 1.0) for one in results])
    print(f"errors from {first:g}/s: median {np.median(errors):.3f}, largest {errors.max():.3f}")
    assert np.median(errors) <= 0.015
    assert np.mean(errors <= 0.03) >= 0.8
    assert sum(one.verdict == "found" for one in results) >= 4


def test_the_interval_holds_the_capacity_nearly_always(capacity: float) -> None:
    results = [find_capacity(simulated(100 + seed), SHARE, LIMIT, first=400.0, ceiling=1e5) for seed in range(12)]
    within = [one.interval.low <= capacity <= one.interval.high for one in results if one.interval]
    assert sum(within) >= len(results) - 3  # the 0.5 % limit of 95 % of 12


def test_a_client_that_cannot_send_more_is_named_not_the_server() -> None:
    found = find_capacity(simulated(1), SHARE, LIMIT, first=50.0, ceiling=200.0)
    assert (found.verdict, found.rate) == ("client", 200.0)
    assert "200/s" in found.reason


def test_a_load_that_was_not_delivered_ends_the_search() -> None:
    def probe(rate: float, requests: int) -> RateTrial:
        limited = "the client is saturated" if rate > 500 else ""
        return RateTrial(rate, requests, 0, min(rate, 500.0), True, limited=limited)

    found = find_capacity(probe, SHARE, LIMIT, first=100.0, ceiling=1e5)
    assert (found.verdict, found.reason) == ("client", "the client is saturated")


def test_a_promise_that_never_holds_says_so_at_the_lowest_rate() -> None:
    found = find_capacity(_always(late=True), SHARE, LIMIT, first=1000.0, ceiling=1e5)
    assert found.verdict == "never"
    assert found.rate is None
    assert found.trials[-1].rate == LOWEST_RATE
    assert found.reason == "even at 1/s: p99 is 3 s"


def test_a_broken_server_ends_the_search_soon() -> None:
    found = find_capacity(
        lambda rate, n: RateTrial(rate, n, n, 0.0, False, "all failed"), 0.99, LIMIT, first=64.0, ceiling=1e5
    )
    assert found.verdict == "never"
    assert len(found.trials) <= 7


def test_an_erratic_server_is_called_unsteady() -> None:
    rng = np.random.default_rng(5)

    def probe(rate: float, requests: int) -> RateTrial:
        missed = int(requests * rng.choice([0.0, 0.5]))
        return RateTrial(rate, requests, missed, rate, missed == 0, "late")

    found = find_capacity(probe, SHARE, LIMIT, first=100.0, ceiling=1e4)
    assert found.verdict in ("unsteady", "never", "client")
    assert len(found.trials) <= MOST_AROUND + 60


def test_when_time_is_up_the_answer_is_what_is_known() -> None:
    left = iter([10.0] * 12)
    found = find_capacity(simulated(3), SHARE, LIMIT, first=400.0, ceiling=1e5, left=lambda: next(left, 0.0))
    assert found.rate is not None
    assert (found.verdict, found.interval) == ("out of time", None)
    assert found.reason.startswith("the time was over")


def test_overload_tells_the_upper_end() -> None:
    asked: list[float] = []
    probe = simulated(4)

    def noted(rate: float, requests: int) -> RateTrial:
        asked.append(rate)
        return probe(rate, requests)

    find_capacity(noted, SHARE, LIMIT, first=900.0, ceiling=1e6)
    assert max(asked) < 2 * 900.0 * 1.01  # after one look at 1800/s nothing above the capacity is tried


def _always(*, late: bool) -> Callable[[float, int], RateTrial]:
    return lambda rate, n: RateTrial(rate, n, n if late else 0, rate, not late, "p99 is 3 s")


def test_crossing_needs_trials_on_a_line_that_rises() -> None:
    def trial(rate: float, missed: int) -> RateTrial:
        return RateTrial(rate, 1000, missed, rate, missed <= 10)

    assert crossing([trial(100, 5)], 0.01, 100.0) is None
    assert crossing([trial(97, 30), trial(100, 10), trial(103, 3)], 0.01, 100.0) is None
    assert crossing([trial(97, 5), trial(100, 10), trial(103, 20)], 0.01, 100.0) is None  # any line would do
    found = crossing(
        [trial(rate, missed) for rate, missed in ((90, 2), (95, 5), (100, 10), (105, 20), (110, 41))] * 4, 0.01, 100.0
    )
    assert found is not None
    assert found.rate == pytest.approx(100.0, rel=0.01)
    assert 0.9 < found.low / 100 < 1 < found.high / 100 < 1.1


def test_few_trials_that_agree_may_do_so_by_luck() -> None:
    few, many = (Crossing(100.0, 96.0, 104.0, freedom) for freedom in (14, 1000))
    assert few.half == many.half == pytest.approx(0.04)
    assert few.surely == pytest.approx(0.04 * (14 / 4.66) ** 0.5, rel=0.01)  # the chi-square quantile of 1 % is 4.66
    assert many.surely == pytest.approx(0.04, rel=0.06)


def test_a_rate_that_was_not_sent_is_neither_held_nor_missed_by_the_server() -> None:
    """The client falls behind above 500/s, so that what it sends comes late."""

    def probe(rate: float, requests: int) -> RateTrial:
        is_late = rate > 500
        return RateTrial(
            rate, requests, requests if is_late else 0, rate, not is_late, "late", "busy" if is_late else ""
        )

    rising = find_capacity(probe, SHARE, LIMIT, first=100.0, ceiling=1e5)
    assert (rising.verdict, rising.rate, rising.reason) == ("client", 400.0, "busy")
    falling = find_capacity(probe, SHARE, LIMIT, first=4000.0, ceiling=1e5)
    assert (falling.verdict, falling.reason) == ("client", "busy")
    assert falling.rate is not None
    assert falling.rate <= 500


@pytest.mark.parametrize("looks", range(8))
def test_when_time_is_up_the_answer_is_a_rate_that_was_tried(looks: int) -> None:
    left = iter([10.0] * (1 + looks))
    found = find_capacity(simulated(3), SHARE, LIMIT, first=400.0, ceiling=1e5, left=lambda: next(left, 0.0))
    assert found.verdict == "out of time"
    assert found.interval is not None or found.rate in {trial.rate for trial in found.trials if trial.holds}


def test_no_trial_lasts_longer_than_allowed() -> None:
    found = find_capacity(simulated(6), SHARE, LIMIT, first=400.0, ceiling=1e5, longest=0.5)
    assert max(trial.requests / trial.rate for trial in found.trials) <= 0.51


def test_a_hopeless_promise_is_found_out_with_few_requests() -> None:
    found = find_capacity(_always(late=True), SHARE, 1e-6, first=1000.0, ceiling=1e5)
    assert found.verdict == "never"
    assert sum(trial.requests / trial.rate for trial in found.trials) < 30.0  # seconds


@pytest.mark.parametrize("budget", [2.0, 20.0, 60.0])
def test_a_search_keeps_to_its_time_and_has_an_interval_only_with_enough_trials(budget: float) -> None:
    spent, probe = 0.0, simulated(8)

    def timed(rate: float, requests: int) -> RateTrial:
        nonlocal spent
        trial = probe(rate, requests)
        spent += 1.1 * requests / trial.throughput
        return trial

    found = find_capacity(
        timed, SHARE, LIMIT, first=400.0, ceiling=1e5, longest=LONGEST_PART * budget, left=lambda: budget - spent
    )
    assert spent <= budget
    assert (found.interval is None) == (found.verdict == "out of time")
    assert found.interval is None or len(found.trials) >= FEWEST_AROUND
    assert found.verdict == "out of time" or budget > 2.0
