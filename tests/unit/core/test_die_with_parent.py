"""A process asks the kernel to end with its parent, and ends itself where that is already gone."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.core import die_with_parent as module
from paceline.core.die_with_parent import die_with_parent

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2


def death_signal() -> int:
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(number))
    return number.value


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The codes that this process would have ended with; the kernel's promise is taken back afterwards."""
    codes: list[int] = []
    before = death_signal()
    monkeypatch.setattr(os, "_exit", codes.append)
    yield codes
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, before)


def test_the_kernel_is_asked_to_kill_it(ends: list[int]) -> None:
    die_with_parent(os.getppid())
    assert death_signal() == signal.SIGKILL
    assert ends == []


@pytest.mark.parametrize(
    ("parent_now", "parent", "codes"), [(77, None, []), (77, 77, []), (1, None, [70]), (77, 76, [70]), (1, 1, [])]
)
def test_a_parent_that_has_ended_ends_it(
    ends: list[int], monkeypatch: pytest.MonkeyPatch, parent_now: int, parent: int | None, codes: list[int]
) -> None:
    monkeypatch.setattr(os, "getppid", lambda: parent_now)
    die_with_parent(parent)
    assert ends == codes


def test_run_as_a_file_it_becomes_the_script_that_is_named(ends: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append((program, words)))
    monkeypatch.setattr(os, "getppid", lambda: 77)
    monkeypatch.setattr(sys, "argv", ["die_with_parent.py", "script.py", "--rank", "1"])
    path = str(Path(module.__file__))
    runpy.run_path(path, run_name="imported")
    assert started == []
    runpy.run_path(path, run_name="__main__")
    assert started == [(sys.executable, [sys.executable, "-u", "script.py", "--rank", "1"])]
    assert death_signal() == signal.SIGKILL
