"""Where the time of a step went, added up by hand."""

from __future__ import annotations

import pytest

from paceline.core.trace_events import NAME_LENGTH, STEP_MARK, TOP, TraceEvent, time_spent
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


def mark(step: int, start: int, end: int) -> TraceEvent:
    return TraceEvent(f"{STEP_MARK}{step}", start, end, "host", on_device=False, category="user_annotation")


def kernel(name: str, start: int, end: int, correlation: int | None = None) -> TraceEvent:
    return TraceEvent(name, start, end, "stream", on_device=True, category="kernel", correlation=correlation)


def launch(start: int, correlation: int) -> TraceEvent:
    return TraceEvent("launch", start, start, "host", on_device=False, category="cuda_runtime", correlation=correlation)


def test_a_kernel_that_took_no_time_is_no_work() -> None:
    steps = [mark(0, 0, 10), mark(1, 10, 20)]
    assert time_spent([*steps, kernel("gemm", 15, 15)], on_device=True, steps_queue=False) is None
    spent = time_spent([*steps, kernel("gemm", 15, 16), kernel("gemm", 18, 18)], on_device=True, steps_queue=False)
    assert spent is not None
    assert [(one.calls, one.share) for one in spent.kernels] == [(2.0, 0.1)]


def test_only_work_within_the_steps_counts() -> None:
    events = [mark(0, 0, 10), mark(1, 10, 20), kernel("gemm", 2, 8), kernel("copy", 10, 15), kernel("relu", 20, 30)]
    spent = time_spent(events, on_device=True, steps_queue=False)
    assert spent is not None
    assert spent.groups == {"copies": 0.5}
    assert [(one.name, one.calls, one.seconds) for one in spent.kernels] == [("copy", 1.0, 5e-9)]
    assert (spent.kernel_names, spent.steps, spent.step_seconds) == (1, 1, 10e-9)


def test_a_step_that_completes_with_the_one_before_it_is_no_step() -> None:
    marks = [mark(0, 0, 10), mark(1, 10, 20), mark(2, 20, 30)]
    launches = [launch(0, 1), launch(10, 2), launch(20, 3), launch(30, 4)]
    kernels = [kernel("gemm", 5, 40, 1), kernel("gemm", 6, 40, 2), kernel("gemm", 40, 60, 3), kernel("gemm", 60, 90, 4)]
    spent = time_spent([*marks, *launches, *kernels], on_device=True, steps_queue=True)
    assert spent is not None
    assert (spent.steps, spent.step_seconds) == (1, 20e-9)
    assert spent.kernels[0].calls == 1.0


def test_work_that_nobody_launched_in_a_step_ends_none() -> None:
    marks = [mark(0, 0, 10), mark(1, 10, 20)]
    launches = [launch(0, 1), launch(0, 1), launch(10, 2), launch(15, 3)]
    kernels = [kernel("gemm", 5, 30, 1), kernel("gemm", 35, 50, 3), kernel("gemm", 30, 40, 2), kernel("gemm", 50, 99)]
    spent = time_spent([*marks, *launches, *kernels], on_device=True, steps_queue=True)
    assert spent is not None
    assert spent.step_seconds == 20e-9  # from 30 to 50, the later end of two


def test_as_many_kernels_are_listed_as_a_person_reads_and_names_are_cut() -> None:
    kernels = [
        kernel(f"gemm{letter}" + "x" * 300, 10 + place, 11 + place) for place, letter in enumerate("abcdefghijklmnop")
    ]
    spent = time_spent([mark(0, 0, 10), mark(1, 10, 26), *kernels], on_device=True, steps_queue=False)
    assert spent is not None
    assert (spent.kernel_names, len(spent.kernels)) == (16, TOP)
    assert [one.name[:5] for one in spent.kernels[:2]] == ["gemma", "gemmb"]  # equal ones by their names
    assert {len(one.name) for one in spent.kernels} == {NAME_LENGTH}
