"""Bars of served models: where the time of a request went, and which batches formed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

from paceline.analysis import serving
from paceline.analysis.summary import Row
from paceline.core.subject import REQUEST_STAGES
from paceline.report.charts import (
    ACCENT,
    LINES,
    MUTED,
    Chart,
    Spec,
    coloured,
    framed,
    names_axis,
    words_beside,
)
from paceline.report.numbers import axis_scale, show_value
from paceline.report.numbers import share as share_of
from paceline.report.text import one_line, told_apart

PANEL, PANELS_ABREAST, MOST_PANELS = 204, 3, 12

# Waiting is warm, computing is the accent, the client's own part is grey.
_STAGE_COLOURS = dict(
    zip(
        REQUEST_STAGES,
        (LINES[7], MUTED, LINES[5], LINES[3], LINES[6], LINES[1], LINES[4], ACCENT, LINES[2], LINES[7]),
        strict=True,
    )
)


def stages(rows: Sequence[Row]) -> Chart | None:
    """The mean time of a request, cut into its parts."""
    told = [(row, found) for row in rows if (found := serving.stages(row))]
    if not told:
        return None
    shared, names = _named([row for row, _ in told])
    totals = [sum(figure.value for figure in found.values()) for _, found in told]
    scale, unit = axis_scale("s", max(totals))
    kinds = sorted({kind for _, found in told for kind in found}, key=_stage_place)
    values: list[Spec] = [
        {"case": name, "stage": stage, "place": _stage_place(stage)[0], "value": figure.value / scale}
        for name, (_, found) in zip(names, told, strict=True)
        for stage, figure in found.items()
    ]
    ends = [{"case": name, "total": total / scale, "text": show_value(total, "s")}
            for name, total in zip(names, totals, strict=True)]  # fmt: skip
    y = names_axis()
    colours = [_STAGE_COLOURS.get(kind, LINES[7]) for kind in kinds]
    title = "Where the time of a request goes"
    return Chart(
        spec=framed(title, "; ".join(word for word in (shared, f"mean, {unit}") if word), {
            "width": 540,
            "height": {"step": 28},
            "layer": [
                {
                    "data": {"values": values},
                    "mark": {"type": "bar", "height": 16},
                    "encoding": {
                        "y": y,
                        "x": {"field": "value", "type": "quantitative", "stack": "zero", "axis": None},
                        "order": {"field": "place"},
                        "color": coloured(kinds, colours, field="stage"),
                    },
                },
                {"data": {"values": ends}}
                | words_beside(y, {"field": "total", "type": "quantitative", "axis": None}),
            ],
        }),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(
            f"{name}: " + ", ".join(f"{stage} {show_value(figure.value, 's')}" for stage, figure in found.items())
            for name, (_, found) in zip(names, told, strict=True)
        ),
    )  # fmt: skip


def batches(rows: Sequence[Row]) -> Chart | None:
    """The sizes of the batches that formed, a panel for each case; where each has one size, there is nothing to see."""
    told = [(row, found) for row in rows if (found := serving.batches(row))]
    if not any(len(found) > 1 for _, found in told):
        return None
    shared, names = _named([row for row, _ in told])
    largest = max(size for _, found in told for size in found)
    highest = max(share for _, found in told for share in found.values())
    panels = [
        _panel(name, found, largest, highest, first=place % PANELS_ABREAST == 0)
        for place, (name, (_, found)) in enumerate(zip(names[:MOST_PANELS], told, strict=False))
    ]
    left = len(told) - len(panels)
    title = "Batches that formed"
    return Chart(
        spec=framed(title, "; ".join(word for word in (shared, "part of the batches, %, by their size") if word), {
            "concat": panels, "columns": PANELS_ABREAST, "spacing": {"column": 24, "row": 18},
        }),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(
            f"{name}: " + ", ".join(f"{share_of(share / 100)} of {size}" for size, share in found.items())
            for name, (_, found) in zip(names, told, strict=True)
        ),
        notes=(f"{left} more {'case has' if left == 1 else 'cases have'} theirs below, in full.",) if left > 0 else (),
    )  # fmt: skip


def _panel(name: str, found: Mapping[int, float], largest: int, highest: float, *, first: bool) -> Spec:
    return {
        "title": {
            "text": wrap(name, 32)[:2] or "",
            "anchor": "start",
            "fontSize": 12,
            "fontWeight": "normal",
            "limit": PANEL,
            "offset": 6,
        },
        "width": PANEL,
        "height": 84,
        "data": {"values": [{"from": size - 0.42, "to": size + 0.42, "share": share} for size, share in found.items()]},
        "mark": {"type": "rect", "color": ACCENT},
        "encoding": {
            "x": {
                "field": "from",
                "type": "quantitative",
                "scale": {"domain": [0.4, largest + 0.6], "nice": False},
                "axis": {"title": None, "grid": False, "tickMinStep": 1, "tickCount": 8, "format": "d"},
            },
            "x2": {"field": "to"},
            "y": {
                "field": "share",
                "type": "quantitative",
                "scale": {
                    "domain": [0, 1.15 * highest],
                    "nice": False,
                },  # room, so that no label stands as high as the title
                "axis": {"title": None, "tickCount": 3, "labels": first, "ticks": first, "domain": False},
            },
            "y2": {"datum": 0},
        },
    }


def _named(rows: Sequence[Row]) -> tuple[str, list[str]]:
    """What stands beside bars: the own words of each case, or nothing where there is only one."""
    shared, names = told_apart([one_line(row.label) for row in rows])
    return (shared, [""]) if len(names) == 1 else (shared, names)


def _stage_place(stage: str) -> tuple[int, str]:
    return (REQUEST_STAGES.index(stage), "") if stage in REQUEST_STAGES else (len(REQUEST_STAGES), stage)
