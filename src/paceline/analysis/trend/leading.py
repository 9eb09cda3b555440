"""The history of what each case is known by, over all metrics, and which of it a person should look at first."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from paceline.analysis.summary import headline_of
from paceline.analysis.trend.series import TrendSeries, history
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords


class TrendStanding(IntEnum):
    """How a series stands, in the order of reading."""

    WORSE = 0
    CHANGED = 1
    UNDECIDED = 2  # too few runs, or two modes
    STEADY = 3


def standing(series: TrendSeries) -> TrendStanding:
    """How a series stands now."""
    if series.is_worse:
        return TrendStanding.WORSE
    if series.shifts:
        return TrendStanding.CHANGED
    is_open = not series.is_long_enough or series.modes is not None
    return TrendStanding.UNDECIDED if is_open else TrendStanding.STEADY


def leading_series(runs: Iterable[RunRecords]) -> list[TrendSeries]:
    """A series for each case on each kind of machine, of the metric that leads it; what changed last comes first."""
    by_metric: dict[str, list[RunRecords]] = {}
    for records in runs:
        mine: dict[str, list[Record]] = {}
        for record in records.records:
            headline = headline_of(record) if record.outcome is Outcome.OK else None
            if headline is not None and not headline.scope:
                mine.setdefault(headline.name, []).append(record.model_copy(update={"measurements": [headline]}))
        for metric, found in mine.items():
            by_metric.setdefault(metric, []).append(records.model_copy(update={"records": found}))
    series = [one for metric, found in by_metric.items() for one in history(found, metric).series]
    return sorted(series, key=lambda one: (standing(one), -_last_change(one), one.label))


def _last_change(series: TrendSeries) -> float:
    return series.shifts[-1].first.started_at.timestamp() if series.shifts else 0.0
