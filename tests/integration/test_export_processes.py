"""Exports in several processes: a killed one leaves nothing that passes for whole, two at once leave one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.servers.base import Need
from paceline.servers.export import export

MODEL = "generated/fc:layers=1,width=8"
EXPORT = """
import sys, time
from pathlib import Path
from paceline.servers.base import Need
from paceline.servers.export import export
print(export(Need(sys.argv[1]), "torchscript", Path(sys.argv[2])).path, flush=True)
"""
HALF = """
import torch
save = torch.jit.save
def half(module, path):
    save(module, path)
    print("half", flush=True)
    time.sleep(600)
torch.jit.save = half
"""


def start(code: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, MODEL, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_export_is_made_again(tmp_path: Path) -> None:
    with start(EXPORT.replace("from pathlib", HALF + "from pathlib"), tmp_path) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "half\n"
        killed.kill()
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".tmp")
    artifact = export(Need(MODEL), "torchscript", tmp_path)
    assert artifact.path is not None
    assert artifact.path.parent != left


@pytest.mark.long
def test_two_exports_at_once_leave_one(tmp_path: Path) -> None:
    both = [start(EXPORT, tmp_path) for _ in range(2)]
    told = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    (kept,) = tmp_path.iterdir()
    assert {out.strip() for out, _ in told} == {str(kept / "model.pt")}
