"""The results of many nodes as one table: a row for each node, a column for each metric, and what failed where.

Fingerprints of what nodes computed are voted on: of devices that should compute alike bit for bit, which does not."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.summary import headline_of, unique_labels
from paceline.core.environment import Environment
from paceline.core.errors import InputError
from paceline.core.grouping import group_by
from paceline.core.metric import Better
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords
from paceline.core.subject import SUPERBENCH, Fingerprint
from paceline.core.watch import WatchSeries, joined_figure, read_watched


@dataclass(frozen=True)
class Ballot:
    """The fingerprint of one device of a node."""

    node: str
    target: str
    case: str  # for people
    work: str  # the same for the same work
    print: Fingerprint

    @property
    def device(self) -> str:
        """Its name in a sentence."""
        return f"{self.node}, {self.target}"


@dataclass(frozen=True)
class Vote:
    """The fingerprints of the same work on like devices: one for each device, more where it disagrees with itself."""

    ballots: tuple[Ballot, ...]
    voters: str  # who they are, in a sentence

    @property
    def majority(self) -> Ballot | None:
        """One of those that more than half of the devices agree with; None where there is none.

        A device that disagrees with itself has its vote divided.
        """
        parts = Counter(one.device for one in self.ballots)
        votes: dict[str, Fraction] = {}
        for one in self.ballots:
            votes[one.print.digest] = votes.get(one.print.digest, Fraction()) + Fraction(1, parts[one.device])
        return next((one for one in self.ballots if 2 * votes[one.print.digest] > len(parts)), None)

    @property
    def outvoted(self) -> dict[Ballot, str]:
        """The devices that disagree with the majority, each with how."""
        right = self.majority
        if right is None:
            return {}
        agreeing = {one.device for one in self.ballots if one.print.digest == right.print.digest}
        count = len({one.device for one in self.ballots})
        of = f"that {len(agreeing)} of {count} {self.voters} have ({right.print.basis})"
        return {
            one: f"the fingerprint of {one.target} is {one.print.digest}, not {right.print.digest} {of}"
            + _since(one.print, right.print)
            + (f"; at other times it is {right.print.digest}" if one.device in agreeing else "")
            for one in self.ballots
            if one.print.digest != right.print.digest
        }

    @property
    def undecided(self) -> str:
        """What is to be said of devices that disagree where no majority says who is right; empty for others."""
        if self.majority is not None:
            return ""
        groups = group_by(self.ballots, lambda one: one.print.digest)
        sides = "; ".join(f"{digest}: {', '.join(one.device for one in members)}" for digest, members in groups.items())
        return f"fingerprints of {self.ballots[0].case} disagree, and no majority says which is right: {sides}"


def ballots_of(node: str, records: Sequence[Record], labels: Sequence[str]) -> list[Ballot]:
    """Those of a node's records, each with its label."""
    return [
        Ballot(node, record.case.target, label, json.dumps(record.case.work_key[:2]), record.fingerprint)
        for record, label in zip(records, labels, strict=True)
        if record.fingerprint is not None
    ]


def count_votes(ballots: Sequence[Ballot], *, by_run: bool = False) -> list[Vote]:
    """One vote for each kind of work on each kind of device, where there are several to compare."""
    # A repetition, or another run, that says the same has no vote of its own.
    distinct = {(one.device, one.work, one.print.basis, one.print.digest): one for one in ballots}
    groups = group_by(distinct.values(), lambda one: (one.work, one.print.basis))
    voters = "runs on like devices" if by_run else "like devices"
    return [Vote(tuple(members), voters) for members in groups.values() if len(members) > 1]


def _since(wrong: Fingerprint, right: Fingerprint) -> str:
    places = [
        number for number, pair in enumerate(zip(wrong.steps, right.steps, strict=False), 1) if len(set(pair)) > 1
    ]
    return f", from step {places[0]} on" if places else ""


LARGEST = 1e100  # a larger number stands for none: programs write the largest there is where they measured nothing
WATCH = "watch"  # the component of what was seen of a node while it measured
_RANK = re.compile(r":(\d+)$")
_BENCHMARK = re.compile(r"[^\s/:]*")
_FACTS = {
    "kernel": "kernel",
    "driver": "driver.version",
    "CUDA of the driver": "driver.cuda",
    "CPU": "cpu.model",
    "GPUs": "gpus.name",
    "torch": "software.packages.torch",
}


