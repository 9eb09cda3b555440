"""Compute benchmarks on a GPU: they agree with a loop written by hand, and their own cost is small."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from paceline.benchmarks._micro.formats import random_operand
from paceline.core.benchmark import BENCHMARKS, Context
from paceline.core.case import Case
from paceline.core.record import Outcome, Result
from paceline.core.subject import Pace
from paceline.devices import device_count
from support.cli import Sandbox

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU and its driver"),
]


def measured(name: str, **parameters: Any) -> Result:
    """A case in this process."""
    benchmark = BENCHMARKS.registry().get(name)
    case = Case(index=0, benchmark=name, parameters={}, title="", target="cuda:0")
    return benchmark().measure(benchmark.Parameters.read(parameters), Context(case=case))


def value(result: Result, name: str) -> float:
    return next(one.value for one in result.measurements if one.metric.name == name and not one.at)


def by_hand(call: Callable[[], object], seconds: float = 1.0, calls: int = 20) -> float:
    """Seconds per call by events around blocks of calls, after as long a warm-up: heat slows a GPU down."""
    import torch

    times = []
    begun = monotonic()
    while (passed := monotonic() - begun) < 2 * seconds:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        if passed > seconds:
            times.append(begin.elapsed_time(end) * 1e-3 / calls)
    return statistics.median(times)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gemm_is_within_two_percent_of_a_loop_by_hand(precision: str) -> None:
    """In turns, on numbers of the same distribution: near its power limit a GPU slows down with heat and with bits."""
    import torch

    size = 4096
    generator = torch.Generator("cuda").manual_seed(1)
    a, b = (random_operand(precision, (size, size), generator) for _ in range(2))
    out = torch.empty_like(a)
    torch.set_float32_matmul_precision("highest")
    ratios = []
    for _ in range(5):
        found = value(measured("gemm", precision=precision, size=size, warm_up="1s", budget="1s"), "time")
        ratios.append(found / by_hand(lambda: torch.mm(a, b, out=out)))
    print(f"gemm {precision}, time by Paceline / by hand:", " ".join(f"{ratio:.4f}" for ratio in ratios))
    assert statistics.median(ratios) == pytest.approx(1.0, abs=0.02)


EVENT_RESOLUTION = 1e-6  # seconds: CUDA states about half a microsecond for an event, and there are two
CLOCKS_APART = 1e-4  # the device's clock and the host's run at rates that differ by some millionths


def test_the_loop_is_a_small_part_of_launching_a_kernel() -> None:
    result = measured("kernel-launch")
    assert value(result, "loop_cost") < 0.05 * value(result, "wall_time")
    assert value(result, "issue_time") <= 1.1 * value(result, "single_launch_latency")
    assert value(result, "wall_time") < value(result, "single_launch_latency")


def test_events_see_no_more_than_the_clock_around_them() -> None:
    """Of every sample, not of their medians alone: both are times of the same launches."""
    result = measured("kernel-launch")
    samples = {one.metric.name: one.samples for one in result.measurements}
    slack = EVENT_RESOLUTION / result.facts["launches"]
    pairs = list(zip(samples["wall_time"], samples["event_time"], strict=True))
    assert all(0 < event <= wall * (1 + CLOCKS_APART) + slack for wall, event in pairs)
    print("kernel-launch:", {name: value(result, name) for name in samples}, result.facts["paced_by"])
    assert statistics.median(event / wall for wall, event in pairs) > 0.8  # 1,000 launches outweigh one wait


def test_more_launches_in_a_sample_do_not_change_the_time_of_one() -> None:
    # The host's pace differs by a fifth from run to run; the best of a few in alternation differs less.
    times: dict[int, list[float]] = {500: [], 5000: []}
    for launches in (500, 5000, 5000, 500, 500, 5000):
        times[launches].append(value(measured("kernel-launch", launches=launches), "wall_time"))
    assert min(times[5000]) == pytest.approx(min(times[500]), rel=0.25)


def test_a_burst_is_faster_than_what_the_power_limit_leaves() -> None:
    """In alternation: a bf16 product is what draws the most power."""
    lasting, bursts = [], []
    for _ in range(3):
        lasting.append(measured("gemm", precision="bf16", size=8192, warm_up="3s", budget="2s"))
        bursts.append(measured("gemm", precision="bf16", size=8192, burst=True, budget="4s"))
    for name, results in (("sustained", lasting), ("burst", bursts)):
        rates = " ".join(f"{value(result, 'compute_rate') / 1e12:.0f}" for result in results)
        print(f"gemm bf16, {name}: {rates} TFLOP/s; {Pace.model_validate(results[-1].facts['pace']).reason}")
        assert {result.facts["pace"]["kind"] for result in results} == {name}
    if (lasting[-1].facts["pace"]["power_limited"] or 0.0) > 0.5:
        assert value(bursts[-1], "compute_rate") > 1.02 * value(lasting[-1], "compute_rate")


@pytest.mark.parametrize(("warm_up", "kind"), [("12s", "sustained"), ("50ms", "short")])
def test_matmul_says_at_which_pace_it_was_measured(warm_up: str, kind: str) -> None:
    result = measured("matmul", precision="fp32", m=2048, n=2048, k=2048, warm_up=warm_up, budget="50ms")
    print("matmul:", Pace.model_validate(result.facts["pace"]).reason)
    assert result.facts["pace"]["kind"] == kind


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16"])
def test_the_plain_units_compute_the_same_and_no_faster_than_they_can(precision: str) -> None:
    """The product is checked in `measure`; a rate above their peak would mean that Tensor Cores took part."""
    result = measured("gemm", precision=precision, tensor_cores="off", size=4096)
    if result.facts["peak"]:
        assert 30.0 < value(result, "peak_share") <= 100.0


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_matmul_is_checked_in_every_format(precision: str) -> None:
    result = measured("matmul", precision=precision, m=2048, n=2048, k=2048)
    assert value(result, "time") <= 1.1 * value(result, "latency")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["blas-functions", "dnn-functions"])
def test_the_functions_of_models_are_right_in_every_format(name: str, precision: str) -> None:
    result = measured(name, precision=precision, budget="50ms", warm_up="50ms")
    assert value(result, "compute_rate") > 0
    assert "scale full" in result.facts["source"]


@pytest.mark.skipif(device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("mode", ["all-reduce", "all-gather"])
def test_a_product_is_divided_over_two_gpus(sandbox: Sandbox, mode: str) -> None:
    case = {"benchmark": "sharding-matmul", "mode": mode, "ranks": 2, "target": "cuda:*", "precision": "bf16"}
    done = sandbox.run("run", sandbox.suite(case), "--no-report")
    assert done.returncode == 0, done.stdout + done.stderr
    [record] = sandbox.load().records
    assert record.outcome is Outcome.OK
