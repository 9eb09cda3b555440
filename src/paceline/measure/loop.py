"""The measuring loop: warm up until steady, measure until precise or the budget is spent.

Every rank of a case must take the same number of steps. Verdicts are therefore asked for after the same counts
of steps everywhere, and `agree` makes the first rank's verdict everybody's.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from paceline.core.gc_pause import no_garbage
from paceline.core.parameters import SPAN
from paceline.core.quantity import show_duration, show_interval
from paceline.core.record import RecordWarning
from paceline.core.stats import Interval, Summary, drift_interval, end_size, summarize
from paceline.devices.timeline import Clock, Phases, Timeline, monotonic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.parameters import MeasuringParameters

WINDOW_STEPS = 6
BOUND = 0.02  # a step time that changes by less, and will, is steady
SLOWEST = 30.0  # seconds: the time constant of the slowest settling that is looked for
WARMING_SHARE = 0.25  # of the span
PATIENCE = 1.25  # times the span: how long to wait until noise no longer hides slow settling
ONE_SIDED = 0.84  # of the width of a 95 % interval is that of one whose each end holds with 95 %
MIN_SECONDS = 0.5  # a few fast steps agree with each other long before clocks and caches have settled
REPORT_SECONDS = 0.25
MEAN_TOLERANCE = 3.0  # how much wider than that of the median the interval of the mean may be
LONGER = "--span 60s --warm-up 30s --budget 60s"
FEWEST = 5  # samples of which something can be said
LOOK_SPACING = 100.0  # times what a look took
LOOKS_APART = 4  # a quarter more samples lie between two looks at the interval

Step = Callable[[], object]
Agree = Callable[[bool], bool]  # None: nobody to agree with
Report = Callable[[str, list[float]], None]


class Stop(StrEnum):
    """Why measuring ended."""

    PRECISE = "precise"
    BUDGET = "budget"
    STEPS = "steps"


@dataclass(kw_only=True)
class _Rule:
    """Says when there are enough steps."""

    samples: list[float] = field(default_factory=list)
    total: float = 0.0

    def add(self, sample: float) -> None:
        self.samples.append(sample)
        self.total += sample


@dataclass(frozen=True)
class Drift:
    """By what part the last quarter of some steps differs from the first, and what that says of the steps to come."""

    interval: Interval
    seconds: float  # that the steps took
    end: float  # the part of the steps that is the first, and the last
    slow: bool  # whether settling slower than these seconds is looked for

    @classmethod
    def of(cls, samples: list[float], *, slow: bool) -> Drift | None:
        """None where the samples are too few to say."""
        interval, count = drift_interval(samples), len(samples)
        return None if interval is None else cls(interval, sum(samples), end_size(count) / count, slow)

    @property
    def change(self) -> float:
        """The likely one."""
        return (self.interval.low + self.interval.high) / 2.0

    @property
    def is_seen(self) -> bool:
        """Whether it is more than noise."""
        return self.interval.low > 0.0 or self.interval.high < 0.0

    @property
    def largest(self) -> float:
        """Which change cannot be ruled out, with 95 % in its direction."""
        reach = (self.interval.high - self.interval.low) / 2.0
        return abs(self.change) + ONE_SIDED * reach

    @property
    def ahead(self) -> float:
        """How far off the mean of these steps is, in parts of the change, if they settle as slowly as is looked for.

        It is the mean of exp(-t / T) over all of them, over the difference of its means over the two ends.
        """
        if not self.slow:
            return 1.0
        fall, end_fall, rest_fall = (
            -math.expm1(-part * max(self.seconds, 1e-9) / SLOWEST) for part in (1.0, self.end, 1.0 - self.end)
        )
        return self.end * fall / (end_fall * rest_fall)

    @property
    def off(self) -> float:
        """How far off the result likely is."""
        return abs(self.change) * self.ahead

    @property
    def most_off(self) -> float:
        """How far off the result may be."""
        return self.largest * self.ahead


@dataclass(kw_only=True)
class SteadyRule(_Rule):
    """Says when the later half of the steps is shown not to drift; it looks again when twice the time has passed."""

    limit: float  # seconds
    least: float = 0.0  # seconds
    slow: bool = True
    steady: bool = False
    most = None  # steps: no number of them ends it
    _hidden: bool = False
    _looked_at: float = 0.0  # seconds, at the latest look

    @property
    def is_spent(self) -> bool:
        """Whether the time for it is over."""
        return self.total >= self.limit

    def done(self) -> bool:
        """Steady, not to be seen for noise, or out of time."""
        due = max(self.least, 2.0 * self._looked_at)
        if self.is_spent or (self.total >= due and len(self.samples) >= WINDOW_STEPS):
            self._look()
        return self.steady or self._hidden or self.is_spent

    def _look(self) -> None:
        drift, is_first = Drift.of(self._later_half(), slow=self.slow), not self._looked_at
        self._looked_at = self.total
        if drift is not None:
            settles_slowly = drift.is_seen and drift.off > BOUND
            self.steady = drift.largest <= BOUND and not settles_slowly
            # Noise that hides a drift twice will hide it in warm-up for long; measured steps show it as well.
            self._hidden = not drift.is_seen and not is_first

    def _later_half(self) -> list[float]:
        count, covered = 0, 0.0
        for sample in reversed(self.samples):
            if count >= WINDOW_STEPS and covered >= self.total / 2.0:
                break
            covered += sample
            count += 1
        return self.samples[-count:]


@dataclass(kw_only=True)
class StopRule(_Rule):
    """Says when the interval of the median is narrow enough, or time or steps are used up."""

    parameters: MeasuringParameters
    reason: Stop | None = None
    _narrow_looks: int = 0  # in a row
    _next_look: int = 0  # samples

    @property
    def most(self) -> int:
        """After how many steps it ends in any case."""
        return self.parameters.steps or self.parameters.max_steps

    @property
    def is_spent(self) -> bool:
        """Whether the budget is used up; a fixed number of steps has none."""
        return self.parameters.steps is None and self.total >= self.parameters.budget

    def done(self) -> bool:
        """Precise enough, or out of time or steps."""
        self.reason = self._reason()
        return self.reason is not None

    def _reason(self) -> Stop | None:
        count = len(self.samples)
        if count >= self.most:
            return Stop.STEPS
        if self.parameters.steps is not None:
            return None
        if count >= max(self.parameters.min_steps, self._next_look):
            # Looking often finds a narrow interval by luck sooner or later; two that lie apart are less lucky.
            self._next_look = count + max(1, count // LOOKS_APART)
            self._narrow_looks = self._narrow_looks + 1 if self._is_narrow() else 0
        if self._narrow_looks >= 2 and self._covered():
            return Stop.PRECISE
        return Stop.BUDGET if self.is_spent else None

    def _covered(self) -> bool:
        """Whether settling would have been seen by now, or waiting for that takes too long."""
        asked = self.parameters.span
        span = (1.0 - WARMING_SHARE) * asked
        least = min(MIN_SECONDS, asked) if asked > 0.0 else MIN_SECONDS
        if self.total < min(max(least, span), self.parameters.budget):
            return False
        if self.total >= min(PATIENCE / (1.0 - WARMING_SHARE) * span, self.parameters.budget):
            return True
        drift = Drift.of(self.samples, slow=True)
        return drift is not None and drift.most_off <= BOUND

    def _is_narrow(self) -> bool:
        summary, interval = summarize(self.samples), self.parameters.interval
        # Throughput is made of the mean, which rare stalls move and the median does not see.
        return median_width(summary) <= interval and mean_width(summary) <= MEAN_TOLERANCE * interval


def median_width(summary: Summary) -> float:
    """By what part the median may be off; infinite where nobody can say."""
    return _width(summary, summary.median_interval, summary.median)


def mean_width(summary: Summary) -> float:
    """By what part the mean may be off; infinite where nobody can say."""
    return _width(summary, summary.mean_interval, summary.mean)


def _width(summary: Summary, interval: Interval | None, value: float) -> float:
    known = _known_interval(summary, interval)
    return known.relative(value) if known else math.inf


def _known_interval(summary: Summary, interval: Interval | None) -> Interval | None:
    """The interval; samples that wander have none, but what is within their range is within it."""
    if interval is not None and interval.confidence >= 0.9:
        return interval
    if summary.count < FEWEST:
        return None
    return Interval(low=summary.minimum, high=summary.maximum, confidence=1.0)


@dataclass(frozen=True)
class WarmUp:
    """What warming up took."""

    samples: list[float]
    steady: bool

    @property
    def seconds(self) -> float:
        return sum(self.samples)


@dataclass(frozen=True)
class Timed:
    """The measured steps and why there are no more of them."""

    samples: list[float]
    stopped: Stop
    starved: int = 0  # steps for which the device had to wait for the host
    phases: list[Phases] = field(default_factory=list)  # of each measured step, where its phases were marked
    executed: int = 0  # steps that ran in all, those before the first and after the last sample included


def warm_up(
    step: Step,
    timeline: Timeline,
    parameters: MeasuringParameters,
    *,
    boost: float = 0.0,
    agree: Agree | None = None,
    report: Report | None = None,
    clock: Clock = monotonic,
) -> WarmUp:
    """Run steps until they are steady or the time for it is over; at least one.

    `boost` are the seconds that this kind of device may run above the pace that it can sustain. They are waited for,
    but for a quarter of the warm-up at most, and not at all where they outlast it: its pace is then said to be short.
    """
    waited_for = boost if boost <= parameters.warm_up else 0.0
    least = min(max(MIN_SECONDS, waited_for, WARMING_SHARE * parameters.span), WARMING_SHARE * parameters.warm_up)
    rule = SteadyRule(limit=parameters.warm_up, least=least, slow=parameters.span > 0.0)
    _drive(step, timeline, rule, "warming up", agree, report, clock)
    return WarmUp(rule.samples, rule.steady)


def measure(
    step: Step,
    timeline: Timeline,
    parameters: MeasuringParameters,
    *,
    agree: Agree | None = None,
    report: Report | None = None,
    clock: Clock = monotonic,
) -> Timed:
    """Run steps until their median is known well enough, or the budget is spent; at least one."""
    rule = StopRule(parameters=parameters)
    summarize(range(1, 13))  # what the first look would load, while a device waits for its next step
    with quiet_collector():
        executed = _drive(step, timeline, rule, "measuring", agree, report, clock)
    # Another rank may have decided; what this one thinks of its own samples does not matter then.
    phases = timeline.phases[: len(rule.samples)]
    return Timed(rule.samples, rule.reason or Stop.BUDGET, timeline.starved, phases, executed)


def warnings(warm: WarmUp, timed: Timed, parameters: MeasuringParameters) -> list[RecordWarning]:
    """Reasons to trust the samples less that the samples themselves give."""
    reasons: list[RecordWarning] = []

    def warning(kind: str, message: str, remedy: str) -> None:
        reasons.append(RecordWarning(kind=kind, message=message, remedy=remedy))

    summary = summarize(timed.samples)
    count, total = summary.count, sum(timed.samples)
    if reason := _drift_warning(warm, timed, parameters):
        reasons.append(reason)
    if count < FEWEST or total < 0.02:
        remedy = "measure longer, for example --budget 60s, or make the step longer with a larger batch"
        warning("short", f"only {count} steps in {total:.3g} s", remedy)
    wide = max(0.05, parameters.interval)
    for name, value, interval in (
        ("median", summary.median, summary.median_interval),
        ("mean", summary.mean, summary.mean_interval),
    ):
        if _width(summary, interval, value) > wide:
            shown = show_interval(value, _known_interval(summary, interval), show_duration) or "unknown"
            remedy = "quieten the machine (paceline doctor) or measure longer (--budget)"
            warning("imprecise", f"the interval of the {name} is {shown} after {count} steps", remedy)
            break
    if timed.starved > 0.5 * count:
        remedy = "this measures the host's speed of issuing work: use --compile on, --graph on or a larger batch"
        warning("host-bound", f"the device waited for the host in {timed.starved} of {count} steps", remedy)
    if summary.outliers > 0.1 * count:
        message = f"{summary.outliers} of {count} steps lie far from the median"
        warning("noisy", message, "quieten the machine (paceline doctor)")
    return reasons


def _drift_warning(warm: WarmUp, timed: Timed, parameters: MeasuringParameters) -> RecordWarning | None:
    """What speaks against the steps being steady, the surest first."""
    drift = Drift.of(timed.samples, slow=parameters.span > 0.0)
    if drift is not None and drift.is_seen and drift.off > BOUND:
        word = "slower" if drift.change > 0 else "faster"
        message = f"the last quarter of the steps was {abs(drift.change):.1%} {word} than the first"
        if abs(drift.change) <= BOUND:
            message += f"; if it settles with a time constant of {SLOWEST:g} s, the result is {drift.off:.1%} off"
        remedy = f"measure longer ({LONGER}), and look for throttling or other load (paceline doctor)"
        return RecordWarning(kind="drifting", message=message, remedy=remedy)
    if not warm.steady and (drift is None or drift.largest > BOUND):
        change = "may not be steady" if drift is None else f"may change by up to {drift.largest:.1%}"
        message = (
            f"the step time {change}: neither {len(warm.samples)} warm-up steps ({warm.seconds:.3g} s) "
            f"nor {len(timed.samples)} measured steps rule that out"
        )
        remedy = f"quieten the machine (paceline doctor) or measure longer: {LONGER}"
        return RecordWarning(kind="unsteady", message=message, remedy=remedy)
    if parameters.span > 0.0 and parameters.steps is None:
        return _short_warning(warm, timed, drift)
    return None


def _short_warning(warm: WarmUp, timed: Timed, drift: Drift | None) -> RecordWarning | None:
    remedy, measured = f"measure longer: {LONGER}", sum(timed.samples)
    covered = warm.seconds + measured
    if timed.stopped is Stop.STEPS:
        remedy += " --max-steps 1000000"
    if covered < 0.99 * SPAN:
        message = f"under load for {covered:.2g} s, warm-up included: what settles or changes later was not seen"
        return RecordWarning(kind="short", message=message, remedy=remedy)
    if drift is None or drift.most_off > BOUND:
        most = "" if drift is None else f" of up to {drift.most_off:.1%}"
        message = f"measured for {measured:.2g} s: noise would hide slow settling{most}"
        return RecordWarning(kind="short", message=message, remedy=remedy)
    return None


@dataclass
class _Looks:
    """When to ask a rule for its verdict.

    After every step at first, then after every tenth more, for looking costs more the more samples there are. Alone,
    looks are also spaced so that they take a hundredth of the time at most, and time that is up ends it at once;
    together, everybody must look after the same steps, so that nothing but their number may count.
    """

    together: bool
    last: int | None  # after how many steps it ends in any case
    clock: Clock
    _next: int = 1
    _not_before: float = 0.0

    def due(self, issued: int, spent: bool) -> bool:
        if self.together:
            return issued >= self._next
        return spent or issued == self.last or (issued >= self._next and self.clock() >= self._not_before)

    def ask(self, rule: SteadyRule | StopRule, issued: int) -> bool:
        self._next = issued + max(1, issued // 10)
        if self.last is not None:
            self._next = min(self._next, max(issued + 1, self.last))
        begun = self.clock()
        done = rule.done()
        ended = self.clock()
        self._not_before = ended + LOOK_SPACING * (ended - begun)
        return done


def _drive(
    step: Step,
    timeline: Timeline,
    rule: SteadyRule | StopRule,
    phase: str,
    agree: Agree | None,
    report: Report | None,
    clock: Clock,
) -> int:
    """Run steps until the rule has enough; how many ran in all."""
    for _ in range(timeline.lead_in):
        step()
    looks = _Looks(agree is not None, rule.most + timeline.lead_in if rule.most else None, clock)
    issued = 0
    reported, reported_at = 0, clock()
    while True:
        timeline.begin()
        step()
        finished = timeline.end()
        for sample in finished:
            rule.add(sample)
        issued += 1
        if report is not None and finished and clock() - reported_at >= REPORT_SECONDS:
            report(phase, rule.samples[reported:])
            reported, reported_at = len(rule.samples), clock()
        if looks.due(issued, rule.is_spent):
            done = looks.ask(rule, issued)
            if agree(done) if agree is not None else done:
                break
    for sample in timeline.finish():
        rule.add(sample)
    if rule.most:
        del rule.samples[rule.most :]
    if report is not None:
        report(phase, rule.samples[reported:])
    return timeline.lead_in + issued


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep Python's garbage collector out of the measured steps; within itself it changes nothing."""
    if gc.isenabled():
        gc.collect()
    with no_garbage():
        yield
