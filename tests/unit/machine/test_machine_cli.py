"""`paceline machine` and `paceline doctor`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli.doctor import command as doctor
from paceline.cli.machine import command as machine
from paceline.core.environment import Environment
from paceline.machine.fitness import FitnessFinding, Level


def test_machine_in_words(fake_nvml: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml()
    monkeypatch.setenv("NCCL_DEBUG", "[bold]INFO[/bold]")
    done = CliRunner().invoke(machine, [])
    assert done.exit_code == 0, done.output
    for word in ("NVIDIA H200", "cuda:0", "76 W of 700 W", "CUDA 12.8", "python", "[bold]INFO[/bold]"):
        assert word in done.output


def test_machine_for_programs() -> None:
    done = CliRunner().invoke(machine, ["--json"])
    assert done.exit_code == 0
    assert Environment.model_validate_json(done.output).software.paceline


@pytest.mark.parametrize(("level", "code", "mark"), [("ok", 0, "✓"), ("warning", 0, "!"), ("problem", 1, "✗")])
def test_doctor(level: Level, code: int, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = "" if level == "ok" else "do [this]"
    finding = FitnessFinding(level=level, subject="memory", message="is so", remedy=remedy)
    monkeypatch.setattr("paceline.machine.fitness.check", lambda store: [finding])
    done = CliRunner().invoke(doctor, [])
    assert done.exit_code == code
    assert f"{mark} memory: is so" in done.output
    assert remedy in done.output
    as_json = CliRunner().invoke(doctor, ["--json"])
    assert as_json.exit_code == code
    assert json.loads(as_json.output) == [finding.model_dump()]


def test_the_verbs_load_nothing_heavy() -> None:
    code = "import sys, paceline.cli.machine, paceline.cli.doctor; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"rich", "pydantic", "numpy", "torch", "pynvml"} & set(loaded)
