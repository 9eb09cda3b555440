"""The log of a rank: short however much is printed, with its beginning and its end."""

from __future__ import annotations

import os
import resource
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


def test_a_long_log_is_cut_while_it_grows_and_says_how_much_is_missing(log: CaseLog) -> None:
    append(log, b"first\n")
    printed = 6
    for number in range(5):
        block = b"%d" % number * (case_log.MOST + 10)
        append(log, block)
        printed += len(block)
        assert log.cut() is True
        assert log.path.stat().st_size == case_log.HEAD
    append(log, b"\nlast\n")
    assert log.cut() is False
    head, note, *end = log.excerpt().splitlines()
    assert head == "first"
    assert log.dropped == printed - case_log.HEAD - case_log.TAIL
    assert note == "0" * (case_log.SHOWN_HEAD - 6)
    assert end == ["[... 79.9 MiB of output were dropped ...]", "4" * (case_log.SHOWN_TAIL - 6), "last"]


def test_of_a_huge_log_only_the_end_is_read(log: CaseLog) -> None:
    append(log, b"first\n")
    os.truncate(log.path, 4 << 30)  # sparse: it takes no room on the disk
    append(log, b"\nlast\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert log.excerpt().endswith("\nlast")
    assert log.cut() is True
    assert log.excerpt().endswith("\nlast")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "KiB"


def test_a_log_that_is_gone_is_empty(log: CaseLog) -> None:
    assert (log.cut(), log.excerpt()) == (False, "")
