"""The history of a metric in words and as a page for people, and as JSON and CSV for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.analysis.trend.series import History, Shift, TrendPoint, TrendSeries
from paceline.analysis.trend.steps import FEWEST
from paceline.core.metric import Better
from paceline.core.quantity import show_interval
from paceline.report.charts import ACCENT, INK, MUTED, TEXT, Chart, Spec, framed, layer, quantity, stacked
from paceline.report.document import Block, Cell, Column, Document, Lines, Section, Table, Tone
from paceline.report.export import csv
from paceline.report.run.columns import interval_column
from paceline.report.text import axis_scale, heading, humanize, one_line, percent, share, show_at, show_value, when

WIDTH = 880
WORSE, BETTER = "#b4451f", "#1d7a4a"  # the style sheet has both for a dark page
MOST_TICKS = 7
_VERDICTS = {"regression": "worse", "improvement": "better", "change": "changed"}
_COLOURS = {"regression": WORSE, "improvement": BETTER, "change": INK}
DRAWN = 24  # series at most; more charts than that nobody looks at
AROUND = 3  # runs on either side of a change that a page lists
BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-'\""  # each higher on its line than the one before
MOST_DIFFERENCES = 6
COMMIT_LENGTH = 10
_QUIET = 8.0  # deviations of the noise that a line of text spans at least
_FROM_TIMES = 2.0  # factors from here on read better than percentages
COLUMNS = (
    "metric", "unit", "case", "key", "benchmark", "target", "at", "machine", "place", "run", "started_at", "value",
    "low", "high", "confidence", "level", "segment", "change", "outlier", "commit", "dirty", "environment", "warnings",
)  # fmt: skip


def name_of(series: TrendSeries) -> str:
    """The case, and the point of its sweep."""
    return one_line(f"{series.label} at {show_at(series.at)}" if series.at else series.label)


def answer(history: History) -> str:
    """The sentence to read first."""
    metric, count, worse = humanize(history.metric), len(history.series), history.worse
    what = f"{count} series of {_title(history)}" if count > 1 else _title(history)
    if worse:
        most = max(worse, key=lambda series: abs(math.log(abs(loss_of(series)) or 1.0)))
        shift = _since(most)
        commit = f" (commit {commit_of(shift.first)})" if shift.first.commit else ""
        detail = f"{name_of(most)}: {metric} {_against_best(most)} since run {shift.first.run_id}{commit}."
        if count == 1:
            return detail
        return f"{len(worse)} of {what} got worse{'; the most: ' if len(worse) > 1 else ': '}{detail}"
    if not any(series.is_long_enough for series in history.series):
        return f"Too few runs to detect a change of {metric}: {FEWEST} of the same case on the same machine are needed."
    verdicts = [series.shifts[-1].verdict for series in history.series if series.shifts]
    words = {"improvement": "improved", "change": "changed"}
    parts = [f"{verdicts.count(verdict)} {word}" for verdict, word in words.items() if verdict in verdicts]
    return f"Nothing got worse in {what}{': ' if parts else ''}{', '.join(parts)}."


def loss_of(series: TrendSeries) -> float:
    """The level now over the best one before; the difference where values are not all above zero."""
    best = series.levels[series.best_before or 0]
    return series.level / best if is_ratio(series) else series.level - best


def _since(series: TrendSeries) -> Shift:
    """The first change after the best level, or the last change of a series that is not worse."""
    best = series.best_before
    return next((shift for shift in series.shifts if best is not None and shift.change.at > best), series.shifts[-1])


def _against_best(series: TrendSeries) -> str:
    """How much worse than its best level: the change itself where it is the only one since."""
    if _since(series) is series.shifts[-1]:
        return change_of(series.shifts[-1])
    loss = loss_of(series)
    steps = sum(shift.change.at > (series.best_before or 0) for shift in series.shifts)
    if not is_ratio(series):
        return f"{'higher' if loss > 0 else 'lower'} by {abs(loss):.3g} than its best level, over {steps} changes"
    way = "higher" if loss > 1.0 else "lower"
    return f"{percent(abs(loss - 1.0))} {way} than its best level, over {steps} changes"


def block_answer(series: TrendSeries) -> str:
    """One series in a sentence."""
    since = f" since run {_since(series).first.run_id}" if series.shifts else ""
    return f"{name_of(series)}: {state_of(series)}{since}"


def state_of(series: TrendSeries) -> str:
    """How it stands, in a word or two."""
    if not series.is_long_enough:
        return f"too few runs (of {FEWEST})"
    if not series.shifts:
        return f"steady, in two modes ({modes_of(series)})" if series.modes else "steady"
    last = series.shifts[-1]
    if series.is_worse and _since(series) is not last:
        loss = loss_of(series)
        size = f"{loss - 1.0:+.1%}".replace("%", " %") if is_ratio(series) else f"{loss:+.3g}"
        return f"worse, {size} from its best"
    if last.verdict == "regression" and not series.is_worse:
        return f"no worse than its best, last {short_change(last)}"
    return f"{_VERDICTS[last.verdict]}, {short_change(last)}"


def modes_of(series: TrendSeries) -> str:
    """The two modes: `80 % of runs near 1 ms, 20 % near 1.1 ms`."""
    modes = series.modes
    assert modes is not None
    places = (
        [series.level * math.exp(mode) for mode in (modes.usual, modes.other)]
        if is_ratio(series)
        else [series.level + mode for mode in (modes.usual, modes.other)]
    )
    usual, other = (show_value(place, series.metric.unit) for place in places)
    return f"{percent(1.0 - modes.share)} of runs near {usual}, {percent(modes.share)} near {other}"


def change_of(shift: Shift) -> str:
    """The change with its interval: `4.9 % higher (4.8 % to 5.1 %)`."""
    rising = shift.change.difference > 0
    way = "higher" if rising else "lower"
    if shift.factor is None or shift.interval is None:
        return f"{way} by {abs(shift.change.difference):.3g}"
    ends = (shift.interval.low, shift.interval.high)
    if shift.factor >= _FROM_TIMES:
        return f"{shift.factor:.3g} times as high ({ends[0]:.3g} to {ends[1]:.3g})"
    low, high = sorted(end - 1.0 if rising else 1.0 - end for end in ends)
    return f"{percent(abs(shift.factor - 1))} {way} ({percent(low)} to {percent(high)})"


def short_change(shift: Shift) -> str:
    """The change alone: `+4.9 %`."""
    sign = "+" if shift.change.difference > 0 else "-"
    if shift.factor is None:
        return f"{sign}{abs(shift.change.difference):.3g}"
    return f"x {shift.factor:.3g}" if shift.factor >= _FROM_TIMES else f"{sign}{percent(abs(shift.factor - 1))}"


def run_of(point: TrendPoint) -> str:
    """A run with its time and commit, as people find it again."""
    commit = f", commit {commit_of(point)}" if point.commit else ""
    return f"run {point.run_id} ({when(point.started_at)}{commit})"


def commit_of(point: TrendPoint) -> str:
    """The beginning of its commit; a plus says that files differed from it."""
    return point.commit[:COMMIT_LENGTH] + ("+" if point.dirty else "") if point.commit else ""


def about(series: TrendSeries) -> str:
    """What a series is: its machine, its runs, its noise."""
    first, last = series.points[0], series.points[-1]
    parts = [
        series.machine,
        f"{len(series.points)} runs from {when(first.started_at)[:10]} to {when(last.started_at)[:10]}",
        f"{series.metric.better.value} is better" if series.metric.better is not Better.NEITHER else "",
        f"noise of one run ± {noise_of(series)}" if series.noise else "",
    ]
    return one_line(" · ".join(part for part in parts if part))


def noise_of(series: TrendSeries) -> str:
    """The deviation of the noise from run to run."""
    if not series.noise:
        return ""
    return share(series.noise) if is_ratio(series) else show_value(series.noise, series.metric.unit)


def is_ratio(series: TrendSeries) -> bool:
    """Whether its noise is a part of the value, and its changes are factors."""
    return all(point.value > 0 for point in series.points)


def _change_section(series: TrendSeries, shift: Shift) -> Section:
    """One change: what it is, how large, where it is, how sure that is, and what else changed there."""
    points, unit, change = series.points, series.metric.unit, shift.change
    before, after = series.levels[change.at - 1], series.levels[change.until]
    kind = f"drift over {change.until - change.at + 1} runs" if change.kind == "drift" else "step"
    size = f"{change_of(shift)}, from {show_value(before, unit)} to {show_value(after, unit)}"
    lines = [f"It began with {run_of(shift.first)}, after {run_of(shift.last_before)}"]
    if change.kind == "drift":
        lines.append(f"Arrived with {run_of(points[change.until])}")
    elif change.earliest != change.latest:
        first, last = points[change.earliest].run_id, points[change.latest].run_id
        lines.append(f"It may also have begun with any run from {first} to {last} (95 % confidence)")
    differences = []
    for part in shift.changed:
        limit = COMMIT_LENGTH if part.name == "commit" else None
        differences.append(f"{part.name} {part.before[:limit] or 'none'} -> {part.after[:limit] or 'none'}")
    if differences:
        more = f", and {len(differences) - MOST_DIFFERENCES} more" if len(differences) > MOST_DIFFERENCES else ""
        lines.append(one_line(f"Changed there: {', '.join(differences[:MOST_DIFFERENCES])}{more}"))
    else:
        lines.append("Changed there: nothing that is recorded; neither commit nor software nor hardware")
    if shift.first.warnings:
        warnings = ", ".join(shift.first.warnings)
        lines.append(f"Its first run came with warnings ({warnings}): repeat it on a quiet machine before you act")
    return Section(f"{shift.verdict.capitalize()}, {kind}: {size}", (Lines(tuple(lines)),))


def sparkline(series: TrendSeries, bars: str = BARS, width: int = 24) -> str:
    """The series as a line of characters, each higher than the other; of long series the median of each stretch.

    Noise alone does not fill the height of the line, so that a step looks like one.
    """
    values = np.array([point.value for point in series.points])
    noise = series.noise * (abs(series.level) if is_ratio(series) else 1.0)
    inner = values[~np.array(series.outliers)]  # one outlier would flatten everything else
    low, high = float(inner.min()), float(inner.max())
    if values.size > width:
        values = np.array([np.median(part) for part in np.array_split(values, width)])
    span = max(high - low, _QUIET * noise)
    if span == 0.0:
        return bars[len(bars) // 2] * values.size
    heights = (np.clip((values - (low + high) / 2.0) / span, -0.5, 0.5) + 0.5) * (len(bars) - 1)
    return "".join(bars[round(float(height))] for height in heights)


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
    x = quantity("place", scale={"domain": [0.3, len(values) + 0.7], "nice": False}) | {"axis": _dates(series)}
    title = humanize(series.metric.name) + (f", {label}" if label else "")
    y = quantity("value", title, {"domain": [bottom, top], "nice": False, "zero": False}, tickCount=5)
    for mark in marks:
        mark |= {"top": top - (0.07 + 0.085 * mark["row"]) * (top - bottom), "bottom": bottom}
    better = f"{series.metric.better.value} is better" if series.metric.better is not Better.NEITHER else ""
    layers = [*_points(x, y, len(values)), *_changes(marks, x, y)]
    notes = ["An empty circle is an outlier, which no level follows."] if any(series.outliers) else []
    name, machine = name_of(series), one_line(series.machine)
    return Chart(
        spec=framed(name, machine, better, values=values, width=WIDTH, height=230, layer=layers),
        title=f"{heading(humanize(series.metric.name))} over runs: {name}, {machine}",
        description=f"{block_answer(series)}; {len(values)} runs, now {show_value(series.now, series.metric.unit)}",
        notes=tuple(notes),
    )


def _values(series: TrendSeries, scale: float) -> list[Spec]:
    steps = [shift.change.at for shift in series.shifts if shift.change.kind == "step"]
    return [
        {
            "place": place + 1,
            "value": point.value / scale,
            "low": point.interval.low / scale if point.interval else None,
            "high": point.interval.high / scale if point.interval else None,
            "level": series.levels[place] / scale,
            "segment": sum(step <= place for step in steps),  # a drift does not interrupt the line
            "outlier": series.outliers[place],
        }
        for place, point in enumerate(series.points)
    ]


def _marks(series: TrendSeries) -> list[Spec]:
    marks: list[Spec] = []
    taken: list[float] = []  # how far the words of each row reach to the right
    for shift in series.shifts:
        place, count = shift.change.at + 0.5, len(series.points)
        drift = " drift" if shift.change.kind == "drift" else ""
        text = f"{_VERDICTS[shift.verdict]}{drift} {short_change(shift)}".replace("-", "−")
        wide, here = 8.0 * len(text) + 24.0, WIDTH * place / count
        flipped = here + wide > WIDTH  # near the right edge the words stand on the other side
        left, right = (here - wide, here + 12.0) if flipped else (here - 12.0, here + wide)
        row = next((place for place, end in enumerate(taken) if end < left), len(taken))
        taken[row : row + 1] = [right]
        went: Spec = {"verdict": shift.verdict, "rising": shift.change.difference > 0}
        marks.append({"place": place, "text": text, "row": row, "flipped": flipped, **went})
    return marks


def _dates(series: TrendSeries) -> Spec:
    count = len(series.points)
    places = list(range(1, count + 1, max(1, -(-count // MOST_TICKS))))
    words = {str(place): f"{place}  {series.points[place - 1].started_at:%Y-%m-%d}" for place in places}
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
    place: Spec = {"x": x, "y": y}
    interval = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    level = {"x": x, "y": {**y, "field": "level"}, "detail": {"field": "segment"}}
    return [
        layer("rule", interval, where="datum.low !== null", color=ACCENT, opacity=0.45, strokeWidth=1.5),
        layer("line", place, where="!datum.outlier", color=MUTED, opacity=0.35, strokeWidth=1),
        layer("line", level, color=INK, strokeWidth=2.5, opacity=0.85),
        layer("point", place, where="!datum.outlier", filled=True, color=ACCENT, size=size, opacity=1),
        layer("point", place, where="datum.outlier", filled=False, color=ACCENT, size=size + 16, strokeWidth=1.5),
    ]


def _changes(marks: Sequence[Spec], x: Spec, y: Spec) -> list[Spec]:
    """A dashed line before the first run of the new level, a triangle that points where it went, and words."""
    layers: list[Spec] = []
    top: Spec = {"x": x, "y": {**y, "field": "top"}}
    for mark in marks:
        colour = _COLOURS[mark["verdict"]]
        side: Spec = {"align": "right", "dx": -10} if mark["flipped"] else {"align": "left", "dx": 10}
        shape = "triangle-up" if mark["rising"] else "triangle-down"
        words = {"fontSize": 13, "fontWeight": 600, "baseline": "middle", **side}
        layers += [
            layer("rule", top | {"y2": {"field": "bottom"}}, [mark], color=colour, strokeDash=[5, 3], strokeWidth=1.5),
            layer("point", top, [mark], shape=shape, filled=True, color=colour, size=110, opacity=1),
            layer("text", top | {"text": TEXT}, [mark], color=colour, **words),
        ]
    return layers


def text_document(history: History, *, ascii_only: bool = False) -> Document:
    """For a terminal: the table of all series with a line of text for each, then what changed."""
    bars = PLAIN_BARS if ascii_only else BARS
    blocks = [_all_series(history, bars), *(_series_block(series) for series in history.series if series.shifts)]
    return Document(title=_title(history), blocks=(*blocks, _basis(history)), answer=answer(history))


def document(history: History) -> Document:
    """For a browser: the sentence, the charts of what changed, the table, the charts of what did not, the warning."""
    changed = [series for series in history.series if series.shifts][:DRAWN]
    steady = [series for series in history.series if not series.shifts][: DRAWN - len(changed)]
    blocks = [_series_block(series, chart_of(series), _runs_around(series)) for series in changed]
    blocks.append(_all_series(history, ""))
    blocks += [_series_block(series, chart_of(series)) for series in steady]
    return Document(title=_title(history), blocks=(*blocks, _basis(history)), answer=answer(history))


def _series_block(series: TrendSeries, chart: Chart | None = None, *last: Section) -> Block:
    """One series: its chart, its changes with the latest first, and what comes last."""
    changes = [_change_section(series, shift) for shift in reversed(series.shifts)]
    charts = [Section(items=(chart,))] if chart else []
    return Block(block_answer(series), about(series), (*charts, *changes, *last))


def picture(history: History) -> Chart:
    """All charts as one, what got worse first."""
    ordered = sorted(history.series, key=lambda series: (not series.is_worse, not series.shifts))
    return stacked([chart_of(series) for series in ordered[:DRAWN]])


def to_json(history: History) -> str:
    """Everything, for programs."""
    document = {
        "metric": history.metric,
        "runs": history.runs,
        "seen_once": history.seen_once,
        "worse": len(history.worse),
        "series": [_series(series) for series in history.series],
    }
    return json.dumps(document, indent=2, default=str) + "\n"


def to_csv(history: History) -> str:
    """One row for each run of each series."""
    rows = []
    for series in history.series:
        verdicts = {shift.change.at: shift.verdict for shift in series.shifts}
        segment = 0
        for index, point in enumerate(series.points):
            segment += index in verdicts
            row = _about_series(series) | _point(series, index, point) | {"at": csv.joined(series.at)}
            row |= {"place": index + 1, "segment": segment, "change": verdicts.get(index, "")}
            rows.append(row | {"warnings": ";".join(point.warnings)})
    return csv.csv_text(COLUMNS, rows)


def _title(history: History) -> str:
    return f"{humanize(history.metric)} over {history.runs} runs"


def _all_series(history: History, bars: str) -> Block:
    """A table for each machine; `bars` are the signs of a line of text, if there is to be one."""
    several = len(history.machines) > 1
    tables = []
    for machine in history.machines:
        rows = [series for series in history.series if series.machine == machine]
        columns = [
            Column.of("Case", [name_of(row) for row in rows], numeric=False),
            Column.of("Runs", [str(len(row.points)) for row in rows]),
            Column.of("Noise", [noise_of(row) for row in rows], widest=True),
            Column.of("Level", [show_value(row.level, row.metric.unit) for row in rows]),
            Column.of("Now", [show_value(row.now, row.metric.unit) for row in rows], leads=True),
            Column.of("State", [state_of(row) for row in rows], numeric=False),
        ]
        if bars:
            columns.insert(2, Column.of("Oldest to newest", [sparkline(row, bars) for row in rows], numeric=False))
        tables.append(Section(title=one_line(machine) if several else "", items=(Table(tuple(columns)),)))
    count = f"{len(history.series)} series" if len(history.series) > 1 else "One series"
    apart = "Each machine has series of its own: values of different ones are not a history"
    about_machines = apart if several else one_line(history.machines[0])
    return Block(f"{count} of {humanize(history.metric)}", about_machines, tuple(tables))


def _runs_around(series: TrendSeries) -> Section:
    ends = [shift.change.at for shift in series.shifts]
    places = [place for place in range(len(series.points)) if any(at - AROUND <= place < at + AROUND for at in ends)]
    points = [series.points[place] for place in places]
    unit = series.metric.unit
    intervals = [show_interval(one.value, one.interval, lambda end: show_value(end, unit)) for one in points]
    header, cells = interval_column([Cell(text) for text in intervals])
    columns = (
        Column.of("Run", [point.run_id for point in points], numeric=False),
        Column.of("Started", [when(point.started_at) for point in points], numeric=False),
        Column.of("Value", [show_value(point.value, unit) for point in points], leads=True),
        Column.of(header, [cell.text for cell in cells]),
        Column.of("Level", [show_value(series.levels[place], unit) for place in places]),
        Column.of("Commit", [commit_of(point) for point in points], numeric=False),
        Column.of("Environment", [point.fingerprint for point in points], numeric=False),
        Column.of("Warnings", [", ".join(point.warnings) for point in points], numeric=False),
    )
    table = Table(tuple(one for one in columns if any(cell.text for cell in one.cells)))
    return Section("Runs around each change", (table,))


def _basis(history: History) -> Block:
    """How far to trust it, and what it rests on."""
    points = [point for series in history.series for point in series.points]
    short = sum(not series.is_long_enough for series in history.series)
    outliers = sum(sum(series.outliers) for series in history.series)
    lie = "1 value lies" if outliers == 1 else f"{outliers} values lie"
    modes = sum(series.modes is not None for series in history.series)
    uncertain = sum(bool(point.warnings) for point in points)
    dirty = len({point.run_id for point in points if point.dirty})
    warnings = (
        (short, f"{short} of {len(history.series)} series have fewer than {FEWEST} runs: no change is reported"),
        (history.seen_once, f"{history.seen_once} measured by one run only on their machine are left out"),
        (outliers, f"{lie} more than three deviations of the noise from their level; none is a step"),
        (modes, f"{modes} of {len(history.series)} series have two modes, which their runs come to in turns; no step"),
        (uncertain, f"{uncertain} values came with warnings of their own: see the reports of their runs"),
        (dirty, f"{dirty} runs had uncommitted changes (+ after the commit, which does not name all their code)"),
    )
    rests = (
        "A change of level needs two runs at the end of a series and three elsewhere; of simulated series without a "
        "change, 1 to 7 % show one by chance, and up to 10 % where neighbours are correlated by 0.3."
    )
    kinds = {point.fingerprint for point in points}
    environments = f"{len(kinds)} different environments" if len(kinds) > 1 else "one environment"
    rests_on = (rests, f"Hardware, software and variables: {environments}; factors with 95 % confidence")
    doubts = Lines(tuple(text for count, text in warnings if count))
    sections = (Section(items=(doubts,), tone=Tone.WARNING), Section(items=(Lines(rests_on),), tone=Tone.BASIS))
    return Block("How far to trust it", f"{history.runs} runs", sections)


def _series(series: TrendSeries) -> dict[str, Any]:
    return {
        **_about_series(series),
        "at": series.at,
        "parameters": series.case.parameters,
        "better": series.metric.better.value,
        "ranks": series.case.ranks,
        "noise": series.noise,
        "level": series.level,
        "now": series.now,
        "enough_runs": series.is_long_enough,
        "is_worse": series.is_worse,
        "best_run": series.points[series.best_before].run_id if series.best_before is not None else None,
        "modes": vars(series.modes) if series.modes else None,
        "changes": [_shift(series, shift) for shift in series.shifts],
        "points": [
            _point(series, index, point) | {"warnings": list(point.warnings), "repetitions": point.repetitions}
            for index, point in enumerate(series.points)
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


def _point(series: TrendSeries, index: int, point: TrendPoint) -> dict[str, Any]:
    return {
        "run": point.run_id,
        "started_at": point.started_at.isoformat(),
        "value": point.value,
        **csv.interval_columns(point.interval),
        "level": series.levels[index],
        "outlier": series.outliers[index],
        "commit": point.commit,
        "dirty": point.dirty,
        "environment": point.fingerprint,
    }


def _shift(series: TrendSeries, shift: Shift) -> dict[str, Any]:
    points, change = series.points, shift.change
    return {
        "kind": change.kind,
        "verdict": shift.verdict,
        "factor": shift.factor,
        **csv.interval_columns(shift.interval),
        "confidence": change.interval.confidence,
        "from": series.levels[change.at - 1],
        "to": series.levels[change.until],
        "first_run": _run(shift.first),
        "run_before": _run(shift.last_before),
        "arrived": _run(points[change.until]),
        "earliest_run": points[change.earliest].run_id,
        "latest_run": points[change.latest].run_id,
        "changed": [vars(part) for part in shift.changed],
    }


def _run(point: TrendPoint) -> dict[str, Any]:
    return {"run": point.run_id, "started_at": point.started_at.isoformat(), "commit": point.commit}
