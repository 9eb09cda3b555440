"""Which histories come first: what got worse, what changed, what cannot be told yet, and then the rest."""

from __future__ import annotations

from paceline.analysis.trend.series import TrendStanding, leading_series, standing
from support.records import STEP_TIME
from support.trend_records import levels, runs_of

RUNS = runs_of(
    {
        "steady": levels(20, seed=2),
        "new": levels(4, seed=5),
        "faster": levels(20, (8, 0.8), seed=3),
        "slower": levels(20, (12, 1.2), seed=4),
    }
)


def test_what_got_worse_comes_first() -> None:
    series = leading_series(RUNS)
    assert [(one.case.title, standing(one)) for one in series] == [
        ("slower", TrendStanding.WORSE),
        ("faster", TrendStanding.CHANGED),
        ("new", TrendStanding.UNDECIDED),
        ("steady", TrendStanding.STEADY),
    ]


def test_a_case_is_followed_by_the_metric_that_leads_it() -> None:
    assert {one.metric.name for one in leading_series(RUNS)} == {"throughput"}
    primary = [
        records.model_copy(
            update={"records": [one.model_copy(update={"primary": STEP_TIME.name}) for one in records.records]}
        )
        for records in RUNS
    ]
    assert {one.metric.name for one in leading_series(primary)} == {"step_time"}
    assert leading_series([]) == []
