"""Quantities that are shown can be read again, and no text at all makes the reader do worse than refuse."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.core.quantity import (
    LONGEST_DURATION,
    parse_duration,
    parse_fraction,
    parse_rate,
    parse_size,
    show_duration,
    show_size,
)

ALL = [parse_duration, parse_size, parse_rate, parse_fraction]


@given(st.floats(1e-9, 119.0))
def test_a_shown_duration_reads_as_itself_to_three_digits(seconds: float) -> None:
    assert parse_duration(show_duration(seconds)) == pytest.approx(seconds, rel=5.1e-3)


@given(st.integers(0, 1024**5))
def test_a_shown_size_reads_as_itself_to_three_digits(count: int) -> None:
    assert parse_size(show_size(count)) == pytest.approx(count, rel=5.1e-3)


@given(st.floats(0, LONGEST_DURATION))
def test_a_bare_number_reads_as_itself_whether_typed_or_not(value: float) -> None:
    for parse in (parse_duration, parse_rate, parse_fraction):
        assert parse(value) == parse(repr(value)) == value


@given(st.integers(0, 2**53))
def test_a_bare_size_is_exact(count: int) -> None:
    assert parse_size(count) == parse_size(str(count)) == parse_size(f"{count}B") == count


@given(st.integers(0, 2**20), st.sampled_from([("KiB", 1024), ("MiB", 1024**2), ("GB", 10**9), ("kB", 1000)]))
def test_a_size_with_a_unit_is_exact(count: int, unit: tuple[str, int]) -> None:
    assert parse_size(f"{count} {unit[0]}") == count * unit[1]


@given(st.integers(1, 10**6))
def test_a_rate_per_minute_is_a_sixtieth_of_that_per_second(count: int) -> None:
    assert parse_rate(f"{count}/min") == pytest.approx(parse_rate(f"{count}/s") / 60)
    assert parse_rate(f"{count}k/s") == pytest.approx(parse_rate(f"{count}/ms"))


@pytest.mark.parametrize("parse", ALL)
@given(
    value=st.text(max_size=12)
    | st.from_regex(r"[+-]?[0-9_.]{0,5}[eE]?[+-]?[0-9]{0,4} ?[a-zA-Z/%µ]{0,4}")
    | st.integers()
)
@example(value="+")
@example(value="e5")
@example(value="1/s")
@example(value=10**400)
def test_anything_is_read_as_a_finite_quantity_or_refused(parse: Callable[[object], float], value: object) -> None:
    try:
        found = parse(value)
    except ValueError as refusal:
        assert "could not convert" not in str(refusal)  # Python's words, not ours
    else:
        assert math.isfinite(found)
        assert found >= 0


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_every_number_can_be_shown(value: float) -> None:
    if math.isfinite(value):
        assert show_duration(value)
    assert show_size(value)
