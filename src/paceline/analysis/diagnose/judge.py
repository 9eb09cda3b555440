"""The verdict on every node: each rule over the metrics that it picks, with the reason for everything found."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.baseline import FEW_NODES, Baseline, column_medians, column_spreads, medians_of_others
from paceline.analysis.diagnose.outliers import (
    Accused,
    Freak,
    Outliers,
    Sensitivity,
    as_part,
    find_outliers,
    losses,
    lost_together,
)
from paceline.analysis.diagnose.rules import FAILED, Rule, RuleSet, Unanswerable
from paceline.analysis.diagnose.table import MetricColumn, NodeTable, count_votes
from paceline.analysis.summary import shortened
from paceline.core.errors import InputError
from paceline.core.metric import Better
from paceline.core.record import RecordWarning

OUTVOTED = "silent corruption"  # the category of a node that computes something else than its likes
UNLEARNED = 0.05  # the limit of outliers where too few nodes say how far apart healthy ones are


@dataclass(frozen=True)
class Judged:
    """A metric that a rule compared with the baseline: how far every node is from it."""

    column: MetricColumn
    baseline: float  # of all nodes
    spread: float  # scaled median absolute deviation, as a part of the baseline; of one node not a number
    changes: NDArray[np.float64]  # by node, not a number where it was not measured
    rule: Rule
    limit: float | None = None  # the change beyond which a node is worse, with its sign
    seen_from: float | None = None  # the smallest change in it alone that would have been found, where that is known


Kind = Literal["group", "variance", "value", "missing", "failure", "multi"]
_ORDER: dict[Kind, int] = {"failure": 0, "multi": 1, "group": 2, "variance": 3, "value": 3, "missing": 4}


class State(StrEnum):
    """What a node is."""

    DEFECTIVE = "defective"
    INCOMPLETE = "incomplete"  # something is missing, which the rules do not call a defect
    HEALTHY = "healthy"


@dataclass(frozen=True)
class NodeFinding:
    """One reason."""

    rule: str
    kind: Kind
    category: str  # "" for what is only stored for later rules
    metric: str  # or the case, or the rule's name
    text: str  # the condition that holds, or what happened
    unit: str = ""
    value: float | None = None
    baseline: float | None = None
    change: float | None = None  # as a part of the baseline; infinite from a baseline of zero
    accuses: bool = True  # whether it makes the node defective
    metrics: tuple[str, ...] = ()  # of a group


@dataclass(frozen=True)
class NodeVerdict:
    """A node and why."""

    node: str
    state: State
    findings: tuple[NodeFinding, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """What its defects are called."""
        return tuple(sorted({finding.category for finding in self.findings if finding.category}))

    @property
    def accusations(self) -> tuple[NodeFinding, ...]:
        """What makes it defective: what failed, then the worst changes, then what is missing."""
        accusations = [finding for finding in self.findings if finding.accuses]
        return tuple(sorted(accusations, key=lambda finding: (_ORDER[finding.kind], -abs(finding.change or 0.0))))


@dataclass(frozen=True)
class Diagnosis:
    """All verdicts, defective nodes first."""

    table: NodeTable
    rules: RuleSet
    baseline: Baseline | None  # None: each node was compared with the others
    verdicts: tuple[NodeVerdict, ...]
    judged: tuple[Judged, ...]
    caveats: tuple[RecordWarning, ...]
    sensitivities: tuple[Sensitivity, ...] = ()  # what could not have been seen, where limits were learned
    looked_at: frozenset[str] = frozenset()  # metrics whose values some rule asks for, not only whether they are there

    @property
    def defective(self) -> tuple[NodeVerdict, ...]:
        """The nodes to look after."""
        return tuple(verdict for verdict in self.verdicts if verdict.state is State.DEFECTIVE)


def diagnose(table: NodeTable, rules: RuleSet, baseline: Baseline | None = None, part: float = 1.0) -> Diagnosis:
    """Judge every node; without a baseline, each by the median of the others. `part`: of all that is being measured."""
    if baseline is None and len(table.nodes) == 1 and rules.compares:
        message = (
            f"'{table.nodes[0]}' is one node alone, and there is nothing to compare it with: "
            "give more nodes, or a baseline with --baseline"
        )
        raise InputError("one-node-alone", message, key="--baseline", value=table.nodes[0])
    return _Judge(table, rules, baseline, part).diagnosis()


@dataclass
class _Row:
    """What is known of one node so far."""

    findings: list[NodeFinding] = field(default_factory=list)
    stored: dict[str, float | dict[str, float]] = field(default_factory=dict)
    missing: dict[str, bool] = field(default_factory=dict)  # metrics, and whether the lack accuses it


class _Judge:
    """Asks one rule after the other of every node."""

    def __init__(self, table: NodeTable, rules: RuleSet, baseline: Baseline | None, part: float) -> None:
        self.table = table
        self.part = part
        self.rules = rules
        self.baseline = baseline
        self.rows = [_Row() for _ in table.nodes]
        self.judged: dict[str, Judged] = {}
        self.unmatched: list[str] = []  # patterns
        self.without_baseline: dict[str, None] = {}  # metrics
        self.undirected: dict[str, None] = {}
        self.unanswered: dict[str, str] = {}  # by rule, the reason
        self.picked_columns: set[int] = set()
        self.looked_at: set[str] = set()
        self.fixed = False  # whether a limit could not be learned
        self.sensitivities: list[Sensitivity] = []
        self.freaks: list[Freak] = []
        self.votes = count_votes(table.ballots, by_run=table.by_run)
        # A metric that most nodes have is expected of all; SuperBench expects what any node has.
        self.expected = table.present.sum(axis=0) * 2 >= len(table.nodes)
        # By node and metric what to compare with; by metric the middle and the relative spread.
        values = table.values
        if baseline is None:
            self.middle = column_medians(values)
            self.references = medians_of_others(values)
        else:
            references = [baseline.reference(column) for column in table.columns]
            self.middle = np.asarray([one.value if one else math.nan for one in references])
            self.references = np.broadcast_to(self.middle, values.shape)
        with np.errstate(invalid="ignore", divide="ignore"):
            self.spread = np.abs(column_spreads(values) / self.middle)
        self.spread[table.present.sum(axis=0) < 2] = math.nan  # one node alone has none

    def diagnosis(self) -> Diagnosis:
        for rule in self.rules.rules:
            self.ask(rule)
        self.count_votes()
        asks_failures = any(rule.check == "failure" for rule in self.rules.rules)
        if not self.picked_columns and not (asks_failures and any(self.table.failures.values())):
            example = self.table.columns[0].name if self.table.columns else "benchmark/metric"
            message = (
                f"the rules '{self.rules.name}' look at none of the {len(self.table.columns)} metrics: "
                f"write patterns that match names like '{example}'"
            )
            raise InputError("no-metric-matched", message, key="--rules", value=self.rules.name)
        verdicts = []
        for node, row in zip(self.table.nodes, self.rows, strict=True):
            missing = any(finding.kind == "missing" for finding in row.findings)
            state = State.INCOMPLETE if missing else State.HEALTHY
            if any(finding.accuses for finding in row.findings):
                state = State.DEFECTIVE
            verdicts.append(NodeVerdict(node, state, tuple(row.findings)))
        order = list(State)
        verdicts.sort(key=lambda one: (order.index(one.state), -len(one.accusations), _natural(one.node)))
        return Diagnosis(
            table=self.table,
            rules=self.rules,
            baseline=self.baseline,
            verdicts=tuple(verdicts),
            judged=tuple(self.judged.values()),
            looked_at=frozenset(self.looked_at),
            caveats=tuple(self.caveats()),
            sensitivities=tuple(self.sensitivities),
        )

    def count_votes(self) -> None:
        """Accuse the nodes whose fingerprints a majority of like devices contradicts, whatever the rules look at."""
        for vote in self.votes:
            for ballot, text in vote.outvoted.items():
                finding = NodeFinding("fingerprints", "failure", OUTVOTED, ballot.case, text)
                self.rows[self.table.nodes.index(ballot.node)].findings.append(finding)

    def caveats(self) -> list[RecordWarning]:
        """Reasons to believe the verdicts less, and what to do about them."""
        caveats: list[RecordWarning] = []

        def add(kind: str, message: str, remedy: str) -> None:
            caveats.append(RecordWarning(kind=kind, message=message, remedy=remedy))

        for vote in self.votes:
            if vote.undecided:
                remedy = "measure it on more nodes of this kind, or run 'burn' and 'known-answers' on each of them"
                add("no majority", vote.undecided, remedy)
        count = len(self.table.nodes)
        if self.baseline is None and self.rules.compares and count < FEW_NODES:
            others = "one other" if count == 2 else f"{count - 1} others"
            message = f"each node was compared with {others} alone: a bad one may pass for normal, a good one for bad"
            if self.fixed:
                message += f", and {100 * UNLEARNED:g} % is the limit, since so few do not show what is usual"
            add("few nodes", message, "give more nodes, or a baseline of good ones with --baseline")
        if self.table.by_run:
            message = f"all {count} runs are of one host, so that each run is judged as if it were a node"
            add("one host", message, "give runs of several hosts to find a bad one")
        # Metrics whose nodes differ so much that the limit catches chance; of few nodes, the spread is not known.
        wide = [
            f"{one.column.name} ({100 * one.spread:.1f} %)"
            for one in self.judged.values()
            if one.rule.worse_by and math.isfinite(one.spread) and one.spread > one.rule.worse_by / 2
        ]
        if wide and count >= FEW_NODES:
            message = (
                f"nodes differ by more than half the limit anyway in {shortened(wide)}: chance alone can accuse one"
            )
            remedy = "measure longer, repeat it, or widen 'worse_by' for these metrics"
            add("wide spread", message, remedy)
        idle = [
            one.column.name
            for one in self.judged.values()
            if self.baseline is None and one.column.better is Better.HIGHER and one.baseline == 0.0
        ]
        if idle:
            message = f"most nodes reached 0 in {shortened(idle)}, and nothing can be worse than that"
            add("all zero", message, "see why nothing was measured there, or give a baseline of good nodes")
        if self.freaks:
            named = [f"{self.table.nodes[one.node]} ({one.component}, {100 * one.gain:+,.1f} %)" for one in self.freaks]
            message = f"{shortened(named)} did far better than all others, which was not taken for chance"
            add("far better", message, "look for another configuration, a wrong unit or a broken measurement there")
        check = "check the names of the metrics"
        if self.rules.is_theirs:
            check += ": in SuperBench's rules, what is before the first '/' is a benchmark's name, not a pattern"
        without, undirected = list(self.without_baseline), list(self.undirected)
        for kind, names, message, remedy in (
            ("no baseline", without, "no reference for", "make the baseline from runs that have them"),
            ("no direction", undirected, "which way is worse is not known for", "judge them with 'when'"),
            ("no match", self.unmatched, "nothing matches the patterns", check),
        ):
            if names:
                add(kind, f"{message} {shortened(names)}", remedy)
        for rule, reason in self.unanswered.items():
            message = f"rule '{rule}' has no answer for some nodes: {reason}"
            add("no answer", message, "look at the values it asks for, or write it without that")
        measured = {name for column in self.table.columns for name in column.reference_names}
        missing = [name for name in self.baseline.metrics if name not in measured] if self.baseline else []
        if missing:
            message = f"of the baseline's metrics, no node measured {shortened(missing)}"
            add("not measured", message, "run the cases that the baseline was made of")
        return caveats

    def ask(self, rule: Rule) -> None:
        if rule.check == "multi":
            self.ask_rules(rule)
            return
        columns = self.picked(rule)
        self.picked_columns.update(columns)
        if rule.check != "failure":
            self.looked_at.update(self.table.columns[index].name for index in columns)
        if rule.check == "failure":
            self.ask_failures(rule, columns)
        elif rule.check == "outlier":
            self.count(rule, self.ask_outliers(rule, columns))
        elif rule.criterion is None and rule.worse_by is None:
            for number, row in enumerate(self.rows):
                values = self.table.values[number]
                row.stored[rule.name] = {self.table.columns[index].name: float(values[index]) for index in columns}
        else:
            self.count(rule, self.ask_metrics(rule, columns))

    def count(self, rule: Rule, counts: Sequence[int]) -> None:
        if rule.store:
            for row, count in zip(self.rows, counts, strict=True):
                row.stored[rule.name] = count

    def picked(self, rule: Rule) -> list[int]:
        """The metrics of a rule, without those that no node measured."""
        columns = [index for index in range(len(self.table.columns)) if rule.is_theirs or self.expected[index]]
        if rule.selectors:
            names = [(index, self.table.columns[index].name) for index in columns]
            picked: set[int] = set()
            for selector in rule.selectors:
                matches = {index for index, name in names if selector.picks(name)}
                if not matches and rule.check != "failure":
                    self.unmatched.append(f"{rule.name}: {selector.source}")
                picked |= matches
            return sorted(picked)
        leading = [index for index in columns if self.table.columns[index].leads]
        if not rule.needs_direction:
            return leading
        return [index for index in leading if self.table.columns[index].better is not Better.NEITHER]

    def ask_metrics(self, rule: Rule, columns: Sequence[int]) -> list[int]:
        """A rule over values or changes; how many metrics of each node it holds for."""
        counts = [0] * len(self.rows)
        is_change = rule.check == "variance"
        for index in columns:
            column = self.table.columns[index]
            values = self.table.values[:, index]
            self.miss(rule, index)
            arguments = values
            if is_change:
                if rule.worse_by is not None and column.better is Better.NEITHER:
                    self.undirected[column.name] = None
                    continue
                arguments = _changes(values, self.references[:, index])
                if np.isnan(arguments[~np.isnan(values)]).all():
                    self.without_baseline[column.name] = None
                    continue
                if not rule.store:
                    middle, spread = float(self.middle[index]), float(self.spread[index])
                    limit = None if rule.worse_by is None else _signed(rule.worse_by, column)
                    self.judged.setdefault(column.name, Judged(column, middle, spread, arguments, rule, limit))
            for number in self.bad(rule, column, arguments):
                counts[number] += 1
                self.report(rule, number, index, float(arguments[number]) if is_change else None)
        return counts

    def report(self, rule: Rule, number: int, index: int, change: float | None) -> None:
        """Add to a node that a rule holds for one metric: for its change, or for its value."""
        column = self.table.columns[index]
        self.rows[number].findings.append(
            NodeFinding(
                rule=rule.name,
                kind="value" if change is None else "variance",
                category="" if rule.store else rule.category or column.component,
                metric=column.name,
                text=rule.text,
                unit=column.unit,
                value=float(self.table.values[number, index]),
                baseline=None if change is None else float(self.references[number, index]),
                change=change,
                accuses=not rule.store,
            )
        )

    def ask_outliers(self, rule: Rule, columns: Sequence[int]) -> list[int]:
        """A rule over what chance explains; how many metrics of each node it holds for."""
        compared = []
        for index in columns:
            self.miss(rule, index)
            if self.table.columns[index].better is Better.NEITHER:
                self.undirected[self.table.columns[index].name] = None
            elif not (self.table.present[:, index] & ~np.isnan(self.references[:, index])).any():
                self.without_baseline[self.table.columns[index].name] = None
            else:
                compared.append(index)
        given = np.full((2, len(self.table.columns)), math.nan)  # spread, and its degrees of freedom
        if self.baseline is not None:
            for index in compared:
                given[:, index] = self.baseline.noise(self.table.columns[index])
        measured = self.table.present.sum(axis=0)
        learned = [index for index in compared if measured[index] >= FEW_NODES or not math.isnan(given[0, index])]
        fixed = [index for index in compared if index not in learned]
        self.fixed |= bool(fixed)
        counts = self.ask_metrics(replace(rule, check="variance", worse_by=UNLEARNED), fixed)
        if learned:
            self.ask_learned(rule, learned, given[:, learned], counts)
        return counts

    def ask_learned(self, rule: Rule, places: list[int], given: NDArray[np.float64], counts: list[int]) -> None:
        columns = [self.table.columns[index] for index in places]
        values, references = self.table.values[:, places], self.references[:, places]
        worse = losses(values, references, columns)
        is_relative = (references != 0.0).all(axis=0)
        centred = self.baseline is None
        outliers = find_outliers(worse, columns, *given, is_relative=is_relative, centred=centred, part=self.part)
        changes = _changes(values, references)
        for accused in outliers.accused:
            self.report_groups(rule, accused, columns, values[accused.node], references[accused.node])
            for place in accused.metrics:
                counts[accused.node] += 1
                self.report(rule, accused.node, places[place], float(changes[accused.node, place]))
        if not rule.store:
            self.show_limits(rule, places, changes, outliers)

    def report_groups(
        self,
        rule: Rule,
        accused: Accused,
        columns: Sequence[MetricColumn],
        values: NDArray[np.float64],
        references: NDArray[np.float64],
    ) -> None:
        for group in accused.groups:
            members = list(group.members)
            finding = NodeFinding(
                rule=rule.name,
                kind="group",
                category="" if rule.store else rule.category or group.name,
                metric=group.name,
                text=f"{len(members)} metrics together",
                change=-lost_together(values[members], references[members], [columns[place] for place in members]),
                accuses=not rule.store,
                metrics=tuple(columns[place].name for place in members),
            )
            self.rows[accused.node].findings.append(finding)

    def show_limits(self, rule: Rule, places: list[int], changes: NDArray[np.float64], outliers: Outliers) -> None:
        """Keep what the report says of each metric and component."""
        self.sensitivities += outliers.sensitivities
        self.freaks += outliers.freaks
        for place, index in enumerate(places):
            column, middle, spread = self.table.columns[index], float(self.middle[index]), float(self.spread[index])
            limit, smallest = (_change_of(float(one[place]), column) for one in (outliers.limits, outliers.smallest))
            judged = Judged(column, middle, spread, changes[:, place], rule, limit, smallest)
            self.judged.setdefault(column.name, judged)

    def bad(self, rule: Rule, column: MetricColumn, arguments: NDArray[np.float64]) -> list[int]:
        """The nodes of which a rule holds for one metric."""
        if rule.worse_by is not None:
            worse = -arguments if column.better is Better.HIGHER else arguments
            return [int(number) for number in np.flatnonzero(worse > rule.worse_by)]
        numbered = enumerate(arguments.tolist())
        return [number for number, argument in numbered if not math.isnan(argument) and self.holds(rule, argument)]

    def holds(self, rule: Rule, argument: float | dict[str, float | dict[str, float]]) -> bool:
        assert rule.criterion is not None
        try:
            return rule.criterion.holds(argument)
        except Unanswerable as error:
            self.unanswered[rule.name] = str(error)
            return False

    def miss(self, rule: Rule, index: int) -> None:
        """Report a metric that a node lacks; ours accuse it, SuperBench's leave that to a rule of failures."""
        name = self.table.columns[index].name
        for number in np.flatnonzero(np.isnan(self.table.values[:, index])):
            row = self.rows[int(number)]
            accuses = not rule.is_theirs and not rule.store
            if accuses and row.missing.get(name) is False:  # a rule that only stores said it before
                row.findings = [one for one in row.findings if one.kind != "missing" or one.metric != name]
                del row.missing[name]
            if name not in row.missing:
                row.missing[name] = accuses
                row.findings.append(NodeFinding(rule.name, "missing", FAILED, name, "it is missing", accuses=accuses))

    def ask_failures(self, rule: Rule, columns: Sequence[int]) -> None:
        if rule.is_theirs:
            self.ask_return_codes(rule, columns)
            return
        for node, row in zip(self.table.nodes, self.rows, strict=True):
            for failure in self.table.failures.get(node, ()):
                if not rule.selectors or any(selector.picks(failure.case) for selector in rule.selectors):
                    text = f"{failure.outcome}: {failure.message}" if failure.message else failure.outcome
                    row.findings.append(NodeFinding(rule.name, "failure", rule.category, failure.case, text))
        for index in columns:
            self.miss(rule, index)
        # That a case failed says already that its metrics are missing.
        for row in self.rows:
            failed = tuple(f"{finding.metric}/" for finding in row.findings if finding.kind == "failure")
            row.findings = [one for one in row.findings if one.kind != "missing" or not one.metric.startswith(failed)]

    def ask_return_codes(self, rule: Rule, columns: Sequence[int]) -> None:
        """SuperBench's check: every pattern must match a metric that the node has, and no return code may be bad."""
        by_selector = [
            (selector, [index for index in columns if selector.pattern.search(self.table.columns[index].name)])
            for selector in rule.selectors
        ]
        counts = self.ask_metrics(rule, columns)
        for number, row in enumerate(self.rows):
            for selector, matches in by_selector:
                lacking = [index for index in matches if math.isnan(self.table.values[number, index])]
                if matches and not lacking:
                    continue
                counts[number] += 1
                names = {self.table.columns[index].name for index in lacking} or {selector.source}
                category, text = (FAILED, "it is missing") if matches else (rule.category, "no metric matches it")
                row.findings = [one for one in row.findings if one.metric not in names or one.kind != "missing"]
                row.findings += [
                    NodeFinding(rule.name, "missing", category, name, text, accuses=not rule.store)
                    for name in sorted(names)
                ]
            if rule.store:
                row.stored[rule.name] = counts[number]

    def ask_rules(self, rule: Rule) -> None:
        for row in self.rows:
            holds = self.holds(rule, row.stored)
            if rule.store:
                row.stored[rule.name] = int(holds)
            if holds:
                category = "" if rule.store else rule.category
                finding = NodeFinding(rule.name, "multi", category, rule.name, rule.text, accuses=not rule.store)
                row.findings.append(finding)


def _changes(values: NDArray[np.float64], base: NDArray[np.float64]) -> NDArray[np.float64]:
    """The relative change; from zero to zero there is none, and from zero to anything else it is without end."""
    with np.errstate(invalid="ignore", divide="ignore"):
        changes = (values - base) / base
    from_zero = base == 0.0
    changes = np.where(from_zero & (values == 0.0), 0.0, changes)
    return np.where(from_zero & (values != 0.0) & ~np.isnan(values), np.copysign(np.inf, values), changes)


def _signed(part: float, column: MetricColumn) -> float:
    return -part if column.better is Better.HIGHER else part


def _change_of(loss: float, column: MetricColumn) -> float | None:
    """A loss that is a logarithm, as the change of a metric; None where it has no end."""
    if not math.isfinite(loss) or loss > 100.0:
        return None
    return -as_part(loss) if column.better is Better.HIGHER else math.expm1(loss)


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers in a name by their size: node-9 before node-10."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part[:18]) if part.isdecimal() else -1, part) for part in parts]
