"""fio's JSON is understood or refused; windows become figures without a mean of rates."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.benchmarks._micro.tools import ToolError
from paceline.benchmarks.storage._fio import FioJob, Side, Window, parse, pooled_latency
from support.recordings import anything, places, recorded, replaced

MIXED = recorded("fio/mixed-3.33.json")
NOTED = recorded("fio/note-before-3.33.json")
PLACES = places(json.loads(MIXED))
JOB = FioJob("/f", "randread", 4096, "libaio", direct=True, depth=8, jobs=2, region=2**20)


def test_a_recorded_mixed_job_has_reads_and_writes_of_every_window() -> None:
    said = json.loads(MIXED)["jobs"]
    ran = parse(MIXED, 2)
    for one, told in zip(ran, said, strict=True):
        assert len(one.sides) == 2
        assert one.bytes == 2 * 8 * 1024**2
        assert one.reads.bytes == told["read"]["io_bytes"]
        assert one.seconds == max(told["read"]["runtime"], told["write"]["runtime"]) / 1000
        assert sum(one.reads.bins.values()) == one.reads.operations == told["read"]["total_ios"]
        assert one.reads.mean == pytest.approx(told["read"]["lat_ns"]["mean"] / 1e9)


def test_percentiles_agree_with_those_that_fio_computed_itself() -> None:
    for one, told in zip(parse(MIXED, 2), json.loads(MIXED)["jobs"], strict=True):
        for side, name in ((one.reads, "read"), (one.writes, "write")):
            summary = pooled_latency([[side]])
            for percentile in ("50", "95", "99", "99.9"):
                own = told[name]["lat_ns"]["percentile"][f"{float(percentile):.6f}"] / 1e9
                assert summary.percentiles[percentile] == pytest.approx(own, rel=0.02)
            assert summary.minimum <= summary.median <= summary.percentiles["99.9"] <= summary.maximum * 1.02


def test_notes_before_the_json_are_skipped() -> None:
    assert NOTED.startswith("note:")
    (ran,) = parse(NOTED, 1)
    assert ran.sides == [ran.reads]
    assert ran.bytes == 64 * 1024**2


@given(st.integers(0, len(MIXED.rstrip()) - 1))
@settings(deadline=None, max_examples=60)
def test_output_that_breaks_off_is_refused(end: int) -> None:
    with pytest.raises(ToolError, match="fio"):
        parse(MIXED[:end], 2)


@given(st.binary(max_size=300) | st.binary(max_size=100).map(lambda noise: b'{"jobs": [' + noise))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(ToolError, match="fio"):
        parse(noise.decode(errors="replace"), 1)


@given(st.sampled_from(PLACES), anything)
@settings(deadline=None, max_examples=60)
def test_a_wrong_value_anywhere_is_understood_or_refused(place: tuple[str | int, ...], value: object) -> None:
    try:
        ran = parse(replaced(MIXED, place, value), 2)
    except ToolError:
        return
    assert all(one.seconds > 0 and one.bytes > 0 for one in ran)
    pooled_latency([one.sides for one in ran])


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("jobs",), [], "jobs"),
        (("jobs", 0, "error"), 5, "error 5"),
        (("jobs", 0, "read", "io_bytes"), -1, "io_bytes"),
        (("jobs", 0, "read", "lat_ns", "bins"), {}, "without bytes or latencies"),
        (("jobs", 0, "read", "lat_ns", "mean"), float("nan"), "mean"),
    ],
)
def test_what_is_wrong_is_said(place: tuple[str | int, ...], value: object, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        parse(replaced(MIXED, place, value), 2)


def test_a_window_too_few_is_refused() -> None:
    with pytest.raises(ToolError, match="2 jobs instead of 3"):
        parse(MIXED, 3)


def side(operations: int, nanoseconds: int) -> Side:
    latency = {"mean": nanoseconds, "stddev": 0, "min": nanoseconds, "max": nanoseconds}
    fields = {"io_bytes": operations * 4096, "total_ios": operations, "runtime": 1}
    return Side.model_validate(fields | {"lat_ns": latency | {"bins": {nanoseconds: operations}}})


def test_latencies_of_windows_count_by_operations() -> None:
    summary = pooled_latency([[side(900, 1000)], [side(100, 9000)]])
    assert summary.count == 1000
    assert summary.median == 1e-6
    assert summary.percentiles["90"] == 1e-6
    assert summary.percentiles["95"] == 9e-6
    assert summary.mean == pytest.approx((900 * 1e-6 + 100 * 9e-6) / 1000)
    assert summary.deviation == pytest.approx(2.4e-6)
    assert summary.outliers == 100
    assert summary.median_interval is not None
    assert summary.median_interval.low <= summary.median <= summary.median_interval.high


def test_windows_in_order_move_through_the_file_and_stay_inside() -> None:
    job = FioJob("/f", "write", 4096, "libaio", direct=True, depth=8, jobs=2, region=2**20)
    windows = job.windows(7, 300 * 1024, first=2, seed=10)
    assert [window.offset for window in windows] == [2 * 300 * 1024, 0, 300 * 1024] * 2 + [2 * 300 * 1024]
    assert all(window.offset + window.work <= job.region for window in windows)
    larger = job.windows(2, 5 * 2**20, first=0, seed=0)
    assert [window.offset for window in larger] == [0, 0]
    assert "--size=1048576" in job.command("fio", larger)


def test_random_windows_use_the_whole_file_and_new_numbers() -> None:
    windows = JOB.windows(3, 8192, first=1, seed=10)
    assert [window.seed for window in windows] == [11, 12, 13]
    command = JOB.command("fio", windows)
    assert command.count("--size=1048576") == 3


def test_reading_jobs_are_read_only_and_buffered_writes_are_synchronised() -> None:
    assert "--readonly" in JOB.command("fio", [Window(4096)])
    buffered = FioJob("/f", "write", 4096, "psync", direct=False, depth=1, jobs=1, region=2**20)
    assert "--readonly" not in buffered.command("fio", [Window(4096)])
    assert "--end_fsync=1" in buffered.options()


def test_a_colon_in_a_name_is_part_of_it() -> None:
    job = FioJob("/dev/by-path/pci-0:1", "read", 4096, "psync", direct=True, depth=1, jobs=1, region=2**20)
    assert r"--filename=/dev/by-path/pci-0\:1" in job.options()
