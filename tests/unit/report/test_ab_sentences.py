"""What an A/B comparison says: one sentence of a fixed form for each case, and never surer than its rounds."""

from __future__ import annotations

import math

import pytest

from paceline.analysis.compare.sides import Decision
from paceline.analysis.compare.significance import Ratio
from paceline.analysis.compare.verdicts import ComparisonRow
from paceline.core.metric import Better, Metric
from paceline.core.stats import Interval
from paceline.report.compare.document import decided_data, progress, sentence

TIME = Metric(name="wall_time", unit="s", better=Better.LOWER)
LOSS = Metric(name="loss", unit="", better=Better.LOWER)
RATE = Metric(name="throughput", unit="images/s", better=Better.HIGHER)


def row(
    metric: Metric, low: float | None, high: float | None, *, rounds: int = 12, error: float = 0.01
) -> ComparisonRow:
    interval, value = None, 1.1
    if low is not None and high is not None:
        interval, value = Interval(low=low, high=high, confidence=0.95), math.sqrt(low * high)
    return ComparisonRow(
        label="train resnet50",
        category="training",
        metric=metric,
        scope="",
        at={},
        ratio=Ratio(1.0, value, value, interval, error, rounds - 1, 0.01),
        parts=(rounds, rounds),
        samples=(rounds, rounds),
        warnings=((), ()),
        is_significant=True,
    )


@pytest.mark.parametrize(
    ("compared", "decided", "said"),
    [
        (
            row(TIME, 1.02, 1.04),
            Decision.WORSE,
            "train resnet50: B is slower by 2.0 % to 3.8 % in wall time, after 12 rounds.",
        ),
        (
            row(RATE, 1.02, 1.04),
            Decision.BETTER,
            "train resnet50: B is faster by 2.0 % to 4.0 % in throughput, after 12 rounds.",
        ),
        (
            row(RATE, 0.3, 0.4),
            Decision.WORSE,
            "train resnet50: B is 2.5x to 3.33x slower in throughput, after 12 rounds.",
        ),
        (
            row(LOSS, 1.02, 1.04),
            Decision.WORSE,
            "train resnet50: B is higher by 2.0 % to 4.0 % in loss, after 12 rounds.",
        ),
        (
            row(TIME, 0.995, 1.004),
            Decision.EQUAL,
            "train resnet50: any difference larger than 1.0 % in wall time is ruled out: B / A is 0.995 to 1.004, "
            "after 12 rounds.",
        ),
        (
            row(TIME, 0.97, 1.05),
            Decision.OPEN,
            "train resnet50: cannot be decided after 12 rounds: B / A is 0.970 to 1.050 in wall time; about 165 "
            "rounds (16 min 30 s) in all would decide if it stays so.",
        ),
        (
            row(TIME, 0.5, 2.0, error=1.0),
            Decision.OPEN,
            "train resnet50: cannot be decided after 12 rounds: B / A is 0.500 to 2.000 in wall time; no number of "
            "rounds that anyone would wait for is enough with this noise: make it quieter.",
        ),
        (
            row(TIME, None, None, rounds=1),
            Decision.OPEN,
            "train resnet50: cannot be decided after 1 round: it takes at least 5 rounds.",
        ),
    ],
)
def test_every_decision_has_its_sentence(compared: ComparisonRow, decided: Decision, said: str) -> None:
    assert sentence(compared, decided, 0.01, 6.0) == said


def test_without_a_round_nothing_is_said_about_time() -> None:
    said = sentence(row(TIME, 0.97, 1.05), Decision.OPEN, 0.01, math.nan)
    assert "rounds in all would decide" in said


def test_where_a_case_stands() -> None:
    assert progress(row(TIME, 1.02, 1.04), Decision.WORSE) == "B / A 1.030 (1.020 to 1.040), worse"
    assert progress(row(TIME, None, None), Decision.OPEN) == "B / A 1.100"


def test_programs_get_the_decision() -> None:
    (one,) = decided_data([(row(TIME, 1.02, 1.04), Decision.WORSE)], 0.01)
    assert (one["decision"], one["low"], one["high"], one["rounds"]) == ("worse", 1.02, 1.04, 12)
    assert (one["case"], one["metric"], one["within"]) == ("train resnet50", "wall_time", 0.01)
