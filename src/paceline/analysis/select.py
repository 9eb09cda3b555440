"""Which benchmarks to run on which nodes, from what earlier checks found.

Runs of a suite become one row for each check. Three things are learned from these: at which rate each node becomes
defective, which kinds of defects there are with the benchmarks that show each, and how often an event in the logs goes
before one. Each has a weak prior, which is all there is as long as nothing was found. By them each node is followed
through its history by Bayes' rule: days in which nothing was looked at and events make a defect more likely, checks
less. The plan is then what is worth most in the time there is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.diagnose.early import DefectRules
from paceline.analysis.diagnose.table import MetricColumn
from paceline.core.record import Outcome
from paceline.core.run import Run, RunRecords

ROUND = timedelta(days=1)  # between runs that are judged together
SELECTED = " select "  # in the name of a suite that a plan wrote, behind that of the suite it was chosen from

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Places = NDArray[np.intp]
CheckRow = tuple[int, float, Mask, Mask, bool]  # the fields of `Checks`


@dataclass(frozen=True)
class Checks:
    """Checks in the order of nodes, those of one node in the order of time."""

    node: Places
    day: Floats
    ran: Mask  # by benchmark
    found: Mask  # those of them that accused the node
    incident: Mask  # whether it was made because a job had run into a defect

    @property
    def is_defect(self) -> Mask:
        """Whether the node turned out to be defective; it is taken for repaired afterwards."""
        bad: Mask = self.found.any(axis=1) | self.incident
        return bad


@dataclass(frozen=True)
class CheckHistory:
    """All that is known of a fleet when the next check is planned."""

    nodes: tuple[str, ...]
    benchmarks: tuple[str, ...]
    minutes: Floats  # of each benchmark, on one node
    possible: Mask  # by node and benchmark: what can be chosen
    first_seen: Floats  # day of each node
    now: float  # day
    checks: Checks
    event_node: Places  # warnings, lost jobs and their like, in any order
    event_day: Floats

    @classmethod
    def of_rows(
        cls,
        nodes: tuple[str, ...],
        benchmarks: tuple[str, ...],
        minutes: Floats,
        first_seen: Floats,
        now: float,
        rows: list[CheckRow],
        events: list[tuple[int, float]],
        possible: Mask | None = None,
    ) -> CheckHistory:
        """From checks in any order."""
        rows = sorted(rows, key=lambda row: row[:2])
        width = len(benchmarks)
        checks = Checks(
            node=np.array([row[0] for row in rows], dtype=np.intp),
            day=np.array([row[1] for row in rows], dtype=np.float64),
            ran=np.array([row[2] for row in rows], dtype=bool).reshape(-1, width),
            found=np.array([row[3] for row in rows], dtype=bool).reshape(-1, width),
            incident=np.array([row[4] for row in rows], dtype=bool),
        )
        event_node = np.array([node for node, _ in events], dtype=np.intp)
        event_day = np.array([day for _, day in events], dtype=np.float64)
        able = np.ones((len(nodes), width), dtype=bool) if possible is None else possible
        return cls(nodes, benchmarks, minutes, able, first_seen, now, checks, event_node, event_day)


@dataclass(frozen=True)
class NodeCheck:
    """What one run says of its node."""

    node: str
    at: datetime
    until: datetime
    seconds: Mapping[str, float]  # of each benchmark that it ran
    judged: frozenset[str]  # those of them that would have accused a defective node: what else ran says nothing
    found: frozenset[str]  # those of these that accused the node
    unsupported: frozenset[str]
    warnings: int  # kinds of warnings, and whether it was interrupted
    tags: tuple[str, ...] = ()


MOST_OTHERS = 64  # nodes that a round is compared with besides its own: more tell hardly more


@dataclass(frozen=True)
class Round:
    """Runs that are judged together, one of each node, and those of other nodes that they are compared with as well."""

    runs: tuple[Run, ...]
    others: tuple[Run, ...]  # the latest runs of some, at most a day older; they are judged in a round of their own


def rounds_of(runs: Iterable[Run], suite: str) -> list[Round]:
    """Runs of a suite and of what was selected from it: each node once in a round, runs at most a day apart."""
    rounds: list[tuple[dict[str, Run], dict[str, Run]]] = []
    latest: dict[str, Run] = {}  # of each node, of the last day, the newest last
    going: list[dict[str, Run]] = []  # rounds that a run may still join
    for run in sorted(runs, key=lambda run: run.started_at):
        if run.name != suite and not run.name.startswith(suite + SELECTED):
            continue
        host = run.environment.host_name
        going = [one for one in going if run.started_at - next(reversed(one.values())).started_at <= ROUND]
        # A node that measures twice in a row has a second round, which the others join in their turn.
        members = next((one for one in reversed(going) if host not in one), None)
        if members is None:
            latest = {node: one for node, one in latest.items() if run.started_at - one.started_at <= ROUND}
            members = {}
            going.append(members)
            rounds.append((members, dict(latest)))
        latest.pop(host, None)
        members[host] = latest[host] = run
    return [
        Round(tuple(members.values()), tuple(one for node, one in others.items() if node not in members)[-MOST_OTHERS:])
        for members, others in rounds
    ]


def judge_round(runs: Sequence[RunRecords], defects: DefectRules, others: Sequence[RunRecords] = ()) -> list[NodeCheck]:
    """Each node of a round, by the rules of `paceline diagnose`; what failed counts in any case."""
    found: dict[str, set[str]] = {run.run.environment.host_name: set() for run in runs}
    judged: dict[str, set[str]] = {node: set() for node in found}
    incomplete = {run.run.environment.host_name for run in runs if run.missing}
    here, elsewhere = ({run.run.environment.host_name: run for run in some} for some in (runs, others))
    for node, judgement in defects.judge(here, elsewhere).items():
        judged[node] |= {MetricColumn(name).benchmark for name in judgement.compared}
        for finding in judgement.findings:
            if finding.kind == "missing" and node in incomplete:
                continue  # its check ended before it came to that
            found[node] |= {MetricColumn(name).benchmark for name in finding.metrics or (finding.metric,)}
    checks = []
    for run in runs:
        node, seconds, unsupported, kinds = run.run.environment.host_name, dict[str, float](), set[str](), set[str]()
        for record in run.records:
            name = record.case.benchmark
            if record.outcome is Outcome.UNSUPPORTED:
                unsupported.add(name)
                continue
            seconds[name] = seconds.get(name, 0.0) + record.seconds
            kinds |= {warning.kind for warning in record.warnings}
            if not record.is_success and record.is_final:
                found[node].add(name)
            if record.outcome is Outcome.OK and not record.measurements:
                judged[node].add(name)  # it says by its outcome all that it has to say
        begun, warnings = run.run.started_at, len(kinds) + (run.run.status == "interrupted")
        until = max(run.run.ended_at or begun, begun + timedelta(seconds=sum(seconds.values())))
        accused, unable = frozenset(found[node] & seconds.keys()), frozenset(unsupported - seconds.keys())
        is_known = frozenset(judged[node] & seconds.keys()) | accused
        checks.append(NodeCheck(node, begun, until, seconds, is_known, accused, unable, warnings, tuple(run.run.tags)))
    return checks


def history_of(
    checks: Sequence[NodeCheck],
    lost: Sequence[tuple[str, datetime]],
    candidates: Mapping[str, float],
    now: datetime,
) -> CheckHistory:
    """The history of the nodes of some checks. `lost` are nodes on which jobs ended without a word; `candidates` the
    benchmarks to choose from, with the minutes that each is guessed to take where no check ran it.
    """
    nodes = tuple(dict.fromkeys(check.node for check in checks))
    benchmarks = tuple(dict.fromkeys([*candidates, *sorted({name for check in checks for name in check.seconds})]))
    place, column = ({name: at for at, name in enumerate(names)} for names in (nodes, benchmarks))
    begin = min(check.at for check in checks)

    def day(at: datetime) -> float:
        return (at - begin) / timedelta(days=1)

    def mask(names: Iterable[str]) -> Mask:
        row = np.zeros(len(benchmarks), dtype=bool)
        row[[column[name] for name in names]] = True
        return row

    taken = {name: [check.seconds[name] / 60 for check in checks if name in check.seconds] for name in benchmarks}
    minutes = [max(1e-3, median(taken[name])) if taken[name] else candidates[name] for name in benchmarks]
    possible = np.tile(mask(candidates), (len(nodes), 1))
    first_seen = np.full(len(nodes), np.inf)
    rows, events = [], []
    for check in sorted(checks, key=lambda check: check.at):
        node = place[check.node]
        first_seen[node] = min(first_seen[node], day(check.at))
        possible[node] &= ~mask(check.unsupported & column.keys())
        possible[node] |= mask(candidates.keys() & check.seconds.keys())
        if check.judged:  # of others nobody knows whether the node was healthy then
            rows.append((node, day(check.at), mask(check.judged), mask(check.found), False))
        events += [(node, day(check.until) + 1e-6)] * check.warnings
    nothing = mask(())
    rows += [(place[node], day(at), nothing, nothing, True) for node, at in lost if node in place]
    return CheckHistory.of_rows(nodes, benchmarks, np.array(minutes), first_seen, day(now), rows, events, possible)


PRIOR_DAYS = 365.0  # between defects of a node, where none was ever found
HALF_LIFE, RATE_HALF_LIFE = 120.0, 240.0  # days after which a defect counts half: its kind, that there was one
RELAPSE = 14.0  # days during which a repair that did not help shows
IN_VAIN = 0.1  # of the repairs do not help
FRESH = 10.0  # days before a defect is found in which an event counts as its own
LASTS = 60.0  # days that a defect stays unseen before a job runs into it
HIT, MISS = 0.95, 0.03  # to begin with, that a benchmark shows the kind that goes with it, or one that does not
UNSEEN = 2.0  # defects of kinds that only one benchmark shows, which are assumed on top of those found
SMOOTHING = 0.2  # defects that the usual figures weigh as much as, when benchmarks of a kind are judged
ALIKE = 5.0  # the same for events before defects of a kind
ROUNDS = 30  # of expectation and maximisation
SHAPES = (0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0)  # of the distribution of rates; 1 is exponential


@dataclass(frozen=True)
class Kinds:
    """Kinds of defects, as earlier ones were: how often each is, and which benchmarks show it."""

    share: Floats  # sums to 1
    shown: Floats  # probability by kind and benchmark
    warns: Floats  # the part of each that is in the logs soon after it began
    noise: float  # events a day of a healthy node

    def chance(self, ran: Mask, found: Mask) -> Floats:
        """The probability by check and kind of what its benchmarks showed."""
        logs = found @ np.log(self.shown).T + (ran & ~found) @ np.log1p(-self.shown).T
        likely: Floats = np.exp(logs)
        return likely

    def missed(self, ran: Mask) -> Floats:
        """The probability by check and kind that none of its benchmarks shows it."""
        left: Floats = np.exp(ran.astype(np.float64) @ np.log1p(-self.shown).T)
        return left


def learn_kinds(history: CheckHistory) -> Kinds:
    """A mixture of as many kinds as there are benchmarks, by expectation and maximisation, from all defective nodes on
    which something was run. What was not run says nothing; each kind begins as what goes with one benchmark.
    """
    checks, width = history.checks, len(history.benchmarks)
    warned, noise = _warned(history)
    rows = np.flatnonzero(checks.is_defect & checks.ran.any(axis=1))
    # A few defects that only one benchmark shows are assumed on top, so that nothing is ruled out.
    weight = np.concatenate([0.5 ** ((history.now - checks.day[rows]) / HALF_LIFE), np.full(width, UNSEEN / width)])
    ran = np.vstack([checks.ran[rows], np.ones((width, width), dtype=bool)])
    found = np.vstack([checks.found[rows], np.eye(width, dtype=bool)])
    yes, could = found.astype(np.float64), ran.astype(np.float64)
    usual = (weight @ yes + 0.5 / width) / (weight @ could + 0.5)
    overlap = ((yes.T * weight) @ yes + SMOOTHING * usual) / ((yes.T * weight) @ could + SMOOTHING)
    np.fill_diagonal(overlap, HIT)
    kinds = Kinds(np.full(width, 1 / width), np.clip(overlap, MISS, HIT), np.zeros(width), noise)
    for _ in range(ROUNDS):
        belongs = kinds.share * kinds.chance(ran, found)
        belongs *= (weight / belongs.sum(axis=1))[:, None]
        share = belongs.sum(axis=0) + 0.01
        shown = (belongs.T @ yes + SMOOTHING * usual) / (belongs.T @ could + SMOOTHING)
        kinds = replace(kinds, share=share / share.sum(), shown=np.clip(shown, 1e-3, 0.98))
    belongs = belongs[: rows.size]
    mean = (belongs.sum(axis=1) @ warned[rows] + 0.5) / (belongs.sum() + 2.0)
    warns = (belongs.T @ warned[rows] + ALIKE * mean) / (belongs.sum(axis=0) + ALIKE)
    by_chance = -math.expm1(-noise * FRESH)
    return replace(kinds, warns=np.clip((warns - by_chance) / (1.0 - by_chance), 0.01, 0.95))


def _warned(history: CheckHistory) -> tuple[Mask, float]:
    """Whether an event went before each check, and how many a day there are where no defect follows."""
    checks = history.checks
    key = np.sort(history.event_node + history.event_day / 1e6)
    begin = np.searchsorted(key, checks.node + np.maximum(0.0, checks.day - FRESH) / 1e6)
    before = np.searchsorted(key, checks.node + checks.day / 1e6) - begin
    bad = checks.is_defect
    days = float(np.maximum(0.0, history.now - history.first_seen).sum()) - FRESH * float(bad.sum())
    others = max(0, history.event_day.size - int(before[bad].sum()))
    return before > 0, (others + 1.0) / (max(0.0, days) + PRIOR_DAYS)


@dataclass(frozen=True)
class FleetModel:
    """What was learned of a fleet, and what that says of each node now."""

    history: CheckHistory
    kinds: Kinds
    rate: Floats  # defects a day of each node
    at: Floats  # the day up to which each node is followed
    mass: Floats  # by node and kind: the probability that it has such a defect then
    pool: Floats  # by node and kind: the probability that a repair did not help, and it does not show yet
    place: Places  # of each node in the checks of the history

    @property
    def probability(self) -> Floats:
        """That each node is defective now."""
        total: Floats = self.mass.sum(axis=1)
        return total

    def of_nodes(self, names: Collection[str]) -> FleetModel:
        """The same for some of the nodes, with what was learned from all."""
        history = self.history
        kept = np.array([place for place, name in enumerate(history.nodes) if name in names], dtype=np.intp)
        nodes = tuple(history.nodes[place] for place in kept)
        some = replace(history, nodes=nodes, possible=history.possible[kept], first_seen=history.first_seen[kept])
        names_of = ("rate", "at", "mass", "pool", "place")
        return replace(self, history=some, **{name: getattr(self, name)[kept] for name in names_of})

    @property
    def urgency(self) -> Floats:
        """By node and kind, what it is worth to look now and not later.

        The probability `m` of a defect tends to `most` as days go by. Checks of `c` minutes that are made whenever it
        has grown to `m` find most in all when each gains, per minute, over what waiting would still have added, the
        same: `(m - T m') / c`, with `T` the days that it takes to grow so far. Where something else than time made it
        likely, such as an event, all of it counts.
        """
        most = self.rate[:, None] * self.kinds.share * LASTS
        part = self.mass / np.maximum(most, 1e-300)
        left = np.maximum(1e-12, 1.0 - part)
        worth: Floats = np.where(part < 1.0, most * (part + left * np.log(left)), self.mass)
        return worth

    def follow(self, history: CheckHistory) -> FleetModel:
        """Each node up to `history.now` by Bayes' rule; the history has only what was not taken in before."""
        checks, kinds = history.checks, self.kinds
        node = np.concatenate([checks.node, history.event_node])
        day = np.concatenate([checks.day, history.event_day])
        order = np.lexsort((day, node))
        node, day = node[order], day[order]
        place = np.arange(node.size) - np.searchsorted(node, node)  # of each among those of its node
        at, mass, pool = self.at.copy(), self.mass.copy(), self.pool.copy()
        is_bad = checks.is_defect
        for turn in range(int(place.max(initial=-1)) + 1):
            rows = np.flatnonzero(place == turn)
            self._pass(node[rows], day[rows], at, mass, pool)
            is_check = order[rows] < checks.node.size
            some, which = node[rows][is_check], order[rows][is_check]
            healthy, bad = 1.0 - mass[some].sum(axis=1), is_bad[which]
            likely = (mass[some] + 1e-9 * kinds.share) * kinds.chance(checks.ran[which], checks.found[which])
            pool[some[bad]] = IN_VAIN * likely[bad] / np.maximum(1e-300, likely[bad].sum(axis=1))[:, None]
            mass[some] = np.where(bad[:, None], 0.0, likely / (healthy + likely.sum(axis=1))[:, None])
            warned = node[rows][~is_check]
            begun = (self.rate[warned][:, None] * kinds.share + pool[warned] / RELAPSE) * kinds.warns
            healthy = 1.0 - mass[warned].sum(axis=1)
            likely = mass[warned] * kinds.noise + begun
            mass[warned] = likely / (healthy * kinds.noise + likely.sum(axis=1))[:, None]
        self._pass(np.arange(at.size), np.full(at.size, history.now), at, mass, pool)
        now = replace(self.history, now=history.now)
        return replace(self, history=now, at=at, mass=mass, pool=pool)

    def _pass(self, node: Places, until: Floats, at: Floats, mass: Floats, pool: Floats) -> None:
        """Time goes by: defects begin in healthy nodes, and others end, as jobs run into them."""
        gap = np.maximum(0.0, until - at[node])[:, None]
        stays, waits = np.exp(-gap / LASTS), np.exp(-gap / RELAPSE)
        silent = self.kinds.share * (1.0 - self.kinds.warns)  # the others begin with an event
        total = self.rate[node][:, None] * silent.sum()
        before, most = mass[node].sum(axis=1, keepdims=True), total * LASTS / (1.0 + total * LASTS)
        after = most + (before - most) * np.exp(-gap * (total + 1.0 / LASTS))
        mass[node] = mass[node] * stays + (after - before * stays) * silent / silent.sum()
        mass[node] += np.maximum(0.0, 1.0 - after) * pool[node] * (1.0 - waits)
        pool[node] *= waits
        at[node] = np.maximum(at[node], until)

    @property
    def defects(self) -> int:
        """How many it was learned from."""
        return int(self.history.checks.is_defect.sum())

    def reason(self, node: int) -> str:
        """What makes a defect of the node more likely than of the average node; else the time since its last checks."""
        history, now = self.history, self.history.now
        mine = history.checks.node == self.place[node]
        last = history.checks.day[mine].max(initial=-math.inf)
        if (history.event_day[history.event_node == self.place[node]] > max(last, now - FRESH)).any():
            return "recent events"
        if (history.checks.day[mine & history.checks.is_defect] > now - RELAPSE).any():
            return "a recent defect"
        is_high = self.rate[node] > 1.2 * self.rate.mean()
        return "earlier defects" if is_high else "the time since its last checks"


