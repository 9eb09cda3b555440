"""What accuses nodes that are checked together, also while they still measure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.analysis.baseline import Baseline
from paceline.analysis.diagnose.judge import NodeFinding, diagnose
from paceline.analysis.diagnose.rules import FAILED, RuleSet
from paceline.analysis.diagnose.table import NodeTable, assemble, results_of
from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.grouping import group_by
from paceline.core.record import Outcome
from paceline.core.run import RunRecords

FEWEST = 3  # nodes that are judged by each other; of fewer only failures count
SETTLED = 0.8  # the part of the nodes that must have measured something for it to count before the end


@dataclass(frozen=True)
class Judgement:
    """What a check says of one node."""

    findings: tuple[NodeFinding, ...]
    compared: frozenset[str]  # its metrics that could have been found to be bad


@dataclass(frozen=True)
class DefectRules:
    """What counts as a defect: rules, and the figures of good nodes where there are some."""

    rules: RuleSet
    baseline: Baseline | None = None

    def judge(self, runs: Mapping[str, RunRecords], others: Mapping[str, RunRecords]) -> dict[str, Judgement]:
        """What each node is accused of, and what of it was compared at all; `others` are only there to compare with.

        Nodes may have been asked for different benchmarks: each is judged among those that were asked for it, which
        alone can lack its metrics. What chance may do is shared among all.
        """
        together = {**others, **runs}
        asked = {node: {case.benchmark for case in _cases_of(run)} for node, run in together.items()}
        names = sorted(set().union(*(asked[node] for node in runs)))
        blocks = group_by(names, lambda name: frozenset(node for node in together if name in asked[node]))
        cells = sum(len(nodes) * len(benchmarks) for nodes, benchmarks in blocks.items())
        findings: dict[str, list[NodeFinding]] = {node: [] for node in runs}
        compared: dict[str, set[str]] = {node: set() for node in runs}
        for nodes, benchmarks in blocks.items():
            some = {
                node: run.model_copy(
                    update={"records": [one for one in run.records if one.case.benchmark in benchmarks]}
                )
                for node, run in together.items()
                if node in nodes
            }
            for node, judgement in self._judge_block(some, len(nodes) * len(benchmarks) / cells).items():
                if node in runs:
                    findings[node] += judgement.findings
                    compared[node] |= judgement.compared
        return {node: Judgement(tuple(findings[node]), frozenset(compared[node])) for node in runs}

    def _judge_block(self, runs: Mapping[str, RunRecords], part: float) -> dict[str, Judgement]:
        """The same of nodes that were asked for the same; without those of which nothing could be compared."""
        table = self._table(runs)
        if table is None:
            return {}
        if self.baseline is None:
            table = table.of_columns(table.present.sum(axis=0) >= FEWEST)
        found, looked_at = self._judge(table, part)
        # Rules look at what most nodes have measured, and compare what there is something to compare with.
        is_compared = 2 * table.present.sum(axis=0) >= len(table.nodes)
        if self.baseline is not None:
            references = [self.baseline.reference(column) for column in table.columns]
            is_compared &= np.array([one is not None for one in references], dtype=bool)
        names = [column.name for column in table.columns]
        is_compared &= np.array([name in looked_at for name in names], dtype=bool)
        return {
            node: Judgement(found.get(node, ()), frozenset(itertools.compress(names, here & is_compared)))
            for node, here in zip(table.nodes, table.present, strict=True)
        }

    def accused_so_far(self, runs: Mapping[str, RunRecords], nodes: int) -> dict[str, NodeFinding]:
        """The nodes that are accused by what is measured by now, each with the worst of it; `nodes` measure in all.

        Asked after every case, this accuses few more healthy nodes than asked once at the end: what chance may do is
        shared among all cases, those to come included, and nodes are compared where most have measured the same.
        """
        found: dict[str, NodeFinding] = {}
        for node, run in runs.items():
            for record in run.records:
                if not record.is_success and record.is_final and node not in found:
                    cause = f": {record.cause.message}" if record.cause and record.cause.message else ""
                    case = f"{record.case.benchmark} {record.case.title}".strip()
                    found[node] = NodeFinding("failed", "failure", FAILED, case, f"{record.outcome}{cause}")
        table = self._table(runs)
        if table is not None:
            part = max(len(run.records) / max(1, len(run.run.cases)) for run in runs.values())
            found = self.accused_in(table, nodes, min(1.0, part)) | found
        return found

    def nothing_compared(self, runs: Sequence[RunRecords]) -> str:
        """Says so where the baseline has no figure of anything that was measured; otherwise empty."""
        if self.baseline is None or not any(record.outcome is Outcome.OK for run in runs for record in run.records):
            return ""
        if any(self.baseline.reference(column) for column in assemble(results_of(list(runs))).columns):
            return ""
        return "the baseline has no figure of anything that was measured: only cases that fail were looked for"

    def accused_in(self, table: NodeTable, nodes: int, part: float) -> dict[str, NodeFinding]:
        """The same of a table that has this part of all cases."""
        if self.baseline is None:
            table = table.of_columns(table.present.sum(axis=0) >= SETTLED * nodes)
        accused = {}
        for node, findings in self._judge(table, part)[0].items():
            worst = next((one for one in findings if one.kind != "missing"), None)  # what is missing may come
            if worst is not None:
                accused[node] = worst
        return accused

    def _table(self, runs: Mapping[str, RunRecords]) -> NodeTable | None:
        ran = {node: run for node, run in runs.items() if any(record.outcome is Outcome.OK for record in run.records)}
        if not ran or (len(ran) < FEWEST and self.baseline is None):
            return None
        results = zip(ran, results_of(list(ran.values())), strict=True)
        return assemble([replace(result, node=node) for node, result in results])

    def _judge(self, table: NodeTable, part: float = 1.0) -> tuple[dict[str, tuple[NodeFinding, ...]], frozenset[str]]:
        """What is found against each node, and the metrics that were looked at."""
        try:
            diagnosis = diagnose(table, self.rules, self.baseline, part)
        except InputError as error:
            if error.code != "no-metric-matched":  # what was measured may be nothing that the rules look at
                raise
            return {}, frozenset()
        return {verdict.node: verdict.accusations for verdict in diagnosis.verdicts}, diagnosis.looked_at


def _cases_of(run: RunRecords) -> list[Case]:
    """What was asked of a node; a run that came from a file may not list its cases."""
    return [*run.run.cases, *(record.case for record in run.records)]
