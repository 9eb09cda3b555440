"""A diagnosis as a page, and for programs and spreadsheets: JSON, JSON lines, CSV, Excel, and its chart as PNG.

The chart shows where every node stands in each metric: a strip of dots around the baseline, defective nodes named."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.diagnose.judge import Diagnosis, Judged, NodeFinding, NodeVerdict, State
from paceline.analysis.summary import shortened
from paceline.core.errors import InputError
from paceline.report.charts import (
    ACCENT,
    COLUMN,
    CONFIG,
    GRID,
    INK,
    MUTED,
    TEXT,
    Chart,
    Spec,
    draw_png,
    layer,
    quantity,
)
from paceline.report.document import (
    Badge,
    Block,
    Cell,
    Column,
    Details,
    Document,
    Finding,
    Item,
    Lines,
    Medium,
    Section,
    Table,
    Tone,
)
from paceline.report.export.csv import csv_text
from paceline.report.export.xlsx import add_sheet, append_row, make_cell, new_workbook, saved
from paceline.report.text import change, one_line, share, show_value

STRIPS = 12  # metrics that one chart shows
AT_LEAST = 6  # metrics that it shows for comparison, where fewer have defects
LONGEST_NAME = 64  # signs of a metric's name; its middle is left out
DOTS = 120  # healthy nodes that one strip shows
NAMES = 3  # defective nodes that one strip names
BAND = 2.0  # deviations on each side of the baseline
FARTHEST = 0.6  # change beyond which a dot is drawn at the edge
BAD = "#b4451f"  # the page's second line colour


def strips(diagnosis: Diagnosis) -> Chart | None:
    """The metrics with defects, the worst first; without any, those in which nodes differ most."""
    accused = accused_in(diagnosis)
    chosen = _chosen(diagnosis, accused)
    if not chosen:
        return None
    edges = _edges(chosen)
    rows = _names(chosen)
    bands, limits, dots, marks, texts = [], [], [], [], []
    thinned = 0
    for one, row in zip(chosen, rows, strict=True):
        spread = BAND * one.spread if math.isfinite(one.spread) else 0.0
        bands.append({"row": row, "low": _at(-spread, edges), "high": _at(spread, edges)})
        if one.limit is not None and edges[0] <= one.limit <= edges[1]:
            limits.append({"row": row, "at": 100 * one.limit})
        bad = accused.get(one.column.name, set())
        healthy, left_out = _thinned(one.changes, bad)
        thinned += left_out
        dots += [{"row": row, "at": _at(float(one.changes[place]), edges)} for place in healthy]
        named = _named(one, bad, edges)
        for place in sorted(bad):
            at = _at(float(one.changes[place]), edges)
            marks.append({"row": row, "at": at})
            if place in named:
                label = f"{one_line(diagnosis.table.nodes[place])[:28]} {change(float(one.changes[place]))}"
                texts.append({"row": row, "at": at, "text": label, "right": at > 50 * (edges[0] + edges[1])})
    notes = [
        "Each dot is a node, a cross a defective one. The band spans two robust deviations of all nodes on each side "
        "of the baseline" + (", the upright mark is the rule's limit." if limits else ".")
    ]
    if thinned:
        notes.append("Of many healthy nodes, the lowest, the highest and some between are drawn in each metric.")
    if len(chosen) < len(diagnosis.judged):
        notes.append(f"{len(chosen)} of {len(diagnosis.judged)} metrics are drawn.")
    defects = "; ".join(f"{item['row']}: {item['text']}" for item in texts)
    return Chart(
        spec=_spec(rows, edges, bands, limits, dots, marks, texts),
        title="Each node's change from the baseline, by metric",
        description=defects or "No node is defective in these metrics.",
        notes=tuple(notes),
    )


def accused_in(diagnosis: Diagnosis) -> dict[str, set[int]]:
    """By metric, the places of the nodes that it makes defective."""
    places = {node: place for place, node in enumerate(diagnosis.table.nodes)}
    accused: dict[str, set[int]] = {}
    for verdict in diagnosis.defective:
        for finding in verdict.accusations:
            if finding.kind in ("variance", "value", "group"):
                for metric in finding.metrics or (finding.metric,):
                    accused.setdefault(metric, set()).add(places[verdict.node])
    return accused


def _chosen(diagnosis: Diagnosis, accused: dict[str, set[int]]) -> list[Judged]:
    known = [one for one in diagnosis.judged if np.isfinite(one.changes).any()]

    def weight(one: Judged) -> tuple[int, float]:
        finite = one.changes[np.isfinite(one.changes)]
        return len(accused.get(one.column.name, ())), float(np.abs(finite).max())

    wanted = min(STRIPS, max(AT_LEAST, sum(one.column.name in accused for one in known)))
    return sorted(known, key=weight, reverse=True)[:wanted]


def _edges(chosen: Sequence[Judged]) -> tuple[float, float]:
    """What the axis spans: every dot and limit, but not so far that dots near the baseline become one."""
    finite = np.concatenate([one.changes[np.isfinite(one.changes)] for one in chosen])
    limits = [one.limit for one in chosen if one.limit is not None]
    low = min([float(finite.min()), 0.0, *(1.25 * limit for limit in limits)])
    high = max([float(finite.max()), 0.0, *(1.25 * limit for limit in limits)])
    low, high = max(low, -FARTHEST), min(high, FARTHEST)
    pad = max(0.04 * (high - low), 0.002)
    return low - pad, high + pad


def _at(change: float, edges: tuple[float, float]) -> float:
    """Where on the axis, in percent; what lies beyond is drawn at the edge."""
    return 100 * min(max(change, edges[0]), edges[1])


def _thinned(changes: NDArray[np.float64], bad: set[int]) -> tuple[list[int], int]:
    known = [place for place in np.flatnonzero(~np.isnan(changes)).tolist() if place not in bad]
    if len(known) <= DOTS:
        return known, 0
    ordered = sorted(known, key=lambda place: float(changes[place]))
    picked = {ordered[round(step * (len(ordered) - 1) / (DOTS - 1))] for step in range(DOTS)}
    return sorted(picked), len(known) - len(picked)


def _named(one: Judged, bad: set[int], edges: tuple[float, float]) -> set[int]:
    """The worst nodes whose names do not cover each other."""
    apart = 0.35 * 100 * (edges[1] - edges[0])
    chosen: dict[int, float] = {}
    for place in sorted(bad, key=lambda place: -abs(float(one.changes[place]))):
        at = _at(float(one.changes[place]), edges)
        if len(chosen) < NAMES and all(abs(at - other) > apart for other in chosen.values()):
            chosen[place] = at
    return set(chosen)


def _names(chosen: Sequence[Judged]) -> list[str]:
    """A name with the baseline for each strip; of a long one the middle is left out, unless two would then be one."""
    full = [one_line(one.column.name) for one in chosen]
    half = LONGEST_NAME // 2 - 1
    short = [name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}" for name in full]
    names = short if len(set(short)) == len(short) else full
    return [f"{name} ({show_value(one.baseline, one.column.unit)})" for name, one in zip(names, chosen, strict=True)]


def _spec(
    rows: list[str],
    edges: tuple[float, float],
    bands: list[Spec],
    limits: list[Spec],
    dots: list[Spec],
    marks: list[Spec],
    texts: list[Spec],
) -> Spec:
    scale: Spec = {"domain": [100 * edges[0], 100 * edges[1]], "nice": False}
    x = quantity("at", "change from the baseline, %", scale, tickCount=7)
    y: Spec = {"field": "row", "type": "nominal", "sort": rows, "scale": {"domain": rows}, "axis": None}
    place: Spec = {"x": x, "y": y}
    name = {"x": {"value": 0}, "y": y, "text": {"field": "row", "type": "nominal"}}
    band = place | {"x": x | {"field": "low"}, "x2": {"field": "high"}}
    left = [item for item in texts if not item["right"]]
    right = [item for item in texts if item["right"]]
    label = place | {"text": TEXT}
    style: Spec = {"fontSize": 12, "color": INK, "baseline": "middle"}
    layers = [
        layer("text", name, [{"row": row} for row in rows], align="left", dy=-21, **style),
        layer("bar", band, bands, height=22, color=ACCENT, opacity=0.16),
        layer("rule", {"x": x}, [{"at": 0}], color=MUTED, opacity=0.6),
        layer("tick", place, limits, color=MUTED, thickness=1.5, size=26),
        layer("point", place, dots, filled=True, size=42, color=ACCENT, opacity=0.7),
        layer("point", place, marks, shape="cross", filled=True, size=120, color=BAD, opacity=1),
        layer("text", label, left, align="left", dx=-5, dy=16, **style),
        layer("text", label, right, align="right", dx=5, dy=16, **style),
    ]
    return {
        "width": COLUMN - 20,
        "height": {"step": 62},
        "layer": [one for one in layers if one["data"]["values"]],
        "config": {**CONFIG, "axisX": {"gridColor": GRID}, "axisY": {"grid": False}},
    }


NAMED = 4  # nodes that a sentence can hold
REASONS = 6  # per node on a terminal; other forms have all
HEALTHY = 12  # nodes that a terminal names
MOST_ROWS = 2000  # of a table; a page with more is slow
MOST_REASONS = 10  # for each node in the first sheet
MOST_CELLS = 200_000  # of values in a workbook; more take minutes to write and to open


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
        *_unseen(diagnosis),
        *([_baseline(diagnosis)] if diagnosis.judged else []),
        Section("The rules", (_rules(diagnosis),), key="rules-head"),
        Section("What differs between the nodes", _differences(diagnosis), key="environment"),
    )
    about = " ".join((compared_with(diagnosis), *unseen(diagnosis), f"Rules: {one_line(diagnosis.rules.name)}."))
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
        is_sure = not incomplete and diagnosis.judged
        sentence = f"All {total} {kind} are healthy" if is_sure else f"No {kind[:-1]} of {total} is defective"
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


def unseen(diagnosis: Diagnosis) -> list[str]:
    """What could not have been seen, in a sentence, where that is known."""
    sizes = [f"{share(one.together)} of {one_line(one.component)}" for one in diagnosis.sensitivities]
    if not sizes:
        return []
    count, kind = len(diagnosis.verdicts), "runs" if diagnosis.table.by_run else "nodes"
    among = f"with {count} {kind}" if diagnosis.baseline is None else "with this baseline"
    return [f"Defects smaller than {shortened(sizes, NAMED)} could have gone unseen {among}."]


def reasons(verdict: NodeVerdict) -> Sequence[NodeFinding]:
    """The findings of a node that make it defective, or all of one that is not; the worst first."""
    return verdict.accusations or verdict.findings


def describe(finding: NodeFinding) -> str:
    """A finding in words."""
    if finding.kind == "variance":
        return one_line(finding.metric)
    text = f" ({finding.text})" if finding.kind == "value" else f": {finding.text}"
    return one_line(finding.metric + text)


def sentence(finding: NodeFinding) -> str:
    """A finding in a line by itself, with its figures."""
    if finding.value is None or finding.baseline is None:
        return describe(finding)
    value, usual = (show_value(one, finding.unit) for one in (finding.value, finding.baseline))
    return f"{describe(finding)} is {value}, where {usual} is usual ({change(finding.change)})"


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
    return (
        Cell(category, category),
        Cell(what, what),
        *(
            Cell(show_value(value, finding.unit) if value is not None else "", value)
            for value in (finding.value, finding.baseline)
        ),
        Cell(change(finding.change), _finite(finding.change), leads=True),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


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


def _unseen(diagnosis: Diagnosis) -> list[Section]:
    """The smallest defects that would have been found, by component."""
    if not diagnosis.sensitivities:
        return []
    lines = [
        (
            one_line(one.component),
            str(one.metrics),
            share(one.spread),
            share(one.together),
            f"{share(one.alone[0])} to {share(one.alone[1])}" if one.metrics > 1 else share(one.alone[0]),
        )
        for one in diagnosis.sensitivities
    ]
    headers = ("Component", "Metrics", "Spread", "In all its metrics", "In one alone")
    note = (
        "The smallest loss of which four of five would have been found. Spread is the standard deviation between "
        "healthy nodes, of the middle metric. A loss in all metrics of a component is seen sooner than one in a single "
        "metric, of which the steadiest and the least steady are given."
    )
    items = (
        Table.of_lines(headers, lines, 1, medium=Medium.FILES),
        Lines((note,), Tone.NOTE, Medium.HTML),
    )
    return [Section("What could have gone unseen", items, key="unseen-head")]


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


def _differences(diagnosis: Diagnosis) -> tuple[Item, ...]:
    """What is not the same on all nodes, which a defect may come from."""
    lines, sentences, count = [], [], len(diagnosis.table.nodes)
    for fact, of_nodes in diagnosis.table.differences().items():
        (usual, most), *others = sorted(of_nodes.items(), key=lambda item: -len(item[1]))
        for value, nodes in ((usual, most), *others):
            lines.append((fact, one_line(value), str(len(nodes)), one_line(shortened(nodes, 8))))
            if nodes is not most and 2 * len(most) > count:
                who, instead = one_line(shortened(nodes, 8)), one_line(f"{value}; most have {usual}")
                sentences.append(f"{len(nodes)} of {count} nodes differ in {fact} ({instead}): {who}.")
    if not lines:
        nothing = "Nothing that was recorded of kernel, driver, processor, GPUs, torch or the inventory."
        return (Lines((nothing,), Tone.NOTE, Medium.HTML),)
    table = Table.of_lines(("What", "Value", "Nodes", "Which"), lines, 4, medium=Medium.HTML)
    return Lines(tuple(sentences)), table


def as_jsonl(diagnosis: Diagnosis) -> str:
    """One object for each node, defective ones first."""
    return "".join(json.dumps(_verdict(verdict), allow_nan=False) + "\n" for verdict in diagnosis.verdicts)


def as_json(diagnosis: Diagnosis) -> str:
    """The whole diagnosis as one object."""
    document = {
        "answer": answer(diagnosis),
        "rules": diagnosis.rules.name,
        "compared_with": "the other nodes" if diagnosis.baseline is None else "a baseline",
        "nodes": len(diagnosis.verdicts),
        "defective": [verdict.node for verdict in diagnosis.defective],
        "incomplete": [verdict.node for verdict in diagnosis.verdicts if verdict.state is State.INCOMPLETE],
        "metrics_compared": len(diagnosis.judged),
        "verdicts": [_verdict(verdict) for verdict in diagnosis.verdicts],
        "unseen": [vars(sensitivity) for sensitivity in diagnosis.sensitivities],
        "caveats": [vars(caveat) for caveat in diagnosis.caveats],
        "differences": diagnosis.table.differences(),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _verdict(verdict: NodeVerdict) -> dict[str, Any]:
    # A change from zero has no number; `from_zero` says so.
    findings = [
        vars(finding) | {"change": None, "from_zero": True}
        if finding.change is not None and math.isinf(finding.change)
        else vars(finding)
        for finding in verdict.findings
    ]
    return {
        "node": verdict.node,
        "verdict": verdict.state.value,
        "categories": list(verdict.categories),
        "findings": findings,
    }


def as_png(diagnosis: Diagnosis) -> bytes:
    """The page's chart as a picture, with the answer above it, since no page stands around it."""
    chart = strips(diagnosis)
    if chart is None:
        message = "there is nothing to draw: no metric was compared with a baseline; see --md for the verdicts"
        raise InputError("nothing-to-draw", message)
    title = {"text": textwrap.wrap(answer(diagnosis), 84), "subtitle": textwrap.wrap(chart.notes[0], 108)}
    return draw_png(replace(chart, spec={**chart.spec, "title": {**title, "anchor": "start", "offset": 16}}))


