"""What a document draws first, as a picture."""

from __future__ import annotations

from paceline.core.errors import InputError
from paceline.report.charts import draw_png
from paceline.report.document import Document


def render(document: Document) -> bytes:
    """The first chart of a document."""
    if not document.charts:
        raise InputError("nothing-to-draw", "there is nothing to draw: no case has the figures for a chart")
    return draw_png(document.charts[0])
