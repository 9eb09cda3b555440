"""What only a GPU can show; run these on one before a release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.devices import device_count

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU and its driver"),
]


def measured(tmp_path: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the command line; its exit code and the records."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "run", *arguments, "--json", "--no-report"],
        capture_output=True,
        text=True,
        env=os.environ | {"PACELINE_STORE": str(tmp_path / "store.db")},
        check=False,
    )
    assert done.stderr == "" or done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, [event["record"] for event in events if event["event"] == "case_ended"]


def value(record: dict[str, Any], name: str) -> float:
    found = next(m for m in record["measurements"] if m["metric"]["name"] == name)
    return float(found["summary"]["median" if found["statistic"] == "median" else "mean"])


SHORT = ("--budget", "500ms", "--warm-up", "500ms", "--compile", "off")


def test_training_yields_memory_mfu_and_energy(tmp_path: Path) -> None:
    # The counter of energy tells nothing about less than two seconds of work.
    long = ("--budget", "3s", "--interval", "1e-6", "--warm-up", "500ms", "--compile", "off")
    code, [record] = measured(tmp_path, "train", "--model", "resnet18", "--precision", "bf16", *long)
    assert code == 0
    assert value(record, "peak_device_memory") > 0
    assert "device events" in record["facts"]["timing"]
    names = {m["metric"]["name"] for m in record["measurements"]}
    if record["facts"]["peak_flops"]:
        assert 0 < value(record, "mfu") < 100
    if "NVML" in record["facts"]["energy_source"]:
        assert "energy_per_sample" in names


def test_work_over_time_holds_for_steps_in_flight(tmp_path: Path) -> None:
    """The samples of pipelined steps add up to the time that passed: the sum cannot exceed what the host saw."""
    _, [record] = measured(tmp_path, "train", "--model", "resnet18", "--batch-size", "16", "--steps", "100", *SHORT)
    summary = next(m for m in record["measurements"] if m["metric"]["name"] == "step_time")["summary"]
    total = summary["mean"] * summary["count"]
    assert total <= record["facts"]["spent"]["measuring"]
    assert total >= 0.5 * record["facts"]["spent"]["measuring"]


def test_too_large_a_batch_is_out_of_memory_and_the_next_case_runs(tmp_path: Path) -> None:
    code, records = measured(tmp_path, "train", "--model", "vgg19", "--batch-size", "8192,8", *SHORT)
    assert code == 1
    assert [record["outcome"] for record in records] == ["out-of-memory", "ok"]
    assert records[0]["cause"]["kind"] == "device-memory"


def test_the_largest_batch_is_found_without_an_accident(tmp_path: Path) -> None:
    arguments = ("--model", "gpt2-small", "--batch-size", "auto", "--precision", "bf16")
    code, [record] = measured(tmp_path, "train", *arguments, *SHORT)
    assert code == 0
    assert record["facts"]["batch_size"] >= 8


def test_a_graph_spares_the_host_and_tells_the_memory_of_a_step_without_it(tmp_path: Path) -> None:
    arguments = ("--model", "resnet18", "--batch-size", "1", "--set", "graph=off,on,auto")
    code, [plain, graph, auto] = measured(tmp_path, "inference", *arguments, *SHORT)
    assert code == 0
    assert value(graph, "step_time") < value(plain, "step_time")
    assert value(graph, "peak_device_memory") == pytest.approx(value(plain, "peak_device_memory"), rel=0.1)
    assert auto["facts"]["graph"] is True and auto["facts"]["graph_gain"] > 1


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_training_as_a_graph_learns_as_without_it(tmp_path: Path, precision: str) -> None:
    arguments = ("--model", "resnet18", "--batch-size", "16", "--precision", precision)
    code, [plain, graph] = measured(tmp_path, "train", *arguments, "--set", "graph=off,on", *SHORT)
    assert code == 0
    assert graph["facts"]["graph"] is True
    assert graph["facts"]["last_loss"] < 7 and plain["facts"]["last_loss"] < 7


def test_frozen_weights_compute_the_same(tmp_path: Path) -> None:
    arguments = ("--model", "resnet18", "--batch-size", "8", "--precision", "fp16", "--set", "frozen=off,on")
    code, [plain, frozen] = measured(tmp_path, "inference", *arguments, "--budget", "500ms", "--compile", "on")
    assert code == 0
    assert (plain["facts"]["frozen"], frozen["facts"]["frozen"]) == (False, True)
    assert "fused_convolutions" not in plain["facts"] and frozen["facts"]["fused_convolutions"] > 0
    assert not [one for one in frozen["warnings"] if one["kind"] == "miscompiled"]


def test_the_same_seed_gives_the_same_loss_twice(tmp_path: Path) -> None:
    code, [record] = measured(tmp_path, "train", "--model", "gpt2-small", "--scale", "tiny", "--deterministic", *SHORT)
    assert code == 0
    assert "same twice" in record["facts"]["deterministic"]


def test_fp8_and_its_refusal(tmp_path: Path) -> None:
    import torch

    code, records = measured(tmp_path, "train", "--model", "bert-base,resnet18", "--precision", "fp8_hybrid", *SHORT)
    assert records[1]["outcome"] == "unsupported"
    if torch.cuda.get_device_capability() >= (8, 9):
        assert records[0]["outcome"] == "ok" or records[0]["cause"]["kind"] == "missing-dependency"
    assert code == (0 if records[0]["outcome"] == "ok" else 1)
