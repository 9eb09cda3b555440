"""SuperBench's results become runs, one for each node, with the same values; so do ours that were exported."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from paceline.analysis.diagnose.superbench import column_of, read_nodes, read_results, split
from paceline.analysis.diagnose.table import assemble, results_of
from paceline.core.metric import Better
from paceline.core.record import Outcome
from paceline.core.run import RunRecords
from paceline.report.export import jsonl, superbench
from support.micro_records import micro_run
from support.records import sample_run
from support.refused import refused

DATA = Path(__file__).parents[2] / "data" / "superbench" / "results-summary.jsonl"


def test_every_node_is_a_run_with_a_record_for_each_benchmark() -> None:
    runs = read_results(DATA)
    assert [run.run.environment.host for run in runs] == [f"node-{n:02d}" for n in range(1, 9)]
    benchmarks = [record.case.benchmark for record in runs[0].records]
    assert benchmarks == ["kernel-launch", "mem-bw", "nccl-bw", "model-benchmarks", "monitor"]
    copies = runs[0].records[1]
    assert copies.outcome is Outcome.OK
    measured = copies.measurement("h2d_bw", "rank 1")
    assert measured is not None
    assert (measured.metric.unit, measured.metric.better) == ("GB/s", Better.HIGHER)
    failed = runs[5].records[2]
    assert failed.outcome is Outcome.FAILED
    assert failed.cause is not None and "return code 4" in failed.cause.message
    model = runs[0].records[3]
    assert model.case.parameters == {"model": "pytorch-resnet50"}


@pytest.fixture(scope="module")
def micro() -> RunRecords:
    return micro_run()


@pytest.mark.parametrize("kind", ["models", "micro benchmarks"])
def test_what_we_export_is_imported_with_the_same_values(kind: str, micro: RunRecords, tmp_path: Path) -> None:
    run = sample_run() if kind == "models" else micro
    path = tmp_path / "results-summary.jsonl"
    path.write_text(superbench.render(run), encoding="utf-8")
    exported = json.loads(path.read_text(encoding="utf-8"))
    node = exported.pop("node")
    for parts in (results_of(read_results(path)), read_nodes(path)):
        table = assemble(parts)
        assert table.nodes == (node,)
        assert {column.name: value for column, value in zip(table.columns, table.values[0], strict=True)} == exported


def test_what_was_imported_can_be_written_as_ours_and_read_again() -> None:
    run = read_results(DATA)[0]
    (again,) = jsonl.parse(jsonl.render(run).splitlines(), "x")
    assert results_of([again])[0].values == results_of([run])[0].values


@pytest.mark.parametrize(
    ("key", "unit", "better"),
    [
        ("kernel-launch/event_time:0", "ms", Better.LOWER),
        ("gemm-flops/fp16_tc_flops:3", "GFLOP/s", Better.HIGHER),
        ("gemm-flops/FP64_TC:0", "GFLOP/s", Better.HIGHER),
        ("gemm-flops/int8_tc_iops", "GOP/s", Better.HIGHER),
        ("cublaslt-gemm:target=cpu/fp8e4m3_0_1_2_3_flops", "TFLOP/s", Better.HIGHER),
        ("nccl-bw:run0/allreduce_8_busbw:0", "GB/s", Better.HIGHER),
        ("nccl-bw/allreduce_8_time:0", "µs", Better.LOWER),
        ("model-benchmarks:n/pytorch-lstm/fp32_train_step_time", "ms", Better.LOWER),
        ("model-benchmarks/pytorch-lstm/fp32_inference_throughput_99.9:1", "samples/s", Better.HIGHER),
        ("bert_models/pytorch-bert-base/steptime_train_float32", "ms", Better.LOWER),
        ("ib-loopback/ib_write_bw_8388608:0", "GB/s", Better.HIGHER),
        ("disk-benchmark/nvme0n1_rand_read_lat_ns_99.0", "ns", Better.LOWER),
        ("megatron-gpt/bf16_train_tflops", "TFLOP/s", Better.HIGHER),
        ("mem-bw/return_code:0", "", Better.NEITHER),
        ("unheard-of/thing", "", Better.NEITHER),
        ("gpu_temperature:0", "°C", Better.NEITHER),
    ],
)
def test_units_and_directions_of_their_names(key: str, unit: str, better: Better) -> None:
    found = column_of(key)
    assert (found.unit, found.better) == (unit, better)


def test_what_we_export_under_their_names_has_a_direction_when_it_comes_back(micro: RunRecords) -> None:
    theirs = ("gemm-flops", "kernel-launch", "mem-bw", "nccl-bw", "cpu-stream", "gpu-stream", "disk-benchmark")
    exported = [key for key in superbench.results(micro.records) if key.startswith(theirs)]
    lacking = {key for key in exported if column_of(key).better is Better.NEITHER}
    assert len(exported) > 10
    assert all(key.endswith(("return_code", "threads", "_bs")) for key in lacking)


def test_a_key_is_taken_apart() -> None:
    assert split("a:n/m/x_y:12") == ("a:n/m", "x_y", 12)
    assert split("gpu_power") == ("", "gpu_power", None)
    assert split("ib-traffic/bw:0_1:3") == ("ib-traffic", "bw:0_1", 3)


def test_the_file_of_one_node_is_named_by_its_folder(tmp_path: Path) -> None:
    for node, value in (("n1", 1.0), ("n2", 2.0)):
        folder = tmp_path / "nodes" / node
        folder.mkdir(parents=True)
        (folder / "results-summary.json").write_text(json.dumps({"mem-bw/h2d_bw": value}, indent=2), encoding="utf-8")
    (one,) = read_nodes(tmp_path / "nodes" / "n2" / "results-summary.json")
    assert (one.node, one.values) == ("n2", {"mem-bw/h2d_bw": 2.0})
    assert [part.node for part in read_nodes(tmp_path)] == ["n1", "n2"]


def test_what_was_not_measured_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"node": "a", "x/y": null, "x/z": "N/A", "x/v": NaN, "x/w": true, "x/u": 1' + "0" * 400 + "}\n")
    (found,) = read_nodes(path)
    assert all(math.isnan(value) for value in found.values.values())
    assert read_results(path)[0].records[0].measurements == []


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("", "no-results", 0),
        ("[1]", "not-a-result", 1),
        ("5\n6", "not-a-result", 1),
        ("[" * 99_999, "not-a-result", 1),
        ('{"node": "a", "a/b": 1}\n{', "not-a-result", 2),
        ('{"node": "a"}', "no-metrics", 1),
        ('{"a": 1}\n{', "no-metrics", 1),
        ('{"node": 5, "a/b": 1}', "not-a-node", 1),
        ('{"node": "", "a/b": 1}', "not-a-node", 1),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, code: str, line: int) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text, encoding="utf-8")
    with refused(code, where=f"line {line} of '{path}'" if line else ""):
        read_nodes(path)
