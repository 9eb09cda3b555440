"""Quantities are read as people write them, refused with what to write instead, and shown for reading."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.core.quantity import (
    parse_duration,
    parse_fraction,
    parse_rate,
    parse_size,
    show,
    show_count,
    show_duration,
    show_interval,
    show_scaled,
    show_size,
    with_interval,
)
from paceline.core.stats import Interval


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("500ms", 0.5),
        ("2min", 120.0),
        ("2m", 120.0),
        ("1.5h", 5400.0),
        ("10us", 1e-5),
        ("10 µs", 1e-5),
        ("7ns", 7e-9),
        ("1e-3 s", 1e-3),
        (".5", 0.5),
        ("1_000", 1000.0),
        (" 3 s ", 3.0),
        ("+3s", 3.0),
        (3, 3.0),
        (0.25, 0.25),
        ("0", 0.0),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("64MiB", 64 * 1024**2),
        ("2GB", 2 * 10**9),
        ("2G", 2 * 10**9),
        ("1TiB", 1024**4),
        ("1.5 KiB", 1536),
        ("3kB", 3000),
        ("3K", 3000),
        ("17B", 17),
        ("3k", 3000),
        ("1T", 10**12),
        ("2KB", 2000),
        ("5GiB", 5 * 1024**3),
        ("17", 17),
        (4096, 4096),
    ],
)
def test_sizes(text: object, count: int) -> None:
    found = parse_size(text)
    assert found == count
    assert isinstance(found, int)


@pytest.mark.parametrize(
    ("text", "rate"), [("2k/s", 2000.0), ("90/min", 1.5), ("5/ms", 5000.0), ("1M / s", 1e6), ("200", 200.0), (0.5, 0.5)]
)
def test_rates(text: object, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(("text", "part"), [("1%", 0.01), ("12.5 %", 0.125), ("0.3", 0.3), (0.3, 0.3), ("200%", 2.0)])
def test_fractions(text: object, part: float) -> None:
    assert parse_fraction(text) == pytest.approx(part)


ALL = [parse_duration, parse_size, parse_rate, parse_fraction]


@pytest.mark.parametrize("parse", ALL)
@pytest.mark.parametrize("value", ["", " ", "soon", "+", "-", "e5", "1 2", "--1", "1__0", "0x10", True, None, [1], {}])
def test_what_is_no_quantity_is_refused_with_an_example(parse: Callable[[object], float], value: object) -> None:
    with pytest.raises(ValueError, match=r"write it like|unknown unit") as refusal:
        parse(value)
    assert str(value) in str(refusal.value)


@pytest.mark.parametrize("parse", ALL)
@pytest.mark.parametrize("value", ["-1", -1, -0.5, float("inf"), float("nan"), "1e999", 10**400])
def test_negative_and_endless_quantities_are_refused(parse: Callable[[object], float], value: object) -> None:
    with pytest.raises(ValueError, match="must be finite and not negative"):
        parse(value)


def test_a_duration_beyond_what_clocks_count_is_refused() -> None:
    assert parse_duration("36500d") == 3_153_600_000.0
    with pytest.raises(ValueError, match="'36501d' is longer than anyone would wait; a duration is at most 100 years"):
        parse_duration("36501d")


def test_an_unknown_unit_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'5 parsec' has the unknown unit 'parsec'; a duration takes ns, us, .*d$"):
        parse_duration("5 parsec")
    with pytest.raises(ValueError, match=r"unknown unit 'MiBs'; a size takes .*GiB"):
        parse_size("5MiBs")


@pytest.mark.parametrize("text", ["5/fortnight", "5/", "/s", "k/s"])
def test_a_rate_needs_a_count_and_a_known_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate; write it like 200/s"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (2.5e-9, "2.5 ns"),
        (9.996e-4, "1 ms"),
        (1.234e-5, "12.3 µs"),
        (0.1183, "118 ms"),
        (0.9999, "1 s"),
        (21.44, "21.4 s"),
        (119.4, "119 s"),
        (120.0, "2 min 00 s"),
        (119 * 60 + 59, "119 min 59 s"),
        (7200.0, "2 h 00 min"),
        (9.996e-7, "1 µs"),
        (125.0, "2 min 05 s"),
        (119.999 * 60, "2 h 00 min"),
        (3 * 3600 + 42 * 60, "3 h 42 min"),
        (-0.002, "-2 ms"),
    ],
)
def test_durations_are_shown_in_the_unit_a_person_would_choose(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023.5, "1 KiB"),
        (999.5 * 1024, "1000 KiB"),
        (-2048, "-2 KiB"),
        (1023.6 * 1024**3, "0.9996 TiB"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (999 * 1024**2, "999 MiB"),
        (1000 * 1024**2, "1000 MiB"),
        (1023 * 1024**3, "1023 GiB"),
        (1023.9 * 1024, "1 MiB"),
        (141 * 1024**3, "141 GiB"),
        (3 * 1024**4, "3 TiB"),
    ],
)
def test_sizes_are_shown_without_exponents(count: float, text: str) -> None:
    assert show_size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (float("inf"), "inf"),
        (1000, "1,000"),
        (-1234.5, "-1,234"),
        (0.00123456, "0.001235"),
        (12.3456, "12.35"),
        (999.96, "1000"),
        (1234567.8, "1,234,568"),
        (3.4e38, "3.4e+38"),
    ],
)
def test_counts_have_four_digits_and_marked_thousands(value: float, text: str) -> None:
    assert show_count(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5, "s", "500 ms"),
        (2048, "B", "2 KiB"),
        (28.44, "%", "28.4 %"),
        (1234.5, "%", "1,234 %"),
        (999.5, "%", "1,000 %"),
        (-999.4, "%", "-999 %"),
        (1530.2, "images/s", "1,530 images/s"),
        (2.5, "", "2.5"),
    ],
)
def test_a_value_is_shown_with_its_unit(value: float, unit: str, text: str) -> None:
    assert show(value, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (789.4e12, "FLOP/s", "789 TFLOP/s"),
        (4.31e12, "B/s", "4.31 TB/s"),
        (55.17e9, "B/s", "55.2 GB/s"),
        (1.61e15, "OP/s", "1.61 POP/s"),
        (12345e15, "OP/s", "1.234e+04 POP/s"),
        (999.4e9, "B/s", "999 GB/s"),
        (999.6e9, "B/s", "1 TB/s"),
        (999.5, "B/s", "1 kB/s"),
        (2e3, "B/s", "2 kB/s"),
        (512.0, "B/s", "512 B/s"),
        (0.0, "B/s", "0 B/s"),
        (-2.5e6, "B/s", "-2.5 MB/s"),
    ],
)
def test_rates_are_shown_with_decimal_prefixes(value: float, unit: str, text: str) -> None:
    assert show_scaled(value, unit) == text
    assert show(value, unit) == text


def test_other_rates_have_no_prefix() -> None:
    assert show(25_350.0, "images/s") == "25,350 images/s"


def test_the_largest_size_is_still_one() -> None:
    assert parse_size("1048576TiB") == 1024**6


@pytest.mark.parametrize("text", ["1e30", 10**30, "1048577TiB"])
def test_sizes_that_no_machine_has_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="more than any machine has"):
        parse_size(text)


@pytest.mark.parametrize(
    ("value", "low", "high", "unit", "text"),
    [
        (412.0, 410.0, 414.0, "images/s", "± 0.5 %"),
        (412.0, 300.0, 524.0, "images/s", "± 27 %"),
        (412.0, 300.0, 580.0, "images/s", "± 41 %"),  # the wider half is 1.5 times the other
        (412.0, 300.0, 590.0, "images/s", "300 to 590 images/s"),
        (412.0, 290.0, 430.0, "images/s", "290 to 430 images/s"),
        (0.040, 0.035, 0.289, "s", "35 to 289 ms"),  # which was once ± 622 %
        (9e-4, 8e-4, 1.2e-3, "s", "800 µs to 1.2 ms"),
        (1.5e9, 0.9e9, 5.3e9, "FLOP/s", "900 MFLOP/s to 5.3 GFLOP/s"),
        (100.0, 99.9, 101.9, "images/s", "± 1.9 %"),  # nobody would notice
        (0.0, 0.0, 2.5, "%", "0 to 2.5 %"),
        (7.0, 6.0, 40.0, "", "6 to 40"),
        (7.0, 6.0, float("inf"), "", ""),
    ],
)
def test_a_skewed_interval_is_shown_from_end_to_end(
    value: float, low: float, high: float, unit: str, text: str
) -> None:
    interval = Interval(low=low, high=high, confidence=0.95)
    assert show_interval(value, interval, lambda end: show(end, unit)) == text


def test_without_an_interval_a_value_stands_alone() -> None:
    assert show_interval(3.0, None, str) == ""
    assert with_interval("3 s", "") == "3 s"
    assert with_interval("3 s", "± 1.0 %") == "3 s ± 1.0 %"
    assert with_interval("40 ms", "35 to 289 ms") == "40 ms (35 to 289 ms)"
