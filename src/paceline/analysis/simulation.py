"""Simulated schedules and fleets in figures: completion times, incidents, defects found, and how policies compare."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.select import CheckHistory, CheckRow, FleetModel, Floats, Mask, choose, learn
from paceline.core.stats import CONFIDENCE, Interval, student_quantile, summarize

SHORT = 0.1  # of the mean duration: the slowdown of a shorter task counts as if it took so long
BASELINE, OURS, CLAIRVOYANT = "round-robin", "two-tier", "clairvoyant"


@dataclass(frozen=True)
class Schedule:
    """When each task of a workload came, started and ended; all in seconds."""

    submitted: NDArray[np.float64]
    started: NDArray[np.float64]
    ended: NDArray[np.float64]
    device_seconds: float
    devices: int  # of the whole cluster


@dataclass(frozen=True)
class SimulatedOutcome:
    """One schedule in figures."""

    mean: float  # completion time, from submission to end
    p50: float
    p95: float
    p99: float
    longest: float
    slowdown: float  # mean of completion time over duration
    fairness: float  # Jain's index of the slowdowns: 1 if all are equal
    utilisation: float
    worst_wait: float  # in mean durations


@dataclass(frozen=True)
class Estimate:
    """A figure over several seeds."""

    value: float
    interval: Interval | None  # None for a single seed

    @property
    def relative(self) -> float | None:
        return self.interval.relative(self.value) if self.interval else None


@dataclass(frozen=True)
class Line:
    """One policy on one workload at one load."""

    policy: str
    outcomes: tuple[SimulatedOutcome, ...]  # one for each seed

    def estimate(self, name: str) -> Estimate:
        """The mean over the seeds; of extremes the most extreme."""
        values = [float(getattr(outcome, name)) for outcome in self.outcomes]
        if name in ("longest", "worst_wait"):
            return Estimate(max(values), None)
        return mean_estimate(values)


@dataclass(frozen=True)
class StudyCell:
    """One workload at one load under several policies, on the same tasks."""

    workload: str
    load: float
    lines: tuple[Line, ...]
    bound: float  # no schedule has a lower mean completion time

    def line(self, policy: str) -> Line | None:
        return next((line for line in self.lines if line.policy == policy), None)

    def gain(self, policy: str, over: str = BASELINE) -> Estimate | None:
        """How many times lower the mean completion time is than under another policy."""
        line, other = self.line(policy), self.line(over)
        return ratio(other, line) if line and other else None


@dataclass(frozen=True)
class Study:
    """Everything that one call of the simulator found, with its settings."""

    cells: tuple[StudyCell, ...]
    settings: dict[str, Any]
    seconds: float  # that it took


def measure(schedule: Schedule) -> SimulatedOutcome:
    """All figures of a schedule."""
    durations = schedule.ended - schedule.started
    times = schedule.ended - schedule.submitted
    mean = float(durations.mean())
    slowdowns = np.maximum(1.0, times / np.maximum(durations, SHORT * mean))
    p50, p95, p99 = (float(value) for value in np.percentile(times, (50, 95, 99)))
    span = float(schedule.ended.max() - schedule.submitted.min())
    return SimulatedOutcome(
        mean=float(times.mean()),
        p50=p50,
        p95=p95,
        p99=p99,
        longest=float(times.max()),
        slowdown=float(slowdowns.mean()),
        fairness=float(slowdowns.sum() ** 2 / (slowdowns.size * (slowdowns**2).sum())),
        utilisation=schedule.device_seconds / (schedule.devices * span),
        worst_wait=float((schedule.started - schedule.submitted).max()) / mean,
    )


def ratio(over: Line, under: Line) -> Estimate:
    """Mean completion time of one policy over that of another, on the same tasks."""
    return ratio_estimate(*([outcome.mean for outcome in line.outcomes] for line in (over, under)))


def mean_estimate(values: Sequence[float]) -> Estimate:
    """The mean over seeds, which are independent of each other."""
    mean = summarize(values).mean
    if len(values) < 2:
        return Estimate(mean, None)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, _student_interval(mean, error, len(values)))


def ratio_estimate(over: Sequence[float], under: Sequence[float]) -> Estimate:
    """The sum of one figure over that of another, both of the same seeds; its interval by the jackknife."""
    above, below = np.asarray(over, dtype=np.float64), np.asarray(under, dtype=np.float64)
    value = float(above.sum() / below.sum())
    count = above.size
    if count < 2:
        return Estimate(value, None)
    left_out = (above.sum() - above) / (below.sum() - below)
    error = math.sqrt((count - 1) / count * float(((left_out - left_out.mean()) ** 2).sum()))
    return Estimate(value, _student_interval(value, error, count))


def _student_interval(value: float, error: float, count: int) -> Interval:
    reach = student_quantile(0.5 + CONFIDENCE / 2, count - 1) * error
    return Interval(low=value - reach, high=value + reach, confidence=CONFIDENCE)


class SimulatedFleet(Protocol):
    """What is true of a fleet, which no policy knows; the same seed has the same fate in store under every policy."""

    nodes: int
    seed: int
    benchmarks: tuple[str, ...]
    minutes: Floats
    installed: NDArray[Any]  # the first day of each node

    @property
    def defects(self) -> Mapping[int, object]: ...  # by node
    def step(self, day: int) -> tuple[list[int], list[int]]: ...  # nodes with events, nodes with incidents
    def check(self, node: int, day: int) -> Mask: ...  # the benchmarks that would accuse the node
    def repair(self, node: int, day: int) -> None: ...


@dataclass
class FleetOutcome:
    """What became of a fleet under one policy, after the time in which everything was run."""

    node_days: float = 0.0
    incidents: int = 0
    found: int = 0  # defects, by checks
    minutes: float = 0.0  # of planned checks
    after: float = 0.0  # minutes of checks after incidents
    whole: float = 0.0  # minutes that the whole set takes on all nodes at every check, none of them cut short

    @property
    def spent(self) -> float:
        """Minutes, as a part of those of the whole set on all nodes at every check."""
        return (self.minutes + self.after) / self.whole if self.whole else 0.0

    @property
    def hours(self) -> float:
        """Machine hours."""
        return (self.minutes + self.after) / 60


@dataclass
class FleetLog:
    """All that a policy can know of a fleet."""

    nodes: tuple[str, ...]
    benchmarks: tuple[str, ...]
    minutes: Floats
    first_seen: Floats
    usual: tuple[int, ...]  # the benchmarks in the order in which they are run where nothing else says it
    now: int = 0
    rows: list[CheckRow] = field(default_factory=list)
    events: list[tuple[int, float]] = field(default_factory=list)
    seen: tuple[int, int] = (0, 0)  # how many of them the selector has seen

    @property
    def present(self) -> list[int]:
        """The nodes that are there by now."""
        return np.flatnonzero(self.first_seen <= self.now).tolist()

    def history(self, news: bool = False) -> CheckHistory:
        """The same for the selector; or only what it has not seen."""
        rows, events = (self.rows[self.seen[0] :], self.events[self.seen[1] :]) if news else (self.rows, self.events)
        self.seen = len(self.rows), len(self.events)
        return CheckHistory.of_rows(self.nodes, self.benchmarks, self.minutes, self.first_seen, self.now, rows, events)


# What a policy runs: the benchmarks of nodes in their order, from the minutes that are left, and random numbers.
Orders = Mapping[int, Sequence[int]]
Decision = Callable[[FleetLog, float, np.random.Generator], Orders]


@dataclass(frozen=True)
class Policy:
    """How to decide, which is made anew for each fleet, and whether every day or with the whole set."""

    start: Callable[[], Decision]
    daily: bool = False


def run_nothing(log: FleetLog, budget: float, generator: np.random.Generator) -> Orders:
    """No check at all."""
    return {}


def run_everything(log: FleetLog, budget: float, generator: np.random.Generator) -> Orders:
    """The whole set on every node."""
    return dict.fromkeys(log.present, log.usual)


def run_subset() -> Decision:
    """On every node the same benchmarks: those that found most per minute when it was first decided."""
    kept: list[int] = []

    def decide(log: FleetLog, budget: float, generator: np.random.Generator) -> Orders:
        if not kept:
            kept.extend(likeliest_first(log.history(), budget / max(1, len(log.present))))
        return dict.fromkeys(log.present, kept)

    return decide


def run_random(log: FleetLog, budget: float, generator: np.random.Generator) -> Orders:
    """Any benchmark on any node, until the time is over."""
    width, present, orders = len(log.benchmarks), log.present, dict[int, list[int]]()
    order = generator.permutation(len(present) * width)
    for place in order[np.cumsum(log.minutes[order % width]) <= budget].tolist():
        orders.setdefault(present[place // width], []).append(place % width)
    return orders


def run_selected() -> Decision:
    """What the selector chooses; it learns once a week and takes in what happened every day."""
    models: list[FleetModel] = []
    learned = -LEARNED_EVERY

    def decide(log: FleetLog, budget: float, generator: np.random.Generator) -> Orders:
        nonlocal learned
        if log.now >= learned + LEARNED_EVERY:
            models[:], learned = [learn(log.history())], log.now
        else:
            models[0] = models[0].follow(log.history(news=True))
        return orders_of(models[0], budget, log)

    return decide


def orders_of(model: FleetModel, budget: float, log: FleetLog) -> Orders:
    """What is chosen by a model for the nodes that are there."""
    present = log.present
    plan = choose(model.of_nodes({log.nodes[node] for node in present}), budget)
    return {node: order for node, order in zip(present, plan.orders, strict=True) if order}


def likeliest_first(history: CheckHistory, budget: float = math.inf) -> tuple[int, ...]:
    """The benchmarks for a node of which nothing is known but that it is defective."""
    model = learn(history).of_nodes(history.nodes[:1])
    known = replace(model, rate=np.zeros(1), mass=model.kinds.share[None, :])
    return choose(known, budget).orders[0]


LEARNED_EVERY = 7  # days
NONE, WHOLE, FIXED, RANDOM, SELECTOR = "none", "whole set", "fixed subset", "random subset", "selector"
POLICIES = {
    NONE: Policy(lambda: run_nothing),
    WHOLE: Policy(lambda: run_everything),
    FIXED: Policy(run_subset),
    RANDOM: Policy(lambda: run_random),
    SELECTOR: Policy(run_selected, daily=True),
}


@dataclass(frozen=True)
class FleetPlan:
    """When a fleet is checked, and for how long."""

    every: int = 7  # days between checks with the whole set
    learning: int = 26  # checks with the whole set, from which all policies start
    checks: int = 26
    budget: float = 0.15  # of the minutes of the whole set, for policies that choose


def simulate(fleet: SimulatedFleet, policy: Policy, plan: FleetPlan) -> FleetOutcome:
    """A fleet under one policy. A check ends with the benchmark that accuses the node, also the one after an incident,
    which runs benchmarks in the order of `likeliest_first` and takes time that is missing later.
    """
    outcome, generator, decide = FleetOutcome(), np.random.default_rng([fleet.seed, 99]), policy.start()
    width, one_node = len(fleet.benchmarks), float(fleet.minutes.sum())
    names = tuple(f"node-{node}" for node in range(fleet.nodes))
    log = FleetLog(names, fleet.benchmarks, fleet.minutes, fleet.installed.astype(np.float64), tuple(range(width)))
    begins, allowed = plan.learning * plan.every, 0.0

    def check(node: int, order: Sequence[int], is_incident: bool = False) -> float:
        """What it takes; in the time of learning everything is run."""
        would, ran, minutes = fleet.check(node, log.now), np.zeros(width, dtype=bool), 0.0
        for place in order:
            ran[place] = True
            minutes += float(fleet.minutes[place])
            if would[place] and counts:
                break
        found = would & ran
        log.rows.append((node, float(log.now), ran, found, is_incident))
        if counts and found.any() and not is_incident:
            outcome.found += node in fleet.defects
        if found.any() or is_incident:
            fleet.repair(node, log.now)
        return minutes * counts

    for day in range(1, begins + plan.checks * plan.every + 1):
        counts, log.now = day > begins, day
        if day == begins + 1:
            log.usual = likeliest_first(log.history())
        warned, hit = fleet.step(day)
        log.events += [(node, day - 0.5) for node in warned]
        present = log.present
        outcome.node_days += len(present) * counts
        outcome.incidents += len(hit) * counts
        for node in hit:
            outcome.after += check(node, () if decide is run_nothing else log.usual, is_incident=True)
        is_check = day % plan.every == 0
        outcome.whole += one_node * len(present) * counts * is_check
        if not counts:
            for node in present if is_check else ():
                check(node, log.usual)
            continue
        allowed += plan.budget * one_node * len(present) / plan.every
        if is_check or policy.daily:
            for node, order in decide(log, allowed - outcome.minutes - outcome.after, generator).items():
                outcome.minutes += check(node, order)
    return outcome


@dataclass
class DrawnDefect:
    """A defect of a drawn fleet."""

    kind: int
    since: int
    incident: int
    event: int  # the day of its entry in the logs, or -1
    key: tuple[int, ...]  # of its random numbers


@dataclass(frozen=True)
class FleetSettings:
    """What a drawn fleet is like."""

    nodes: int = 200
    benchmarks: int = 20
    rate: float = 0.01  # defects a day of a node, on average
    spread: float = 1.0  # deviation of the logarithm of the rates of nodes
    lasts: float = 30.0  # days on average from the beginning of a defect to an incident
    sudden: float = 0.05  # part of the defects that jobs run into at once
    warns: float = 0.5  # part of the others that are in the logs before


class DrawnFleet:
    """A fleet whose kinds of defects, and the benchmarks that show each, are drawn anew for every seed."""

    def __init__(self, settings: FleetSettings, seed: int) -> None:
        generator = np.random.default_rng([seed, 0])
        self.settings, self.seed, self.nodes, count = settings, seed, settings.nodes, settings.benchmarks
        self.benchmarks = tuple(f"benchmark-{place}" for place in range(1, count + 1))
        self.minutes = generator.lognormal(1.8, 0.9, count)
        shares = generator.pareto(1.5, max(2, count * 2 // 3)) + 0.2
        self.shares = np.cumsum(shares / shares.sum())
        showing = generator.random((len(shares), count)) < 2.5 / count
        showing[np.arange(len(shares)), generator.integers(0, count, len(shares))] = True
        self.shown = np.where(showing, generator.uniform(0.4, 0.98, showing.shape), 0.0)
        self.rates = settings.rate * generator.lognormal(-0.5 * settings.spread**2, settings.spread, self.nodes)
        self.installed = np.zeros(self.nodes)
        self.defects: dict[int, DrawnDefect] = {}

    def step(self, day: int) -> tuple[list[int], list[int]]:
        """A day goes by."""
        chance, kind, sudden, wait, warns, noise = np.random.default_rng([self.seed, 1, day]).random((6, self.nodes))
        for node in np.flatnonzero(chance < self.rates).tolist():
            if node not in self.defects:
                days = 0 if sudden[node] < self.settings.sudden else 1 + int(-self.settings.lasts * np.log(wait[node]))
                event = day + days // 2 if days and warns[node] < self.settings.warns else -1
                which = min(int(np.searchsorted(self.shares, kind[node])), len(self.shares) - 1)
                self.defects[node] = DrawnDefect(which, day, day + days, event, (self.seed, 2, node, day))
        events = {node for node, defect in self.defects.items() if defect.event == day}
        events |= set(np.flatnonzero(noise < self.settings.rate / 2).tolist())
        return sorted(events), [node for node, defect in self.defects.items() if defect.incident <= day]

    def check(self, node: int, day: int) -> Mask:
        """Which benchmarks would accuse the node today; none does without a reason."""
        defect = self.defects.get(node)
        if defect is None:
            return np.zeros(len(self.benchmarks), dtype=bool)
        found: Mask = np.random.default_rng([*defect.key, day]).random(len(self.benchmarks)) < self.shown[defect.kind]
        return found

    def repair(self, node: int, day: int) -> None:
        """It is as good as before."""
        self.defects.pop(node, None)


FEWEST_EVENTS = 5  # incidents or defects found that a ratio is made of: of fewer, chance makes any number


@dataclass(frozen=True)
class FleetStudy:
    """Policies on the same fleets."""

    outcomes: dict[str, list[FleetOutcome]]  # by policy, one for each seed
    settings: dict[str, Any]
    seconds: float  # that it took

    def estimate(self, policy: str, name: str) -> Estimate:
        """The mean of a figure over the seeds."""
        return mean_estimate([float(getattr(one, name)) for one in self.outcomes[policy]])

    def ratio(self, over: tuple[str, str], under: tuple[str, str]) -> Estimate | None:
        """A figure of a policy over one of another, on the same fleets; None where too little is there to divide by."""
        if not {over[0], under[0]} <= self.outcomes.keys():
            return None
        above, below = ([float(getattr(one, name)) for one in self.outcomes[of]] for of, name in (over, under))
        is_defined = sum(below) > (max(below) if len(below) > 1 else 0.0)
        if under[1] in ("incidents", "found"):
            is_defined &= sum(below) >= FEWEST_EVENTS
        return ratio_estimate(above, below) if is_defined else None

    def between(self, policy: str) -> Estimate | None:
        """Days that a node runs between two incidents; None where there were none in all seeds but one."""
        return self.ratio((policy, "node_days"), (policy, "incidents"))

    def longer(self, policy: str) -> Estimate | None:
        """How many times longer that is than without any check."""
        return self.ratio((NONE, "incidents"), (policy, "incidents"))

    def found(self, policy: str) -> Estimate | None:
        """Defects found over those that the whole set finds."""
        return self.ratio((policy, "found"), (WHOLE, "found"))


def study(
    settings: FleetSettings,
    plan: FleetPlan,
    policies: Sequence[str],
    seeds: Sequence[int],
    progress: Callable[[str], None] = lambda text: None,
) -> FleetStudy:
    """Every policy on every fleet; `progress` is called with what is being done."""
    begun = time.monotonic()
    outcomes: dict[str, list[FleetOutcome]] = {policy: [] for policy in policies}
    for seed in seeds:
        for policy in policies:
            progress(f"seed {seed}: {policy}")
            outcomes[policy].append(simulate(DrawnFleet(settings, seed), POLICIES[policy], plan))
    asked = asdict(settings) | asdict(plan) | {"seeds": list(seeds)}
    return FleetStudy(outcomes, asked, time.monotonic() - begun)
