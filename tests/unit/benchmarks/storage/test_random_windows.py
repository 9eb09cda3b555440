"""Windows at random go to other blocks each time, or a cache of the disk would answer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from paceline.benchmarks.storage._fio import FioJob

pytestmark = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed here: apt-get install fio")

BLOCK = 4096
REGION = 1024 * BLOCK


def offsets(folder: Path, start: int) -> list[list[int]]:
    """Where each of two windows of one start of fio read, in order; `start` counts the windows before."""
    (folder / "data").write_bytes(bytes(REGION))
    job = FioJob(str(folder / "data"), "randread", BLOCK, "psync", False, 1, 1, REGION)
    windows = job.windows(2, 16 * BLOCK, start, seed=7)
    command = job.command("fio", windows)
    logs = [folder / f"log{number}" for number in range(2)]
    # What follows a window's name belongs to it.
    for number, log in enumerate(logs):
        log.unlink(missing_ok=True)
        command.insert(command.index(f"--name=window{number}") + 1, f"--write_iolog={log}")
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    return [[int(line.split()[3]) for line in log.read_text().splitlines() if " read " in line] for log in logs]


def test_every_window_of_every_start_reads_other_blocks(tmp_path: Path) -> None:
    seen = offsets(tmp_path, 0) + offsets(tmp_path, 2)
    assert all(len(window) == 16 for window in seen)
    assert len({tuple(window) for window in seen}) == 4


def test_the_seed_decides_which_blocks(tmp_path: Path) -> None:
    assert offsets(tmp_path, 0) == offsets(tmp_path, 0)
