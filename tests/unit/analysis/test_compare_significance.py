"""Known answers: planted changes are called, noise is not, and what a single value cannot tell is not told."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from paceline.analysis.compare.significance import RepeatSamples, ratio_of_pairs, ratios, significant, student_tails
from paceline.core.record import Measurement
from paceline.core.stats import student_quantile
from support.compare_power import NOISES, called, pairs, part
from support.docs_markdown import ROOT
from support.records import LOSS, STEP_TIME


@pytest.mark.parametrize("metric", ["time", "rate"])
def test_three_percent_in_noise_of_one_is_called(metric: str) -> None:
    found = pairs("independent", 100, 100, change=0.03)[metric]
    assert called(found) == 1.0
    true = 1 / 1.03 if metric == "rate" else 1.03
    covered = [r.interval is not None and r.interval.low <= true <= r.interval.high for r in found]
    assert np.mean(covered) >= 0.9


@pytest.mark.parametrize("noise", NOISES)
def test_no_change_is_called_one_in_at_most_five_of_a_hundred(noise: str) -> None:
    found = pairs(noise, 1000, 40)
    assert called(found["time"]) <= 0.05
    assert called(found["rate"]) <= 0.05


def test_samples_all_alike_do_not_pass_for_endless_precision() -> None:
    (ratio,) = ratios([[part([0.1] * 20)]], [[part([0.10001] * 20)]])
    assert ratio.interval is not None
    assert ratio.interval.low < 1 < ratio.interval.high
    (apart,) = ratios([[part([0.1] * 20)]], [[part([0.102] * 20)]])
    assert apart.interval is not None
    assert apart.interval.low > 1


def test_what_differs_between_runs_is_in_the_interval() -> None:
    rng = np.random.default_rng(3)
    sides = []
    for _ in range(2):
        runs = 0.1 * (1 + 0.01 * rng.standard_normal((200, 3, 1)))  # 1 % between runs, 0.1 % within each
        sides.append([[part(one) for one in case] for case in runs * (1 + 0.001 * rng.standard_normal((200, 3, 12)))])
    assert called(ratios(*sides)) <= 0.08  # of 200, where 1 in 20 is meant
    alone = ratios(*([case[:1] for case in side] for side in sides))
    assert called(alone) > 0.5  # one run each cannot know


def test_repetitions_of_single_values_have_an_interval() -> None:
    def once(*values: float) -> list[RepeatSamples]:
        return [RepeatSamples(Measurement.of_value(STEP_TIME, value)) for value in values]

    several, single = ratios([once(1.0, 1.01, 0.99), once(1.0)], [once(2.0, 2.02, 1.98), once(2.0)])
    assert several.interval is not None
    assert several.interval.low > 1.8
    assert single.value == pytest.approx(2.0)
    assert single.interval is None
    assert single.chance is None


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_what_has_no_ratio_has_none(value: float) -> None:
    (ratio,) = ratios(
        [[RepeatSamples(Measurement.of_value(LOSS, 1.0))]], [[RepeatSamples(Measurement.of_value(LOSS, value))]]
    )
    assert ratio.value is None
    assert ratio.interval is None


def test_tails_are_those_of_student() -> None:
    for freedom in (1, 2, 3, 4, 7, 30, 101, 200):
        t = student_quantile(0.975, float(freedom))
        assert student_tails(np.array([t, -t, 0.0]), np.full(3, freedom)) == pytest.approx([0.05, 0.05, 1.0])


def test_many_comparisons_are_judged_together() -> None:
    assert significant([0.04]) == [True]
    assert significant([0.04, *[0.5] * 9]) == [False] * 10
    assert significant([0.001, None, 0.9, 0.02]) == [True, False, False, True]
    assert significant([]) == []


def test_drift_cancels_in_pairs_and_not_in_sequence() -> None:
    drift = [1 + 0.02 * place for place in range(12)]  # each measurement is 2 % slower than the one before
    in_turns = [drift[2 * number : 2 * number + 2][:: 1 if number % 2 == 0 else -1] for number in range(6)]
    paired = ratio_of_pairs([(0.1 * a, 0.103 * b) for a, b in in_turns])
    assert paired.interval is not None
    assert paired.interval.low <= 1.03 <= paired.interval.high
    assert paired.value == pytest.approx(1.03, abs=0.005)
    one_after_the_other = [part([0.1 * place] * 10) for place in drift[:6]], [part([0.103 * p] * 10) for p in drift[6:]]
    (sequence,) = ratios([one_after_the_other[0]], [one_after_the_other[1]])
    assert sequence.interval is not None
    assert sequence.interval.low > 1.05  # calls the drift a change


def test_one_round_has_no_interval() -> None:
    assert ratio_of_pairs([(1.0, 1.1)]).interval is None


CHANGES, COUNTS = (0.005, 0.01, 0.02, 0.03), (10, 30, 100)


def test_the_table_of_power_in_the_guide_is_true() -> None:
    text = (ROOT / "docs" / "guide" / "comparing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) % \| (\d+) % \| (\d+) % \| (\d+) % \|$", text, re.MULTILINE)
    assert [float(row[0]) / 100 for row in rows] == list(CHANGES)
    for row in rows:
        for count, told in zip(COUNTS, row[1:], strict=True):
            found = called(pairs("independent", 60, count, change=float(row[0]) / 100)["rate"])
            assert 100 * found == pytest.approx(float(told), abs=15)
