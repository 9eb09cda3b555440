"""Where the time of a step went, added up by hand."""

from __future__ import annotations

import pytest

from paceline.core.trace_breakdown import time_spent
from support.profiled import events_of, gpu_spent

MICRO = 1e-6


def test_a_gpu_whose_steps_queue() -> None:
    spent = gpu_spent()
    assert spent.steps == 2
    assert spent.step_seconds == pytest.approx(100 * MICRO)
    # 60 us of a convolution and 60 of a product; 20 + 10 + 8 of memory; NCCL runs 90, of which 32 nothing hides.
    assert spent.shares == pytest.approx(
        {"compute": 0.60, "memory": 0.19, "communication": 0.16, "other": 0.0, "idle": 0.05}
    )
    assert spent.hidden_communication == pytest.approx(0.29)
    assert spent.groups == pytest.approx(
        {
            "communication": 0.45,
            "convolutions": 0.30,
            "matrix products": 0.30,
            "elementwise work": 0.10,
            "copies": 0.05,
            "normalisation": 0.04,
        }
    )


def test_top_kernels_of_a_gpu() -> None:
    spent = gpu_spent()
    first = spent.kernels[0]
    assert first.name.startswith("ncclDevKernel_AllReduce")
    assert (first.kind, first.calls) == ("communication", 1.0)
    assert first.seconds == pytest.approx(45 * MICRO)
    product = next(one for one in spent.kernels if one.name.startswith("nvjet"))
    assert product.calls == 0.5  # the call of the lead-in step is not counted
    assert product.seconds == pytest.approx(30 * MICRO)
    assert product.share == pytest.approx(0.30)
    assert spent.kernel_names == 6


def test_a_gpu_whose_steps_are_waited_for() -> None:
    spent = time_spent(events_of("gpu-waited-for.json"), on_device=True, steps_queue=False)
    assert spent is not None
    assert spent.steps == 1
    assert spent.step_seconds == pytest.approx(100 * MICRO)
    assert spent.shares == pytest.approx(
        {"compute": 0.5, "memory": 0.1, "communication": 0.0, "other": 0.0, "idle": 0.4}
    )


def test_a_gpu_of_which_the_profiler_saw_nothing() -> None:
    for queue in (True, False):
        assert time_spent(events_of("gpu-without-cupti.json"), on_device=True, steps_queue=queue) is None


def test_a_cpu_with_operators_within_one_another() -> None:
    spent = time_spent(events_of("cpu-nested.json"), on_device=False, steps_queue=False)
    assert spent is not None
    assert spent.shares == pytest.approx(
        {"compute": 0.40, "memory": 0.20, "communication": 0.18, "other": 0.0, "idle": 0.22}
    )
    assert spent.hidden_communication == pytest.approx(0.20)
    told = {one.name: round(one.seconds / MICRO) for one in spent.kernels}
    assert told == {"gloo:all_reduce": 38, "aten::addmm": 30, "aten::linear": 10, "aten::copy_": 10, "aten::relu": 10}


@pytest.mark.parametrize("name", ["cpu-convolution.json.gz", "cpu-two-ranks.json.gz"])
def test_a_trace_that_torch_took(name: str) -> None:
    spent = time_spent(events_of(name), on_device=False, steps_queue=False)
    assert spent is not None
    assert spent.steps == 2
    assert sum(spent.shares.values()) == pytest.approx(1.0)
    assert spent.kernels[0].name == "aten::convolution_backward"
    assert spent.kernels[0].calls == 1.0
    assert spent.groups.get("other work", 0.0) < 0.01  # what its operators do is known
    assert ("communication" in spent.groups) == (name == "cpu-two-ranks.json.gz")
