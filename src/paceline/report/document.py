"""What every answer is: a document of sections with charts, tables and lines, which `report.render` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any

from paceline.core.quantity import with_interval
from paceline.report.charts import Chart
from paceline.version import VERSION


class Medium(Flag):
    """Where a part of a document is shown."""

    TERMINAL = auto()
    MARKDOWN = auto()
    HTML = auto()
    FILES = MARKDOWN | HTML
    TEXT = TERMINAL | MARKDOWN
    ALL = TERMINAL | MARKDOWN | HTML


class Tone(Enum):
    """How a section or a line is meant."""

    PLAIN = "plain"
    WARNING = "warning"
    BAD = "bad"
    BASIS = "basis"  # what it all rests on, said last and quietly
    NOTE = "note"  # a remark on what stands above
    LEAD = "lead"  # the sentence that answers
    DETAIL = "detail"  # a few words below a sentence
    TODO = "todo"
    TEXT = "text"  # a paragraph
    CODE = "code"  # verbatim, on a page


@dataclass(frozen=True)
class Badge:
    """A word in a coloured field."""

    text: str
    tone: Tone = Tone.WARNING
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell of a table, and what it sorts by."""

    text: str = ""
    sort: float | str | None = None
    note: str = ""
    leads: bool = False  # the figure that matters, where it may be in any column
    below: str = ""  # in smaller letters under the text: the interval of a figure
    badges: tuple[Badge, ...] = ()  # on a page, instead of the text; a terminal colours the text
    link: str = ""  # the key of a part of the same page, or the path of another one of a leader


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    header: str
    cells: tuple[Cell, ...]
    numeric: bool = True
    leads: bool = False  # what the rows are sorted by
    widest: bool = False  # only where there is room: not on a terminal
    key: str = ""
    short: str = ""  # the header on a terminal, if it is another one
    spare: int = 0  # on a terminal without room for all columns the highest is left out first; 0 never is

    @classmethod
    def of(
        cls, header: str, texts: Sequence[str], *, numeric: bool = True, leads: bool = False, widest: bool = False
    ) -> Column:
        """A column of plain texts."""
        return cls(header, tuple(Cell(text) for text in texts), numeric, leads, widest)


@dataclass(frozen=True)
class Table:
    """Columns next to each other."""

    columns: tuple[Column, ...]
    title: str = ""
    grouped: int = 0  # columns on the left that name a group; a terminal says them once, above its rows
    is_folded: bool = False  # on a page, until it is asked for
    is_sortable: bool = False
    is_dense: bool = False
    is_wide: bool = False  # in a pipe, which has no width, it stays whole
    key: str = ""
    medium: Medium = Medium.ALL

    @classmethod
    def of_lines(
        cls, headers: Sequence[str], lines: Sequence[Sequence[str | Cell]], named: int, title: str = "", **more: Any
    ) -> Table:
        """A table of texts, or of cells; the first `named` columns hold names, the others numbers."""
        cells = [[Cell(one) if isinstance(one, str) else one for one in line] for line in lines]
        columns = (
            Column(header, tuple(line[place] for line in cells), numeric=place >= named)
            for place, header in enumerate(headers)
        )
        return cls(tuple(columns), title, is_dense=True, **more)

    @property
    def headers(self) -> tuple[str, ...]:
        """The header of each column."""
        return tuple(column.header for column in self.columns)

    @property
    def rows(self) -> Iterator[tuple[Cell, ...]]:
        """The cells, line by line."""
        return zip(*(column.cells for column in self.columns), strict=True)

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """The texts, line by line."""
        return [tuple(with_interval(cell.text, cell.below) for cell in cells) for cells in self.rows]


@dataclass(frozen=True)
class Lines:
    """Sentences, one on each line; what stands between backticks is a command."""

    texts: tuple[str, ...]
    tone: Tone = Tone.PLAIN
    medium: Medium = Medium.ALL


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, what was seen of it, and what to do; the head names its kind, or a case."""

    head: str
    texts: tuple[str, ...] = ()
    todo: tuple[str, ...] = ()
    status: str = ""  # how the case ended
    link: str = ""  # the key of the case on the page
    instances: tuple[Finding, ...] = ()  # the cases in which it was made, on a page
    fold: str = ""  # the summary under which the instances are folded
    medium: Medium = Medium.ALL


@dataclass(frozen=True)
class Pairs:
    """Names and what they stand for, on a page."""

    values: Mapping[str, Any]
    title: str = ""
    is_blocks: bool = False  # each mapping in it is a block with a heading
    medium: Medium = Medium.HTML


@dataclass(frozen=True)
class Details:
    """A part of a page that is folded until a reader opens it, or follows a link to its key."""

    name: str
    items: tuple[Item, ...]
    badges: tuple[Badge, ...] = ()
    right: str = ""  # at the end of the line that stays visible
    key: str = ""
    is_open: bool = False
    medium: Medium = Medium.HTML


Item = Chart | Table | Lines | Finding | Pairs | Details


@dataclass(frozen=True)
class Section:
    """A heading, and what is below it."""

    title: str = ""
    items: tuple[Item, ...] = ()
    tone: Tone = Tone.PLAIN
    key: str = ""  # by which a page links to it


@dataclass(frozen=True)
class Block:
    """The answer to one question, and what stands behind it."""

    answer: str
    about: str
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Card:
    """One big number."""

    number: str
    unit: str
    interval: str
    what: str
    label: str
    has_warning: bool = False
    detail: str = ""  # what bounds it
    part: float | None = None  # how much of that it reaches


@dataclass(frozen=True)
class Document:
    """One answer, or several below each other."""

    title: str
    blocks: tuple[Block, ...]
    answer: str = ""  # above several blocks
    cards: tuple[Card, ...] = ()
    ceilings: tuple[Card, ...] = ()  # of the machine, next to what was measured on it
    is_titled: bool = False  # whether Markdown has the title, too
    subtitle: str = ""  # below the answer, on a page
    status: str = ""  # that something is not as it should be, on a page
    footer: str = ""
    version: str = VERSION  # of the Paceline that measured

    @property
    def lead(self) -> str:
        """The sentence to read first."""
        return self.answer or (self.blocks[0].answer if self.blocks else "")

    @property
    def items(self) -> Iterator[Item]:
        """All items in the order of the page, those inside others included."""
        for block in self.blocks:
            for section in block.sections:
                for item in section.items:
                    yield item
                    if isinstance(item, Details):
                        yield from item.items

    @property
    def charts(self) -> list[Chart]:
        """All charts, in the order of the page."""
        return [item for item in self.items if isinstance(item, Chart)]


def shown(part: Section | Details, medium: Medium) -> list[Item]:
    """The items that this medium has; no text has charts, and nobody sees what is empty."""

    def is_shown(item: Item) -> bool:
        if isinstance(item, Chart):
            return medium is Medium.HTML
        is_empty = (isinstance(item, Table) and not item.columns) or (isinstance(item, Lines) and not item.texts)
        return bool(item.medium & medium) and not is_empty

    return [item for item in part.items if is_shown(item)]