def as_csv(diagnosis: Diagnosis) -> str:
    """What the chart draws, of all metrics that were compared and all nodes that measured them: a row each."""
    header = ("metric", "unit", "better", "baseline", "spread", "limit", "node", "value", "change", "defective")
    rows = []
    accused = accused_in(diagnosis)
    indexes = {column.name: index for index, column in enumerate(diagnosis.table.columns)}
    for one in diagnosis.judged:
        column, bad = one.column, accused.get(one.column.name, set())
        shared = (column.name, column.unit, column.better.value, one.baseline, one.spread, one.limit)
        values = diagnosis.table.values[:, indexes[column.name]].tolist()
        for node, (value, moved) in enumerate(zip(values, one.changes.tolist(), strict=True)):
            if not math.isnan(value):
                cells = (*shared, diagnosis.table.nodes[node], value, moved, "yes" if node in bad else "no")
                finite = [_finite(cell) if isinstance(cell, float) else cell for cell in cells]
                rows.append(dict(zip(header, finite, strict=True)))
    return csv_text(header, rows)


def as_xlsx(diagnosis: Diagnosis) -> bytes:
    """A workbook: the verdict on each node, every finding, and the values behind them."""
    book = new_workbook()
    _verdict_sheet(book, diagnosis)
    _finding_sheet(book, diagnosis)
    _value_sheet(book, diagnosis)
    return saved(book)


