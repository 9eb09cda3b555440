"""Reads the project's Markdown: its pages, their fenced blocks, links and headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_FILE_COMMENT = re.compile(r"# (\S+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that the block's first line names."""
        found = _FILE_COMMENT.match(self.text)
        return found.group(1) if found else None


def pages() -> list[Path]:
    """Everything that is written for people."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[Block]:
    """The fenced blocks of one language."""
    found = _FENCED.findall(page.read_text(encoding="utf-8"))
    return [Block(page, word, text) for word, text in found if word == language]


def files(page: Path) -> dict[str, str]:
    """The blocks of a page that are whole files, by the name that their first line gives."""
    found = [block for language in ("python", "toml") for block in blocks(page, language)]
    return {block.file: block.text for block in found if block.file}


def commands(page: Path) -> list[str]:
    """The `paceline` commands that a page tells its reader to type, without their comments."""
    lines = [line for block in blocks(page, "sh") for line in block.text.splitlines()]
    return [line.partition(" #")[0].strip() for line in lines if line.startswith("paceline ")]


def links(page: Path) -> list[str]:
    """Where the links of a page point within the project."""
    prose = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return [link for link in _LINK.findall(prose) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    prose = _FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
