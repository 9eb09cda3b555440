"""Results under SuperBench's names."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from paceline.core.metric import Better, Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record
from paceline.core.subject import SUPERBENCH, Alias
from paceline.report.export import superbench
from support.records import (
    STEP_TIME,
    case,
    described_here,
    hostile_run,
    literal_run,
    record,
    run_of,
    sample_run,
    throughput,
)


def model(index: int, benchmark: str = "train", times: list[float] | None = None, **parameters: Any) -> Record:
    measured = Measurement.of_samples(STEP_TIME, times or [0.1, 0.3])
    found = [Measurement.of_rate(throughput("images/s"), 32, measured), measured]
    values = {"model": "resnet50", "precision": "fp16", "batch_size": 32, "scale": "full"} | parameters
    return record(case(index, benchmark, "a", **values), found)


def test_the_whole_line_of_a_training_run() -> None:
    assert json.loads(superbench.render(literal_run())) == {
        "node": "node-07",
        "model-benchmarks/pytorch-resnet50/return_code": 0,
        "model-benchmarks/pytorch-resnet50/fp16_train_step_time": pytest.approx(100.0),
        "model-benchmarks/pytorch-resnet50/fp16_train_throughput": pytest.approx(320.0),
        "model-benchmarks/pytorch-resnet50/fp32_train_step_time": pytest.approx(200.0),
        "model-benchmarks/pytorch-resnet50/fp32_train_throughput": pytest.approx(160.0),
    }


def test_throughput_is_work_over_time_and_step_time_a_mean() -> None:
    found = superbench.results([model(0)])
    assert found["model-benchmarks/pytorch-resnet50/fp16_train_step_time"] == pytest.approx(200.0)
    assert found["model-benchmarks/pytorch-resnet50/fp16_train_throughput"] == pytest.approx(160.0)


def test_inference_has_percentiles_of_both() -> None:
    times = [0.1, 0.2, 0.3, 0.4]
    found = superbench.results([model(0, "inference", times)])
    prefix = "model-benchmarks/pytorch-resnet50/fp16_inference_"
    assert {key.removeprefix(prefix) for key in found} == {
        "model-benchmarks/pytorch-resnet50/return_code",
        *("step_time", "step_time_50", "step_time_90", "step_time_95", "step_time_99", "step_time_99.9"),
        *("throughput", "throughput_50", "throughput_90", "throughput_95", "throughput_99", "throughput_99.9"),
    }
    assert found[f"{prefix}step_time_50"] == pytest.approx(250.0)
    rates = [32 / time for time in times]
    assert found[f"{prefix}throughput_99"] == pytest.approx(np.percentile(rates, 99))


def test_training_on_several_ranks_is_told_once_per_rank_and_globally() -> None:
    one = model(0, ranks=2, target="cuda:*")
    found = superbench.results([one])
    prefix = "model-benchmarks/pytorch-resnet50/fp16_train_"
    assert found[f"{prefix}throughput"] == pytest.approx(80.0)
    assert found[f"{prefix}global_throughput"] == pytest.approx(160.0)
    assert not any(":0" in key for key in found)


def test_inference_on_several_ranks_has_a_key_for_each() -> None:
    one = model(0, "inference", ranks=2)
    for rank, seconds in enumerate((0.1, 0.2)):
        own = Measurement.of_samples(STEP_TIME, [seconds, seconds], scope=f"rank {rank}")
        one.measurements += [own, Measurement.of_rate(throughput("images/s"), 16, own, scope=f"rank {rank}")]
    found = superbench.results([described_here(one)])
    prefix = "model-benchmarks/pytorch-resnet50/fp16_inference_"
    assert found[f"{prefix}throughput:0"] == pytest.approx(160.0)
    assert found[f"{prefix}throughput:1"] == pytest.approx(80.0)
    assert found[f"{prefix}step_time_99:1"] == pytest.approx(200.0)
    assert f"{prefix}throughput" not in found


def test_a_tiny_model_never_passes_for_the_full_one() -> None:
    found = superbench.results([model(0), model(1, scale="tiny")])
    assert "model-benchmarks/pytorch-resnet50/fp16_train_throughput" in found
    assert "model-benchmarks:scale=tiny/pytorch-resnet50/fp16_train_throughput" in found


@pytest.mark.parametrize(
    ("records", "notes"),
    [
        ([model(0), model(1, batch_size=64)], ["batch_size=32", "batch_size=64"]),
        ([model(0), model(1, precision="bf16")], ["", ""]),
        ([model(0), model(1, "inference")], ["", ""]),
        ([model(0, ranks=1), model(1, ranks=2, target="cuda:*")], ["ranks=1", "ranks=2"]),
        ([model(0, target="cuda:0"), model(1, target="cuda:*")], ["", ""]),
        ([model(0), model(1, repeat=2)], ["repeat=1", "repeat=2"]),
        ([model(0), model(1)], ["index=0", "index=1"]),
        ([model(0, model="a/b"), model(1, model="a:b")], ["model=a-b,index=0", "model=a-b,index=1"]),
        ([model(0), model(1), model(2, precision="bf16")], ["index=0", "index=1", ""]),
        ([model(0, scale="tiny"), model(1, scale="tiny", batch_size=1)],
         ["scale=tiny,batch_size=32", "scale=tiny,batch_size=1"]),
    ],
)  # fmt: skip
def test_no_two_cases_share_a_key(records: list[Record], notes: list[str]) -> None:
    assert superbench.notes(records) == notes
    found = superbench.results(records)
    rates = [key for key in found if re.search(r"_throughput(:\d+)?$", key) and "global" not in key]
    assert len(rates) == len(records)


def test_the_same_work_on_several_devices_has_the_number_of_each_as_its_rank() -> None:
    found = superbench.results([model(0, target="cuda:1"), model(1, target="cuda:7"), model(2, "inference")])
    group = "model-benchmarks/pytorch-resnet50"
    assert {f"{group}/fp16_train_throughput:1", f"{group}/fp16_train_throughput:7"} <= found.keys()
    assert {f"{group}/return_code:1", f"{group}/return_code:7", f"{group}/return_code"} <= found.keys()
    assert f"{group}/fp16_inference_throughput" in found


@pytest.mark.parametrize(
    ("outcome", "kind", "code"),
    [
        (Outcome.FAILED, CauseKind.ERROR, 4),
        (Outcome.FAILED, CauseKind.CRASHED, 4),
        (Outcome.FAILED, CauseKind.CORRUPTION, 3),
        (Outcome.OUT_OF_MEMORY, CauseKind.DEVICE_MEMORY, 4),
        (Outcome.UNSUPPORTED, CauseKind.UNSUPPORTED, 10),
        (Outcome.UNSUPPORTED, CauseKind.MISSING_DEPENDENCY, 31),
        (Outcome.TIMEOUT, CauseKind.TIMEOUT, 124),
    ],
)
def test_return_codes(outcome: Outcome, kind: CauseKind, code: int) -> None:
    bad = model(0).model_copy(update={"outcome": outcome, "cause": Cause(kind=kind, message="m")})
    assert superbench.results([bad]) == {"model-benchmarks/pytorch-resnet50/return_code": code}


def test_one_failure_of_a_model_is_not_hidden_by_its_other_cases() -> None:
    cause = Cause(kind=CauseKind.ERROR, message="m")
    bad = model(0, precision="bf16").model_copy(update={"outcome": Outcome.FAILED, "cause": cause})
    for records in ([bad, model(1)], [model(0), bad]):
        assert superbench.results(records)["model-benchmarks/pytorch-resnet50/return_code"] == 4


def test_other_benchmarks_keep_their_own_names_and_units() -> None:
    metric = Metric(name="overhead_per_step", unit="s", better=Better.LOWER)
    found = [Measurement.of_value(metric, 2e-6), Measurement.of_value(metric, 3e-6, scope="rank 1")]
    assert superbench.results([record(case(0, "overhead", ""), found)]) == {
        "overhead/return_code": 0,
        "overhead/overhead_per_step": 2e-6,
        "overhead/overhead_per_step:1": 3e-6,
    }


def test_a_whole_run_is_one_valid_line() -> None:
    for run in (sample_run(), hostile_run(), run_of([])):
        (line,) = superbench.render(run).splitlines()
        assert all(key.count("/") <= 2 for key in json.loads(line))


def test_scopes_and_the_first_of_equal_names_have_keys_and_numbers_that_are_none_have_not() -> None:
    metric = Metric(name="a/time", unit="s", better=Better.LOWER)
    measured = [
        Measurement.of_value(metric, 2.0),
        Measurement.of_value(metric, 3.0),
        Measurement.of_value(metric, 4.0, scope="node a", at={"size": 8}),
        Measurement.of_value(Metric(name="loss", unit=""), float("nan")),
    ]
    assert superbench.results([record(case(0, "mine", ""), measured)]) == {
        "mine/return_code": 0,
        "mine/a-time": 2.0,
        "mine/a-time_size-8_node-a": 4.0,
    }


def test_a_case_that_failed_has_a_code_and_no_figures() -> None:
    metric = Metric(name="time", unit="s", better=Better.LOWER)
    failed = record(case(0, "mine", ""), [Measurement.of_value(metric, 2.0)], outcome=Outcome.FAILED)
    assert superbench.results([failed]) == {"mine/return_code": 4}


def test_cases_are_in_the_order_of_the_run() -> None:
    keys = list(superbench.results([model(1, precision="bf16"), model(0)]))
    assert [key for key in keys if key.endswith("_throughput")] == [
        "model-benchmarks/pytorch-resnet50/fp16_train_throughput",
        "model-benchmarks/pytorch-resnet50/bf16_train_throughput",
    ]


@pytest.mark.parametrize(
    ("group", "name", "scope", "value", "key"),
    [
        ("mem-bw", "h2d_bw", "rank 3", 2.0, "mem-bw/h2d_bw:3"),
        ("mem-bw", "h2d_bw", "", 2.0, "mem-bw/h2d_bw"),
        ("", "gpu_power", "rank 0", 2.5, "gpu_power:0"),
        ("mem-bw", "return_code", "", 3.0, "mem-bw/return_code"),
        ("mem-bw", "return_code", "", 0.5, "mem-bw/return_code"),
    ],
)
def test_what_superbench_measured_goes_back_under_its_own_key(
    group: str, name: str, scope: str, value: float, key: str
) -> None:
    measured = [Measurement.of_value(Metric(name=name, unit=""), value, scope=scope)]
    alias = Alias(group=group, is_original=True)
    results = superbench.results([record(case(0, "x", ""), measured, aliases={SUPERBENCH: alias})])
    assert results == {key: value}
    is_whole = name == "return_code" and value == 3.0
    assert isinstance(results[key], int) is is_whole


def test_a_parameter_that_only_one_case_has_tells_them_apart_before_their_ranks_do() -> None:
    first, second = record(case(0, "mine", "", a=1, ranks=1)), record(case(1, "mine", "", a=1, b=5, ranks=2))
    assert superbench.notes([first, second]) == ["b=null", "b=5"]


def test_what_a_note_of_the_benchmark_names_is_not_said_again() -> None:
    alias = Alias(group="mine", note="size=large")
    records = [
        record(case(index, "mine", "", **values), aliases={SUPERBENCH: alias})
        for index, values in enumerate(({"size": 5, "kind": "a"}, {"size": 6, "kind": "a"}))
    ]
    assert superbench.notes(records) == ["size=large,index=0", "size=large,index=1"]
    other = record(case(2, "mine", "", size=7, kind="b"), aliases={SUPERBENCH: alias})
    assert superbench.notes([records[0], other]) == ["size=large,kind=a", "size=large,kind=b"]


@pytest.mark.parametrize(("is_model", "code"), [(True, 10), (False, 34)])
def test_what_a_machine_cannot_do_has_the_code_of_its_kind_of_benchmark(is_model: bool, code: int) -> None:
    alias = Alias(group="g", is_model=is_model)
    one = record(case(0, "mine", ""), outcome=Outcome.UNSUPPORTED, aliases={SUPERBENCH: alias})
    assert superbench.return_code(one) == code


def test_a_case_of_a_config_goes_back_under_its_name_there() -> None:
    named = model(0, precision="tf32")
    named = named.model_copy(update={"case": named.case.model_copy(update={"superbench": "model-benchmarks:gpt"})})
    tiny = model(1, scale="tiny")
    tiny = tiny.model_copy(update={"case": tiny.case.model_copy(update={"superbench": "gpt_models"})})
    found = superbench.results([named, tiny, model(2)])
    # There, float32 takes TF32 where a GPU has it.
    assert "model-benchmarks:gpt/pytorch-resnet50/fp32_train_throughput" in found
    assert "gpt_models:scale=tiny/pytorch-resnet50/fp16_train_throughput" in found
    assert "model-benchmarks/pytorch-resnet50/fp16_train_throughput" in found
