"""A document as Markdown, for issues, pull requests and notes."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from paceline.report.document import Document, Finding, Item, Lines, Medium, Section, Table, Tone
from paceline.report.text import one_line

_SPECIAL = re.compile(r"([\\`*_{}\[\]|~#])")
_PROSE = (Tone.NOTE, Tone.LEAD)


def render(document: Document) -> str:
    """The whole text."""
    parts = [f"**{escape(document.answer)}**"] if document.answer else []
    for block in document.blocks:
        parts += [f"**{escape(block.answer)}**"] + ([escape(block.about)] if block.about else [])
        for section in block.sections:
            parts += section_parts(section)
    return "\n\n".join(parts) + "\n"


def section_parts(section: Section) -> list[str]:
    """The paragraphs of a section; none where Markdown has nothing of it."""
    shown = section.shown(Medium.MARKDOWN)
    heading = [f"## {escape(section.title)}"] if section.title and shown else []
    return heading + [part for item in shown for part in _item(item)]


def _item(item: Item) -> Iterator[str]:
    if isinstance(item, Table):
        if item.title and not item.is_folded:
            yield f"**{escape(item.title)}**"
        yield table(item)
    elif isinstance(item, Lines) and item.tone in _PROSE:
        yield from (escape(text) for text in item.texts)
    elif isinstance(item, Lines):
        todo = "To do: " if item.tone is Tone.TODO else ""
        yield "\n".join(f"- {todo}{with_code(text)}" for text in item.texts)
    elif isinstance(item, Finding):
        told = "".join(f" {escape(text)}." for text in item.texts) + "".join(
            f" To do: {escape(text)}." for text in item.todo
        )
        yield f"- {escape(item.head)}:{told}"


def table(shown: Table) -> str:
    """A table with its numbers to the right."""
    ruler = "|" + "|".join("---:" if column.numeric else "---" for column in shown.columns) + "|"
    lines = (_line([cell.text for cell in cells]) for cells in shown.rows)
    return "\n".join([_line([column.header for column in shown.columns]), ruler, *lines])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def with_code(text: str) -> str:
    """A line whose commands, between backticks, stay commands."""
    parts = one_line(text).split("`")
    return "".join(f"`{part}`" if place % 2 else escape(part) for place, part in enumerate(parts))


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", html.escape(one_line(text), quote=False))
