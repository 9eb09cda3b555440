"""What a history of a metric says, in words: sentences, names, factors, and a line of text that shows a series."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.analysis.trend.series import EnvironmentChange, History, Shift, TrendPoint, TrendSeries
from paceline.analysis.trend.steps import FEWEST
from paceline.core.metric import Better
from paceline.report.numbers import percent, share, show_at, show_value
from paceline.report.text import humanize, one_line, when

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-'\""  # each higher on its line than the one before
SPARK_WIDTH = 24
MOST_DIFFERENCES = 6
COMMIT_LENGTH = 10
_QUIET = 8.0  # deviations of the noise that a line of text spans at least
_FROM_TIMES = 2.0  # factors from here on read better than percentages


def name_of(series: TrendSeries) -> str:
    """The case, and the point of its sweep."""
    return one_line(f"{series.label} at {show_at(series.at)}" if series.at else series.label)


def answer(history: History) -> str:
    """The sentence to read first."""
    metric, count = humanize(history.metric), len(history.series)
    told = f"{count} series of {metric} over {history.runs} runs" if count > 1 else f"{metric} over {history.runs} runs"
    worse = history.worse
    if worse:
        most = max(worse, key=lambda series: _size(series.shifts[-1]))
        lead = f"{len(worse)} of {told} got worse" if count > 1 else ""
        detail = f"{name_of(most)}: {metric} {change_of(most.shifts[-1])} since {run_of(most.shifts[-1].first)}"
        return f"{lead}{'; the most: ' if len(worse) > 1 else ': '}{detail}." if lead else f"{detail}."
    if not any(series.is_long_enough for series in history.series):
        return f"Too few runs to tell a change of {metric}: {FEWEST} of the same case on the same machine are needed."
    better = [series for series in history.series if series.shifts and series.shifts[-1].verdict == "improvement"]
    changed = [series for series in history.series if series.shifts and series.shifts[-1].verdict == "change"]
    parts = [f"{len(better)} improved"] * bool(better) + [f"{len(changed)} changed"] * bool(changed)
    return f"Nothing got worse in {told}{': ' if parts else ''}{', '.join(parts)}."


def block_answer(series: TrendSeries) -> str:
    """One series in a sentence."""
    if not series.shifts:
        return f"{name_of(series)}: {state_of(series)}"
    last = series.shifts[-1]
    return f"{name_of(series)}: {state_of(series)} since run {last.first.run_id}"


def state_of(series: TrendSeries) -> str:
    """How it stands, in a word or two."""
    if not series.is_long_enough:
        return f"too few runs (of {FEWEST})"
    if not series.shifts:
        return "steady"
    last = series.shifts[-1]
    return f"{verdict_word(last)}, {short_change(last)}"


def verdict_word(shift: Shift) -> str:
    """Worse, better, or merely different."""
    return {"regression": "worse", "improvement": "better", "change": "changed"}[shift.verdict]


def change_of(shift: Shift) -> str:
    """The change with its interval: `4.9 % higher (4.8 % to 5.1 %)`."""
    rising = shift.change.difference > 0
    if shift.factor is None or shift.interval is None:
        return f"{'higher' if rising else 'lower'} by {abs(shift.change.difference):.3g}"
    low, high = shift.interval.low, shift.interval.high
    if shift.factor >= _FROM_TIMES:
        return f"{shift.factor:.3g} times as high ({low:.3g} to {high:.3g})"
    sides = sorted(side - 1.0 if rising else 1.0 - side for side in (low, high))
    way = "higher" if rising else "lower"
    return f"{percent(abs(shift.factor - 1))} {way} ({percent(sides[0])} to {percent(sides[1])})"


def short_change(shift: Shift) -> str:
    """The change alone: `+4.9 %`."""
    sign = "+" if shift.change.difference > 0 else "-"
    if shift.factor is None:
        return f"{sign}{abs(shift.change.difference):.3g}"
    return f"x {shift.factor:.3g}" if shift.factor >= _FROM_TIMES else f"{sign}{percent(abs(shift.factor - 1))}"


def run_of(point: TrendPoint) -> str:
    """A run, as short as it can be named."""
    return f"run {point.run_id}" + (f" (commit {commit_of(point)})" if point.commit else "")


def place_of(point: TrendPoint) -> str:
    """A run, as people find it again."""
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


def title_of(series: TrendSeries, shift: Shift) -> str:
    """One change: what it is, how large, from where to where."""
    unit, change = series.metric.unit, shift.change
    before, after = series.levels[change.at - 1], series.levels[change.until]
    kind = f"drift over {change.until - change.at + 1} runs" if change.kind == "drift" else "step"
    what = {"regression": "Regression", "improvement": "Improvement", "change": "Change"}[shift.verdict]
    return f"{what}, {kind}: {change_of(shift)}, from {show_value(before, unit)} to {show_value(after, unit)}"


def lines_of(series: TrendSeries, shift: Shift) -> list[str]:
    """Where the change is, how sure that is, and what else changed there."""
    points, change, found = series.points, shift.change, []
    found.append(f"It began with {place_of(shift.first)}, after {place_of(shift.last_before)}")
    if change.kind == "drift":
        found.append(f"Arrived with {place_of(points[change.until])}")
    elif change.earliest != change.latest:
        ends = [points[place].run_id for place in (change.earliest, change.latest)]
        found.append(f"It may also have begun with any run from {ends[0]} to {ends[1]} (95 % confidence)")
    found.append(differences_of(shift.changed))
    if shift.first.warnings:
        warnings = ", ".join(shift.first.warnings)
        found.append(f"Its first run came with warnings ({warnings}): repeat it on a quiet machine before you act")
    return found


def differences_of(changed: Sequence[EnvironmentChange]) -> str:
    """What else changed at that place."""
    if not changed:
        return "Changed there: nothing that is recorded; neither commit nor software nor hardware"
    told = [f"{part.name} {_shortened(part, part.before)} -> {_shortened(part, part.after)}" for part in changed]
    more = f", and {len(told) - MOST_DIFFERENCES} more" if len(told) > MOST_DIFFERENCES else ""
    return one_line(f"Changed there: {', '.join(told[:MOST_DIFFERENCES])}{more}")


def _shortened(part: EnvironmentChange, value: str) -> str:
    return (value[:COMMIT_LENGTH] if part.name == "commit" else value) or "none"


def sparkline(series: TrendSeries, bars: str = BARS, width: int = SPARK_WIDTH) -> str:
    """The series as a line of signs, each higher than the other; of long series the median of each stretch.

    Noise alone does not fill the height of the line, so that a step looks like one.
    """
    values = np.array([point.value for point in series.points])
    noise = series.noise * (abs(series.value) if is_ratio(series) else 1.0)
    inner = values[~np.array(series.outliers)]  # one outlier would flatten everything else
    low, high = float(inner.min()), float(inner.max())
    if values.size > width:
        values = np.array([np.median(part) for part in np.array_split(values, width)])
    span = max(high - low, _QUIET * noise)
    if span == 0.0:
        return bars[len(bars) // 2] * values.size
    places = (np.clip((values - (low + high) / 2.0) / span, -0.5, 0.5) + 0.5) * (len(bars) - 1)
    return "".join(bars[round(float(place))] for place in places)


def _size(shift: Shift) -> float:
    return abs(shift.change.difference)
