"""Our figures of the disk against plain fio with the same job, in turns.

On a quiet machine they are within a tenth of each other, as the printed ratios tell (pytest -s). A shared disk can be
throttled for one of the two, so what is asserted is that both count the same bytes in the same way: a wrong unit,
a cached read or a lost direction is off by more than a factor of two.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.benchmarks.storage import disk
from paceline.benchmarks.storage.disk import Disk, DiskParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.record import Result

pytestmark = [
    pytest.mark.alone,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed here: apt-get install fio"),
]

MIB = 1024**2
SIZE = 64 * MIB
ROUNDS = 2


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if disk.file_system_of(tmp_path) in disk.IN_MEMORY:
        pytest.skip("temporary files are in memory here: set TMPDIR to a folder on a disk")
    yield tmp_path
    (tmp_path / "plain").unlink(missing_ok=True)


def ours(folder: Path, pattern: str) -> Result:
    given = {"pattern": pattern, "folder": str(folder), "size": SIZE, "budget": 0.9, "warm_up": 0}
    parameters = DiskParameters.read(given)
    case = Case(index=0, benchmark="disk", parameters=given, title=pattern)
    return Disk().measure(parameters, Context(case=case))


def plain_fio(file: Path, rw: str, result: Result) -> dict[str, float]:
    """Bytes per second of reads and writes, from a user's own command line of the same job."""
    facts = result.facts
    command = ["fio", "--name=plain", f"--filename={file}", f"--size={SIZE}", f"--rw={rw}"]
    command += [f"--bs={facts['block_size']}", f"--ioengine={facts['engine']}", f"--iodepth={facts['depth']}"]
    command += [f"--direct={int(facts['direct'])}", "--time_based", "--runtime=1", "--output-format=json"]
    if facts["read_share_percent"]:
        command.append(f"--rwmixread={facts['read_share_percent']}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (job,) = json.loads(done.stdout)["jobs"]
    return {name: float(job[name]["bw_bytes"]) for name in ("read", "write")}


def rate(result: Result, direction: str | None = None) -> float:
    at = {"direction": direction} if direction else {}
    return next(m.value for m in result.measurements if m.metric.name == "bandwidth" and m.at == at)


@pytest.mark.parametrize(
    ("pattern", "rw"),
    [("read", "read"), ("write", "write"), ("random-mixed", "randrw")],
)
def test_bandwidth_is_that_of_plain_fio(folder: Path, pattern: str, rw: str) -> None:
    file = folder / "plain"
    ratios: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        result = ours(folder, pattern)
        theirs = plain_fio(file, rw, result)
        assert rate(result) > 0
        mine = {"all": rate(result)}
        expected = {"all": theirs["read"] + theirs["write"]}
        if rw == "randrw":
            mine |= {direction: rate(result, direction) for direction in ("read", "write")}
            expected |= theirs
        for name, value in mine.items():
            ratios.setdefault(name, []).append(value / expected[name])
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    print(pattern, {name: f"{median:.3f}" for name, median in medians.items()})
    assert all(0.5 <= median <= 2.0 for median in medians.values()), ratios
