"""A config of SuperBench's runs as it is, and what is written has the keys of SuperBench's documentation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli import Sandbox

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
    assert "parts of 'azure_small' without a counterpart (2)" in done.stderr
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
