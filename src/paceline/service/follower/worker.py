"""A follower: takes assignments, has a process measure each, and reports what came of it until acknowledged."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil

from paceline.core.environment import Environment
from paceline.core.files import open_private, private_directory
from paceline.devices import showing_only
from paceline.machine import describe
from paceline.runner.execute import MemoryKills, kills_for_memory
from paceline.service.engines.base import Assignment, AttemptKey, AttemptReport, FollowerState
from paceline.service.follower.spool import OUTPUT, SPOOL_FAILED, Spool
from paceline.service.follower.warm_start import ForkedProcess, WarmStart, WarmStartFailed
from paceline.service.jobs import FailureKind, JobFailure
from paceline.store import location

_GIB = 2**30
_GRACE_SECONDS = 10.0  # between asking a process to stop and ending it
_MOST_ITEMS = 500  # in one report


class Worker:
    """One machine's worker; its folder holds what was not acknowledged yet, also after a restart."""

    def __init__(self, folder: Path, name: str, labels: Sequence[str] = (), address: str = "") -> None:
        self.name = name
        self._address = address
        self._folder = folder
        self._labels = tuple(labels)
        self._lock = threading.RLock()
        self._machine = describe()
        self._warm = WarmStart()
        self._children: dict[AttemptKey, subprocess.Popen[bytes] | ForkedProcess] = {}
        self._stopping: dict[AttemptKey, float] = {}  # since when
        self._memory_kills: dict[AttemptKey, MemoryKills] = {}  # of the kernel, as counted when it began
        self._spools: dict[AttemptKey, Spool] = {}
        private_directory(folder)
        for path in sorted(folder.iterdir()):  # attempts that an earlier worker in this folder has begun
            spool = Spool(path)
            assignment = spool.assignment
            if assignment is None:
                shutil.rmtree(path, ignore_errors=True)
            else:
                self._spools[assignment.job_id, assignment.attempt] = spool

    def describe(self) -> FollowerState:
        """What this machine has."""
        machine: Environment = self._machine
        gpus = machine.usable_gpus
        return FollowerState(
            id=self.name,
            host=machine.host or self.name,
            gpus=tuple(gpu.name or "GPU" for gpu in gpus),
            gpu_memory_gib=tuple((gpu.memory_total or 0) // _GIB for gpu in gpus),
            cpus=machine.cpu.usable or float(os.cpu_count() or 1),
            memory_gib=round((machine.memory.limit or machine.memory.total or 0) / _GIB, 1),
            labels=self._labels,
            address=self._address,
            machine=machine.model_dump(mode="json"),
            seen_at=datetime.now(UTC),
        )

    def begin(self, assignment: Assignment) -> None:
        """Start an attempt; one that was started stays as it is."""
        attempt = (assignment.job_id, assignment.attempt)
        with self._lock:
            if attempt in self._spools:
                self._spools[attempt].renew()
                return
            spool = self._spools[attempt] = Spool.make(self._folder / assignment.folder_name, assignment)
            self._memory_kills[attempt] = kills_for_memory()
            self._children[attempt] = self._start(spool, assignment)

    def poll(self, acknowledged: Mapping[AttemptKey, int]) -> list[AttemptReport]:
        """What is not acknowledged of every attempt; those named here may go on, and are dropped once all of it is."""
        with self._lock:
            reports = [self._report(attempt, acknowledged.get(attempt)) for attempt in list(self._spools)]
            return [report for report in reports if report is not None]

    def _report(self, attempt: AttemptKey, acknowledged: int | None) -> AttemptReport | None:
        spool = self._spools[attempt]
        with suppress(OSError):  # a full disk: what cannot be written now is written at the next look
            if acknowledged is not None:
                spool.renew()
            self._look_after(attempt, spool)
        items = spool.items(acknowledged or 0)[:_MOST_ITEMS]
        if items and items[-1].kind == "ended":
            child, runner = self._children.get(attempt), spool.process
            is_alive = child is not None and child.poll() is None
            if is_alive or (runner is not None and location.is_alive(runner)):
                items.pop()  # its devices are not free before it is gone
                self._stopping.setdefault(attempt, time.monotonic())
        elif not items and acknowledged is not None and spool.has_ended:
            self._signal(attempt, spool, signal.SIGKILL)  # what a benchmark left behind
            ended_child = self._children.pop(attempt, None)
            if ended_child is not None:
                ended_child.wait()
            for of_attempts in (self._spools, self._stopping, self._memory_kills):
                of_attempts.pop(attempt, None)
            shutil.rmtree(spool.folder, ignore_errors=True)
            return None
        more = {"progress": spool.progress} if spool.place == 0 else {"place": spool.place, "meeting": spool.meeting}
        return AttemptReport(job_id=attempt[0], attempt=attempt[1], items=tuple(items), **more)

    def cancel(self, job_id: str, number: int) -> None:
        """Ask an attempt to stop; whoever does not is ended a little later."""
        with self._lock:
            attempt = (job_id, number)
            spool = self._spools.get(attempt)
            if spool is not None and attempt not in self._stopping and self._signal(attempt, spool, signal.SIGTERM):
                self._stopping[attempt] = time.monotonic()

    def _look_after(self, attempt: AttemptKey, spool: Spool) -> None:
        """Report the end of a process that died without reporting it, and end one that does not stop."""
        asked_at = self._stopping.get(attempt)
        if asked_at is not None and time.monotonic() - asked_at > _GRACE_SECONDS:
            self._signal(attempt, spool, signal.SIGKILL)
        child = self._children.get(attempt)
        if isinstance(child, ForkedProcess) and not child.is_known:  # as if an earlier worker had begun it
            del self._children[attempt]
            child = None
        code = child.poll() if child is not None else None
        if spool.has_ended or (child is not None and code is None):
            return
        with spool.exclusively() as is_silent:
            if not is_silent or spool.has_ended:
                return
            if spool.process is not None or child is not None:
                self._signal(attempt, spool, signal.SIGKILL)  # what a benchmark left behind
                death = _death(code, spool, self._memory_kills.get(attempt))
                spool.append("ended", failure=death, text=f"{death.message}\n")
                return
        # An earlier worker was ended before its process started; if that starts after all, it is refused.
        assignment = spool.assignment
        assert assignment is not None
        self._children[attempt] = self._start(spool, assignment)

    def _start(self, spool: Spool, assignment: Assignment) -> subprocess.Popen[bytes] | ForkedProcess:
        environment = showing_only(assignment.devices)
        command = [sys.executable, "-P", "-m", "paceline.service.follower.measuring", str(spool.folder)]
        with os.fdopen(open_private(spool.folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as output:
            with suppress(WarmStartFailed):
                return self._warm.start(spool.folder, environment, output.fileno())
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
                cwd=spool.folder,
                start_new_session=True,
            )

    def _signal(self, attempt: AttemptKey, spool: Spool, number: signal.Signals) -> bool:
        """Send a signal to all processes of an attempt; False if none of them can be found."""
        child, runner = self._children.get(attempt), spool.process
        if child is not None and child.poll() is None:
            group = child.pid
        # Not where the number of a process that has gone was given to a new one; a group keeps it while it has members.
        elif runner is not None and (location.is_alive(runner) or not _is_running(runner["pid"])):
            group = runner["pid"]
        else:
            return False
        with suppress(ProcessLookupError):
            os.killpg(group, number)
        return True


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _death(code: int | None, spool: Spool, memory_kills: MemoryKills | None) -> JobFailure:
    """Why a process ended without reporting it; `memory_kills` is None if an earlier worker began it."""
    if code == -signal.SIGKILL and memory_kills and (killer := kills_for_memory().killer_since(memory_kills)):
        message = f"{killer} killed the process that measured because the machine's memory ran out"
        return JobFailure(kind=FailureKind.MEMORY, message=message)
    if code == SPOOL_FAILED:
        message = f"the process that measured could not write to its folder {spool.folder}: is the disk full?"
        return JobFailure(kind=FailureKind.LOST, message=message)
    how = "is gone" if code is None else f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return JobFailure(kind=FailureKind.LOST, message=f"the process that measured {how}{spool.last_words() or ''}")
