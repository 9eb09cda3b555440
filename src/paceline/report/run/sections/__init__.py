"""Sections of a run's report: what it says beyond its cases, each made by a builder that the registry finds.

A module below `report/run/sections`, or below `report_sections` of another package, has a `ReportSection` at its top
level; that is all it takes to add one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.analysis.summary import RunSummary
from paceline.core.registry import Kind
from paceline.report.charts import Chart
from paceline.report.document import Item, Lines, Medium, Section, Table, Tone
from paceline.report.text import one_line

MOST_LINES = 100  # of a table; the cases themselves are all in the report
ON_A_TERMINAL = 8  # lines below a sentence


@dataclass(frozen=True)
class ReportSection:
    """A builder of sections; those with a lower `order` stand first."""

    name: str
    order: int
    build: Callable[[RunSummary], Section | Sequence[Section] | None]  # nothing where a run has nothing of it


REPORT_SECTIONS: Kind[ReportSection] = Kind(
    "report section", "report.run.sections", ReportSection, others_folder="report_sections"
)


@dataclass(frozen=True)
class SectionAnswer:
    """One answer with what it rests on."""

    sentence: str
    chart: Chart | None = None
    table: Table | None = None
    todo: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()  # a few words for each case, for a terminal
    source: str = ""  # where its yardstick is from, with the warnings of that; every report says it

    @property
    def items(self) -> list[Item]:
        """The same as items of a section: a terminal has the few words, files have the table."""
        source = (self.source,) if self.source else ()
        is_brief = not self.lines or len(self.todo) == 1
        brief = self.lines[:ON_A_TERMINAL] if len(self.lines) > 1 else ()
        if len(self.lines) > ON_A_TERMINAL:
            brief = (*brief, f"and {len(self.lines) - ON_A_TERMINAL} more: see the HTML report")
        items: list[Item] = [Lines((self.sentence,), Tone.LEAD)]
        if self.chart:
            items.append(self.chart)
        if self.table:
            items.append(replace(self.table, medium=Medium.FILES))
        return [
            *items,
            Lines((*brief, *source), Tone.DETAIL, Medium.TERMINAL),
            Lines(self.todo, Tone.TODO, Medium.ALL if is_brief else Medium.FILES),
            Lines((*source, *self.notes), Tone.NOTE, Medium.FILES),
        ]


def section_of(key: str, title: str, parts: Sequence[SectionAnswer]) -> Section | None:
    """All answers of one kind, if there are any."""
    return Section(title, tuple(item for part in parts for item in part.items), key=key) if parts else None


def with_note(parts: Sequence[SectionAnswer], note: str) -> list[SectionAnswer]:
    """The same parts with a note below the last of them."""
    return [*parts[:-1], replace(parts[-1], notes=(*parts[-1].notes, note))]


def report_sections(summary: RunSummary) -> list[Section]:
    """All that a run says beyond its cases."""
    sections: list[Section] = []
    for builder in sorted(REPORT_SECTIONS.registry().entries.values(), key=lambda one: (one.order, one.name)):
        try:
            made = builder.build(summary)
            sections += [made] if isinstance(made, Section) else list(made or ())
        except Exception as error:  # the rest of the report does not depend on it
            message = f"The report section '{builder.name}' could not be built: {type(error).__name__}: {error}"
            sections.append(Section(items=(Lines((one_line(message),), Tone.WARNING),)))
    return sections
