"""The log of a rank: short however much is printed, with its beginning and its end."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.runner import case_log
from paceline.runner.case_log import CaseLog


@pytest.fixture
def log(tmp_path: Path) -> CaseLog:
    return CaseLog(tmp_path / "rank0.log")


def append(log: CaseLog, data: bytes) -> None:
    with log.path.open("ab") as file:
        file.write(data)


def test_the_end_of_a_short_log_is_shown_as_it_is(log: CaseLog) -> None:
    assert (log.cut(), log.excerpt()) == (False, ""), "nothing was printed yet"
    append(log, b"a" * 3000 + b"\nlast\n")
    assert log.cut() is False
    assert log.excerpt() == "a" * (case_log.SHOWN_TAIL - 6) + "\nlast"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_long_log_is_cut_while_it_grows_and_says_how_much_is_missing(
    log: CaseLog, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    if not in_place:
        monkeypatch.setattr(case_log, "_give_back", lambda *_: False)
    append(log, b"first\n")
    printed = 6
    for number in range(5):
        block = b"%d" % number * (case_log.MOST + 10)
        append(log, block)
        printed += len(block)
        assert log.cut() is True
        assert log.path.stat().st_blocks * 512 < 1 << 20
    append(log, b"\nlast\n")
    assert log.cut() is False
    head, note, *end = log.excerpt().splitlines()
    assert head == "first"
    assert log.dropped == printed - case_log.HEAD - case_log.TAIL
    assert note == "0" * (case_log.SHOWN_HEAD - 6)
    assert end == ["[... 79.9 MiB of output were dropped ...]", "4" * (case_log.SHOWN_TAIL - 6), "last"]


def test_of_a_log_that_was_never_looked_at_the_beginning_is_shown_too(log: CaseLog) -> None:
    append(log, b"first\n" + b"x" * (200 << 20) + b"\nlast\n")
    first, *_, note, _, last = log.excerpt().splitlines()
    assert (first, last) == ("first", "last")
    assert note == "[... 200 MiB of output were dropped ...]"


def test_nothing_is_lost_that_is_printed_while_the_log_is_cut(log: CaseLog) -> None:
    code = f"""
import os
file = os.open({str(log.path)!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for number in range(5000):
    os.write(file, b"%d " % number + b"x" * 20_000 + bytes([10]))
"""
    with subprocess.Popen([sys.executable, "-c", code]) as printing:
        while printing.poll() is None:
            log.cut()
    lines = log.path.read_bytes()[-case_log.TAIL :].splitlines()[1:]
    assert [int(line.split()[0]) for line in lines] == list(range(5000 - len(lines), 5000))
    assert log.dropped > 50 << 20


def test_of_a_huge_log_only_the_end_is_read(log: CaseLog) -> None:
    append(log, b"first\n")
    os.truncate(log.path, 4 << 30)  # sparse: it takes no room on the disk
    append(log, b"\nlast\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert log.excerpt().endswith("\nlast")
    assert log.cut() is False, "the excerpt has cut it"
    assert log.excerpt().endswith("\nlast")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "KiB"


def test_a_log_that_is_gone_is_empty(log: CaseLog) -> None:
    assert (log.cut(), log.excerpt()) == (False, "")