@dataclass(frozen=True)
class MetricColumn:
    """What a metric is."""

    name: str
    unit: str = ""
    better: Better = Better.NEITHER
    leads: bool = True  # whether it is what its case is about, so that rules of ours look at it unasked
    component: str = "other"  # what of a node it is about: compute, memory, communication, ...

    @property
    def unranked(self) -> str:
        """The name without the rank it was measured on."""
        return _RANK.sub("", self.name)

    @property
    def rank(self) -> str:
        """The rank it was measured on, if it was on one."""
        match = _RANK.search(self.name)
        return match[1] if match else ""

    @property
    def benchmark(self) -> str:
        """What its name begins with: the benchmark, in our names and in SuperBench's."""
        match = _BENCHMARK.match(self.name)
        return match[0] if match else ""

    @property
    def reference_names(self) -> tuple[str, ...]:
        """What a baseline may call it: its name, that without its rank, or, as in SuperBench, its benchmark alone."""
        return self.name, self.unranked, self.name.partition("/")[0]


@dataclass(frozen=True)
class Failure:
    """A case that did not succeed on a node."""

    case: str
    outcome: str
    message: str


@dataclass
class NodeResults:
    """What one node, or one run, measured."""

    node: str
    values: dict[str, float]
    columns: Mapping[str, MetricColumn]  # of these values, and perhaps of others
    failures: list[Failure] = field(default_factory=list)
    run: str = ""  # a name for the run, where one node has several
    environment: Environment = field(default_factory=Environment)
    ballots: list[Ballot] = field(default_factory=list)  # fingerprints of what it computed