def _verdict_sheet(book: Any, diagnosis: Diagnosis) -> None:
    sheet = add_sheet(book, "Verdicts", (18, 14, 26, 10, 90))
    append_row(sheet, (answer(diagnosis),), bold=True)
    sheet.append([])
    append_row(sheet, ("Node", "Verdict", "Categories", "Findings", "Why"), bold=True)
    for verdict in diagnosis.verdicts:
        findings = reasons(verdict)
        why = [f"{describe(finding)} {change(finding.change)}".rstrip() for finding in findings[:MOST_REASONS]]
        if len(findings) > MOST_REASONS:
            why.append(f"and {len(findings) - MOST_REASONS} more")
        categories = ", ".join(verdict.categories)
        cells = (verdict.node, _shout(verdict.state), categories, len(verdict.accusations), "; ".join(why))
        append_row(sheet, cells, bad=verdict.state is State.DEFECTIVE)


def _finding_sheet(book: Any, diagnosis: Diagnosis) -> None:
    sheet = add_sheet(book, "Findings", (18, 14, 18, 18, 12, 56, 14, 12, 14, 12, 34))
    names = ("Node", "Verdict", "Rule", "Category", "Kind", "Metric")
    append_row(sheet, (*names, "Value", "Unit", "Baseline", "Change", "Condition"), bold=True)
    for verdict in diagnosis.verdicts:
        for finding in verdict.findings:
            texts = (verdict.node, _shout(verdict.state), finding.rule, finding.category, finding.kind, finding.metric)
            row = [make_cell(sheet, text, bad=finding.accuses) for text in texts]
            moved = make_cell(sheet, _finite(finding.change))
            moved.number_format = "0.0%"
            values = (make_cell(sheet, value) for value in (finding.value, finding.unit, finding.baseline))
            sheet.append([*row, *values, moved, make_cell(sheet, finding.text)])


