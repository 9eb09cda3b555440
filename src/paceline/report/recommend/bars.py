"""Bars that answer a question: one for each row, best first, with its interval and its value in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.reading import Reading
from paceline.report.charts import ACCENT, DOUBT, MUTED, Chart, Spec, framed, interval_bars, names_axis

WIDTH = 440
LABEL_LIMIT = 300


@dataclass(frozen=True)
class Bar:
    """One bar."""

    name: str
    reading: Reading
    text: str
    is_marked: bool = False
    is_doubtful: bool = False


def bars(title: str, subtitle: str, shown: Sequence[Bar], *, mark: str = "") -> Chart | None:
    """Horizontal bars; the marked one says so in words, doubtful ones have another colour and say so too."""
    if not shown:
        return None
    names = _unique([bar.name for bar in shown])
    values = [
        {
            "name": name,
            "value": bar.reading.value,
            "low": bar.reading.low if bar.reading.low is not None else bar.reading.value,
            "high": bar.reading.high if bar.reading.high is not None else bar.reading.value,
            "text": ", ".join(part for part in (bar.text, mark if bar.is_marked else "") if part),
            "colour": DOUBT if bar.is_doubtful else ACCENT if bar.is_marked or not mark else MUTED,
        }
        for name, bar in zip(names, shown, strict=True)
    ]
    colour: Spec = {"field": "colour", "type": "nominal", "scale": None}
    layers = interval_bars(names_axis("name", labelLimit=LABEL_LIMIT), colour)
    spec = {"data": {"values": values}, "width": WIDTH, "height": {"step": 30}, "layer": layers}
    return Chart(
        spec=framed(title, subtitle, spec),
        title=title,
        description="; ".join(f"{value['name']}: {value['text']}" for value in values),
    )


def _unique(names: Sequence[str]) -> list[str]:
    """Bars of the same name would be one: the later ones get a number."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return made
