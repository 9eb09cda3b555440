"""A run beside the figures that others published for the same suite."""

from __future__ import annotations

from paceline.analysis.published import published_tables
from paceline.analysis.summary import RunSummary
from paceline.report.document import Lines, Section, Table, Tone
from paceline.report.run.sections import ReportSection


def _build(summary: RunSummary) -> list[Section]:
    sections = []
    for place, published in enumerate(published_tables(summary.source), start=1):
        shown = published.filled()
        table = Table.of_lines(shown.headers, shown.lines, shown.named, is_wide=True)
        source = Lines((shown.source,) if shown.source else (), Tone.NOTE)
        sections.append(Section(shown.title, (table, source), key=f"published-{place}"))
    return sections


SECTION = ReportSection("published", 50, _build)