def learn(history: CheckHistory) -> FleetModel:
    """Fit kinds and rates to the history, and follow each node through it."""
    kinds, rate = learn_kinds(history), learn_rates(history)
    nothing = np.zeros((len(rate), len(kinds.share)))
    begin = np.minimum(history.first_seen, history.now)
    return FleetModel(history, kinds, rate, begin, nothing, nothing, np.arange(len(rate))).follow(history)


def learn_rates(history: CheckHistory) -> Floats:
    """Defects a day of each node, by empirical Bayes: as if drawn from a gamma distribution, of which the mean is the
    fleet's and the shape the one under which the numbers of defects of its nodes are most likely.
    """
    checks, decay = history.checks, math.log(2) / RATE_HALF_LIFE
    kept = np.exp(-decay * (history.now - checks.day))
    count = np.bincount(checks.node, kept * checks.is_defect, minlength=len(history.nodes))
    looked = np.zeros(len(history.nodes))  # what is left of the day of the last check
    np.maximum.at(looked, checks.node, kept)
    days = np.maximum(1e-3, looked - np.exp(-decay * (history.now - history.first_seen))) / decay
    mean = (count.sum() + 1.0) / (days.sum() + PRIOR_DAYS)
    expected, gamma = mean * days, np.vectorize(math.lgamma, otypes=[float])

    def likely(shape: float) -> float:
        """The logarithm of how likely the numbers are, with a prior around 1."""
        spread = gamma(shape + count) - gamma(shape) - (shape + count) * np.log(shape + expected)
        return float((spread + shape * math.log(shape)).sum()) - math.log(shape) ** 2 / 2

    shape = max(SHAPES, key=likely) if len(count) else 1.0
    rate: Floats = (shape + count) / (shape / mean + days)
    return rate


