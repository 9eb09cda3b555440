"""What `paceline explain` tells of the traced cases of a run: the budget of a step, and what would make it faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paceline.analysis.explain import STEP_TIME, traced_case
from paceline.analysis.roofline import KnownCeilings
from paceline.analysis.summary import RunSummary
from paceline.report.document import Block, Details, Item, Lines, Medium, Section, Table, Tone
from paceline.report.explain import block, clock_of, explained
from paceline.report.run.sections import ReportSection
from paceline.report.text import one_line

TITLE = "Budget of a step"


def _build(summary: RunSummary) -> list[Section]:
    """Of a single case the sections of its explanation; of several a part that is folded for each."""
    blocks = _blocks(summary)
    if len(blocks) == 1:
        ((_, answer),) = blocks
        first, *others = answer.sections
        lead = Lines((answer.answer,), Tone.LEAD, Medium.FILES)
        return [
            Section(TITLE, (lead, *_items(first)), key="budget"),
            *(replace(one, items=tuple(_items(one)), key=f"budget-{place}") for place, one in enumerate(others, 2)),
        ]
    items = tuple(item for label, answer in blocks for item in _folded(label, answer))
    return [Section(TITLE, items, key="budget")] if items else []


def _blocks(summary: RunSummary) -> list[tuple[str, Block]]:
    found = []
    for row in summary.measured:
        record = row.record
        if record.trace is not None and record.trace.spent is not None and record.measurement(STEP_TIME) is not None:
            case = traced_case(summary.source, summary.ceilings or KnownCeilings(), record)
            answer = explained(case, clock_of(summary.source.run.environment, record))
            found.append((one_line(row.label), block(*answer)))
    return found


def _folded(label: str, answer: Block) -> Iterator[Item]:
    """On a page, all of it once it is asked for; in Markdown, which folds nothing, the budget alone."""
    inner: list[Item] = [Lines((answer.answer,), Tone.LEAD)]
    for section in answer.sections:
        items = list(_items(section))
        first = items[0]
        if isinstance(first, Table):
            inner += [first if section.title == TITLE else replace(first, title=section.title), *items[1:]]
        else:
            inner += [Lines((section.title,), Tone.LEAD), *items]
    yield Details(label, tuple(inner))
    yield Lines((answer.answer,), Tone.LEAD, Medium.MARKDOWN)
    yield from (replace(one, medium=Medium.MARKDOWN) for one in answer.sections[0].items if isinstance(one, Table))


def _items(section: Section) -> Iterator[Item]:
    """As files have them, without what the section of the traces says already: a terminal has the verb itself."""
    for item in section.items:
        if isinstance(item, Table):
            yield replace(item, is_dense=True, medium=Medium.FILES)
        elif isinstance(item, Lines) and item.texts and item.tone is not Tone.TODO:
            yield replace(item, medium=Medium.FILES)


SECTION = ReportSection("budgets", 21, _build)
