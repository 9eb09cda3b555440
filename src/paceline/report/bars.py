"""Horizontal bars with their intervals, written as SVG directly: most pages lead with them, and Vega takes a second."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from paceline.analysis.summary import Reading
from paceline.report.charts import ACCENT, COLUMN, FONT, GRID, INK, MUTED, PHONE, Chart, text_width
from paceline.report.text import clean

ROOM, MOST_ROOM = 190, 380  # beside the bars, for their names
_LEAST_REACH = 300  # of the longest bar and its interval, however long the texts are
_STEP, _THICKNESS, _LINE_HEIGHT, _LINES = 30, 15, 14, 3
_HEAD, _GAP = 46, 26  # above the bars of a panel, and between panels
_BEFORE, _AFTER = 10, 8  # between a name and its bar, and between an interval and its text


@dataclass(frozen=True)
class Bar:
    """A name, its value with where that may lie, and what stands beside it."""

    name: str
    reading: Reading
    text: str
    colour: str = ACCENT


@dataclass(frozen=True)
class Panel:
    """Bars that share a scale, under their title."""

    title: str
    subtitle: str
    bars: Sequence[Bar]
    end: float | None = None  # of its scale; unset is its longest bar


def bars(title: str, subtitle: str, shown: Sequence[Bar]) -> Chart:
    """One panel; bars of the same name would look like one, so that the later ones get a number."""
    seen: Counter[str] = Counter()
    numbered = []
    for bar in shown:
        seen[bar.name] += 1
        name = bar.name if seen[bar.name] == 1 else f"{bar.name} ({seen[bar.name]})"
        numbered.append(Bar(name, bar.reading, bar.text, bar.colour))
    return panels(title, [Panel(title, subtitle, numbered)])


def panels(title: str, shown: Sequence[Panel], notes: Sequence[str] = ()) -> Chart:
    """Panels below each other; their bars begin at the same place."""
    every = [bar for panel in shown for bar in panel.bars]
    room = min(MOST_ROOM, max(ROOM, *(text_width(bar.name) for bar in every)))
    reach = _reach(shown, COLUMN - room - _BEFORE)
    drawn, top = [], 0.0
    for panel in shown:
        lines = [_lines(bar.name, room) for bar in panel.bars]
        step = max(_STEP, _LINE_HEIGHT * max(map(len, lines)) + 8)
        drawn += [*_heads(panel, 0, top), *_drawn(panel, lines, room, reach, top + _HEAD, step)]
        top += _HEAD + step * len(lines) + _GAP
    return Chart(
        spec={},
        svg=_picture(COLUMN, top - _GAP, drawn),
        narrow=_narrow(shown),
        title=title,
        description="; ".join(f"{bar.name}: {bar.text}" for bar in every),
        notes=tuple(notes),
        rows=tuple(
            {"panel": panel.title, "name": bar.name, "value": read.value, "low": read.low, "high": read.high}
            | {"text": bar.text}
            for panel in shown
            for bar, read in ((bar, bar.reading) for bar in panel.bars)
        ),
    )


def _picture(width: float, height: float, parts: Sequence[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg {size} font-family="{html.escape(FONT)}" font-size="12">{"".join(parts)}</svg>'


def _reach(shown: Sequence[Panel], room: float) -> float:
    """How long a bar of a whole scale may be, so that every bar with its text fits into the room."""
    fits = [room]
    for panel in shown:
        low, span = _scale(panel)
        for bar in panel.bars:
            read = bar.reading
            end = max(0.0, read.value, read.high if read.high is not None else read.value)
            fits.append((room - _AFTER - text_width(bar.text)) / max((end - low) / span, 0.01))
    return max(_LEAST_REACH, min(fits))


def _scale(panel: Panel) -> tuple[float, float]:
    """Where the scale of a panel begins, and how much it spans."""
    reads = [bar.reading for bar in panel.bars]
    ends = [end for read in reads for end in (read.value, read.low, read.high) if end is not None]
    ends += [0.0, panel.end or 0.0]
    return min(ends), (max(ends) - min(ends)) or 1.0


def _narrow(shown: Sequence[Panel]) -> str:
    """The same for a phone: each bar below its name and its text."""
    drawn: list[str] = []
    top = 0.0
    for panel in shown:
        low, span = _scale(panel)
        zero = -low / span * PHONE
        drawn += _heads(panel, 0, top)
        top += _HEAD
        for bar in panel.bars:
            for words, colour in ((bar.name, INK), (bar.text, MUTED)):
                for line in _lines(words, PHONE):
                    top += _LINE_HEIGHT + 2
                    drawn.append(_text(0, top, line, colour=colour))
            x, end = sorted((zero, (bar.reading.value - low) / span * PHONE))
            drawn.append(f'<rect x="0" y="{top + 7:.1f}" width="{PHONE}" height="7" rx="2" fill="{GRID}"/>')
            drawn.append(f'<rect x="{x:.1f}" y="{top + 7:.1f}" width="{end - x:.1f}" height="7" rx="2" '
                         f'fill="{bar.colour}"/>')  # fmt: skip
            top += 24
        top += _GAP
    return _picture(PHONE, top - _GAP, drawn)


def _heads(panel: Panel, left: float, top: float) -> Iterator[str]:
    yield _text(left, top + 14, panel.title, 'font-size="13" font-weight="600"')
    if panel.subtitle:
        yield _text(left, top + 31, panel.subtitle, colour=MUTED)


def _drawn(
    panel: Panel, lines: Sequence[Sequence[str]], room: float, reach: float, top: float, step: float
) -> Iterator[str]:
    """Every bar with its name before it, and its interval and its text behind it."""
    shown = panel.bars
    low, span = _scale(panel)

    def across(value: float) -> float:
        return room + _BEFORE + (value - low) / span * reach

    zero = across(0.0)
    for place, (bar, name) in enumerate(zip(shown, lines, strict=True)):
        middle, reading = top + step * (place + 0.5), bar.reading
        first = middle + 4 - _LINE_HEIGHT / 2 * (len(name) - 1)
        for number, line in enumerate(name):
            yield _text(room, first + _LINE_HEIGHT * number, line, 'text-anchor="end"')
        x, end = sorted((zero, across(reading.value)))
        size = f'width="{end - x:.1f}" height="{_THICKNESS}"'
        yield f'<rect x="{x:.1f}" y="{middle - _THICKNESS / 2:.1f}" {size} rx="2" fill="{bar.colour}"/>'
        if reading.low is not None and reading.high is not None:
            x, end = across(reading.low), max(end, across(reading.high))
            tick = f"{middle - 4.5:.1f}v9"
            path = f"M{x:.1f} {middle:.1f}H{across(reading.high):.1f}M{x:.1f} {tick}M{across(reading.high):.1f} {tick}"
            yield f'<path d="{path}" stroke="{INK}" stroke-width="1.5" fill="none"/>'
        yield _text(end + _AFTER, middle + 4, bar.text)
    yield f'<path d="M{zero:.1f} {top:.1f}v{step * len(shown):.1f}" stroke="{MUTED}"/>'


def _text(x: float, y: float, words: str, style: str = "", colour: str = INK) -> str:
    """Each says its colour: pages in the dark look for it."""
    where = f'x="{x:.1f}" y="{y:.1f}" fill="{colour}"'
    return f"<text {where}{f' {style}' if style else ''}>{html.escape(clean(words))}</text>"


def _lines(name: str, room: float) -> list[str]:
    """A name on as many lines as it needs: what tells a long one from the others is often at its end."""
    if text_width(name) <= room:
        return [name]
    letters = int(room * len(name) / text_width(name))
    return wrap(name, letters, break_on_hyphens=False, max_lines=_LINES, placeholder=" …") or [name]
