"""What checks of nodes found in the past: from the runs of a suite to one row for each check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
