"""The ceiling of a case where no control group keeps it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from paceline.machine import container
from paceline.runner import control_group as memory_watch
from paceline.runner.control_group import ControlGroup, MemoryWatch, taken

MIB = 1 << 20
GROW = "x = bytearray(b'1') * (100 << 20); print('ready', flush=True); input()"


def test_what_processes_take_is_counted_with_all_that_they_started() -> None:
    shell = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {GROW!r}])"]
    before = taken(os.getpid())
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert 100 * MIB < taken(os.getpid()) - before < 200 * MIB
        process.communicate("\n")


@pytest.mark.parametrize(("limit", "is_exceeded"), [(100 * MIB, True), (102 * MIB, False)])
def test_a_case_above_its_ceiling_is_noticed_once(
    monkeypatch: pytest.MonkeyPatch, limit: int, is_exceeded: bool
) -> None:
    monkeypatch.setattr(container, "free_memory", lambda: 1000 * MIB)
    monkeypatch.setattr(container, "available_memory", lambda: next(available))
    monkeypatch.setattr(memory_watch, "taken", lambda server: 101 * MIB)
    available = iter([1000 * MIB, 900 * MIB, 900 * MIB])
    watch = MemoryWatch(ControlGroup(), limit)
    watch._looked_at = -1.0
    assert watch.is_exceeded(0.0, 7) is is_exceeded
    assert ("its ceiling of 100 MiB" in watch.reason()) is is_exceeded
    if is_exceeded:
        assert watch.is_exceeded(0.0, 7) is False, "it is being ended"


def test_processes_are_counted_only_now_and_then_while_the_machine_has_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(container, "free_memory", lambda: 1000 * MIB)
    monkeypatch.setattr(container, "available_memory", lambda: 1000 * MIB)
    monkeypatch.setattr(memory_watch, "taken", lambda server: counts.append(server) or 0)
    watch = MemoryWatch(ControlGroup(), 100 * MIB)
    begin = watch._counted_at
    for tick in range(111):
        assert watch.is_exceeded(begin + tick / 10, 7) is False
    assert len(counts) == 2


def test_without_a_limit_nearly_all_that_is_free_is_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "free_memory", lambda: 1000 * MIB)
    assert MemoryWatch(ControlGroup(), None).ceiling == 950 * MIB
    assert MemoryWatch(ControlGroup(), None, share=0.5).ceiling == 475 * MIB, "another runner here starts the others"
    assert MemoryWatch(ControlGroup(), 2000 * MIB).ceiling == 2000 * MIB
    assert MemoryWatch(ControlGroup(), 2000 * MIB, is_local=False).ceiling == 950 * MIB, "from the network"
    assert MemoryWatch(ControlGroup(), 20 * MIB, is_local=False).ceiling == 20 * MIB
    monkeypatch.setattr(container, "free_memory", lambda: None)
    unknown = MemoryWatch(ControlGroup(), None)
    assert (unknown.ceiling, unknown.is_exceeded(0.0, 7)) == (None, False)
    assert unknown.reason().startswith("the host's memory ran out")