GUARANTEE = (1 - 1 / math.e) / 2  # of the best plan, by any history: greedy by gain per minute, or one single case


@dataclass(frozen=True)
class SelectionPlan:
    """What to run where."""

    model: FleetModel
    orders: tuple[tuple[int, ...], ...]  # of each node, the benchmarks in the order in which they are run
    budget: float  # minutes on all nodes together
    worth: float  # of what it is expected to find
    bound: float  # no plan within the budget is expected to be worth more

    @property
    def chosen(self) -> Mask:
        """By node and benchmark."""
        chosen = np.zeros(self.model.history.possible.shape, dtype=bool)
        for node, order in enumerate(self.orders):
            chosen[node, list(order)] = True
        return chosen

    @property
    def found(self) -> float:
        """Defective nodes that it is expected to find."""
        return float((self.model.mass * (1.0 - self.model.kinds.missed(self.chosen))).sum())

    @property
    def minutes(self) -> Floats:
        """Of each node."""
        minutes: Floats = self.chosen @ self.model.history.minutes
        return minutes

    @property
    def whole_minutes(self) -> float:
        """Of all benchmarks on all nodes that can run them."""
        return float((self.model.history.possible @ self.model.history.minutes).sum())

    @property
    def expected(self) -> float:
        """Nodes that are expected to be defective."""
        return float(self.model.probability.sum())

    @property
    def whole(self) -> float:
        """Defective nodes that all benchmarks on all nodes are expected to find."""
        return float((self.model.mass * (1.0 - self.model.kinds.missed(self.model.history.possible))).sum())

    @property
    def share(self) -> float:
        """Of what all benchmarks on all nodes would find, the part that the plan finds."""
        return self.found / self.whole if self.whole else 1.0


