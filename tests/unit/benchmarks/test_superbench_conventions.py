"""Where SuperBench counts or chooses otherwise than we do, its names carry its way."""

from __future__ import annotations

import pytest

from paceline.benchmarks._micro.parameters import BANDWIDTH, TIME
from paceline.benchmarks.memory.stream import KERNELS
from paceline.core.record import Measurement
from paceline.core.subject import SUPERBENCH
from support.records import case, record

TIMES = Measurement.of_samples(TIME, [0.25, 0.5, 0.25, 1.0])  # a mean of half a second


@pytest.mark.parametrize(("direction", "counted"), [("h2d", 1), ("d2h", 1), ("d2d", 2)])
def test_a_copy_within_the_device_is_read_and_written(direction: str, counted: int) -> None:
    copied = record(
        case(0, "copy", "", target="cuda:0", direction=direction), [Measurement.of_rate(BANDWIDTH, 1e9, TIMES)]
    )
    assert copied.aliases[SUPERBENCH].values == {f"{direction}_bw": pytest.approx(counted * 2.0)}


def test_throughput_of_stream_is_that_of_the_fastest_pass() -> None:
    measured = []
    for kernel in KERNELS:
        seconds = Measurement.of_samples(kernel.time, TIMES.samples)
        measured += [Measurement.of_rate(kernel.bandwidth, 1e9, seconds), seconds]
    streamed = record(case(0, "stream", "", target="cpu"), measured, facts={"threads": 2})
    found = streamed.aliases[SUPERBENCH].values
    for kernel in ("copy", "scale", "add", "triad"):
        assert found[f"{kernel}_throughput"] == pytest.approx(4000)  # MB/s
        assert found[f"{kernel}_time_min"] == pytest.approx(0.25)
        assert found[f"{kernel}_time_avg"] == pytest.approx(0.5)


def test_a_product_is_one_that_was_waited_for() -> None:
    latency = TIME.model_copy(update={"name": "latency"})
    multiplied = record(
        case(0, "matmul", "", target="cuda:0"),
        [Measurement.of_value(TIME, 0.010), Measurement.of_value(latency, 0.012)],
    )
    assert multiplied.aliases[SUPERBENCH].values == {"nosharding_time": pytest.approx(12)}
