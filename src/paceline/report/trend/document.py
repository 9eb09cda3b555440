"""The history of a metric as a page for people, and as JSON and CSV for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from paceline.analysis.trend.series import History, Shift, TrendPoint, TrendSeries
from paceline.analysis.trend.steps import FEWEST
from paceline.core.metric import Better
from paceline.report.charts import ACCENT, INK, MUTED, Chart, Spec, framed, stacked
from paceline.report.document import Block, Column, Document, Lines, Section, Table, Tone
from paceline.report.export.csv import harmless
from paceline.report.numbers import axis_scale, half_width, show_value
from paceline.report.text import heading, humanize, one_line, when
from paceline.report.trend.words import (
    BARS,
    PLAIN_BARS,
    about,
    answer,
    block_answer,
    commit_of,
    lines_of,
    name_of,
    noise_of,
    short_change,
    sparkline,
    state_of,
    title_of,
    verdict_word,
)

WIDTH = 880
WORSE, BETTER = "#b4451f", "#1d7a4a"  # the style sheet has both for a dark page
MOST_TICKS = 7
_COLOURS = {"regression": WORSE, "improvement": BETTER, "change": INK}


def chart_of(series: TrendSeries) -> Chart:
    """Runs from left to right, the same distance apart: what changed lies between two runs, not at a time."""
    scale, label = axis_scale(series.metric.unit, series.levels[-1])
    values = _values(series, scale)
    marks = _marks(series)
    spanned = [value[key] for value in values for key in ("value", "low", "high") if value[key] is not None]
    low, high = min(spanned), max(spanned)
    rows = 1 + max((mark["row"] for mark in marks), default=-1)
    room = (0.08 + 0.14 * rows) * (high - low)
    bottom, top = low - 0.06 * (high - low), high + (room or 0.05 * abs(high) or 1.0)
    x: Spec = {
        "field": "place",
        "type": "quantitative",
        "scale": {"domain": [0.3, len(values) + 0.7], "nice": False},
        "axis": _dates(series),
    }
    y: Spec = {
        "field": "value",
        "type": "quantitative",
        "scale": {"domain": [bottom, top], "nice": False, "zero": False},
        "axis": {"title": humanize(series.metric.name) + (f", {label}" if label else ""), "tickCount": 5},
    }
    for mark in marks:
        mark |= {"top": top - (0.07 + 0.085 * mark["row"]) * (top - bottom), "bottom": bottom}
    better = f"{series.metric.better.value} is better" if series.metric.better is not Better.NEITHER else ""
    layers = [*_points(x, y, len(values)), *_changes(marks, x, y)]
    notes = ["An empty circle is an outlier, which no level follows."] if any(series.outliers) else []
    return Chart(
        spec=framed(
            name_of(series),
            "; ".join(part for part in (one_line(series.machine), better) if part),
            {"data": {"values": values}, "width": WIDTH, "height": 230, "layer": layers},
        ),
        title=f"{heading(humanize(series.metric.name))} over runs: {name_of(series)}, {one_line(series.machine)}",
        description=f"{block_answer(series)}; {len(values)} runs, now {show_value(series.value, series.metric.unit)}",
        notes=tuple(notes),
    )


def _values(series: TrendSeries, scale: float) -> list[Spec]:
    found: list[Spec] = []
    steps = [shift.change.at for shift in series.shifts if shift.change.kind == "step"]
    for place, (point, level) in enumerate(zip(series.points, series.levels, strict=True)):
        interval = point.interval
        found.append(
            {
                "place": place + 1,
                "run": point.run_id,
                "started": point.started_at.isoformat(),
                "commit": commit_of(point),
                "value": point.value / scale,
                "low": interval.low / scale if interval else None,
                "high": interval.high / scale if interval else None,
                "level": level / scale,
                "segment": sum(step <= place for step in steps),  # a drift does not interrupt the line
                "outlier": series.outliers[place],
            }
        )
    return found


def _marks(series: TrendSeries) -> list[Spec]:
    found: list[Spec] = []
    taken: list[float] = []  # how far the words of each row reach to the right
    for shift in series.shifts:
        place, count = shift.change.at + 0.5, len(series.points)
        drift = " drift" if shift.change.kind == "drift" else ""
        text = f"{verdict_word(shift)}{drift} {short_change(shift)}".replace("-", "−")
        wide, here = 8.0 * len(text) + 24.0, WIDTH * place / count
        flipped = here + wide > WIDTH  # near the right edge the words stand on the other side
        left, right = (here - wide, here + 12.0) if flipped else (here - 12.0, here + wide)
        row = next((place for place, end in enumerate(taken) if end < left), len(taken))
        taken[row : row + 1] = [right]
        found.append(
            {
                "place": place,
                "text": text,
                "verdict": shift.verdict,
                "rising": shift.change.difference > 0,
                "row": row,
                "flipped": flipped,
            }
        )
    return found


def _dates(series: TrendSeries) -> Spec:
    count = len(series.points)
    step = max(1, -(-count // MOST_TICKS))
    places = list(range(1, count + 1, step))
    days = {place: series.points[place - 1].started_at.strftime("%Y-%m-%d") for place in places}
    words = {str(place): f"{place}" for place in places} | {
        str(place): f"{place}  {day}" for place, day in days.items()
    }
    return {
        "title": "run, and its date",
        "values": places,
        "labelExpr": f"split({json.dumps(words)}[datum.value], '  ')",
        "grid": False,
        "labelFlush": False,
        "tickMinStep": 1,
    }


def _points(x: Spec, y: Spec, count: int) -> list[Spec]:
    size = 34 if count <= 60 else 20 if count <= 200 else 10
    return [
        {
            "mark": {"type": "rule", "color": ACCENT, "opacity": 0.45, "strokeWidth": 1.5},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
            "transform": [{"filter": "datum.low !== null"}],
        },
        {
            "mark": {"type": "line", "color": MUTED, "opacity": 0.35, "strokeWidth": 1},
            "encoding": {"x": x, "y": y},
            "transform": [{"filter": "!datum.outlier"}],
        },
        {
            "mark": {"type": "line", "color": INK, "strokeWidth": 2.5, "opacity": 0.85},
            "encoding": {"x": x, "y": {**y, "field": "level"}, "detail": {"field": "segment"}},
        },
        {
            "mark": {"type": "point", "filled": True, "color": ACCENT, "size": size, "opacity": 1},
            "encoding": {"x": x, "y": y},
            "transform": [{"filter": "!datum.outlier"}],
        },
        {
            "mark": {"type": "point", "filled": False, "color": ACCENT, "size": size + 16, "strokeWidth": 1.5},
            "encoding": {"x": x, "y": y},
            "transform": [{"filter": "datum.outlier"}],
        },
    ]


def _changes(marks: Sequence[Spec], x: Spec, y: Spec) -> list[Spec]:
    """A dashed line before the first run of the new level, a triangle that points where it went, and words."""
    if not marks:
        return []
    layers: list[Spec] = []
    for mark in marks:
        colour = _COLOURS[mark["verdict"]]
        here: Spec = {"data": {"values": [mark]}}
        side: Spec = {"align": "right", "dx": -10} if mark["flipped"] else {"align": "left", "dx": 10}
        top = {**y, "field": "top"}
        layers += [
            {**here, "mark": {"type": "rule", "color": colour, "strokeDash": [5, 3], "strokeWidth": 1.5},
             "encoding": {"x": x, "y": top, "y2": {"field": "bottom"}}},
            {**here, "mark": {"type": "point", "shape": "triangle-up" if mark["rising"] else "triangle-down",
                              "filled": True, "color": colour, "size": 110, "opacity": 1},
             "encoding": {"x": x, "y": top}},
            {**here, "mark": {"type": "text", "color": colour, "fontSize": 13, "fontWeight": 600,
                              "baseline": "middle", **side},
             "encoding": {"x": x, "y": top, "text": {"field": "text", "type": "nominal"}}},
        ]  # fmt: skip
    return layers


DRAWN = 24  # series at most; more charts than that nobody looks at
AROUND = 3  # runs on either side of a change that a page lists
COLUMNS = (
    "metric", "unit", "case", "key", "benchmark", "target", "at", "machine", "place", "run", "started_at", "value",
    "low", "high", "confidence", "level", "segment", "change", "outlier", "commit", "dirty", "environment", "warnings",
)  # fmt: skip


def text_document(history: History, *, ascii_only: bool = False) -> Document:
    """For a terminal: the table of all series with a line of text for each, then what changed."""
    bars = PLAIN_BARS if ascii_only else BARS
    changed = [series for series in history.series if series.shifts]
    blocks = [_all_series(history, bars)]
    blocks += [Block(block_answer(series), about(series), tuple(_what_changed(series))) for series in changed]
    return Document(title=_title(history), blocks=(*blocks, _basis(history)), answer=answer(history))


def document(history: History) -> Document:
    """For a browser: the sentence, the charts of what changed, the table, the charts of what did not, the warning."""
    changed = [series for series in history.series if series.shifts][:DRAWN]
    steady = [series for series in history.series if not series.shifts][: DRAWN - len(changed)]
    blocks = [
        Block(
            block_answer(series),
            about(series),
            (Section(items=(chart_of(series),)), *_what_changed(series), _runs_around(series)),
        )
        for series in changed
    ]
    blocks.append(_all_series(history, ""))
    blocks += [Block(block_answer(series), about(series), (Section(items=(chart_of(series),)),)) for series in steady]
    return Document(title=_title(history), blocks=(*blocks, _basis(history)), answer=answer(history))


def picture(history: History) -> Chart:
    """All charts as one, what got worse first."""
    ordered = sorted(history.series, key=lambda series: (not series.is_worse, not series.shifts))
    return stacked([chart_of(series) for series in ordered[:DRAWN]])


def to_json(history: History) -> str:
    """Everything, for programs."""
    made = {
        "metric": history.metric,
        "runs": history.runs,
        "seen_once": history.seen_once,
        "worse": len(history.worse),
        "series": [_series(series) for series in history.series],
    }
    return json.dumps(made, indent=2, default=str) + "\n"


def to_csv(history: History) -> str:
    """One row for each run of each series."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for series in history.series:
        begun = {shift.change.at: shift for shift in series.shifts}
        segment = 0
        for place, point in enumerate(series.points):
            segment += place in begun
            change = begun[place].verdict if place in begun else ""
            row = _about_series(series) | _point(series, place, point) | {"segment": segment, "change": change}
            row |= {"place": place + 1, "warnings": ";".join(point.warnings)}
            row["at"] = ";".join(f"{key}={value}" for key, value in series.at.items())
            writer.writerow({key: harmless(row.get(key, "")) for key in COLUMNS})
    return file.getvalue()


