"""Which benchmarks to run on which nodes, from what earlier checks found.

Runs of a suite become one row for each check. From these is learned how likely each node is defective now, and which
benchmarks would show it. A node becomes defective at a rate that depends on its age, its earlier defects and the events
in its logs: a proportional hazard in discrete time, from check to check. What a check did not look at goes on counting
as exposure. Which benchmarks show a defect is learned from those that were found: each stands for a kind of defect,
shown by the benchmarks that accused the node then. Both have a weak prior, which is all there is as long as nothing was
found. The plan is then what finds the most defects in the time there is.
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

from paceline.analysis.baseline import Baseline
from paceline.analysis.diagnose.judge import diagnose
from paceline.analysis.diagnose.rules import RuleSet
from paceline.analysis.diagnose.table import MetricColumn, assemble, results_of
from paceline.core.errors import InputError
from paceline.core.record import Outcome
from paceline.core.run import Run, RunRecords

ROUND = timedelta(days=1)  # between runs that are judged together
FEWEST = 3  # nodes that are judged by each other; of fewer only failures count
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
    found: frozenset[str]  # benchmarks that accused the node
    unsupported: frozenset[str]
    warnings: int  # kinds of warnings, and whether it was interrupted
    tags: tuple[str, ...] = ()


def rounds_of(runs: Iterable[Run], suite: str) -> list[list[Run]]:
    """Runs of a suite, or of what was selected from it, that are judged together: each node once, a day apart."""
    rounds: list[dict[str, Run]] = []  # by host
    current: dict[str, dict[str, Run]] = {}
    for run in sorted(runs, key=lambda run: run.started_at):
        if run.name == suite or run.name.startswith(suite + SELECTED):
            host, members = run.environment.host_name, current.get(run.name, {})
            newest = next(reversed(members.values()), None)
            if newest is None or host in members or run.started_at - newest.started_at > ROUND:
                members = current[run.name] = {}
                rounds.append(members)
            members[host] = run
    return [list(members.values()) for members in rounds]


def judge_round(runs: Sequence[RunRecords], rules: RuleSet, baseline: Baseline | None) -> list[NodeCheck]:
    """Each node of a round, by the rules of `paceline diagnose`; what failed counts in any case."""
    found: dict[str, set[str]] = {run.run.environment.host_name: set() for run in runs}
    ran = [run for run in runs if any(record.outcome is Outcome.OK for record in run.records)]
    if len(ran) >= FEWEST or (ran and baseline is not None):
        try:
            verdicts = diagnose(assemble(results_of(ran)), rules, baseline).verdicts
        except InputError as error:
            if error.code != "no-metric-matched":  # a selection may have nothing that the rules look at
                raise
            verdicts = ()
        for verdict in verdicts:
            for finding in verdict.accusations:
                names = finding.metrics or (finding.metric,)
                found[verdict.node] |= {MetricColumn(name).benchmark for name in names}
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
        begun, warnings = run.run.started_at, len(kinds) + (run.run.status == "interrupted")
        until = max(run.run.ended_at or begun, begun + timedelta(seconds=sum(seconds.values())))
        accused, unable = frozenset(found[node] & seconds.keys()), frozenset(unsupported - seconds.keys())
        checks.append(NodeCheck(node, begun, until, seconds, accused, unable, warnings, tuple(run.run.tags)))
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
        rows.append((node, day(check.at), mask(check.seconds), mask(check.found), False))
        events += [(node, day(check.until) + 1e-6)] * check.warnings
    nothing = mask(())
    rows += [(place[node], day(at), nothing, nothing, True) for node, at in lost if node in place]
    return CheckHistory.of_rows(nodes, benchmarks, np.array(minutes), first_seen, day(now), rows, events, possible)


PRIOR_DAYS = 365.0  # between defects of a node, where none was ever found
HALF_LIFE = 120.0  # days after which something counts half
RELAPSE = 14.0  # days during which a repair that did not help shows
YOUNG = 30.0  # days
FRESH = 10.0  # days in which an event says most
LASTS = 60.0  # days that a defect stays unseen before a job runs into it
HIT, MISS = 0.95, 0.03  # that a benchmark shows a defect like one that it showed, or did not show
UNSEEN = 2.0  # defects of kinds that only one benchmark shows, which are assumed on top of those found
SMOOTHING = 2.0  # defects that the prior of an overlap weighs as much as
MOST_KINDS = 256
MOST_CHECKS = 60  # of a node, the latest: before them it counts as never checked
COVARIATES = ("age", "being new", "earlier defects", "a recent defect", "recent events", "earlier events")
_PRIOR_MEAN = np.array([-math.log(PRIOR_DAYS), 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
_PRIOR_SD = np.array([1.5, 0.5, 0.5, 0.5, 1.0, 1.5, 0.7])


@dataclass(frozen=True)
class Kinds:
    """Kinds of defects, as earlier ones were: how often each is, and which benchmarks show it."""

    share: Floats  # sums to 1
    shown: Floats  # probability by kind and benchmark

    def missed(self, ran: Mask) -> Floats:
        """The probability by check and kind that none of its benchmarks shows it."""
        left: Floats = np.exp(ran.astype(np.float64) @ np.log1p(-self.shown).T)
        return left


def learn_kinds(history: CheckHistory) -> Kinds:
    """From every defect that was found; what was not run then is judged by how benchmarks overlap."""
    checks, width = history.checks, len(history.benchmarks)
    rows = np.flatnonzero(checks.found.any(axis=1))
    weight = 0.5 ** ((history.now - checks.day[rows]) / HALF_LIFE)
    found, ran = checks.found[rows].astype(np.float64), checks.ran[rows].astype(np.float64)
    alone = np.full((width, width), MISS) + (HIT - MISS) * np.eye(width)
    if not rows.size:
        return Kinds(np.full(width, 1 / width), alone)
    # How often b shows what a showed, where both ran; with few of them, how often b shows anything.
    usual = (weight @ found + 0.5) / (weight @ ran + 0.5 * width)
    overlap = ((found.T * weight) @ found + SMOOTHING * usual) / ((found.T * weight) @ ran + SMOOTHING)
    guessed = found @ overlap / found.sum(axis=1, keepdims=True)
    shown = np.where(found > 0, HIT, np.where(ran > 0, MISS, np.minimum(guessed, HIT)))
    _, first, place = np.unique(np.hstack([found, ran]), axis=0, return_index=True, return_inverse=True)
    share = np.bincount(place.ravel(), weight)
    kept = np.argsort(-share, kind="stable")[:MOST_KINDS]
    share = np.concatenate([share[kept], np.full(width, UNSEEN / width)])
    return Kinds(share / share.sum(), np.vstack([shown[first[kept]], alone]))


@dataclass(frozen=True)
class FleetModel:
    """What was learned of a fleet."""

    history: CheckHistory
    kinds: Kinds
    coefficients: Floats  # of the logarithm of the rate: a constant, then COVARIATES
    covariates: Floats  # of each node, now
    rate: Floats  # defects a day of each node, now
    mass: Floats  # by node and kind: the probability that it has such a defect now

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
        covariates, rate, mass = self.covariates[kept], self.rate[kept], self.mass[kept]
        return replace(self, history=some, covariates=covariates, rate=rate, mass=mass)

    @property
    def defects(self) -> int:
        """How many it was learned from."""
        return int(self.history.checks.is_defect.sum())

    def reason(self, node: int) -> str:
        """What raises the node's rate above the average node's most; otherwise the time since it was last checked."""
        parts = self.coefficients[1:] * (self.covariates[node] - self.covariates.mean(axis=0))
        place = int(np.argmax(parts))
        return COVARIATES[place] if parts[place] > math.log(1.2) else "the time since its last checks"


def learn(history: CheckHistory) -> FleetModel:
    """Fit both parts to the history."""
    kinds = learn_kinds(history)
    checks, count = history.checks, len(history.nodes)
    # Each node as of now goes behind its checks, as one that has no outcome yet.
    node = np.concatenate([checks.node, np.arange(count)])
    day = np.concatenate([checks.day, np.full(count, history.now)])
    bad = np.concatenate([checks.is_defect, np.zeros(count, dtype=bool)])
    order = np.lexsort((np.arange(node.size) >= checks.node.size, day, node))
    node, day, bad = node[order], day[order], bad[order]
    is_now = order >= checks.node.size
    starts = np.concatenate([[True], node[1:] != node[:-1]]) if node.size else np.zeros(0, dtype=bool)
    before = np.where(starts, history.first_seen[node], np.concatenate([[0.0], day[:-1]]))
    covered = np.ones(node.size)  # of the kinds of defects, by the benchmarks of the check
    sets, of_check = np.unique(np.packbits(checks.ran, axis=1), axis=0, return_inverse=True)  # a few, of many checks
    ran = np.unpackbits(sets, axis=1, count=checks.ran.shape[1]).astype(bool)
    covered[~is_now] = 1.0 - (kinds.missed(ran) @ kinds.share)[of_check.ravel()] * ~checks.incident
    exposure = _exposures(starts, np.maximum(0.0, day - before), np.where(bad, 1.0, covered))
    covariates = _covariates(history, node, day, bad, starts)
    weight = 0.5 ** ((history.now - day) / HALF_LIFE)
    past = ~is_now & (exposure > 0)
    design = np.column_stack([np.ones(node.size), covariates])
    coefficients = _fit(design[past], exposure[past], covered[past], bad[past], weight[past])
    here = design[is_now]
    rate = np.exp(np.clip(here @ coefficients, -20.0, 2.0))
    open_days = _open_days(history, kinds) * kinds.share
    total = open_days.sum(axis=1)
    chance = -np.expm1(-rate * total)
    mass = open_days * (chance / np.where(total > 0, total, 1.0))[:, None]
    return FleetModel(history, kinds, coefficients, here[:, 1:], rate, mass)


def _exposures(starts: Mask, gaps: Floats, covered: Floats) -> Floats:
    """Days that each check looks back on: those since the check before, and what that one left open."""
    exposure = np.empty(len(gaps))
    left = 0.0
    for row, (is_first, gap, share) in enumerate(zip(starts.tolist(), gaps.tolist(), covered.tolist(), strict=True)):
        left = LASTS - (LASTS - (0.0 if is_first else left)) * math.exp(-gap / LASTS)
        exposure[row] = left
        left *= 1.0 - share
    return exposure


def _open_days(history: CheckHistory, kinds: Kinds) -> Floats:
    """By node and kind: the days in which such a defect may have begun that no check would have shown."""
    checks, count = history.checks, len(history.nodes)
    per_node = np.bincount(checks.node, minlength=count)
    last = np.cumsum(per_node) - 1
    days = np.zeros((count, len(kinds.share)))
    at = history.first_seen.copy()
    for back in range(min(MOST_CHECKS, int(per_node.max(initial=0))) - 1, -1, -1):
        nodes = np.flatnonzero(per_node > back)
        rows = last[nodes] - back
        gap = np.maximum(0.0, checks.day[rows] - at[nodes])[:, None]
        is_new = checks.is_defect[rows]
        after = (LASTS - (LASTS - days[nodes]) * np.exp(-gap / LASTS)) * kinds.missed(checks.ran[rows])
        after[is_new] = 0.0
        days[nodes], at[nodes] = after, checks.day[rows]
    gap = np.maximum(0.0, history.now - at)[:, None]
    open_days: Floats = LASTS - (LASTS - days) * np.exp(-gap / LASTS)
    return open_days


def _covariates(history: CheckHistory, node: Places, day: Floats, bad: Mask, starts: Mask) -> Floats:
    """COVARIATES of each row, as they were known when it was about to be checked."""
    age = np.maximum(0.0, day - history.first_seen[node])
    group = np.cumsum(starts) - 1
    begun = np.flatnonzero(starts)

    def decayed(values: Floats) -> Floats:
        """The sum over earlier rows of the same node, each counting half after HALF_LIFE."""
        scale = 2.0 ** ((day - history.now) / HALF_LIFE)
        sums = np.cumsum(values * scale) - values * scale
        total: Floats = (sums - sums[begun][group]) / scale
        return total

    defects = decayed(bad.astype(np.float64))
    horizon = HALF_LIFE / math.log(2) * -np.expm1(-math.log(2) * age / HALF_LIFE)
    usual = (bad.sum() + 1.0) / (age[np.append(begun[1:] - 1, -1)].sum() + PRIOR_DAYS) if node.size else 1.0
    # A repair that did not help shows soon after the defect, which is the row before it.
    order = np.arange(node.size)
    latest = np.maximum.accumulate(np.where(bad | starts, order, 0))
    previous = np.concatenate([[0], latest[:-1]])
    has_defect = (group[previous] == group) & bad[previous] & ~starts
    recent = np.where(has_defect, np.exp(-(day - day[previous]) / RELAPSE), 0.0)
    key = np.sort(history.event_node + history.event_day / 1e6)

    def events(since: Floats, until: Floats) -> Floats:
        """How many there are of the node, counted from the last repair on."""
        since = np.maximum(since, np.where(has_defect, day[previous], 0.0))
        ends = (np.searchsorted(key, node + at / 1e6, "right") for at in (np.maximum(since, until), since))
        return np.log1p(np.subtract(*ends))

    return np.column_stack(
        [
            np.log1p(age / YOUNG) - 2.0,
            np.exp(-age / YOUNG),
            np.log((defects + 0.5) / (usual * horizon + 0.5)),
            recent,
            events(day - FRESH, day),
            events(day - HALF_LIFE, day - FRESH),
        ]
    )


def _fit(design: Floats, exposure: Floats, covered: Floats, bad: Mask, weight: Floats) -> Floats:
    """By Fisher scoring; a check finds something by covered * (1 - exp(-rate * days))."""
    precision = np.diag(1.0 / _PRIOR_SD**2)
    guess = _PRIOR_MEAN.copy()
    for _ in range(25):
        mean = exposure * np.exp(np.clip(design @ guess, -20.0, 2.0))
        chance = np.clip(covered * -np.expm1(-mean), 1e-12, 1.0 - 1e-9)
        slope = covered * mean * np.exp(-mean)
        pull = weight * slope * (bad - chance) / (chance * (1.0 - chance))
        bend = weight * slope**2 / (chance * (1.0 - chance))
        step = np.linalg.solve(
            design.T @ (design * bend[:, None]) + precision, design.T @ pull + precision @ (_PRIOR_MEAN - guess)
        )
        guess = guess + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-6:
            break
    return guess


GUARANTEE = (1 - 1 / math.e) / 2  # of the best plan, by any history: greedy by gain per minute, or one single case


@dataclass(frozen=True)
class SelectionPlan:
    """What to run where."""

    model: FleetModel
    chosen: Mask  # by node and benchmark
    budget: float  # minutes on all nodes together
    found: float  # defective nodes that it is expected to find
    bound: float  # no plan within the budget is expected to find more

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
    left = model.mass.copy()  # by node and kind: what the cases chosen so far would miss
    chosen = np.zeros((len(model.history.nodes), len(minutes)), dtype=bool)
    gains = left @ shown
    single = np.where(possible & (minutes <= budget), gains, -1.0)
    spent = found = 0.0
    heap: list[tuple[float, int, int]] = []

    def offer(node: int) -> None:
        """The best case of a node that still fits."""
        fits = possible[node] & ~chosen[node] & (minutes <= budget - spent)
        ratios = np.where(fits, gains[node] / minutes, -1.0)
        best = int(np.argmax(ratios))
        if ratios[best] > 0:
            heapq.heappush(heap, (-float(ratios[best]), node, best))

    for node in range(len(chosen)):
        offer(node)
    while heap:
        _, node, best = heapq.heappop(heap)
        if minutes[best] <= budget - spent:
            chosen[node, best] = True
            spent += float(minutes[best])
            found += float(gains[node, best])
            left[node] *= 1.0 - shown[:, best]
            gains[node] = left[node] @ shown
        offer(node)
    if single.size and float(single.max()) > found:
        node, best = divmod(int(np.argmax(single)), len(minutes))
        chosen[:] = False
        chosen[node, best] = True
        found = float(single[node, best])
        gains = model.mass @ shown
        gains[node] = (model.mass[node] * (1.0 - shown[:, best])) @ shown
    return SelectionPlan(
        model, chosen, budget, found, found + _most_more(np.where(chosen | ~possible, 0.0, gains), minutes, budget)
    )


def _most_more(gains: Floats, minutes: Floats, budget: float) -> float:
    """What no set of further cases within the budget can add: gains only shrink, so that each counts as it is now."""
    costs = np.broadcast_to(minutes, gains.shape).ravel()
    order = np.argsort(-gains.ravel() / costs, kind="stable")
    spent = np.cumsum(costs[order])
    parts = np.clip((budget - (spent - costs[order])) / costs[order], 0.0, 1.0)
    return float(gains.ravel()[order] @ parts)
