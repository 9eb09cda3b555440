"""The sentence that leads a run's report, and the names of its cases."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.analysis import serving
from paceline.analysis.summary import CaseRow, Group, RunSummary
from paceline.core.case import Category
from paceline.core.metric import Better
from paceline.core.quantity import show_count
from paceline.report.numbers import SI_UNITS, half_width, share, show_figure, show_value
from paceline.report.text import humanize, one_line, told_apart

HIGHLIGHTS = 3  # that one sentence can hold


def short_labels(rows: Sequence[CaseRow]) -> tuple[str, list[str]]:
    """Names of cases for a table or a chart: those of served ones, which are long, without the words they share."""
    labels = [one_line(row.label) for row in rows]
    is_served = len(rows) > 1 and all(row.case.category == Category.SERVING for row in rows)
    return told_apart(labels) if is_served else ("", labels)


def superlative(group: Group) -> str:
    """What the leader of a group is."""
    if group.best.case.category == Category.SERVING:  # where a rate and a time may both lead
        return f"{'lowest' if group.metric.better is Better.LOWER else 'highest'} {humanize(group.metric.name)}"
    return "fastest" if group.metric.unit == "s" or group.metric.unit.endswith("/s") else "best"


def answer(summary: RunSummary) -> str:
    """The one sentence that a report leads with."""
    if not summary.total:
        return "This run has no cases."
    good = len(summary.measured)
    cases = "case" if summary.total == 1 else "cases"
    counted = (
        f"All {good} cases measured" if good == summary.total > 1 else f"{good} of {summary.total} {cases} measured"
    )
    parts = [counted, *_leader(summary), *_slos(summary)]
    if summary.with_warnings:
        parts.append(f"{len(summary.with_warnings)} with warnings")
    if summary.failed:
        parts.append(f"{len(summary.failed)} did not succeed")
    if summary.impossible:
        parts.append(f"{len(summary.impossible)} not possible here")
    if summary.not_run:
        parts.append(f"{len(summary.not_run)} not run")
    return one_line("; ".join(parts) + ".")


def _leader(summary: RunSummary) -> list[str]:
    if summary.is_micro and len(summary.groups) > 1:
        return _highlights(summary)
    # Several comparisons have several winners: the table and the cards name them.
    compared = [group for group in summary.groups if len(group.rows) > 1]
    if len(compared) != 1 and len(summary.groups) != 1:
        return []
    group = compared[0] if compared else summary.groups[0]
    figure = group.best.headline
    if figure is None:
        return []
    label = one_line(group.best.label)
    if len(group.rows) == 1:
        # Which percentile a latency is, its unit does not say.
        name = f"{humanize(group.metric.name)} " if group.best.case.category == Category.SERVING else ""
        return [f"{label}: {name}{show_figure(figure)}{_share(group.best)}"]
    if group.best.case.category == Category.SERVING:
        _, names = told_apart([one_line(row.label) for row in group.rows])
        return [f"{superlative(group)}: {names[0]}, {show_figure(figure)}"]
    unit = group.metric.unit
    if not unit.endswith("/s") or unit in SI_UNITS:
        return [f"{superlative(group)}: {label}, {show_figure(figure)}{_share(group.best)}"]
    name = f"{superlative(group)} {group.benchmark} in {unit}"
    shown = f"{show_count(figure.value)} {half_width(figure.relative)}".rstrip()
    return [f"{name}: {label.removeprefix(group.benchmark).strip()}, {shown}"]


def _slos(summary: RunSummary) -> list[str]:
    """How many of the chosen loads met their SLO; a search ends at one that does."""
    loads = [row for row in summary.measured if serving.slo_met(row) is not None and not row.figure("capacity")]
    good = sum(serving.slo_met(row) is True for row in loads)
    if len(loads) == summary.total == 1:
        return [f"SLO {'kept' if good else 'missed'}"]
    return [f"{good} of {len(loads)} loads kept their SLO"] if len(loads) > 1 else []


def _highlights(summary: RunSummary) -> list[str]:
    """The highest rate of each category: what a machine can do, in one breath."""
    leaders = [highlight.row for highlight in summary.highlights[:HIGHLIGHTS]]
    texts = [
        f"{one_line(row.label)} {show_value(row.headline.value, row.headline.unit)}{_share(row)}"
        for row in leaders
        if row.headline
    ]
    lead = "fastest: " if any(highlight.of > 1 for highlight in summary.highlights) else ""
    return [lead + ", ".join(texts)] if texts else []


def _share(row: CaseRow) -> str:
    figure = row.figure("peak_share")
    return f" ({share(figure.value / 100)} of peak)" if figure and math.isfinite(figure.value) else ""
