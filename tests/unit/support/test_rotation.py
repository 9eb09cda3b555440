"""The order of the long tests in CI: nothing is left out, every file has its turn, and a failure is never lost."""

from __future__ import annotations

import math
import subprocess
import threading
import time
from pathlib import Path

import pytest

import rotation
from rotation import File, Outcome, Turn, long_files, rotated, run_file, run_in_order, stride, summary

SIZES = range(1, 41)
GENEROUS = 300.0  # seconds; only what hangs takes so long


def files(number: int, alone: int = 0) -> list[File]:
    return [File(f"tests/test_{place:02d}.py", place < alone) for place in range(number)]


@pytest.mark.parametrize("count", [0, 1, 7, 12345])
def test_every_file_is_in_the_order_once(count: int) -> None:
    for size in SIZES:
        assert sorted(file.path for file in rotated(files(size), count)) == [file.path for file in files(size)]


def test_the_order_depends_on_the_files_and_the_count_alone() -> None:
    assert rotated(reversed(files(9, alone=4)), 5) == rotated(files(9, alone=4), 5)
    assert rotated(files(9), 5) != rotated(files(9), 6)
    assert rotated([], 5) == []


@pytest.mark.parametrize("size", SIZES)
def test_every_file_comes_first_at_one_of_as_many_commits(size: int) -> None:
    assert {rotated(files(size), count)[0] for count in range(100, 100 + size)} == set(files(size))


@pytest.mark.parametrize("size", SIZES)
def test_with_time_for_half_of_the_files_every_one_has_its_turn_within_four_commits(size: int) -> None:
    half = math.ceil(size / 2)
    for first in range(size):
        seen = {file for count in range(first, first + 4) for file in rotated(files(size), count)[:half]}
        assert len(seen) == size


def test_the_stride_shares_no_factor_with_the_number_of_files() -> None:
    assert [stride(size) for size in (1, 2, 3, 6, 9, 12, 30)] == [1, 1, 1, 5, 4, 5, 11]


def test_what_must_run_alone_does_and_others_run_side_by_side() -> None:
    meeting = threading.Barrier(rotation.BESIDE)
    running: list[File] = []

    def run(file: File) -> Turn:
        running.append(file)
        if file.is_alone:
            assert running == [file]
        else:
            meeting.wait(GENEROUS)
        running.remove(file)
        return Turn(file, Outcome.PASSED)

    order = rotated(files(8, alone=2), 0)
    assert [file.is_alone for file in order] == [False] * 6 + [True] * 2
    assert [turn.file for turn in run_in_order(order, run)] == order


PASSES = "def test_it(): pass\n"
FAILS = "def test_it(): assert False\n"
HANGS = "def test_on():\n    Path('hangs').touch()\n    time.sleep(600)\n"


class NoTimeLeft(subprocess.Popen[bytes]):
    """A process for which the time is over as soon as it hangs, however long it took to come so far."""

    def wait(self, timeout: float | None = None) -> int:
        while self.poll() is None and not (rotation.ROOT / "hangs").exists():
            time.sleep(0.01)
        return super().wait(0.0 if timeout == GENEROUS else timeout)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        pytest.param(PASSES, Outcome.PASSED, id="passes"),
        pytest.param(FAILS, Outcome.FAILED, id="fails"),
        pytest.param(HANGS, Outcome.CUT_OFF, id="no time left"),
        pytest.param(FAILS + HANGS, Outcome.FAILED, id="fails, then no time left"),
    ],
)
def test_a_turn_ends_in_time_and_a_failure_counts_however_it_ends(
    text: str, outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    head = "import time\nfrom pathlib import Path\nimport pytest as p\npytestmark = p.mark.long\n"
    (tmp_path / "test_it.py").write_text(head + text)
    monkeypatch.setattr(rotation, "ROOT", tmp_path)
    monkeypatch.setattr(rotation, "PYTEST", [*rotation.PYTEST, "-p", "no:schemathesis", "-p", "no:hypothesispytest"])
    monkeypatch.setattr(rotation.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(rotation.subprocess, "Popen", NoTimeLeft)
    turn = run_file(File("test_it.py"), GENEROUS)
    assert turn.outcome is outcome, turn.output


def test_nothing_is_begun_when_the_time_is_over() -> None:
    assert run_file(File("test_it.py"), time.monotonic()) == Turn(File("test_it.py"), Outcome.NO_TIME)


def test_the_files_are_those_with_the_marker() -> None:
    found = {file.path: file.is_alone for file in long_files()}
    assert found["tests/fault/test_kill.py"] is False
    assert found["tests/integration/test_slurm_engine.py"] is True
    assert "tests/integration/test_outcomes.py" not in found
    assert "tests/unit/support/test_rotation.py" not in found


def test_the_end_names_what_did_not_have_its_turn() -> None:
    first, second, third = files(3)
    turns = [Turn(first, Outcome.FAILED, 3.0), Turn(second, Outcome.CUT_OFF, 2.0), Turn(third, Outcome.NO_TIME)]
    assert summary(turns, 62.0).splitlines() == [
        "1 of 3 files of long tests ran in 1:02",
        "did not have their turn:",
        "  tests/test_01.py (cut off)",
        "  tests/test_02.py (no time)",
    ]
    assert summary(turns[:1], 5.0) == "1 of 1 files of long tests ran in 0:05"