def _title(history: History) -> str:
    return f"{humanize(history.metric)} over {history.runs} runs"


def _all_series(history: History, bars: str) -> Block:
    """A table for each machine; `bars` are the signs of a line of text, if there is to be one."""
    several = len(history.machines) > 1
    tables = [
        Section(
            title=one_line(machine) if several else "",
            items=(Table(_columns([series for series in history.series if series.machine == machine], bars)),),
        )
        for machine in history.machines
    ]
    count = len(history.series)
    told = f"{count} series" if count > 1 else "One series"
    apart = "Each machine has series of its own: values of different ones are no history"
    return Block(
        f"{told} of {humanize(history.metric)}", apart if several else one_line(history.machines[0]), tuple(tables)
    )


def _columns(series: Sequence[TrendSeries], bars: str) -> tuple[Column, ...]:
    columns = [
        Column.of("Case", tuple(name_of(one) for one in series), numeric=False),
        Column.of("Runs", tuple(str(len(one.points)) for one in series)),
        Column.of("Noise", tuple(noise_of(one) for one in series), widest=True),
        Column.of("Now", tuple(show_value(one.value, one.metric.unit) for one in series), leads=True),
        Column.of("State", tuple(state_of(one) for one in series), numeric=False),
    ]
    if bars:
        columns.insert(2, Column.of("Oldest to newest", tuple(sparkline(one, bars) for one in series), numeric=False))
    return tuple(columns)


