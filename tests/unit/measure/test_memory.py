"""Peak host memory of a region."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.measure import memory
from paceline.measure.memory import HostPeak

MIB = 1024**2

# In a process of its own: what other tests have allocated would blur the marks.
CODE = """
from paceline.measure import memory
from paceline.measure.memory import HostPeak
peak = HostPeak()
def block(count):
    bytearray(b"x") * (count << 20)
block(100)
peak.start()
quiet = peak.read()
was_exact = peak.exact
block(40)
print(quiet, peak.read(), int(was_exact), int(peak.exact))
"""


def test_a_region_sees_its_own_peak_only() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    quiet, peak, quiet_exact, exact = map(int, done.stdout.split())
    if not quiet_exact:
        pytest.skip("this kernel does not let a process set its mark back")
    assert exact
    assert 35 * MIB < peak - quiet < 60 * MIB


def fake_proc(folder: Path) -> Path:
    (folder / "status").write_text("Name:\tx\nVmHWM:\t    1024 kB\nVmRSS:\t  512 kB\n")
    return folder


def test_without_permission_the_peak_of_the_whole_life_is_told_as_such(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path)
    (proc / "clear_refs").mkdir()  # cannot be written
    peak = HostPeak(proc)
    peak.start()
    assert peak.read() > MIB
    assert not peak.exact


def test_with_permission_the_mark_is_read(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path)
    peak = HostPeak(proc)
    peak.start()
    assert (proc / "clear_refs").read_text() == "5"
    assert peak.read() == 1024 * 1024
    assert peak.exact


def test_without_status_the_life_s_peak_is_all_there_is(tmp_path: Path) -> None:
    peak = HostPeak(tmp_path)
    peak.start()
    assert peak.read() > 0
    assert not peak.exact


def life_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_before_a_region_begins_the_peak_is_that_of_the_whole_life(tmp_path: Path) -> None:
    peak = HostPeak(fake_proc(tmp_path))
    assert not peak.exact
    before = life_peak()
    assert before <= peak.read() <= life_peak()


def test_a_mark_that_is_higher_after_it_was_set_back_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = iter((100, 200, 300))
    monkeypatch.setattr(memory, "_status", lambda _name, _proc: next(marks))
    peak = HostPeak(tmp_path)
    peak.start()
    assert not peak.exact
    assert peak.read() > MIB


@pytest.mark.parametrize("marks", [(None, 100, 100), (100, None, 100), (100, 90, None)])
def test_without_one_of_its_marks_a_region_has_the_peak_of_the_whole_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: tuple[int | None, ...]
) -> None:
    scripted = iter(marks)
    monkeypatch.setattr(memory, "_status", lambda _name, _proc: next(scripted))
    peak = HostPeak(tmp_path)
    peak.start()
    assert peak.read() > MIB


def test_a_peak_that_rose_in_the_region_is_exact_though_nothing_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clear_refs").mkdir()
    peaks = iter((1000, 1000, 1001))
    monkeypatch.setattr(memory, "_life_peak", lambda: next(peaks))
    peak = HostPeak(tmp_path)
    peak.start()
    assert (peak.read(), peak.exact) == (1000, False)
    assert (peak.read(), peak.exact) == (1001, True)


def test_a_region_that_begins_again_forgets_the_one_before(tmp_path: Path) -> None:
    peak = HostPeak(fake_proc(tmp_path))
    peak.start()
    assert peak.exact
    (tmp_path / "clear_refs").unlink()
    (tmp_path / "clear_refs").mkdir()
    peak.start()
    assert not peak.exact
