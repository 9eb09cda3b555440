"""A diagnosis as a page: the answer, the chart, the defects, the warnings, the baseline, the rules and the nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paceline.analysis.diagnose.judge import Diagnosis, NodeFinding, NodeVerdict, State
from paceline.analysis.figures import shortened
from paceline.report.diagnose.charts import strips
from paceline.report.document import (
    Badge,
    Block,
    Cell,
    Column,
    Details,
    Document,
    Finding,
    Lines,
    Medium,
    Section,
    Table,
    Tone,
)
from paceline.report.numbers import change, share, show_value
from paceline.report.text import humanize, one_line

NAMED = 4  # nodes that a sentence can hold
REASONS = 6  # per node on a terminal; other forms have all
HEALTHY = 12  # nodes that a terminal names
MOST_ROWS = 2000  # of a table; a page with more is slow


def document(diagnosis: Diagnosis) -> Document:
    """The page, and what of it a text has."""
    chart = strips(diagnosis)
    count = len(diagnosis.verdicts)
    sections = (
        Section("Where the nodes stand", (chart,) if chart else (), key="strips-head"),
        *_defects(diagnosis),
        *_healthy(diagnosis),
        Section(
            "Warnings, and what to do",
            tuple(Finding(caveat.kind, (caveat.message,), (caveat.remedy,)) for caveat in diagnosis.caveats),
            Tone.WARNING,
            key="warnings",
        ),
        *([_baseline(diagnosis)] if diagnosis.judged else []),
        Section("The rules", (_rules(diagnosis),), key="rules-head"),
        Section("What differs between the nodes", (_differences(diagnosis),), key="environment"),
    )
    about = f"{compared_with(diagnosis)} Rules: {one_line(diagnosis.rules.name)}."
    return Document(
        title="Diagnosis",
        blocks=(Block(answer(diagnosis), about, sections),),
        footer=f"{count} nodes · {len(diagnosis.table.columns)} metrics",
    )


def answer(diagnosis: Diagnosis) -> str:
    """The one sentence that a diagnosis leads with."""
    total = len(diagnosis.verdicts)
    kind = "runs" if diagnosis.table.by_run else "nodes"
    bad = diagnosis.defective
    incomplete = [verdict.node for verdict in diagnosis.verdicts if verdict.state is State.INCOMPLETE]
    if bad:
        names = shortened([f"{verdict.node} ({', '.join(verdict.categories)})" for verdict in bad], NAMED)
        sentence = f"{len(bad)} of {total} {kind} {'is' if len(bad) == 1 else 'are'} defective: {one_line(names)}"
    elif total == 1:
        sentence = f"{one_line(diagnosis.verdicts[0].node)} has no defect"
    else:
        sentence = f"No node of {total} is defective" if incomplete else f"All {total} {kind} are healthy"
    if incomplete:
        sentence += f"; {len(incomplete)} incomplete: {one_line(shortened(incomplete, NAMED))}"
    return f"{sentence}."


def compared_with(diagnosis: Diagnosis) -> str:
    """What the nodes were compared with, in a sentence."""
    if not diagnosis.judged:
        return "No metric was compared with a baseline."
    metrics = f"{len(diagnosis.judged)} metric{'s' if len(diagnosis.judged) > 1 else ''}"
    if diagnosis.baseline is None:
        what = "run" if diagnosis.table.by_run else "node"
        return f"In {metrics} each {what} was compared with the median of the others."
    nodes = diagnosis.baseline.nodes
    return f"In {metrics} each node was compared with the baseline" + (f" of {nodes} nodes." if nodes else ".")


def reasons(verdict: NodeVerdict) -> Sequence[NodeFinding]:
    """The findings of a node that make it defective, or all of one that is not; the worst first."""
    return verdict.accusations or verdict.findings


def describe(finding: NodeFinding) -> str:
    """A finding in words."""
    if finding.kind == "variance":
        return one_line(finding.metric)
    text = f" ({finding.text})" if finding.kind == "value" else f": {finding.text}"
    return one_line(finding.metric + text)


def _defects(diagnosis: Diagnosis) -> list[Section]:
    bad = [verdict for verdict in diagnosis.verdicts if verdict.findings and verdict.state is not State.HEALTHY]
    if not bad:
        return []
    in_short: list[tuple[Cell, ...]] = []
    for verdict in bad:
        findings = reasons(verdict)
        rows = [_cells(finding) for finding in findings[:REASONS]]
        if len(findings) > REASONS:
            rows.append((Cell(), Cell(f"and {len(findings) - REASONS} more"), Cell(), Cell(), Cell()))
        names = [Cell(one_line(verdict.node), badges=_badges(verdict)), *(Cell() for _ in rows[1:])]
        in_short += [(name, *cells) for name, cells in zip(names, rows, strict=True)]
    in_full = [
        (
            Cell(one_line(verdict.node), one_line(verdict.node), leads=True),
            Cell(verdict.state.value, verdict.state.value, badges=_badges(verdict)),
            *_cells(finding),
        )
        for verdict in bad
        for finding in reasons(verdict)
    ]
    left_out = len(in_full) - MOST_ROWS
    note = f"{left_out:,} more findings are in the JSON and Excel forms."
    headers = ("Category", "What", "Value", "Baseline", "Change")
    items = (
        _table(("Node", *headers), in_short, Medium.TERMINAL),
        _table(("Node", "Verdict", *headers), in_full, Medium.MARKDOWN),
        _table(("Node", "Verdict", *headers), in_full[:MOST_ROWS], Medium.HTML),
        Lines((note,) if left_out > 0 else (), Tone.NOTE, Medium.HTML),
    )
    return [Section("What is wrong", items, key="defects-head")]


def _badges(verdict: NodeVerdict) -> tuple[Badge, ...]:
    return (Badge(verdict.state.value, Tone.BAD if verdict.state is State.DEFECTIVE else Tone.WARNING),)


def _cells(finding: NodeFinding) -> tuple[Cell, ...]:
    category, what = one_line(finding.category), describe(finding)
    moved = finding.change if finding.change is not None and math.isfinite(finding.change) else None
    return (
        Cell(category, category),
        Cell(what, what),
        *(
            Cell(show_value(value, finding.unit) if value is not None else "", value)
            for value in (finding.value, finding.baseline)
        ),
        Cell(change(finding.change), moved, leads=True),
    )


def _table(headers: Sequence[str], rows: Sequence[tuple[Cell, ...]], medium: Medium) -> Table:
    columns = (
        Column(header, cells, header in ("Value", "Baseline", "Change"), key="case" if header == "What" else "")
        for header, cells in zip(headers, zip(*rows, strict=True), strict=True)
    )
    return Table(tuple(columns), is_sortable=True, key="defects", medium=medium)


def _healthy(diagnosis: Diagnosis) -> list[Section]:
    names = [one_line(verdict.node) for verdict in diagnosis.verdicts if verdict.state is State.HEALTHY]
    total = len(diagnosis.verdicts)
    if not names:
        return []
    in_short = () if len(names) == total else (f"Healthy: {shortened(names, HEALTHY)}",)
    full = ", ".join(names)
    page = Details(f"{len(names)} of {total}", (Lines((full,), Tone.NOTE),), is_open=len(names) <= 40)
    texts = (
        Lines(in_short, Tone.TEXT, Medium.TERMINAL),
        Lines((f"Healthy: {full}",), Tone.NOTE, Medium.MARKDOWN),
    )
    return [Section(items=texts), Section("Healthy nodes", (page,), key="healthy-head")]


def _baseline(diagnosis: Diagnosis) -> Section:
    """What the nodes were compared with, for every metric."""
    lines = []
    for one in diagnosis.judged[:MOST_ROWS]:
        changes = one.changes[~np.isnan(one.changes)]
        ends = [change(float(changes.min())), change(float(changes.max()))] if changes.size else ["–", "–"]
        baseline = show_value(one.baseline, one.column.unit)
        spread = share(one.spread) if math.isfinite(one.spread) else "–"
        lines.append((one_line(one.column.name), one.column.better.value, baseline, spread, *ends))
    headers = ("Metric", "Better", "Baseline", "Spread", "Lowest", "Highest")
    compared = " over all nodes; each was compared with that of the others" if diagnosis.baseline is None else ""
    note = (
        f"The baseline is a median{compared}. Spread is the scaled median absolute deviation of the nodes, as a part "
        "of the baseline. Lowest and highest are the nodes farthest from it."
    )
    items = (Table.of_lines(headers, lines, 2, medium=Medium.HTML), Lines((note,), Tone.NOTE, Medium.HTML))
    return Section("The baseline", items, key="baseline-head")


def _rules(diagnosis: Diagnosis) -> Table:
    lines = [
        (
            one_line(rule.name),
            rule.check,
            one_line(rule.category),
            one_line(rule.text) or "–",
            one_line(", ".join(selector.source for selector in rule.selectors)) or "what leads each case",
        )
        for rule in diagnosis.rules.rules
    ]
    return Table.of_lines(("Rule", "Check", "Category", "Condition", "Metrics"), lines, 5, medium=Medium.HTML)


def _differences(diagnosis: Diagnosis) -> Table | Lines:
    """What is not the same on all nodes, which a defect may come from."""
    lines = []
    for fact, of_nodes in diagnosis.table.differences().items():
        name = humanize(fact.replace(".", "_"))
        for value, nodes in sorted(of_nodes.items(), key=lambda item: -len(item[1])):
            lines.append((name, one_line(value), str(len(nodes)), one_line(shortened(nodes, 8))))
    if not lines:
        nothing = "Nothing that was recorded of kernel, driver, processor, GPUs or torch."
        return Lines((nothing,), Tone.NOTE, Medium.HTML)
    return Table.of_lines(("What", "Value", "Nodes", "Which"), lines, 4, medium=Medium.HTML)
