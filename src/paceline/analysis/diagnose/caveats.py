"""What a reader must know before believing a diagnosis: few nodes, wide spread, what could not be judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.baseline import Baseline
from paceline.analysis.diagnose.rules import Rule, RuleSet
from paceline.analysis.diagnose.table import Column, Table

FEW_NODES = 5  # below it, a majority of bad nodes is no rare chance
NAMED = 3  # examples that a caveat gives


@dataclass(frozen=True)
class Caveat:
    """A reason to believe a verdict less, and what to do about it."""

    kind: str
    message: str
    remedy: str


@dataclass(frozen=True)
class Judged:
    """A metric that a rule compared with the baseline: how far every node is from it."""

    column: Column
    baseline: float  # of all nodes
    spread: float  # scaled median absolute deviation, as a part of the baseline
    changes: NDArray[np.float64]  # by node, not a number where it was not measured
    rule: Rule


@dataclass
class Seen:
    """What could not be judged, and why."""

    unmatched: list[str] = field(default_factory=list)  # patterns
    without_baseline: dict[str, None] = field(default_factory=dict)  # metrics
    undirected: dict[str, None] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)  # by rule, the reason


def find_caveats(
    table: Table, rules: RuleSet, baseline: Baseline | None, seen: Seen, judged: Sequence[Judged]
) -> list[Caveat]:
    """All caveats of a diagnosis."""
    found = _nodes(table, rules, baseline)
    if len(table.nodes) >= FEW_NODES:  # of fewer, the spread is no estimate
        found += _wide(judged)
    for kind, names, message, remedy in (
        ("no baseline", list(seen.without_baseline), "no reference for", "make the baseline from runs that have them"),
        ("no direction", list(seen.undirected), "which way is worse is not known for", "judge them with 'when'"),
        ("no match", seen.unmatched, "nothing matches the patterns", "check the names of the metrics"),
    ):
        if names:
            found.append(Caveat(kind, f"{message} {_some(names)}", remedy))
    for rule, reason in seen.unanswered.items():
        message = f"rule '{rule}' has no answer for some nodes: {reason}"
        found.append(Caveat("no answer", message, "look at the values it asks for, or write it without that"))
    lacking = _not_measured(table, baseline)
    if lacking:
        message = f"of the baseline's metrics, no node measured {_some(lacking)}"
        found.append(Caveat("not measured", message, "run the cases that the baseline was made of"))
    return found


def _nodes(table: Table, rules: RuleSet, baseline: Baseline | None) -> list[Caveat]:
    found = []
    count = len(table.nodes)
    compares = any(rule.check == "variance" for rule in rules.rules)
    if baseline is None and compares and count < FEW_NODES:
        others = "one other" if count == 2 else f"{count - 1} others"
        message = f"each node was compared with {others} alone, so that bad ones could pass for the normal"
        found.append(Caveat("few nodes", message, "give more nodes, or a baseline of good ones with --baseline"))
    if table.by_run:
        message = f"all {count} runs are of one host, so that each run is judged as if it were a node"
        found.append(Caveat("one host", message, "give runs of several hosts to find a bad one"))
    return found


def _wide(judged: Sequence[Judged]) -> list[Caveat]:
    """Metrics whose nodes differ so much anyway that the limit catches chance."""
    wide = [
        f"{one.column.name} ({100 * one.spread:.1f} %)"
        for one in judged
        if one.rule.worse_by and math.isfinite(one.spread) and one.spread > one.rule.worse_by / 2
    ]
    if not wide:
        return []
    message = f"nodes differ by more than half the limit anyway in {_some(wide)}: chance alone can accuse one"
    return [Caveat("wide spread", message, "measure longer, repeat it, or widen 'worse_by' for these metrics")]


def _not_measured(table: Table, baseline: Baseline | None) -> list[str]:
    if baseline is None:
        return []
    known = {name for column in table.columns for name in (column.name, column.unranked)}
    known |= {column.name.partition("/")[0] for column in table.columns}
    return [name for name in baseline.metrics if name not in known]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
