"""A follower: takes assignments, has each measured by a process of its own, and tells what came of it until heard."""

from __future__ import annotations

import os
import re
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

from paceline.machine import describe
from paceline.machine.environment import Environment
from paceline.service.engines.base import Assignment, FollowerState, Report
from paceline.service.follower.spool import Spool
from paceline.service.jobs import FailureKind, JobFailure
from paceline.store import liveness

_GIB = 2**30
_GRACE_SECONDS = 10.0  # between asking a process to stop and ending it
_LAST_LINES = 20

Attempt = tuple[str, int]  # job, number of the attempt


class Worker:
    """One machine's worker; its folder holds what was not acknowledged yet, also after a restart."""

    def __init__(self, folder: Path, name: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self._folder = folder
        self._labels = tuple(labels)
        self._lock = threading.RLock()
        self._machine = describe()
        self._children: dict[Attempt, subprocess.Popen[bytes]] = {}
        self._stopping: dict[Attempt, float] = {}  # since when
        folder.mkdir(parents=True, exist_ok=True)
        self._spools: dict[Attempt, Spool] = dict(self._found())

    def describe(self) -> FollowerState:
        """What this machine has."""
        machine: Environment = self._machine
        gpus = [gpu for gpu in machine.gpus if gpu.cuda_index is not None]
        return FollowerState(
            id=self.name,
            host=machine.host or self.name,
            gpus=tuple(gpu.name or "GPU" for gpu in gpus),
            gpu_memory_gib=tuple((gpu.memory_total or 0) // _GIB for gpu in gpus),
            cpus=machine.cpu.usable or float(os.cpu_count() or 1),
            memory_gib=round((machine.memory.limit or machine.memory.total or 0) / _GIB, 1),
            labels=self._labels,
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
            spool = Spool.make(self._folder / _folder_name(attempt), assignment)
            self._spools[attempt] = spool
            self._children[attempt] = _start(spool, assignment)

    def poll(self, acknowledged: Mapping[Attempt, int]) -> list[Report]:
        """What is still to tell of every attempt; those named here may go on, and are dropped once told to the end."""
        with self._lock:
            reports = []
            for attempt, spool in list(self._spools.items()):
                if attempt in acknowledged:
                    spool.renew()
                self._look_after(attempt, spool)
                items = spool.items(acknowledged.get(attempt, 0))
                if not items and attempt in acknowledged and spool.has_ended:
                    self._drop(attempt)
                    continue
                job_id, number = attempt
                reports.append(Report(job_id=job_id, attempt=number, items=tuple(items), progress=spool.progress))
            return reports

    def cancel(self, job_id: str, number: int) -> None:
        """Ask an attempt to stop; whoever does not is ended a little later."""
        with self._lock:
            attempt = (job_id, number)
            spool = self._spools.get(attempt)
            if spool is None or attempt in self._stopping:
                return
            self._stopping[attempt] = time.monotonic()
            _signal(spool, signal.SIGTERM)

    def close(self) -> None:
        """End everything that measures here."""
        with self._lock:
            for spool in self._spools.values():
                _signal(spool, signal.SIGKILL)
            for child in self._children.values():
                child.wait()

    def _found(self) -> list[tuple[Attempt, Spool]]:
        """Attempts that an earlier worker in this folder has begun."""
        found = []
        for folder in sorted(self._folder.iterdir()):
            spool = Spool(folder)
            assignment = spool.assignment
            if assignment is None:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                found.append(((assignment.job_id, assignment.attempt), spool))
        return found

    def _look_after(self, attempt: Attempt, spool: Spool) -> None:
        """Speak for a process that died without a word, and end one that does not stop."""
        asked_at = self._stopping.get(attempt)
        if asked_at is not None and time.monotonic() - asked_at > _GRACE_SECONDS:
            _signal(spool, signal.SIGKILL)
        child = self._children.get(attempt)
        code = child.poll() if child is not None else None
        is_alive = code is None if child is not None else _is_alive(spool)
        if not is_alive and not spool.has_ended:
            spool.append("ended", failure=JobFailure(kind=FailureKind.LOST, message=_death(code, spool)))

    def _drop(self, attempt: Attempt) -> None:
        spool = self._spools.pop(attempt)
        _signal(spool, signal.SIGKILL)  # what a benchmark left behind
        child = self._children.pop(attempt, None)
        if child is not None:
            child.wait()
        self._stopping.pop(attempt, None)
        shutil.rmtree(spool.folder, ignore_errors=True)


def _start(spool: Spool, assignment: Assignment) -> subprocess.Popen[bytes]:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, assignment.devices))}
    command = [sys.executable, "-P", "-m", "paceline.service.follower.measuring", str(spool.folder)]
    with (spool.folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=spool.folder,
            start_new_session=True,
        )


def _signal(spool: Spool, number: signal.Signals) -> None:
    """Send a signal to all processes of an attempt, if its first one is still the one that was started."""
    runner = spool.process
    if runner is not None and liveness.is_alive(runner):
        with suppress(ProcessLookupError):
            os.killpg(int(runner["pid"]), number)


def _is_alive(spool: Spool) -> bool:
    """Whether the process that an earlier worker started still measures."""
    runner = spool.process
    return runner is not None and liveness.is_alive(runner)


def _death(code: int | None, spool: Spool) -> str:
    how = "is gone" if code is None else f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    try:
        lines = (spool.folder / "output.txt").read_text(errors="replace").splitlines()[-_LAST_LINES:]
    except OSError:
        lines = []
    words = f"; its last words: {' / '.join(line.strip() for line in lines if line.strip())}" if lines else ""
    return f"the process that measured {how}{words}"


def _folder_name(attempt: Attempt) -> str:
    job_id, number = attempt
    return f"{re.sub(r'[^A-Za-z0-9-]', '_', job_id)}.{number}"
