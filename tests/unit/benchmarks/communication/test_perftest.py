"""The tables of perftest, of several versions, are understood or refused; half a table is no table."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.benchmarks._micro.tools import ToolError
from paceline.benchmarks.communication.rdma import Row, parse_bandwidth, parse_latency
from support.recordings import recorded

ALL = recorded("perftest/write-bw-all-gbits.txt")
LATENCY = recorded("perftest/read-lat.txt")
MIB = 2.0**20


def test_a_sweep_has_a_row_of_every_size() -> None:
    rows = parse_bandwidth(ALL)
    assert [row.size for row in rows] == [2**power for power in range(1, 24)]
    assert rows[-1] == Row(8388608, 5000, typical=204.59e9 / 8, extreme=204.59e9 / 8)
    assert rows[0].typical == pytest.approx(0.012281e9 / 8)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("write-bw-mb", Row(65536, 5000, 1103.38 * MIB, 1103.39 * MIB)),
        ("write-bw-2012-without-message-rate", Row(65536, 5000, 937.60 * MIB, 937.61 * MIB)),
        ("send-bw-mib", Row(65536, 1000, 46557.03 * MIB, 46567.34 * MIB)),
        ("write-bw-gbits-for-some-time", Row(65536, 560845, 98.02e9 / 8, None)),
    ],
)
def test_versions_and_units(name: str, expected: Row) -> None:
    (row,) = parse_bandwidth(recorded(f"perftest/{name}.txt"))
    assert (row.size, row.iterations) == (expected.size, expected.iterations)
    assert row.typical == pytest.approx(expected.typical)
    assert row.extreme == (None if expected.extreme is None else pytest.approx(expected.extreme))


def test_the_rate_of_messages_agrees_with_the_unit() -> None:
    """perftest's MB are 2^20 bytes: only so do its two columns agree."""
    text = recorded("perftest/write-bw-mb.txt")
    (row,) = parse_bandwidth(text)
    rate = float(re.findall(r"0\.017\d+", text)[0]) * 1e6
    assert row.typical == pytest.approx(rate * row.size, rel=1e-4)


def test_latencies() -> None:
    (row,) = parse_latency(LATENCY)
    assert (row.size, row.iterations) == (2, 1000)
    assert [row.typical, row.extreme] == pytest.approx([1.79e-6, 1.88e-6])


def test_an_older_table_of_latencies_tells_less() -> None:
    rule = "-" * 66
    header = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]"
    (row,) = parse_latency(f"{rule}\n{header}\n 2        1000          0.86           4.63         0.91   \n{rule}\n")
    assert row.typical == pytest.approx(0.91e-6)
    assert row.extreme is None


@given(st.integers(0, len(ALL)))
def test_half_a_sweep_is_never_taken_for_a_whole_one(end: int) -> None:
    try:
        rows = parse_bandwidth(ALL[:end])
    except ToolError:
        return
    assert rows == parse_bandwidth(ALL)


@given(st.integers(0, len(LATENCY)))
def test_half_a_table_of_latencies_is_never_taken_for_a_whole_one(end: int) -> None:
    try:
        rows = parse_latency(LATENCY[:end])
    except ToolError:
        return
    assert rows == parse_latency(LATENCY)


@given(st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    for parse in (parse_bandwidth, parse_latency):
        with pytest.raises(ToolError, match="perftest"):
            parse(noise.decode(errors="replace"))


@given(st.text(max_size=12), st.sampled_from(re.findall(r"\S+", ALL[ALL.index("#bytes") :])))
def test_a_garbled_word_is_understood_or_refused(noise: str, word: str) -> None:
    at = ALL.index("#bytes")
    text = ALL[:at] + ALL[at:].replace(word, noise, 1)
    try:
        rows = parse_bandwidth(text)
    except ToolError:
        return
    assert all(row.typical > 0 and row.size > 0 for row in rows)


def test_a_test_of_the_other_kind_is_refused() -> None:
    with pytest.raises(ToolError, match="BW average"):
        parse_bandwidth(LATENCY)
    with pytest.raises(ToolError, match="latencies"):
        parse_latency(ALL)


@pytest.mark.parametrize("value", ["0.00", "nan", "-1", "inf"])
def test_what_is_no_figure_is_not_reported(value: str) -> None:
    text = recorded("perftest/write-bw-mb.txt").replace("1103.38", value)
    with pytest.raises(ToolError):
        parse_bandwidth(text)
