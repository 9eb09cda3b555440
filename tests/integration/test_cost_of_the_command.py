"""Asking for help costs nothing: no heavy library is imported before something is measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from support.cli import Sandbox

HEAVY = {"torch", "torchvision", "transformers", "ray", "sqlalchemy", "psycopg", "scipy", "altair"}
CPU_SHARE = 6


def imported(stderr: str) -> set[str]:
    """Top-level packages in the output of -X importtime."""
    return {name.partition(".")[0] for name in re.findall(r"^import time:.*\|\s+(\S+)$", stderr, re.MULTILINE)}


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), ("list",), ("show", "train"), ("run", "train", "--model", "lstm", "--dry-run")],
    ids=" ".join,
)
def test_what_measures_nothing_imports_nothing_heavy(sandbox: Sandbox, arguments: tuple[str, ...]) -> None:
    done = sandbox.call([sys.executable, "-X", "importtime", "-m", "paceline", *arguments], env={"PYTHONPATH": ""})
    assert done.returncode == 0
    found = imported(done.stderr)
    assert "paceline" in found
    assert not HEAVY & found


def cpu_seconds(sandbox: Sandbox, *command: str) -> float:
    process = subprocess.Popen(
        [sys.executable, *command], env=sandbox.environment(), cwd=sandbox.work, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


@pytest.mark.long
def test_help_takes_less_than_a_sixth_of_the_cpu_time_of_importing_torch(sandbox: Sandbox) -> None:
    help_seconds = min(cpu_seconds(sandbox, "-m", "paceline", "--help") for _ in range(3))
    torch_seconds = min(cpu_seconds(sandbox, "-c", "import torch") for _ in range(3))
    assert help_seconds * CPU_SHARE < torch_seconds
