"""The largest rate of requests that meets an SLO: a bracket, bisection, then a fit through the trials.

A trial is a load at one rate. Far from the limit few requests are enough. Near it, lateness comes in clusters, so
that one trial is poor evidence however it ends: at least sixteen around the limit are taken, on both sides of it, and
the rate at which the fitted part of late requests crosses what is allowed is the result, with an interval (Fieller's)
from these trials alone: those before them chose where to look. Where the time does not last for sixteen, the result is
what held and what did not, and says so. A rate that is too high shows how much the server can do at most, which is a
better upper end than the rate itself.
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
MOST_AROUND = 64  # trials near the limit
FEWEST_AROUND = 16  # trials that the fit takes before it is believed: few agree by chance too often
LONGER_AFTER = 16  # trials
SPANS = 100  # bounds on latency that a long trial lasts: lateness comes in stretches about as long as the bound
FEWEST_SPANS = 40  # that a trial near the limit lasts at least: shorter ones mostly miss the late stretches
LOOK_SPANS = 15  # that a first look lasts
LOOKING = 0.35  # part of the time after which there are only first looks
SPREAD = 1.15  # allowance for the answers that come after the last request was sent
SETTLING = 0.1  # part of a trial's requests that only fill the queues
LONGEST_PART = 0.25  # of the time for the search that one trial may take
CLOSE = 1.15  # bisect until the ends are within this ratio
FITTED = 1.3  # the fit looks at trials within this ratio of the limit: further away the line is none
ASIDE = 0.08  # how far around the limit to look: too near, and the line's slope drowns in noise
CAUTION = 1.35  # on the interval, which is looked at again and again until it is narrow
LUCK = 0.01  # part of the cases in which trials scatter less than is allowed for before a rate counts as found
LOWEST_RATE = 1.0  # per second
GROWTH = 2.0
LEAP = 8.0  # downwards, where every request is late although the server keeps up
FURTHEST = 3.0  # ratio to the rates that were tried, beyond which a crossing is a guess
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

    verdict: Literal["found", "never", "client", "unsteady", "out of time"]
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
    left: Callable[[], float] = lambda: math.inf,
) -> SearchResult:
    """The largest rate that holds: `share` of the requests within `limit` seconds; the client cannot pass `ceiling`.

    No trial lasts longer than `longest` seconds, or than the time that is `left`.
    """
    search = _Search(probe, share, limit, longest, left, begin=left())
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
    left: Callable[[], float]  # seconds
    begin: float  # what was left at first
    result: SearchResult = field(default_factory=lambda: SearchResult("found"))

    def bracket(self, first: float, ceiling: float) -> tuple[float, float]:
        """Double or halve until one rate holds and one does not."""
        held = self._look(first)
        if held.limited or not held.holds:
            return self._fall(held)
        while held.rate < ceiling:
            if not self.go_on():
                raise _Ended("out of time", held.rate, f"the time was over at {held.rate:.4g}/s, where it still holds")
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
        rate, side, before = math.sqrt(low * high), 1.0, len(self.result.trials)
        fitted: Crossing | None = None
        length = self._length(rate)
        for number in range(1, MOST_AROUND + 1):
            # What several trials left open needs longer ones.
            seconds = length * 2.0 ** ((number - 1) // LONGER_AFTER)
            if seconds > self._longest():
                break
            self._try(min(rate * (1.0 + side * ASIDE), ceiling), seconds)
            side = -side
            fitted = crossing(self.result.trials[before:], 1.0 - self.share, rate)
            if fitted is None:  # nothing near enough: go where the last trials point
                last = [trial.holds for trial in self.result.trials[-2:]]
                rate *= 1.0 + ASIDE if all(last) else 1.0 if any(last) else 1.0 / (1.0 + ASIDE)
                continue
            # A fit through few points may point far away, where nothing was tried: go there step by step.
            lowest, highest = max(rate / CLOSE, low / GROWTH), min(rate * CLOSE, high * GROWTH, ceiling)
            rate = min(max(fitted.rate, lowest), highest)
            if number >= FEWEST_AROUND and fitted.surely <= tolerance and rate == fitted.rate:
                break
        around = len(self.result.trials) - before
        if fitted is None and around >= FEWEST_AROUND:
            raise _Ended("unsteady", low, f"{around} trials left it open between {low:.4g} and {high:.4g}/s")
        if fitted is None or around < FEWEST_AROUND:
            raise _Ended("out of time", low, f"the time was over when it held at {low:.4g}/s and not at {high:.4g}/s")
        self.result.rate = fitted.rate
        is_found = fitted.surely <= 2 * tolerance
        # A search that ends because its interval is narrow ends most often where that was luck.
        low, high = fitted.surely_between if is_found else (fitted.low, fitted.high)
        self.result.interval = Interval(low=low, high=high, confidence=CONFIDENCE)
        if not is_found:
            between = f"between {fitted.low:.4g} and {fitted.high:.4g}/s"
            raise _Ended("unsteady", fitted.rate, f"{len(self.result.trials)} trials left it {between}")

    def _length(self, rate: float) -> float:
        """Seconds of each trial near the limit, so that there is time for enough of them."""
        least = max(FEWEST_SPANS * self.limit, GLANCE / rate)
        room = self.left() / (FEWEST_AROUND * SPREAD * (1.0 + SETTLING))
        if room < least:
            return math.inf
        return max(least, min(room, self._enough_at(rate) / rate))

    def _look(self, rate: float) -> RateTrial:
        """A first look at a rate, and longer ones where that is not sure."""
        enough = self._enough_at(rate)
        glance = max(GLANCE, rate * LOOK_SPANS * self.limit) / enough
        for part in (glance, QUICK, 1.0) if glance < QUICK / 2 else (QUICK, 1.0):
            # A rate that is too high takes longer to be answered than to be sent.
            trial = self._try(rate, min(part * enough / rate, self._longest() / GROWTH))
            is_settled = self._is_sure(trial) and not trial.limited
            is_late = self.left() < (1.0 - LOOKING) * self.begin
            if is_settled or part * enough >= rate * self.longest or is_late or not self.go_on():
                break
        return trial

    def _try(self, rate: float, seconds: float) -> RateTrial:
        requests = max(GLANCE, rate * min(seconds, self._longest()))
        trial = self.probe(rate, math.ceil(requests))
        self.result.trials.append(trial)
        return trial

    def _longest(self) -> float:
        """Seconds that a trial may last."""
        return min(self.longest, self.left() / (SPREAD * (1.0 + SETTLING)))

    def go_on(self) -> bool:
        """Whether there is time for another look."""
        return self._longest() > LOOK_SPANS * self.limit / 2.0

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


@dataclass(frozen=True)
class Crossing:
    """Where the part of missed requests crosses what is allowed, and between which rates that is."""

    rate: float
    low: float
    high: float
    freedom: int  # trials that showed how much they scatter

    @property
    def half(self) -> float:
        """The larger half as a part of the rate."""
        return max(self.high - self.rate, self.rate - self.low) / self.rate

    @property
    def surely(self) -> float:
        """The half where trials that scatter little did so by luck: few often agree, and are wrong together."""
        ninth = 2.0 / (9.0 * self.freedom)  # Wilson and Hilferty's chi-square quantile, as a part of its mean
        least = 1.0 - ninth - NormalDist().inv_cdf(1.0 - LUCK) * math.sqrt(ninth)
        return self.half / math.pow(max(least, ninth), 1.5)

    @property
    def surely_between(self) -> tuple[float, float]:
        """The ends, as much further away."""
        further = self.surely / self.half if self.half > 0.0 else 1.0
        return self.rate - further * (self.rate - self.low), self.rate + further * (self.high - self.rate)


def crossing(trials: Sequence[RateTrial], allowed: float, near: float) -> Crossing | None:
    """Where missed requests become more than what is allowed; None if the trials leave that open.

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
    above = level - _log_odds(allowed)
    freedom = len(taken) - 2
    scatter = max(1.0, float(np.sum((missed - counts * expected) ** 2 / weights)) / freedom)
    spread = scatter * np.linalg.inv(information)
    # Fieller: all places at which the line differs from what is allowed by no more than its own uncertainty.
    reach = (CAUTION * student_quantile(0.5 + CONFIDENCE / 2, freedom)) ** 2
    square = slope**2 - reach * float(spread[1, 1])
    middle = above * slope - reach * float(spread[0, 1])
    room = middle**2 - square * (above**2 - reach * float(spread[0, 0]))
    if square <= 0.0 or room < 0.0:
        return None  # the line hardly rises: where it crosses is a guess
    ends = [(-middle + way * math.sqrt(room)) / square for way in (-1.0, 1.0)]
    if max(map(abs, ends)) > math.log(FURTHEST):
        return None
    low, high = (near * math.exp(end) for end in ends)
    return Crossing(near * math.exp(-above / slope), low, high, freedom)


def _log_odds(share: float) -> float:
    return math.log(share / (1.0 - share))