def _what_changed(series: TrendSeries) -> list[Section]:
    """The changes, the latest first."""
    return [
        Section(title_of(series, shift), (Lines(tuple(lines_of(series, shift))),)) for shift in reversed(series.shifts)
    ]


def _runs_around(series: TrendSeries) -> Section:
    places = sorted({place for shift in series.shifts
                     for place in range(shift.change.at - AROUND, shift.change.at + AROUND)
                     if 0 <= place < len(series.points)})  # fmt: skip
    points = [series.points[place] for place in places]
    unit = series.metric.unit
    columns = (
        Column.of("Run", tuple(point.run_id for point in points), numeric=False),
        Column.of("Started", tuple(when(point.started_at) for point in points), numeric=False),
        Column.of("Value", tuple(show_value(point.value, unit) for point in points), leads=True),
        Column.of("±", tuple(_relative(point) for point in points)),
        Column.of("Level", tuple(show_value(series.levels[place], unit) for place in places)),
        Column.of("Commit", tuple(commit_of(point) for point in points), numeric=False),
        Column.of("Environment", tuple(point.fingerprint for point in points), numeric=False),
        Column.of("Warnings", tuple(", ".join(point.warnings) for point in points), numeric=False),
    )
    return Section(
        "Runs around each change", (Table(tuple(one for one in columns if any(cell.text for cell in one.cells))),)
    )


