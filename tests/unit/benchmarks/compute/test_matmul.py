"""The matrix product as an operator: it makes a new result each time, and takes the shape that suits the device."""

from __future__ import annotations

import pytest
import torch

from paceline.benchmarks.compute.matmul import GPU_SHAPE, Matmul, MatmulParameters, Operator
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.devices import kind_named
from paceline.devices.cpu import CpuDevice

SMALL = {"m": 24, "n": 40, "k": 56}
SHORT = {"budget": 0.01, "warm_up": 0.01}


def test_each_call_makes_its_own_result() -> None:
    operator = Operator(MatmulParameters(**SMALL), CpuDevice())
    first, second = operator.call(), operator.call()
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, second)
    operator.check()


def test_a_wrong_result_is_silent_corruption() -> None:
    operator = Operator(MatmulParameters(**SMALL), CpuDevice())
    right = operator.call
    operator.call = lambda: right().index_fill(1, torch.tensor(3), 0.0)
    with pytest.raises(SilentCorruption):
        operator.check()


def test_the_shape_suits_the_device_where_none_is_given() -> None:
    assert MatmulParameters().shape_on(kind_named("cuda")) == GPU_SHAPE
    on_cpu = MatmulParameters().shape_on(kind_named("cpu"))
    assert all(mine < theirs for mine, theirs in zip(on_cpu, GPU_SHAPE, strict=True))
    assert MatmulParameters(precision="bf16").shape_on(kind_named("cpu")) < on_cpu
    assert MatmulParameters(n=7).shape_on(kind_named("cpu")) == (on_cpu[0], 7, on_cpu[2])


def test_it_tells_time_rate_and_latency_and_no_share_of_an_unknown_peak() -> None:
    case = Case(index=0, benchmark="matmul", parameters={}, title="", target="cpu")
    result = Matmul().measure(MatmulParameters(**SMALL, **SHORT), Context(case=case))
    found = {one.metric.name: one for one in result.measurements}
    assert list(found) == ["time", "compute_rate", "latency"]
    assert found["compute_rate"].work == 2 * 24 * 40 * 56
    assert found["compute_rate"].value == pytest.approx(2 * 24 * 40 * 56 / found["time"].summary.mean)
    assert result.facts["peak"] is None


def test_a_format_that_a_cpu_has_not_is_refused() -> None:
    case = Case(index=0, benchmark="matmul", parameters={}, title="", target="cpu")
    with pytest.raises(Unsupported, match="tf32 needs a GPU"):
        Matmul().measure(MatmulParameters(precision="tf32"), Context(case=case))
