"""How charts look: their colours, their font, and what all of them have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

# Each role has a colour of its own, so that a style sheet can give it another one for a dark page.
INK, MUTED, GRID, ACCENT, WARNING, PAPER = "#1c2430", "#5b6675", "#e3e7ec", "#2a66c8", "#b45f06", "#ffffff"
FONT = "-apple-system, BlinkMacSystemFont, Segoe UI, Roboto, Helvetica Neue, Arial, Noto Sans, sans-serif"

Spec = dict[str, Any]
_Line = TypeVar("_Line")

CONFIG: Spec = {
    "background": None,
    "padding": {"left": 0, "top": 5, "right": 5, "bottom": 5},
    "font": FONT,
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "gridColor": GRID,
        "domainColor": GRID,
        "tickColor": GRID,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    },
    "axisY": {"minExtent": 50, "titleAnchor": "middle"},  # so that the charts of a page begin at one place
    "title": {"color": INK, "fontSize": 13, "fontWeight": 600, "subtitleColor": MUTED, "subtitleFontSize": 12},
}

# The style sheet gives each of them another shade on a dark page.
LINES = (ACCENT, "#b4451f", "#1d7a4a", "#7b3fb5", "#8a6d00", "#0d7f8c", "#b02a6b", "#6b4a2f")
COLUMN = 1040  # pixels of a page's column
PHONE = 354  # the same on a phone
WIDTH = 960  # of the plane of a chart with lines, next to which its axis stands

LEGEND: Spec = {
    "title": None,
    "orient": "bottom",
    "direction": "horizontal",
    "labelColor": INK,
    "labelFontSize": 12,
    "labelLimit": 230,
    "symbolType": "circle",
    "symbolStrokeWidth": 0,
    "symbolSize": 70,
    "symbolOpacity": 1,
    "columnPadding": 40,
    "offset": 10,
}


def parted(lines: Sequence[_Line]) -> list[tuple[Sequence[_Line], str]]:
    """Lines for several charts, in each as many as there are colours; with the words that tell the parts apart."""
    parts = [lines[start : start + len(LINES)] for start in range(0, len(lines), len(LINES))]
    return [(part, f" ({place} of {len(parts)})" * (len(parts) > 1)) for place, part in enumerate(parts, start=1)]


# Pixels that a letter takes at most in the fonts of a page, where that is not the width of a small letter.
_LETTER, _CAPITAL, _UNKNOWN = 6.9, 9.2, 13.0
_LETTERS = dict.fromkeys("fijlrt.,:;|!'()[]/- ", 4.7) | dict.fromkeys("mMwW%@…", 11.6) | dict.fromkeys("·–µ", 7.2)
_LETTERS |= dict.fromkeys("0123456789", 7.7) | dict.fromkeys("<>=+±×", 10.1)


def text_width(words: str) -> float:
    """Pixels that words take at most at the size of charts."""
    return sum(
        _LETTERS.get(letter) or (_UNKNOWN if not letter.isascii() else _CAPITAL if letter.isupper() else _LETTER)
        for letter in words
    )
