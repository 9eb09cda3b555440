"""The measuring loop: warm up until steady, measure until precise or the budget is spent.

Every rank of a case must take the same number of steps. Verdicts are therefore asked for after the same counts
of steps everywhere, and `agree` makes the first rank's verdict everybody's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from paceline.core.gc_pause import no_garbage
from paceline.core.record import RecordWarning
from paceline.core.stats import drift, summarize
from paceline.devices.timeline import Clock, Phases, Timeline, monotonic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.parameters import MeasuringParameters

WINDOW_STEPS = 6
WINDOW_SECONDS = 0.5
STEADY_TOLERANCE = 0.02
MIN_SECONDS = 0.5  # a few fast steps agree with each other long before clocks and caches have settled
REPORT_SECONDS = 0.25
MEAN_TOLERANCE = 3.0  # how much wider than that of the median the interval of the mean may be
LOOK_SPACING = 500.0  # times what a look took

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


@dataclass(kw_only=True)
class SteadyRule(_Rule):
    """Says when the recent window of steps stopped drifting."""

    limit: float  # seconds
    steady: bool = False
    most = None  # steps: no number of them ends it

    @property
    def is_spent(self) -> bool:
        """Whether the time for it is over."""
        return self.total >= self.limit

    def done(self) -> bool:
        """Steady, or out of time."""
        self.steady = False
        covered = 0.0
        # The window is the last steps: enough of them, and enough time.
        for count, sample in enumerate(reversed(self.samples), start=1):
            covered += sample
            if count >= WINDOW_STEPS and covered >= min(WINDOW_SECONDS, self.limit / 4):
                self.steady = abs(drift(self.samples[-count:])) <= STEADY_TOLERANCE
                break
        return self.steady or self.is_spent


@dataclass(kw_only=True)
class StopRule(_Rule):
    """Says when the interval of the median is narrow enough, or time or steps are used up."""

    parameters: MeasuringParameters
    reason: Stop | None = None
    _narrow_before: bool = False

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
        # Looking again and again finds a narrow interval by luck sooner or later; twice in a row is less lucky.
        narrow = count >= self.parameters.min_steps and self._narrow()
        twice, self._narrow_before = narrow and self._narrow_before, narrow
        if twice and self.total >= min(MIN_SECONDS, self.parameters.budget):
            return Stop.PRECISE
        return Stop.BUDGET if self.is_spent else None

    def _narrow(self) -> bool:
        summary = summarize(self.samples)
        median, mean = summary.median_interval, summary.mean_interval
        if median is None or mean is None or median.confidence < 0.9:
            return False
        # Throughput is made of the mean, which rare stalls move and the median does not see.
        interval = self.parameters.interval
        return median.relative(summary.median) <= interval and mean.relative(summary.mean) <= MEAN_TOLERANCE * interval


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
    agree: Agree | None = None,
    report: Report | None = None,
    clock: Clock = monotonic,
) -> WarmUp:
    """Run steps until they are steady or the time for it is over; at least one."""
    rule = SteadyRule(limit=parameters.warm_up)
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
    if not warm.steady:
        message = f"step time still drifted after {len(warm.samples)} warm-up steps ({warm.seconds:.3g} s)"
        warning("unsteady", message, "allow more warm-up, for example --warm-up 60s")
    change = drift(timed.samples)
    if abs(change) > 0.03:
        message = (
            f"the second half of the steps was {abs(change):.1%} {'slower' if change > 0 else 'faster'} than the first"
        )
        remedy = "look for throttling or other load (paceline doctor), and measure longer (--budget)"
        warning("drifting", message, remedy)
    if count < 5 or total < 0.02:
        remedy = "measure longer, for example --budget 60s, or make the step longer with a larger batch"
        warning("short", f"only {count} steps in {total:.3g} s", remedy)
    wide = max(0.05, parameters.interval)
    for name, value, interval in (
        ("median", summary.median, summary.median_interval),
        ("mean", summary.mean, summary.mean_interval),
    ):
        if interval is None or interval.relative(value) > wide:
            width = "unknown" if interval is None else f"±{interval.relative(value):.1%}"
            remedy = "quieten the machine (paceline doctor) or measure longer (--budget)"
            warning("imprecise", f"the interval of the {name} is {width} after {count} steps", remedy)
            break
    if timed.starved > 0.5 * count:
        remedy = "this measures the host's speed of issuing work: use --compile on, --graph or a larger batch"
        warning("host-bound", f"the device waited for the host in {timed.starved} of {count} steps", remedy)
    if summary.outliers > 0.1 * count:
        message = f"{summary.outliers} of {count} steps lie far from the median"
        warning("noisy", message, "quieten the machine (paceline doctor)")
    return reasons


@dataclass
class _Looks:
    """When to ask a rule for its verdict.

    After every step at first, then after every tenth more, for looking costs more the more samples there are. Alone,
    looks are also spaced so that they take a few thousandths of the time at most, and time that is up ends it at once;
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
