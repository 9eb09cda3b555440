"""Times calls, one point of a sweep after another, and gathers facts and warnings about them.

A call may be shorter than the clock can tell or than Python can issue. Several calls then make one sample: their
number is doubled until a sample is long enough, and the sample is divided by it. On a GPU, calls that are
too short for Python to keep the device busy are recorded into a CUDA graph, so that the device's speed is measured
and not the host's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from paceline.benchmarks._micro.parameters import CLOCK, POWER, MicroParameters
from paceline.benchmarks.ranks import Ranks
from paceline.core.benchmark import Context, Progress
from paceline.core.metric import Metric
from paceline.core.quantity import show_size
from paceline.core.record import At, Measurement, RecordWarning, Result
from paceline.core.subject import Pace
from paceline.devices import Device
from paceline.devices.base import is_energy_known
from paceline.devices.timeline import ReportedTimeline, Timeline, monotonic
from paceline.machine import conditions
from paceline.measure import loop
from paceline.measure.pace import Burst, BurstTimeline, lasting_pace

Call = Callable[[], object]

HOST_SAMPLE, DEVICE_SAMPLE = 2e-4, 1e-3  # seconds: a sample is at least about this long
MOST_CALLS = 1 << 16
GRAPH_BELOW = 1e-4  # a call shorter than this keeps the host busier than the device
GRAPH_CALLS = 200  # a graph holds at most about this many
IN_FLIGHT = 2
LOOK_SECONDS, BURST_LOOK_SECONDS = 0.3, 0.02  # of load, at the end of which power and clock are read
MOST_QUEUED = 5_000
LATE = 0.8  # of the load, before they are read


@dataclass(frozen=True)
class TimedPoint:
    """What timing one call at one point of a sweep gave."""

    metric: Metric
    at: At
    timed: loop.Timed
    warm: loop.WarmUp
    calls: int  # in each sample
    timing: str  # how the time was taken
    warnings: tuple[RecordWarning, ...]
    load_before: float = 0.0  # seconds under load before the first sample
    load: float = 0.0  # seconds in all samples
    joules: float | None = None  # of one call, where the device counted them over long enough
    burst: Burst | None = None  # what each sample is, where the device rested before it

    @property
    def time(self) -> Measurement:
        """Seconds per call."""
        return Measurement.of_samples(self.metric, self.timed.samples, at=self.at)

    def rate(self, metric: Metric, work: float) -> Measurement:
        """Work of one call over its time."""
        return Measurement.of_rate(metric, work, self.time)


@dataclass(frozen=True)
class View:
    """One of several times that a step takes of the same calls."""

    how: str  # it is taken
    calls: int


@dataclass
class MicroSession:
    """One case of a micro benchmark: enter it, time calls, leave it, make the result."""

    parameters: MicroParameters
    context: Context
    device: Device
    ranks: Ranks = field(default_factory=lambda: Ranks(0, 1))
    points: list[TimedPoint] = field(default_factory=list)
    energy_source: str = ""  # what counts joules; empty where nothing does
    _before: conditions.Conditions = field(init=False)
    _after: conditions.Conditions = field(init=False)
    _entered: float = 0.0
    _left: float = 0.0
    _load: float = 0.0  # seconds of steps so far

    def __enter__(self) -> Self:
        self._entered = monotonic()
        self._before = conditions.observe(self.context.target, self.ranks.siblings)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._after = conditions.observe(self.context.target, self.ranks.siblings)
            self._left = monotonic()

    def time(
        self,
        call: Call,
        metric: Metric,
        *,
        at: At | None = None,
        work: float | None = None,
        rate_unit: str = "B/s",
        graph: bool = False,
        each: bool = False,
    ) -> TimedPoint:
        """Time a call.

        `metric` is a time; `work` and `rate_unit` let the live view show a rate. `graph` allows a CUDA graph for calls
        that are short on a GPU: they must not need the host. `each` waits for every single call (a latency as
        one caller sees it) instead of keeping the device busy.
        """
        calls, block, how = (1, call, "") if each else self._block(call, graph)
        in_flight = 1 if each else IN_FLIGHT
        return self._point(
            block, lambda: self.device.timeline(in_flight), metric, at or {}, calls, how, work, rate_unit, each
        )

    def time_bursts(self, call: Call, metric: Metric, *, work: float, rate_unit: str) -> TimedPoint:
        """Time a call as the device runs it for some milliseconds after a rest: each sample is a burst of calls."""
        calls, block, how = self._block(call, graph=True)
        seconds = min(self.device.seconds_of(block) for _ in range(2))
        burst = Burst.of(seconds, self.device.kind)
        timeline = BurstTimeline(self.device, repeated(block, burst.leading), burst.rest)
        point = self._point(
            repeated(block, burst.timed),
            lambda: timeline,
            metric,
            {},
            calls * burst.timed,
            how,
            work,
            rate_unit,
            budget=self.parameters.budget * burst.timed_share,
        )
        return replace(point, burst=burst)

    def pace(self, point: TimedPoint) -> Pace:
        """At which pace of the device a point was measured; to be asked when all are."""
        kind, looks = self.device.kind, (self._before, self._after)
        return (
            point.burst.pace(kind, *looks) if point.burst else lasting_pace(kind, point.load_before, point.load, *looks)
        )

    def levels_under(self, call: Call, point: TimedPoint) -> list[Measurement]:
        """Power and clock while more of a point's calls run, as the driver reports them; none where it does not.

        Read after what was measured, so as not to disturb it. A driver averages power over longer than a burst.
        """
        kind, seconds = self.device.kind, LOOK_SECONDS
        if not kind.is_accelerator:
            return []
        if point.burst:
            seconds = BURST_LOOK_SECONDS
            self.device.rest(point.burst.rest)
        each = point.time.summary.mean
        count = min(MOST_QUEUED, math.ceil(seconds / each))
        for _ in range(count):
            call()
        time.sleep(LATE * count * each)  # they are queued at once
        now = kind.conditions(self.context.target)
        self.device.synchronize()
        levels = kind.levels(now[0]) if len(now) == 1 else {}
        wanted = {"sm_clock": CLOCK} if point.burst else {"power": POWER, "sm_clock": CLOCK}
        return [Measurement.of_value(metric, levels[name]) for name, metric in wanted.items() if name in levels]

    def time_reported(
        self,
        step: Callable[[], Sequence[float]],
        metric: Metric,
        how: str,
        *,
        at: At | None = None,
        calls: int = 1,
        work: float | None = None,
    ) -> TimedPoint:
        """Like `time`, for a step that returns the durations it saw itself (native code, another program).

        Each duration is that of `calls` calls; the metric is the time of one.
        """
        timeline = ReportedTimeline(how)
        return self._point(lambda: timeline.tell(step()), lambda: timeline, metric, at or {}, calls, "", work, "B/s")

    def time_views(self, step: Callable[[], Sequence[float]], views: Mapping[Metric, View]) -> list[TimedPoint]:
        """Several times of the same calls: a step returns one duration for each view.

        The first view says when it is steady and when there are enough steps; all have one sample of each step.
        """
        (leading, view), *others = views.items()
        steps: list[Sequence[float]] = []
        timeline = ReportedTimeline(view.how)

        def new_timeline() -> Timeline:
            steps.clear()  # those of the warm-up
            return timeline

        def take() -> None:
            steps.append(step())
            timeline.tell(steps[-1][:1])

        first = self._point(take, new_timeline, leading, {}, view.calls, "", None, "B/s")
        measured = steps[: len(first.timed.samples)]
        points = [first]
        for index, (metric, other) in enumerate(others, start=1):
            timed = replace(first.timed, samples=[durations[index] / other.calls for durations in measured])
            points.append(replace(first, metric=metric, timed=timed, calls=other.calls, timing=other.how, warnings=()))
        self.points += points[1:]
        return points

    def result(self, measurements: list[Measurement], facts: dict[str, Any] | None = None) -> Result:
        """What the case yields: the measurements, how they were taken, and the warnings about them."""
        timings = list(dict.fromkeys(point.timing for point in self.points))
        usual = {
            "device": self.device.name,
            "timing": timings[0] if len(timings) == 1 else timings,
            "stopped": {show_at(point.at) or "case": point.timed.stopped.value for point in self.points},
            "spent": {"preparing": self._entered - self.context.began, "measuring": self._left - self._entered},
            "conditions": {
                "before": self._before.model_dump(mode="json"),
                "after": self._after.model_dump(mode="json"),
            },
        }
        warnings = [*_merged_warnings(self.points), *conditions.warnings(self._before, self._after)]
        return Result(measurements=measurements, facts=usual | (facts or {}), warnings=warnings)

    def _point(
        self,
        step: Call,
        new_timeline: Callable[[], Timeline],
        metric: Metric,
        at: At,
        calls: int,
        how: str,
        work: float | None,
        rate_unit: str,
        is_latency: bool = False,
        budget: float | None = None,  # of bursts, which take the place of a warm-up
    ) -> TimedPoint:
        agree = self.ranks.agree if self.ranks.world_size > 1 else None
        label = show_at(at)

        def report(phase: str, samples: list[float]) -> None:
            self.context.report(
                Progress(
                    phase=f"{phase} {label}".strip(),
                    metric=f"{metric.name} {label}".strip() if phase == "measuring" else "",
                    unit="s",
                    samples=tuple(sample / calls for sample in samples),
                    work=work,
                    rate_unit=rate_unit,
                )
            )

        self.device.synchronize()
        self.ranks.meet()
        warm, parameters = loop.WarmUp([], steady=True), self.parameters
        if budget is None:
            boost = self.device.kind.boost_seconds
            warm = loop.warm_up(step, new_timeline(), parameters, boost=boost, agree=agree, report=report)
        else:
            parameters = parameters.model_copy(update={"budget": budget})
        self.ranks.meet()
        timeline = new_timeline()
        meter = self.device.kind.meter(self.context.target)
        joules, self.energy_source = (meter.read(), meter.source) if meter else (0.0, "")
        timed = loop.measure(step, timeline, parameters, agree=agree, report=report)
        joules = meter.read() - joules if meter else 0.0
        if is_latency:  # issuing a call is part of what its caller waits for
            timed = replace(timed, starved=0)
        load_before, load = self._load + warm.seconds, sum(timed.samples)
        self._load = load_before + load
        point = TimedPoint(
            metric=metric,
            at=at,
            load_before=load_before,
            load=load,
            joules=joules / (timed.executed * calls) if is_energy_known(meter, joules, load) else None,
            timed=replace(timed, samples=[sample / calls for sample in timed.samples]),
            warm=warm,
            calls=calls,
            timing=timeline.description + (f", {calls} calls per sample" if calls > 1 else "") + how,
            warnings=tuple(loop.warnings(warm, timed, self.parameters)),
        )
        self.points.append(point)
        return point

    def _block(self, call: Call, graph: bool) -> tuple[int, Call, str]:
        """How many calls make a sample, the sample as one call, and how it is issued if not one by one."""
        calls = self._calls_per_sample(call)
        block = repeated(call, calls)
        if graph and self.device.kind.supports_graphs:
            seconds = min(self.device.seconds_of(block) for _ in range(2))
            if seconds / calls < GRAPH_BELOW:
                return *self._graph(call, min(GRAPH_CALLS, calls)), f", replayed as a {self.device.kind.graph_name}"
        return calls, block, ""

    def _calls_per_sample(self, call: Call) -> int:
        """How many calls make a sample that is long enough; the first rank decides for all."""
        call()  # what is lazy is paid for here
        return repeats_for(
            _sample_seconds(self.device),
            MOST_CALLS,
            lambda calls: self.device.seconds_of(repeated(call, calls)),
            self.ranks.agree,
        )

    def _graph(self, call: Call, calls: int) -> tuple[int, Call]:
        """The calls as one graph, and how many they are.

        As many as Python issues in the time of a sample may be over much sooner in a graph, so that the gap between
        two replays would count: then it takes more.
        """
        replay = self.device.capture(repeated(call, calls))
        took = min(self.device.seconds_of(replay) for _ in range(2))
        more = min(GRAPH_CALLS, math.ceil(calls * _sample_seconds(self.device) / took))
        return (more, self.device.capture(repeated(call, more))) if more > calls else (calls, replay)


def headline(points: Sequence[Measurement]) -> Measurement:
    """The last point of a sweep as the figure of the whole case: chosen beforehand, not because it is the best."""
    return replace(points[-1], at={})


def show_at(at: At) -> str:
    """A point in words."""
    return " ".join(show_size(float(value)) if key == "size" else f"{key} {value}" for key, value in at.items())


def repeats_for(
    least: float, most: int, seconds: Callable[[int], float], agree: Callable[[bool], bool] = lambda verdict: verdict
) -> int:
    """How often to repeat what takes `seconds` for so many times, so that it lasts; the next power of two.

    Each is tried twice, for a pause of the machine would pass for work.
    """
    count = 1
    while count < most and any(agree(seconds(count) < least) for _ in range(2)):
        count *= 2
    return count


def repeated(call: Call, times: int) -> Call:
    """So many calls as one."""
    if times == 1:
        return call

    def block() -> None:
        for _ in range(times):
            call()

    return block


def watched(call: Callable[[], object], operators: list[str]) -> object:
    """The call; the names of the operators that it ran in the end are added."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
            operators.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():  # type: ignore[no-untyped-call]
        return call()


def _sample_seconds(device: Device) -> float:
    return DEVICE_SAMPLE if device.kind.is_accelerator else HOST_SAMPLE


def _merged_warnings(points: Sequence[TimedPoint]) -> list[RecordWarning]:
    """One warning of each kind: the first point's message, and at how many more points it occurred."""
    by_kind: dict[str, list[tuple[str, RecordWarning]]] = {}
    for point in points:
        for warning in point.warnings:
            by_kind.setdefault(warning.kind, []).append((show_at(point.at), warning))
    merged = []
    for same_kind in by_kind.values():
        label, first = same_kind[0]
        message = f"at {label}: {first.message}" if label else first.message
        if len(same_kind) > 1:
            message += f" (and at {len(same_kind) - 1} of {len(points)} points more)"
        merged.append(first.model_copy(update={"message": message}))
    return merged
