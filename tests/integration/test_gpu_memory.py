"""Copies and streams on a GPU; run these on one before a release."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from paceline.benchmarks.memory.copy import Copy, CopyParameters, DeviceCopies
from paceline.benchmarks.memory.stream import Stream, StreamParameters, TorchArrays
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption
from paceline.core.record import Measurement, Result
from paceline.devices import device_count, open_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU and its driver"),
]

MIB = 1024**2
SIZE = 256 * MIB


def case_of(benchmark: str) -> Case:
    return Case(index=0, benchmark=benchmark, parameters={}, title="", target="cuda:0")


def copied(**values: Any) -> Result:
    return Copy().measure(CopyParameters.read(values), Context(case=case_of("copy")))


def figure(result: Result, name: str, size: int | None = None) -> Measurement:
    at = {"size": size} if size else {}
    return next(m for m in result.measurements if m.metric.name == name and m.at == at)


def by_hand(way: str, pinned: bool) -> float:
    """Bytes per second of a plain loop between two CUDA events."""
    import torch

    host = torch.randint(0, 256, (SIZE,), dtype=torch.uint8, pin_memory=pinned)
    on_gpu = host.to("cuda:0")
    other = torch.empty_like(on_gpu)
    to, source = {"h2d": (on_gpu, host), "d2h": (host, on_gpu), "d2d": (other, on_gpu)}[way]
    rates = []
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(20):
            to.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        rates.append(20 * SIZE / (begin.elapsed_time(end) * 1e-3))
    return median(rates)


@pytest.mark.parametrize("way", ["h2d", "d2h", "d2d"])
def test_a_copy_is_as_fast_as_a_loop_between_events_written_by_hand(way: str) -> None:
    before = by_hand(way, pinned=True)
    result = copied(direction=way, sizes=[SIZE], budget="1s")
    after = by_hand(way, pinned=True)
    assert "device events" in result.facts["timing"]
    assert figure(result, "bandwidth").value == pytest.approx((before + after) / 2, rel=0.02)


def test_pageable_memory_is_measured_too_and_is_no_faster_than_pinned() -> None:
    pageable = copied(direction="h2d", host_memory="pageable", sizes=[4096, SIZE])
    pinned = copied(direction="h2d", sizes=[4096, SIZE])
    assert figure(pageable, "bandwidth").value <= 1.02 * figure(pinned, "bandwidth").value
    assert "host-bound" not in {warning.kind for warning in pageable.warnings}


def test_both_directions_at_once_move_more_than_either_alone() -> None:
    both = copied(both=True, sizes=[4096, SIZE])
    alone = [figure(copied(direction=way, sizes=[SIZE]), "bandwidth").value for way in ("h2d", "d2h")]
    assert figure(both, "bandwidth").work == 2 * SIZE
    assert figure(both, "bandwidth").value > 1.1 * max(alone)


@pytest.mark.parametrize("way", ["h2d", "d2h", "d2d"])
def test_a_sweep_from_small_to_large_is_checked_and_within_its_peak(way: str) -> None:
    result = copied(direction=way, sizes=[4096, 64 * 1024, MIB, SIZE])
    assert len([m for m in result.measurements if m.metric.name == "bandwidth"]) == 5
    for m in result.measurements:
        assert m.metric.name != "peak_share" or 0 < m.value <= 100


@pytest.mark.parametrize("way", ["h2d", "d2h", "d2d", "h2d and d2h"])
def test_a_byte_that_changed_on_the_way_is_silent_corruption(way: Any) -> None:
    copies = DeviceCopies(way, "pinned", open_device("cuda:0"), MIB, seed=1)
    copies.call(MIB)()
    copies.check(MIB)
    copies.pairs[-1].destination[1234] ^= 255
    with pytest.raises(SilentCorruption, match="the first at 1234"):
        copies.check(MIB)


def streamed(**values: Any) -> Result:
    return Stream().measure(StreamParameters.read(values), Context(case=case_of("stream")))


def test_stream_on_a_gpu_comes_near_the_promised_bandwidth_and_not_beyond() -> None:
    result = streamed(size="1GiB")
    assert result.facts["engine"] == "torch"
    for name in ("copy", "scale", "add", "triad"):
        assert figure(result, f"{name}_bandwidth").value > 0
    if result.facts["peak"]:
        assert 50 < figure(result, "peak_share").value <= 100


def test_arrays_that_fit_into_the_cache_have_no_share_of_the_memory_peak() -> None:
    result = streamed(sizes=["1MiB"])
    assert "peak_share" not in {m.metric.name for m in result.measurements}
    assert "cached" in {warning.kind for warning in result.warnings}


def test_a_changed_element_on_the_gpu_is_silent_corruption() -> None:
    from paceline.benchmarks.memory.stream import KERNELS

    arrays = TorchArrays(MIB, open_device("cuda:0"))
    arrays.c.copy_(arrays.a)
    arrays.check(KERNELS[0])
    arrays.c[99] += 1
    with pytest.raises(SilentCorruption, match="first at 99"):
        arrays.check(KERNELS[0])
