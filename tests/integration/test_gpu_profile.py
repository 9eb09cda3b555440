"""`--profile` on a GPU: kernels by name, idling, and steps that queue or are waited for."""

from __future__ import annotations

import pytest

from paceline.devices import device_count
from support.cli import Sandbox

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU and its driver"),
]

COMMON = {"target": "cuda:0", "steps": 10, "warm_up": "2s"}


def test_kernels_tell_where_the_time_went(sandbox: Sandbox) -> None:
    cases = [
        {"benchmark": "train", "model": "resnet50", "precision": "bf16", "batch_size": 64, "compile": "off"},
        {"benchmark": "train", "model": "gpt2-small", "precision": "bf16", "batch_size": 8, "compile": "on"},
        {"benchmark": "inference", "model": "bert-base", "precision": "fp16", "batch_size": 1, "compile": "off"},
        {"benchmark": "inference", "model": "bert-base", "precision": "fp16", "batch_size": 1, "graph": True},
    ]
    done = sandbox.run(
        "run", sandbox.suite(*(case | COMMON for case in cases)), "--profile", "--no-report", timeout=550
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = sandbox.load().records
    for record in records:
        trace = record.facts["trace"]
        assert "missing" not in trace, trace  # CUPTI is there
        spent = trace["spent"]
        assert spent["on_device"]
        assert spent["steps"] == 3
        assert sum(spent["shares"].values()) == pytest.approx(1.0)
        assert spent["groups"].get("other work", 0.0) < 0.1, spent["kernels"]
        # Kernels of a GPU take as long in a trace as else; only what the host does takes longer.
        assert spent["step_seconds"] * (1 - spent["shares"]["idle"]) < 1.2 * record.measurement("step_time").value
    convolutions, language, waiting, graph = (record.facts["trace"]["spent"] for record in records)
    # Shares are of the whole step: while it is traced the host issues this one more slowly than the device computes.
    busy = 1 - convolutions["shares"]["idle"]
    # A convolution of one pixel is a matrix product, and cuDNN may run it by a kernel that is named so.
    products = convolutions["groups"]["convolutions"] + convolutions["groups"].get("matrix products", 0.0)
    assert products > 0.2 * busy, convolutions
    assert next(iter(language["groups"])) in ("matrix products", "attention")
    assert waiting["shares"]["idle"] > graph["shares"]["idle"]  # a small batch waits for launches, a graph for none
