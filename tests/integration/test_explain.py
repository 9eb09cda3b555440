"""A run with --explain, and its candidates tried: a user's model with a synchronisation in its step."""

from __future__ import annotations

import json

import pytest

from support.cli import Sandbox

pytest.importorskip("torch", reason="install it with: pip install '.[torch]'")

SCRIPT = """
import torch
from torch import nn


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 256)

    def forward(self, inputs):
        hidden = self.layer(inputs)
        return hidden / (hidden.detach().abs().max().item() + 1.0)


def make():
    return Asking(), torch.randn(1, 256)
"""


@pytest.mark.long
def test_a_synchronisation_is_explained_and_a_larger_batch_is_tried(sandbox: Sandbox) -> None:
    (sandbox.work / "asking.py").write_text(SCRIPT, encoding="utf-8")
    words = ("--model", "./asking.py:make", "--steps", "5", "--warm-up", "0s", "--compile", "off")
    done = sandbox.run("run", "train", *words, "--explain", "--no-report", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "remove the synchronisation with the host" in done.stdout
    assert "asking.py:11 (forward)" in done.stdout
    tried = sandbox.run("explain", "last", "--try", "--rounds", "2", "--json", timeout=600)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    explanation, *trials = [json.loads(line) for line in tried.stdout.splitlines() if line.startswith("{")]
    assert sum(part["seconds"] for part in explanation["budget"]) == pytest.approx(explanation["step_seconds"])
    assert [one["setting"] for one in trials] == [one["setting"] for one in explanation["candidates"] if one["setting"]]
    batch = next(one for one in trials if one["setting"] == "batch_size=4")
    assert batch["measured"] > 0
    assert (batch["rounds"], batch["agreement"]) == (2, "not compared: other data")