@dataclass(frozen=True)
class NodeTable:
    """Nodes and metrics; what was not measured is not a number."""

    nodes: tuple[str, ...]
    columns: tuple[MetricColumn, ...]
    values: NDArray[np.float64]  # a row for each node
    failures: Mapping[str, tuple[Failure, ...]]  # by node
    environments: Mapping[str, Environment]
    by_run: bool = False  # whether its nodes are runs of a single host
    ballots: tuple[Ballot, ...] = ()

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which values were measured."""
        return ~np.isnan(self.values)

    def of_columns(self, kept: NDArray[np.bool_]) -> NodeTable:
        """The same with some of its metrics."""
        return replace(self, columns=tuple(itertools.compress(self.columns, kept)), values=self.values[:, kept])

    def differences(self) -> dict[str, dict[str, list[str]]]:
        """What is not the same on all nodes: by fact, the nodes of each value."""
        facts: dict[str, dict[str, list[str]]] = {}
        for node in self.nodes:
            of = self.environments.get(node, Environment())
            for name, value in ({fact: _fact(of, path) for fact, path in _FACTS.items()} | of.inventory.facts).items():
                if value:
                    facts.setdefault(name, {}).setdefault(value, []).append(node)
        return {name: nodes for name, nodes in facts.items() if len(nodes) > 1}


def is_original(record: Record) -> bool:
    """Whether SuperBench measured it, under the keys that it had there."""
    alias = record.aliases.get(SUPERBENCH)
    return alias is not None and alias.is_original


def results_of(runs: Sequence[RunRecords]) -> list[NodeResults]:
    """Each run as the results of its host; metrics are named after their case: `gemm fp32 4096/compute_rate`."""
    # A name for each kind of case that no other kind has, in whichever run.
    records = [record for run in runs for record in run.records]
    cases = {record.case.key: record.case for record in records if not is_original(record)}
    for run in runs:  # also what was not measured yet, so that names stay what they are
        if not any(map(is_original, run.records)):
            cases |= {case.key: case for case in run.run.cases}
    names = unique_labels([case.model_copy(update={"index": 0, "repeat": 1}) for case in cases.values()])
    counts = Counter(names)
    labels = {key: name if counts[name] == 1 else f"{name} {key[:6]}" for key, name in zip(cases, names, strict=True)}
    return [_of_run(run, name, labels) for run, name in zip(runs, run_names(runs), strict=True)]


def run_names(runs: Sequence[RunRecords]) -> list[str]:
    """A name for each run that no other has: the tag that it alone carries, otherwise its id."""
    counts = Counter(tag for run in runs for tag in run.run.tags)
    return [next((tag for tag in run.run.tags if counts[tag] == 1), run.run.id) for run in runs]


def assemble(parts: Sequence[NodeResults]) -> NodeTable:
    """One row for each host; where there is only one host, one for each of its runs."""
    if not parts:
        raise InputError("no-results", "there are no results to judge")
    by_run = len({part.node for part in parts}) == 1 and len(parts) > 1
    if by_run:
        names = [part.run or part.node for part in parts]
        counts = Counter(names)
        names = [f"{name} #{number}" if counts[name] > 1 else name for number, name in enumerate(names, start=1)]
        parts = [replace(part, node=name) for name, part in zip(names, parts, strict=True)]
    rows = group_by(parts, lambda part: part.node)
    columns: dict[str, MetricColumn] = {}
    for part in parts:
        for name in part.values:
            if name not in columns:
                columns[name] = part.columns.get(name) or MetricColumn(name)
    ordered = sorted(columns)
    position = {name: index for index, name in enumerate(ordered)}
    values = np.full((len(rows), len(ordered)), np.nan)
    for row, members in enumerate(rows.values()):
        if len(members) == 1:
            measured = members[0].values
            values[row, [position[name] for name in measured]] = list(measured.values())
            continue
        of_metric: dict[str, list[float]] = {}
        for part in members:
            for name, value in part.values.items():
                if abs(value) <= LARGEST:
                    of_metric.setdefault(name, []).append(value)
        for name, several in of_metric.items():
            values[row, position[name]] = float(np.median(several))
    values[np.abs(values) > LARGEST] = np.nan
    return NodeTable(
        nodes=tuple(rows),
        columns=tuple(columns[name] for name in ordered),
        values=values,
        failures={
            node: tuple(dict.fromkeys(failure for part in members for failure in part.failures))
            for node, members in rows.items()
        },
        environments={node: members[-1].environment for node, members in rows.items()},
        by_run=by_run,
        ballots=tuple(replace(one, node=part.node) for part in parts for one in part.ballots),
    )


def _of_run(run: RunRecords, name: str, labels: Mapping[str, str]) -> NodeResults:
    values: dict[str, list[float]] = {}
    columns: dict[str, MetricColumn] = {}
    failures = []
    for record in run.records:
        start = record.aliases[SUPERBENCH].group if is_original(record) else labels[record.case.key]
        # What a machine cannot do is not a failure, unless the suite requires it.
        if not record.is_success:
            message = record.cause.message if record.cause else ""
            failures.append(Failure(start or record.case.benchmark, record.outcome.value, message))
        if record.outcome is not Outcome.OK and not is_original(record):
            continue
        leader = headline_of(record)
        for measured in record.measurements:
            rank = re.fullmatch(r"rank (\d+)", measured.scope)
            scope = f":{rank.group(1)}" if rank else f" {measured.scope}" if measured.scope else ""
            point = "".join(f"@{axis}={value}" for axis, value in measured.at.items())
            metric = f"{measured.metric.name}{point}{scope}"
            metric = f"{start}/{metric}" if start else metric
            leads = measured is leader or (is_original(record) and measured.metric.better is not Better.NEITHER)
            if metric not in columns:
                component = record.case.category if record.case.category != "other" else record.case.benchmark
                columns[metric] = MetricColumn(metric, measured.metric.unit, measured.metric.better, leads, component)
            values.setdefault(metric, []).append(measured.value)
    for series in run_figures(run.records):
        columns[series.metric] = MetricColumn(series.metric, series.unit, leads=False, component=WATCH)
        values[series.metric] = [series.value]
    # Repetitions of a case are one figure of the node.
    return NodeResults(
        node=run.run.environment.host_name,
        values={
            metric: several[0] if len(several) == 1 else float(np.median(several)) for metric, several in values.items()
        },
        columns=columns,
        failures=failures,
        run=name,
        environment=run.run.environment,
        ballots=ballots_of(
            run.run.environment.host_name, run.records, [labels.get(record.case.key, "") for record in run.records]
        ),
    )


def run_figures(records: Sequence[Record]) -> list[WatchSeries]:
    """What was seen of the run's own host over all of its cases: each series with the figure of them all."""
    parts: dict[str, list[tuple[WatchSeries, float]]] = {}
    for record in records:
        for seen in read_watched(record.conditions):
            for one in seen.series if not seen.host else ():
                parts.setdefault(one.metric, []).append((one, seen.times[-1] if seen.times else 0.0))
    return [joined_figure(of_cases) for of_cases in parts.values()]


def _fact(environment: Environment, path: str) -> str:
    value: Any = environment
    for part in path.split("."):
        if isinstance(value, list):  # a node that has lost some, or all, differs
            counts = sorted(Counter(str(getattr(item, part, None)) for item in value).items())
            value = [f"{count} x {text}" for text, count in counts] or (["none"] if environment.is_known else [])
        else:
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    return ", ".join(value) if isinstance(value, list) else str(value) if value is not None else ""
