"""What a document draws, as one picture."""

from __future__ import annotations

from paceline.core.errors import InputError
from paceline.report.charts import draw_png, stacked
from paceline.report.document import Document


def render(document: Document, *, every: bool = False) -> bytes:
    """The first chart of a document, or `every` one below the other."""
    charts = document.charts
    if not charts:
        raise InputError("nothing-to-draw", "there is nothing to draw: no case has the figures for a chart")
    return draw_png(stacked(charts if every else charts[:1]))
