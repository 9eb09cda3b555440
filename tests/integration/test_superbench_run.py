"""A config of SuperBench's runs as it is, and what is written has the keys of SuperBench's documentation."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from support.cli import Sandbox
from support.scripted_kind import environment, scripted_machine

pytest.importorskip("torch", reason="needs it: pip install '.[torch]'")

CONFIG = """
version: v0.12
superbench:
  enable: null
  monitor: {enable: true, sample_duration: 1, sample_interval: 10}
  var:
    local: &local
      enable: true
      modes:
        - {name: local, proc_num: 8, prefix: 'CUDA_VISIBLE_DEVICES={proc_rank}', parallel: yes}
  benchmarks:
    gemm-flops:small:
      <<: *local
      parameters: {precision: [fp32, int4_tc], m: 32, n: 32, k: 32}
    cpu-stream:
      enable: true
      modes: [{name: local, proc_num: 1, parallel: no}]
      parameters: {cores: '0'}
    cpu-hpl: {enable: false}
    model-benchmarks:cnn:
      <<: *local
      frameworks: [pytorch]
      models: [squeezenet1_1]
      parameters: {num_steps: 2, batch_size: 1, precision: [float32], model_action: [inference]}
"""


@pytest.mark.long
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this is about a machine without a GPU")
def test_a_run_on_a_cpu_writes_what_superbench_would(sandbox: Sandbox) -> None:
    sandbox.write("azure_small.yaml", CONFIG)
    done = sandbox.ask("run", "azure_small.yaml", "--set", "warm_up=10ms", "--set", "stream.budget=50ms", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gemm-flops:small, precision, int4_tc: no product is measured in this number format" in done.stderr
    (path,) = sandbox.work.glob("outputs/*/results-summary.jsonl")
    assert json.loads(done.stdout.splitlines()[-1])["results_summary"] == str(path.relative_to(sandbox.work))
    (line,) = path.read_text().splitlines()
    values = json.loads(line)
    kinds = {"copy", "scale", "add", "triad"}
    stream = {f"cpu-stream/{kind}_{figure}" for kind in kinds for figure in ("throughput", "time_avg", "time_min")}
    model = "model-benchmarks:cnn/pytorch-squeezenet1_1"
    names = ("step_time", "throughput")
    tails = [f"{name}_{tail}" for name in names for tail in ("50", "90", "95", "99", "99.9")]
    inference = {f"{model}/fp32_inference_{name}" for name in (*names, *tails)}
    assert stream | inference | {f"{model}/return_code", "cpu-stream/return_code"} <= values.keys()
    # What is measured there on a GPU alone never passes for it.
    assert "gemm-flops:small,target=cpu/fp32_flops" in values
    assert all(value == 0 for key, value in values.items() if key.endswith("return_code"))


def test_strict_refuses_what_has_parts_without_a_counterpart(sandbox: Sandbox) -> None:
    sandbox.write("azure_small.yaml", CONFIG)
    done = sandbox.ask("run", "azure_small.yaml", "--strict")
    assert done.returncode == 2
    assert "parts of 'azure_small' without a counterpart (" in done.stderr
    assert "gemm-flops:small, precision, int4_tc: no product" in done.stderr
    assert "monitor" not in done.stderr
    assert not sandbox.store.exists()


def test_strict_takes_a_config_whose_other_parts_are_not_needed(sandbox: Sandbox) -> None:
    benchmarks = {"matmul": {"enable": True, "frameworks": ["pytorch"], "parameters": {"num_warmup": 8, "m": 16}}}
    document = {"superbench": {"monitor": {"enable": True}, "benchmarks": benchmarks}}
    sandbox.write("steady.yaml", json.dumps(document))
    done = sandbox.ask("run", "steady.yaml", "--dry-run", "--strict")
    assert done.returncode == 0, done.stderr
    assert "parts of 'steady' that are not needed here (2)" in done.stderr
    assert "superbench.monitor: clocks, temperature" in done.stderr
    assert "matmul, parameters, num_warmup: a measurement warms up until it is steady" in done.stderr


def test_processes_of_a_config_are_devices_of_the_machine(tmp_path: Path) -> None:
    local = {"name": "local", "prefix": "CUDA_VISIBLE_DEVICES={proc_rank}"}
    sizes = {"minbytes": "1K", "maxbytes": "1K"}
    modes: dict[str, tuple[dict[str, object], dict[str, object]]] = {
        "kernel-launch": ({**local, "proc_num": 2}, {}),
        "matmul": ({**local, "proc_num": 8}, {}),
        "nccl-bw:four": ({"name": "mpi", "proc_num": 4}, sizes),
        "nccl-bw:three": ({"name": "local", "proc_num": 1}, {**sizes, "ngpus": 3}),
        "model-benchmarks:cnn": (
            {"name": "torch.distributed", "proc_num": 2, "node_num": 1},
            {"precision": ["float32"]},
        ),
    }
    benchmarks = {
        name: {"enable": True, "modes": [mode], "models": ["resnet18"], "parameters": parameters}
        for name, (mode, parameters) in modes.items()
    }
    with scripted_machine(tmp_path / "machine", 8) as place:
        place.write("counts.yaml", json.dumps({"superbench": {"benchmarks": benchmarks}}))
        exact = place.run("run", "counts.yaml", "--dry-run", "--strict", "--json", env=environment(place))
        assert exact.returncode == 0, exact.stderr
        assert "counterpart" not in exact.stderr
        benchmarks["mem-bw"] = {"enable": True, "modes": [{"name": "local", "proc_num": 4}]}
        benchmarks["gemm-flops"] = {"enable": True, "modes": [{**local, "proc_num": 16}]}
        place.write("more.yaml", json.dumps({"superbench": {"benchmarks": benchmarks}}))
        more = place.run("run", "more.yaml", "--dry-run", "--strict", env=environment(place))
    where = defaultdict(set)
    for case in map(json.loads, exact.stdout.splitlines()):
        where[case["superbench"]].add((case["target"], case["ranks"]))
    assert where == {
        "kernel-launch": {("scripted:0", 1), ("scripted:1", 1)},
        "matmul": {(f"scripted:{number}", 1) for number in range(8)},
        "nccl-bw:four": {("scripted:*", 4)},
        "nccl-bw:three": {("scripted:*", 3)},
        "model-benchmarks:cnn": {("scripted:*", 2)},
    }
    assert more.returncode == 2
    assert "without a counterpart (2)" in more.stderr
    assert "mem-bw, mode local, proc_num, 4: one process measures it" in more.stderr
    assert "gemm-flops, mode local, proc_num, 16: all 8 devices take part" in more.stderr