def _value_sheet(book: Any, diagnosis: Diagnosis) -> None:
    table = diagnosis.table
    accused = {(verdict.node, finding.metric) for verdict in diagnosis.verdicts for finding in verdict.accusations}
    columns = list(enumerate(table.columns))
    note = ""
    if len(columns) * len(table.nodes) > MOST_CELLS:
        metrics = {metric for _, metric in accused}
        columns = [(place, one) for place, one in columns if one.name in metrics][: MOST_CELLS // len(table.nodes)]
        note = "Only metrics with findings; the results themselves have all."
    sheet = add_sheet(book, "Values", (18, 14, *(16 for _ in columns)))
    if note:
        append_row(sheet, (note,))
    names = [f"{column.name} [{column.unit}]" if column.unit else column.name for _, column in columns]
    append_row(sheet, ("Node", "Verdict", *names), bold=True)
    rows = dict(zip(table.nodes, table.values, strict=True))
    for verdict in diagnosis.verdicts:
        row = [
            make_cell(sheet, verdict.node),
            make_cell(sheet, _shout(verdict.state), bad=verdict.state is State.DEFECTIVE),
        ]
        for place, column in columns:
            value = float(rows[verdict.node][place])
            bad = (verdict.node, column.name) in accused
            row.append(make_cell(sheet, None if math.isnan(value) else value, bad=bad))
        sheet.append(row)


def _shout(state: State) -> str:
    return state.value.upper() if state is State.DEFECTIVE else state.value
