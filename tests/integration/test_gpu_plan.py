"""A plan on a machine with a GPU: from its own figures, and beside what is measured."""

from __future__ import annotations

import json

import pytest

from paceline.devices import device_count
from support.cli import Sandbox, events

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU")]


def test_a_plan_takes_the_memory_of_the_gpu_that_is_here(sandbox: Sandbox) -> None:
    done = sandbox.run("plan", "gpt2", "--layers", "2", "--gpus", "1", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["cluster"]["memory"] > 1024**3
    assert document["device"] != "V100" or "datasheet" in document["basis"][0]


@pytest.mark.slow
def test_a_plan_is_measured_and_put_beside_its_prediction(sandbox: Sandbox) -> None:
    arguments = ("--layers", "4", "--gpus", "1", "--global-batch", "16", "--top", "1", "--verify", "--json")
    done = sandbox.run("plan", "gpt2", *arguments, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    (verified,) = [event for event in events(done.stdout) if event.get("event") == "verified"]
    (line,) = verified["layouts"]
    assert line["measured_samples_per_s"] > 0
    assert line["measured_peak_bytes"] > 0
    assert line["cause"] is None
