"""What holds for every comparison: turned round it says the opposite, and scale does not matter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.analysis.compare.significance import RepeatSamples, ratio_of_pairs, ratios, significant
from paceline.core.record import Measurement
from support.records import STEP_TIME

seconds = st.floats(1e-6, 1e3)
series = st.lists(seconds, min_size=1, max_size=12)


def parts(values: list[float], scale: float = 1.0) -> list[RepeatSamples]:
    times = Measurement.of_samples(STEP_TIME, [scale * value for value in values])
    return [RepeatSamples(times, times.samples)]


@given(series, series)
@settings(max_examples=60, deadline=None)
def test_turned_round_the_ratio_is_its_inverse(before: list[float], after: list[float]) -> None:
    one, other = ratios([parts(before), parts(after)], [parts(after), parts(before)])
    assert one.value is not None
    assert other.value == pytest.approx(1 / one.value)
    if one.interval is None:
        assert other.interval is None
        return
    assert other.interval is not None
    assert other.interval.low == pytest.approx(1 / one.interval.high, rel=1e-6, abs=1e-300)
    assert one.interval.low <= one.value <= one.interval.high
    assert one.chance == pytest.approx(other.chance)


@given(series, series, st.floats(1e-3, 1e3))
@settings(max_examples=60, deadline=None)
def test_the_unit_does_not_matter(before: list[float], after: list[float], scale: float) -> None:
    one, scaled = ratios([parts(before), parts(before, scale)], [parts(after), parts(after, scale)])
    assert one.value is not None
    assert scaled.value == pytest.approx(one.value, rel=1e-6)
    assert (one.chance is None) == (scaled.chance is None)


@given(st.lists(st.tuples(seconds, seconds), min_size=2, max_size=12))
@settings(max_examples=60, deadline=None)
def test_what_scales_both_of_a_pair_cancels(pairs: list[tuple[float, float]]) -> None:
    plain = ratio_of_pairs(pairs)
    drifted = ratio_of_pairs([(a * (1 + place), b * (1 + place)) for place, (a, b) in enumerate(pairs)])
    assert drifted.value == pytest.approx(plain.value)
    assert plain.interval is not None
    assert drifted.interval is not None
    assert drifted.interval.high == pytest.approx(plain.interval.high, rel=1e-6)


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=30))
@settings(max_examples=100, deadline=None)
def test_a_smaller_chance_is_never_called_later(chances: list[float | None]) -> None:
    called = significant(chances)
    yes = [chance for chance, is_called in zip(chances, called, strict=True) if chance is not None and is_called]
    no = [chance for chance, is_called in zip(chances, called, strict=True) if chance is not None and not is_called]
    assert max(yes, default=0.0) <= min(0.05, *no, 1.0)
    assert not any(is_called for chance, is_called in zip(chances, called, strict=True) if chance is None)
