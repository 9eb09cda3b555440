"""What a log becomes: figures of the measured iterations, warnings about them, or no figures at all."""

from __future__ import annotations

import pytest

from paceline.benchmarks._micro.tools import ToolError
from paceline.benchmarks.megatron._log import parse
from paceline.benchmarks.megatron.megatron_gpt import MegatronGpt, MegatronParameters, _result
from paceline.core.case import Case
from paceline.core.record import Measurement, Outcome, Result
from paceline.report.export import superbench
from support.recordings import recorded
from support.records import record

MIB = 2**20


def figures(name: str, batch: int, warm_up: int = 6) -> Result:
    parameters = MegatronParameters(code_base="co", iterations=12 - warm_up, warm_up_iterations=warm_up)
    return _result(parameters, parse(recorded(f"megatron/{name}.log"), 12, batch), batch)


def only(result: Result, name: str, scope: str = "") -> Measurement:
    (found,) = [one for one in result.measurements if one.metric.name == name and one.scope == scope]
    return found


def test_throughput_is_the_global_batch_over_the_time_of_the_measured_iterations() -> None:
    result = figures("megatron-lm-2025", 8)
    step_time = only(result, "step_time")
    log = parse(recorded("megatron/megatron-lm-2025.log"), 12, 8)
    assert step_time.samples == [one.seconds for one in log.iterations[6:]]
    assert only(result, "throughput").value == pytest.approx(6 * 8 / sum(step_time.samples))
    assert only(result, "token_throughput").value == pytest.approx(6 * 8 * 2048 / sum(step_time.samples))
    assert only(result, "flops_per_gpu").value == pytest.approx(6 * 36.5e12 / sum(step_time.samples), rel=0.01)
    assert only(result, "loss").samples == pytest.approx([10.9 - 0.11 * number for number in range(7, 13)])


def test_every_metric_is_declared() -> None:
    declared = {metric.name for metric in MegatronGpt.metrics}
    for name, batch in (("megatron-lm-2025", 8), ("megatron-deepspeed-2024", 8)):
        assert {one.metric.name for one in figures(name, batch).measurements} == declared


def test_memory_is_that_of_the_fullest_gpu_and_of_each_that_tells_it() -> None:
    result = figures("four-ranks-interleaved", 16)
    assert only(result, "peak_device_memory").value == round(15754.88818359375 * MIB)
    assert only(result, "device_memory", "rank 2").value == round(9334.3779296875 * MIB)


def test_an_older_log_has_no_flops() -> None:
    names = {one.metric.name for one in figures("megatron-lm-2022-fp16", 4).measurements}
    assert "flops_per_gpu" not in names
    assert {"throughput", "step_time", "loss", "device_memory"} <= names


def test_steps_that_were_skipped_while_measuring_are_a_warning() -> None:
    assert "skipped-steps" not in {warning.kind for warning in figures("megatron-lm-2022-fp16", 4).warnings}
    (warning,) = [d for d in figures("megatron-lm-2022-fp16", 4, warm_up=2).warnings if d.kind == "skipped-steps"]
    assert warning.message.startswith("2 of 10 measured iterations took no optimizer step")
    assert "--warm-up-iterations" in warning.remedy


@pytest.mark.parametrize(("name", "first"), [("nan-left-out-bf16", 8), ("nan-iterations-fp16", 10)])
def test_a_training_that_broke_down_has_no_figures(name: str, first: int) -> None:
    with pytest.raises(ToolError, match=rf"broke down: .* first in iteration {first}"):
        figures(name, 4)


def test_what_broke_down_before_the_measured_iterations_is_forgiven() -> None:
    assert figures("nan-iterations-fp16", 4, warm_up=11).measurements


def test_remedies_name_parameters_that_this_benchmark_has() -> None:
    known = {f"--{name.replace('_', '-')}" for name in MegatronParameters.model_fields}
    for name, batch, warm_up in (
        ("megatron-lm-2022-fp16", 4, 1),
        ("megatron-lm-2025", 8, 9),
        ("megatron-lm-2025", 8, 11),
    ):
        warnings = figures(name, batch, warm_up).warnings
        assert warnings
        for warning in warnings:
            flags = {word.strip("(),.") for word in warning.remedy.split() if word.strip("(").startswith("--")}
            assert flags <= known, warning


def test_superbench_has_its_names_and_units() -> None:
    result = figures("four-ranks-interleaved", 16)
    given = {"precision": "fp16", "code_base": "co"}
    case = Case(index=0, benchmark="megatron-gpt", parameters=given, title="", target="cuda:*")
    found = superbench.results([record(case, result.measurements, outcome=Outcome.OK)])
    times = only(result, "step_time").samples
    assert found == {
        "megatron-gpt/return_code": 0,
        "megatron-gpt/fp16_train_step_time": pytest.approx(1e3 * sum(times) / len(times)),
        "megatron-gpt/fp16_train_throughput": pytest.approx(16 * len(times) / sum(times)),
        "megatron-gpt/fp16_train_tflops": pytest.approx(118.7 * 0.9361 * len(times) / sum(times), rel=1e-3),
        "megatron-gpt/fp16_train_mem_allocated": pytest.approx((10770.3779296875 + 9334.3779296875) / 2 / 1024),
        "megatron-gpt/fp16_train_max_mem_allocated": pytest.approx((15754.88818359375 + 12680.6357421875) / 2 / 1024),
    }
    on_cpu = superbench.results([record(case.model_copy(update={"target": "cpu"}), result.measurements)])
    assert "megatron-gpt:target=cpu/fp16_train_step_time" in on_cpu