def choose(model: FleetModel, budget: float) -> SelectionPlan:
    """Case after case the one that finds most per minute, or the best one alone if that finds more."""
    minutes, shown, possible = model.history.minutes, model.kinds.shown, model.history.possible
    urgency = model.urgency
    left = urgency.copy()  # by node and kind: what the cases chosen so far would miss
    orders: list[list[int]] = [[] for _ in model.history.nodes]
    chosen = np.zeros((len(model.history.nodes), len(minutes)), dtype=bool)
    gains = left @ shown
    single = np.where(possible & (minutes <= budget), gains, -1.0)
    spent = found = 0.0
    ratios = np.where(single > 0, gains / minutes, 0.0)
    best_of = enumerate(ratios.argmax(axis=1).tolist() if chosen.size else ())
    heap = [(-float(ratios[node, best]), node, best) for node, best in best_of if ratios[node, best] > 0]
    heapq.heapify(heap)

    def offer(node: int) -> None:
        """The best case of a node that still fits."""
        fits = possible[node] & ~chosen[node] & (minutes <= budget - spent)
        ratios = np.where(fits, gains[node] / minutes, -1.0)
        best = int(np.argmax(ratios))
        if ratios[best] > 0:
            heapq.heappush(heap, (-float(ratios[best]), node, best))

    while heap:
        _, node, best = heapq.heappop(heap)
        if minutes[best] <= budget - spent:
            chosen[node, best] = True
            orders[node].append(best)
            spent += float(minutes[best])
            found += float(gains[node, best])
            left[node] *= 1.0 - shown[:, best]
            gains[node] = left[node] @ shown
        offer(node)
    if single.size and float(single.max()) > found:
        node, best = divmod(int(np.argmax(single)), len(minutes))
        chosen[:] = False
        chosen[node, best] = True
        orders = [[best] if place == node else [] for place in range(len(orders))]
        found = float(single[node, best])
        gains = urgency @ shown
        gains[node] = (urgency[node] * (1.0 - shown[:, best])) @ shown
    bound = found + _most_more(np.where(chosen | ~possible, 0.0, gains), minutes, budget)
    return SelectionPlan(model, tuple(map(tuple, orders)), budget, found, bound)


def _most_more(gains: Floats, minutes: Floats, budget: float) -> float:
    """What no set of further cases within the budget can add: gains only shrink, so that each counts as it is now."""
    costs = np.broadcast_to(minutes, gains.shape).ravel()
    order = np.argsort(-gains.ravel() / costs, kind="stable")
    spent = np.cumsum(costs[order])
    parts = np.clip((budget - (spent - costs[order])) / costs[order], 0.0, 1.0)
    return float(gains.ravel()[order] @ parts)
