"""A document as Markdown, for issues, pull requests and notes."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from paceline.report.document import Document, Finding, Item, Lines, Medium, Section, Table, Tone, shown
from paceline.report.text import one_line, split_code

_SPECIAL = re.compile(r"([\\`*_{}\[\]|~#])")


def render(document: Document) -> str:
    """The whole text."""
    parts = [f"# {escape(document.title)}"] if document.is_titled else []
    parts += [f"**{escape(document.answer)}**"] if document.answer else []
    for block in document.blocks:
        parts += [f"**{escape(block.answer)}**"] + ([escape(block.about)] if block.about else [])
        for section in block.sections:
            parts += section_parts(section)
    return "\n\n".join(parts) + "\n"


def section_parts(section: Section) -> list[str]:
    """The paragraphs of a section; none where Markdown has nothing of it."""
    items_shown = shown(section, Medium.MARKDOWN)
    parts = [f"## {escape(section.title)}"] if section.title and items_shown else []
    # Findings that follow each other are one list.
    for is_list, items in groupby(items_shown, lambda item: isinstance(item, Finding)):
        texts = [part for item in items for part in _item(item)]
        parts += ["\n".join(texts)] if is_list else texts
    return parts


def _item(item: Item) -> Iterator[str]:
    if isinstance(item, Table):
        if item.title and not item.is_folded:
            yield f"**{escape(item.title)}**"
        yield table(item)
    elif isinstance(item, Lines) and item.tone in (Tone.NOTE, Tone.LEAD):
        yield from (escape(text) for text in item.texts)
    elif isinstance(item, Lines) and item.tone is Tone.TEXT:
        yield from (with_code(text) for text in item.texts)
    elif isinstance(item, Lines):
        todo = "To do: " if item.tone is Tone.TODO else ""
        yield "\n".join(f"- {todo}{with_code(text)}" for text in item.texts)
    elif isinstance(item, Finding):
        texts = [text for text in (item.status, *item.texts) if text] + [f"To do: {text}" for text in item.todo]
        yield f"- **{escape(item.head)}**:" + "".join(f" {escape(text)}." for text in texts)


def table(one: Table) -> str:
    """A table with its numbers to the right."""
    ruler = "|" + "|".join("---:" if column.numeric else "---" for column in one.columns) + "|"
    return "\n".join([_line(one.headers), ruler, *map(_line, one.lines)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def with_code(text: str) -> str:
    """A line whose commands, between backticks, stay commands."""
    return "".join(f"`{part}`" if place % 2 else _escape(part) for place, part in enumerate(split_code(text)))


def escape(text: str) -> str:
    """Text on a line, which Markdown shows as it is."""
    return _escape(one_line(text))


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", html.escape(text, quote=False))