def _relative(point: TrendPoint) -> str:
    return half_width(point.interval.relative(point.value)).removeprefix("± ") if point.interval else ""


def _basis(history: History) -> Block:
    """How far to trust it, and what it rests on."""
    warnings = []
    short = [series for series in history.series if not series.is_long_enough]
    if short:
        warnings.append(
            f"{len(short)} of {len(history.series)} series have fewer than {FEWEST} runs: no change is told"
        )
    if history.seen_once:
        warnings.append(f"{history.seen_once} measured by one run only on their machine are left out")
    outliers = sum(sum(series.outliers) for series in history.series)
    if outliers:
        lie = "1 value lies" if outliers == 1 else f"{outliers} values lie"
        warnings.append(f"{lie} more than three deviations of the noise from their level; none is a step")
    uncertain = sum(bool(point.warnings) for series in history.series for point in series.points)
    if uncertain:
        warnings.append(f"{uncertain} values came with warnings of their own: see the reports of their runs")
    dirty = {point.run_id for series in history.series for point in series.points if point.dirty}
    if dirty:
        warnings.append(
            f"{len(dirty)} runs had uncommitted changes (+ after the commit, which does not name all their code)"
        )
    rests = (
        "A change of level needs two runs at the end of a series and three elsewhere; in series without a change, "
        "fewer than 5 % of series show one by chance. Correlated noise in fewer than 40 runs shows more."
    )
    kinds = {point.fingerprint for series in history.series for point in series.points}
    told = f"{len(kinds)} different environments" if len(kinds) > 1 else "one environment"
    rests_on = (rests, f"Hardware, software and variables: {told}; factors with 95 % confidence")
    return Block(
        "How far to trust it",
        f"{history.runs} runs",
        (
            Section(items=(Lines(tuple(warnings)),), tone=Tone.WARNING),
            Section(items=(Lines(rests_on),), tone=Tone.BASIS),
        ),
    )


def _series(series: TrendSeries) -> dict[str, Any]:
    about_it = _about_series(series) | {"at": series.at, "parameters": series.case.parameters}
    return about_it | {
        "better": series.metric.better.value,
        "ranks": series.case.ranks,
        "noise": series.noise,
        "level": series.value,
        "enough_runs": series.is_long_enough,
        "is_worse": series.is_worse,
        "changes": [_shift(series, shift) for shift in series.shifts],
        "points": [
            _point(series, place, point) | {"warnings": list(point.warnings), "repetitions": point.repetitions}
            for place, point in enumerate(series.points)
        ],
    }


def _about_series(series: TrendSeries) -> dict[str, Any]:
    return {
        "metric": series.metric.name,
        "unit": series.metric.unit,
        "case": series.label,
        "key": series.case.key,
        "benchmark": series.case.benchmark,
        "target": series.case.target,
        "machine": series.machine,
    }


def _point(series: TrendSeries, place: int, point: TrendPoint) -> dict[str, Any]:
    interval = point.interval
    return {
        "run": point.run_id,
        "started_at": point.started_at.isoformat(),
        "value": point.value,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "confidence": interval.confidence if interval else None,
        "level": series.levels[place],
        "outlier": series.outliers[place],
        "commit": point.commit,
        "dirty": point.dirty,
        "environment": point.fingerprint,
    }


def _shift(series: TrendSeries, shift: Shift) -> dict[str, Any]:
    points, change = series.points, shift.change
    interval = shift.interval
    return {
        "kind": change.kind,
        "verdict": shift.verdict,
        "factor": shift.factor,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "confidence": change.interval.confidence,
        "from": series.levels[change.at - 1],
        "to": series.levels[change.until],
        "first_run": _run(shift.first),
        "run_before": _run(shift.last_before),
        "arrived": _run(points[change.until]),
        "earliest_run": points[change.earliest].run_id,
        "latest_run": points[change.latest].run_id,
        "changed": [{"name": part.name, "before": part.before, "after": part.after} for part in shift.changed],
    }


def _run(point: TrendPoint) -> dict[str, Any]:
    return {"run": point.run_id, "started_at": point.started_at.isoformat(), "commit": point.commit}
