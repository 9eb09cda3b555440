"""The largest rate of requests that meets an SLO: a bracket, bisection, then a fit through the trials.

A trial is a load at one rate. Far from the limit few requests are enough. Near it, lateness comes in clusters, so
that one trial is poor evidence however it ends: several around the limit are taken, and the rate at which the fitted
part of late requests crosses what is allowed is the result, with an interval. A rate that is too high shows how much
the server can do at most, which is a better upper end than the rate itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

import numpy as np

from paceline.core.stats import CONFIDENCE, Interval, student_quantile

TOLERANCE = 0.02
ENOUGH = 20  # requests that may miss the bound, for the percentile to be worth anything
QUICK = 0.25  # of enough, for a first look
GLANCE = 12  # requests that show a hopeless rate, where even a first look would take long
SURE = 0.99
MOST_AROUND = 40  # trials near the limit
FEWEST_AROUND = 16  # trials that the fit takes before it is believed: few agree by chance too often
LONGER_AFTER = 8  # trials
SPANS = 100  # bounds on latency that a trial lasts at least: lateness comes in stretches about as long as the bound
CLOSE = 1.15  # bisect until the ends are within this ratio
FITTED = 1.1  # the fit looks at trials within this ratio of the limit: further away the line is none
ASIDE = 0.03  # how far around the limit to look
LOWEST_RATE = 1.0  # per second
GROWTH = 2.0
LEAP = 8.0  # downwards, where every request is late although the server keeps up
STEPS_OF_FIT = 50
MOST_LOG_ODDS = 30.0


@dataclass(frozen=True)
class RateTrial:
    """What a load at one rate came to."""

    rate: float  # as requested
    requests: int
    missed: float  # requests that were late or failed; of several bounds the one that is missed most, as its equal
    throughput: float  # requests answered per second
    holds: bool
    reason: str = ""  # why it does not hold
    limited: str = ""  # why the load itself was not as requested: the client, not the server


@dataclass
class SearchResult:
    """Where the search ended."""

    verdict: Literal["found", "never", "client", "unsteady"]
    rate: float | None = None  # the largest that holds
    interval: Interval | None = None
    trials: list[RateTrial] = field(default_factory=list)
    reason: str = ""


class _Ended(Exception):
    """The search cannot go on: its verdict, rate and reason."""


Probe = Callable[[float, int], RateTrial]  # a rate and how many requests to send


def requests_for(share: float) -> int:
    """How many requests a percentile needs near its bound."""
    return math.ceil(ENOUGH / (1.0 - share))


def find_capacity(
    probe: Probe,
    share: float,
    limit: float,
    *,
    first: float,
    ceiling: float,
    tolerance: float = TOLERANCE,
    longest: float = math.inf,
    go_on: Callable[[], bool] = lambda: True,
) -> SearchResult:
    """The largest rate that holds: `share` of the requests within `limit` seconds; the client cannot pass `ceiling`.

    No trial lasts longer than `longest` seconds. When `go_on` says no, the result is from the trials until then.
    """
    search = _Search(probe, share, limit, longest, go_on)
    try:
        low, high = search.bracket(min(max(first, LOWEST_RATE), ceiling), ceiling)
        low, high = search.narrow(low, high)
        search.refine(low, high, tolerance, ceiling)
    except _Ended as end:
        search.result.verdict, search.result.rate, search.result.reason = end.args
    return search.result


@dataclass
class _Search:
    probe: Probe
    share: float
    limit: float
    longest: float
    go_on: Callable[[], bool]
    result: SearchResult = field(default_factory=lambda: SearchResult("found"))

    def bracket(self, first: float, ceiling: float) -> tuple[float, float]:
        """Double or halve until one rate holds and one does not."""
        held = self._look(first)
        if held.limited or not held.holds:
            return self._fall(held)
        while held.rate < ceiling:
            if not self.go_on():
                raise _Ended("unsteady", held.rate, f"the time was over at {held.rate:.4g}/s, where it still holds")
            trial = self._look(min(held.rate * GROWTH, ceiling))
            if trial.limited:
                raise _Ended("client", held.rate, trial.limited)
            if not trial.holds:
                return held.rate, max(self._most_answered(trial), held.rate)
            held = trial
        raise _Ended("client", held.rate, f"it holds at {held.rate:.4g}/s, the most that is sent")

    def _fall(self, missed: RateTrial) -> tuple[float, float]:
        while missed.rate > LOWEST_RATE:
            if not self.go_on():
                why = missed.limited or missed.reason
                raise _Ended("never", None, f"at {missed.rate:.4g}/s, the lowest rate before the time was over: {why}")
            high = self._most_answered(missed)
            is_hopeless = missed.missed >= missed.requests and high == missed.rate
            trial = self._look(max(LOWEST_RATE, high / (LEAP if is_hopeless else GROWTH)))
            if trial.holds and not trial.limited:
                if missed.limited:
                    raise _Ended("client", trial.rate, missed.limited)
                return trial.rate, max(high, trial.rate)
            missed = trial
        raise _Ended("never", None, f"even at {missed.rate:g}/s: {missed.limited or missed.reason}")

    def narrow(self, low: float, high: float) -> tuple[float, float]:
        """Bisect until the ends are close."""
        while high / low > CLOSE and self.go_on():
            middle = math.sqrt(low * high)
            trial = self._look(middle)
            if trial.limited:
                raise _Ended("client", low, trial.limited)
            if trial.holds:
                low = middle
            else:
                high = max(low, min(middle, self._most_answered(trial)))
        return low, high

    def refine(self, low: float, high: float, tolerance: float, ceiling: float) -> None:
        """Try rates around the limit until its interval is narrow enough."""
        rate, half, side = math.sqrt(low * high), math.inf, 1.0
        around = 0
        while around < MOST_AROUND and self.go_on():
            # What several trials left open needs longer ones.
            self._try(min(rate * (1.0 + side * ASIDE), ceiling), 2.0 ** (around // LONGER_AFTER))
            around, side = around + 1, -side
            fitted = crossing(self.result.trials, 1.0 - self.share, rate)
            if fitted is None:  # nothing near enough: go where the last trials point
                last = [trial.holds for trial in self.result.trials[-2:]]
                rate *= 1.0 + ASIDE if all(last) else 1.0 if any(last) else 1.0 / (1.0 + ASIDE)
                continue
            # A fit through few points may point far away, where nothing was tried: go there step by step.
            lowest, highest = max(rate / FITTED, low / GROWTH), min(rate * FITTED, high * GROWTH, ceiling)
            rate = min(max(fitted[0], lowest), highest)
            half = fitted[1]
            if around >= FEWEST_AROUND and half <= tolerance and rate == fitted[0]:
                break
        if not math.isfinite(half):
            raise _Ended("unsteady", low, f"the time was over when it held at {low:.4g}/s and not at {high:.4g}/s")
        self.result.rate = rate
        width = {"low": rate * (1.0 - min(1.0, half)), "high": rate * (1.0 + half)}
        self.result.interval = Interval(**width, confidence=CONFIDENCE)
        if half > 2 * tolerance:
            count = len(self.result.trials)
            raise _Ended("unsteady", rate, f"{count} trials left the rate uncertain by {100 * half:.0f} %")

    def _look(self, rate: float) -> RateTrial:
        """A first look at a rate, and longer ones where that is not sure."""
        enough = self._enough_at(rate)
        glance = max(GLANCE, rate * SPANS * self.limit) / enough
        for part in (glance, QUICK, 1.0) if glance < QUICK / 2 else (QUICK, 1.0):
            trial = self._try(rate, part)
            is_settled = self._is_sure(trial) and not trial.limited
            if is_settled or part * enough >= rate * self.longest or not self.go_on():
                break
        return trial

    def _try(self, rate: float, part: float) -> RateTrial:
        requests = min(part * self._enough_at(rate), max(GLANCE, rate * self.longest))
        trial = self.probe(rate, math.ceil(requests))
        self.result.trials.append(trial)
        return trial

    def _enough_at(self, rate: float) -> float:
        """Requests that a sure trial takes."""
        return max(requests_for(self.share), rate * SPANS * self.limit)

    def _is_sure(self, trial: RateTrial) -> bool:
        """Whether the part that missed is clearly on one side of what is allowed (Wilson's interval)."""
        z = NormalDist().inv_cdf((1.0 + SURE) / 2.0)
        n, p = trial.requests, trial.missed / trial.requests
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return middle + half < 1.0 - self.share if trial.holds else middle - half > 1.0 - self.share

    def _most_answered(self, trial: RateTrial) -> float:
        """No rate above what an overloaded server answers can hold."""
        is_overloaded = 0.0 < trial.throughput < 0.95 * trial.rate and not trial.limited
        return max(LOWEST_RATE, min(trial.rate, trial.throughput)) if is_overloaded else trial.rate


def crossing(trials: Sequence[RateTrial], allowed: float, near: float) -> tuple[float, float] | None:
    """Where the part of missed requests crosses what is allowed, and the relative half-width of that; None if unknown.

    A logistic regression over the logarithm of the rate. Misses come in clusters, so their spread is estimated from how
    the trials scatter around the line instead of taken from the binomial distribution.
    """
    taken = [one for one in trials if 1 / FITTED <= one.rate / near <= FITTED and not one.limited]
    distance = np.array([math.log(one.rate / near) for one in taken])
    if len(taken) < 3 or np.ptp(distance) < ASIDE / 2:
        return None
    counts = np.array([float(one.requests) for one in taken])
    missed = np.array([float(one.missed) for one in taken])
    design = np.column_stack([np.ones_like(distance), distance])
    line = np.array([_log_odds((missed.sum() + 0.5) / (counts.sum() + 1.0)), 0.0])
    for _ in range(STEPS_OF_FIT):
        expected = 1.0 / (1.0 + np.exp(-np.clip(design @ line, -MOST_LOG_ODDS, MOST_LOG_ODDS)))
        weights = counts * expected * (1.0 - expected)
        information = design.T @ (weights[:, None] * design)
        try:
            step = np.linalg.solve(information, design.T @ (missed - counts * expected))
        except np.linalg.LinAlgError:
            return None
        line = line + np.clip(step, -2.0, [2.0, 20.0])
        if np.max(np.abs(step)) < 1e-9:
            break
    level, slope = (float(part) for part in line)
    if not slope > 0.0 or not math.isfinite(slope + level):
        return None
    crossed = (_log_odds(allowed) - level) / slope
    freedom = len(taken) - 2
    scatter = max(1.0, float(np.sum((missed - counts * expected) ** 2 / weights)) / freedom)
    direction = np.array([1.0, crossed])
    deviation = math.sqrt(scatter * float(direction @ np.linalg.solve(information, direction))) / slope
    if abs(crossed) > math.log(FITTED) * 3:
        return None  # the line hardly rises: where it crosses is a guess
    return near * math.exp(crossed), student_quantile(0.5 + CONFIDENCE / 2, freedom) * deviation


def _log_odds(share: float) -> float:
    return math.log(share / (1.0 - share))
