"""A diagnosis in words and as tables: what every form of it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paceline.analysis.diagnose.judge import Diagnosis, NodeFinding, NodeVerdict, State
from paceline.report.numbers import change, show_value
from paceline.report.render.terminal import open_console
from paceline.report.text import clean, one_line, plain

NAMED = 4  # nodes that a sentence can hold
REASONS = 6  # per node on a terminal; other forms have all


@dataclass(frozen=True)
class Line:
    """One finding as a table shows it."""

    node: str
    category: str
    what: str
    value: str
    baseline: str
    change: str


def answer(diagnosis: Diagnosis) -> str:
    """The one sentence that a diagnosis leads with."""
    total = len(diagnosis.verdicts)
    kind = "runs" if diagnosis.table.by_run else "nodes"
    bad = diagnosis.defective
    incomplete = [verdict for verdict in diagnosis.verdicts if verdict.state is State.INCOMPLETE]
    if bad:
        shown = ", ".join(f"{one_line(verdict.node)} ({_categories(verdict)})" for verdict in bad[:NAMED])
        more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        verb = "is" if len(bad) == 1 else "are"
        told = f"{len(bad)} of {total} {kind} {verb} defective: {shown}{more}"
    elif incomplete or total == 1:
        told = (
            f"No node of {total} is defective" if total > 1 else f"{one_line(diagnosis.verdicts[0].node)} has no defect"
        )
    else:
        told = f"All {total} {kind} are healthy"
    if incomplete:
        names = ", ".join(one_line(verdict.node) for verdict in incomplete[:NAMED])
        more = f" and {len(incomplete) - NAMED} more" if len(incomplete) > NAMED else ""
        told += f"; {len(incomplete)} incomplete: {names}{more}"
    return f"{told}."


def compared_with(diagnosis: Diagnosis) -> str:
    """What the nodes were compared with, in a sentence."""
    if not diagnosis.judged:
        return "No metric was compared with a baseline."
    count = len(diagnosis.judged)
    metrics = f"{count} metric{'s' if count > 1 else ''}"
    if diagnosis.baseline is None:
        what = "run" if diagnosis.table.by_run else "node"
        return f"In {metrics} each {what} was compared with the median of the others."
    known = diagnosis.baseline.nodes
    return f"In {metrics} each node was compared with the baseline" + (f" of {known} nodes." if known else ".")


def lines_of(verdict: NodeVerdict, *, limit: int | None = None) -> list[Line]:
    """The findings of a node that make it defective, or all of one that is not; the worst first."""
    found: Sequence[NodeFinding] = verdict.accusations or verdict.findings
    shown = [line_of(verdict.node, finding) for finding in found[:limit]]
    if limit is not None and len(found) > limit:
        shown.append(Line(verdict.node, "", f"and {len(found) - limit} more", "", "", ""))
    return shown


def line_of(node: str, finding: NodeFinding) -> Line:
    """One finding in words."""
    what = one_line(finding.metric)
    if finding.kind == "value":
        what = f"{what} ({one_line(finding.text)})"
    elif finding.kind != "variance":
        what = f"{what}: {one_line(finding.text)}"
    return Line(
        node=one_line(node),
        category=one_line(finding.category),
        what=what,
        value=show_value(finding.value, finding.unit) if finding.value is not None else "",
        baseline=show_value(finding.baseline, finding.unit) if finding.baseline is not None else "",
        change=change(finding.change),
    )


def render(diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Show it on a terminal or in a pipe."""
    _Printer(console or open_console()).show(diagnosis)


class _Printer:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.ascii = not console.is_terminal or console.options.ascii_only

    def text(self, content: str, style: str = "") -> Text:
        content = clean(plain(content) if self.ascii else content)
        return Text(content.encode(self.console.encoding, "backslashreplace").decode(self.console.encoding), style)

    def item(self, content: str, indent: int = 2, style: str = "") -> None:
        self.console.print(Padding(self.text(content, style), (0, 0, 0, indent), expand=False))

    def show(self, diagnosis: Diagnosis) -> None:
        self.console.print(self.text(answer(diagnosis), "bold"))
        self.console.print(self.text(f"{compared_with(diagnosis)} Rules: {diagnosis.rules.name}.", "dim"))
        told = [verdict for verdict in diagnosis.verdicts if verdict.findings and verdict.state is not State.HEALTHY]
        if told:
            self.console.print()
            self.console.print(self.table(told))
        healthy = [verdict.node for verdict in diagnosis.verdicts if verdict.state is State.HEALTHY]
        if told and healthy:
            names = ", ".join(healthy[:12]) + (f" and {len(healthy) - 12} more" if len(healthy) > 12 else "")
            self.console.print()
            self.console.print(self.text(f"Healthy: {names}", "green"))
        if diagnosis.caveats:
            self.console.print()
            self.console.print(self.text("Warnings, and what to do", "bold yellow"))
            for caveat in diagnosis.caveats:
                self.item(f"{caveat.kind}: {caveat.message}")
                self.item(f"To do: {caveat.remedy}", indent=4)

    def table(self, verdicts: Sequence[NodeVerdict]) -> Table:
        table = Table(box=box.ASCII2 if self.ascii else box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for header in ("Node", "Category", "What"):
            table.add_column(header, overflow="fold", no_wrap=False)
        for header in ("Value", "Baseline", "Change"):
            table.add_column(header, justify="right", no_wrap=True)
        for verdict in verdicts:
            style = "red" if verdict.state is State.DEFECTIVE else "yellow"
            for place, line in enumerate(lines_of(verdict, limit=REASONS)):
                table.add_row(
                    self.text("" if place else line.node, f"bold {style}"),
                    self.text(line.category),
                    self.text(line.what),
                    self.text(line.value),
                    self.text(line.baseline),
                    self.text(line.change, "bold"),
                )
        return table


def _categories(verdict: NodeVerdict) -> str:
    accused = {finding.category for finding in verdict.findings if finding.category}
    return ", ".join(sorted(one_line(category) for category in accused))
