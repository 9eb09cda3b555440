"""The processes of the load generator: started together, watched, and ended, whatever happens to them."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paceline.core.errors import CaseError
from paceline.core.interrupt import signal_name
from paceline.load.live import Line, Watcher
from paceline.load.task import WorkerTask, task_message
from paceline.load.trace import BROKEN, UNSENT, Trace, WorkerResults
from paceline.load.worker import READY, RESULT, TASK

CORES_FOR_EACH = 8  # one of so many sends
MOST_SENDING = 8
COMMAND = [sys.executable, "-P", "-m", "paceline.load.worker"]
START_SECONDS = 60.0  # within which a worker must be ready; only a broken machine takes so long
HEAD_START = 0.05  # s from the message to the start: every worker has read it by then
LOOK_EVERY = 0.05
END_SECONDS = 10.0  # to hand over the results
_STDERR = "stderr"


@dataclass(frozen=True)
class CpuPlacement:
    """Who runs where; a machine with one core has both on it."""

    server: tuple[int, ...]
    load: tuple[int, ...]

    @classmethod
    def of_machine(cls, workers: int | None = None) -> CpuPlacement:
        """The last cores for sending, all others for serving; the same for every load, which keeps them comparable."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) == 1:
            return cls(tuple(cores), tuple(cores))
        number = workers or min(MOST_SENDING, max(1, len(cores) // CORES_FOR_EACH))
        number = min(number, len(cores) - 1)
        return cls(tuple(cores[:-number]), tuple(cores[-number:]))

    @classmethod
    def without_load(cls) -> CpuPlacement:
        """All cores for serving: the load comes from other machines."""
        return cls(tuple(sorted(os.sched_getaffinity(0))), ())

    def is_shared(self, processes: Iterable[int]) -> bool:
        """Whether one of the server's processes may run where the load comes from."""
        for pid in processes:
            with suppress(OSError):  # it has ended
                if os.sched_getaffinity(pid) & set(self.load):
                    return True
        return False


@contextmanager
def on_cores(cores: tuple[int, ...]) -> Iterator[None]:
    """What is started within runs on these cores, and so does what it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class LoadFailed(CaseError):
    """The load generator itself could not work."""


@dataclass
class _Worker:
    task: WorkerTask
    folder: Path
    process: subprocess.Popen[str]
    ended_at: float = 0.0  # on the monotonic clock; 0 while it runs
    is_late: bool = False  # it went on after its time was over

    @property
    def last_words(self) -> str:
        if self.is_late:
            return "it did not end in time"
        lines = (self.folder / _STDERR).read_text(errors="replace").split("\n")
        code = self.process.returncode
        ended = f"killed by {signal_name(-code)}" if code is not None and code < 0 else f"exit code {code}"
        return next((line.strip() for line in reversed(lines) if line.strip()), ended)


def soon() -> int:
    """A start that all workers on this machine learn in time, in nanoseconds of the monotonic clock."""
    return time.monotonic_ns() + int(HEAD_START * 1e9)


def run(
    tasks: Sequence[WorkerTask],
    longest: float,
    go_on: Callable[[], bool] = lambda: True,
    begin: Callable[[], int] = soon,
    on_lines: Callable[[list[Line]], None] | None = None,
) -> WorkerResults:
    """Do all tasks at the same time; after `longest` seconds no worker is waited for any more.

    When all are ready, `begin` says when to start. When `go_on` is false, all end at once, with the results so far.
    `on_lines` gets every second what the workers say of it, those whose tasks ask them to.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-load-") as folder, ExitStack() as stack:
        workers = [stack.enter_context(_started(task, Path(folder) / str(task.number))) for task in tasks]
        until = time.monotonic() + START_SECONDS
        for worker in workers:
            _wait_until_ready(worker, until)
        start = begin()
        for worker in workers:
            with suppress(BrokenPipeError):  # it died in between, which is noticed below
                assert worker.process.stdin is not None
                worker.process.stdin.write(f"{start}\n")
                worker.process.stdin.flush()
        _wait_until_ended(workers, start / 1e9 + longest, go_on, Watcher(on_lines) if on_lines is not None else None)
        traces, answers = [], []
        for worker in workers:
            path = worker.folder / RESULT
            if worker.process.returncode == 0 and path.exists():
                result = WorkerResults.unpacked(path.read_bytes())
                traces.append(result.trace)
                answers += result.answers
                continue
            loss = f"worker {worker.task.number} of the load generator was lost: {worker.last_words}"
            if worker.task.loop != "open":  # without its users it is not known what it would have sent
                raise LoadFailed(loss)
            part = lost(worker.task, worker.ended_at - start / 1e9)
            traces.append(replace(part, losses=(loss,)))
        return WorkerResults(replace(Trace.merged(traces), begun=start / 1e9), answers)


@contextmanager
def _started(task: WorkerTask, folder: Path) -> Iterator[_Worker]:
    folder.mkdir()
    (folder / TASK).write_text(json.dumps(task_message(task)))
    with (folder / _STDERR).open("wb") as errors:
        process = subprocess.Popen(
            [*COMMAND, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        yield _Worker(task, folder, process)
    finally:
        process.kill()
        with suppress(BrokenPipeError):
            process.communicate()


def _wait_until_ready(worker: _Worker, until: float) -> None:
    output = worker.process.stdout
    assert output is not None
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        if not selector.select(until - time.monotonic()):
            raise LoadFailed(f"a worker of the load generator was not ready after {START_SECONDS:g} s")
    if output.readline().strip() != READY:
        worker.process.wait()
        raise LoadFailed(f"a worker of the load generator did not start: {worker.last_words}")


def _wait_until_ended(
    workers: Sequence[_Worker], end: float, go_on: Callable[[], bool], watcher: Watcher | None = None
) -> None:
    """Until all have ended or their time is over; those that still run then are killed."""
    is_ending = False
    while running := [worker for worker in workers if not worker.ended_at]:
        for worker in running:
            if worker.process.poll() is not None:
                worker.ended_at = time.monotonic()
            elif time.monotonic() > end:
                worker.process.kill()
                worker.process.wait()
                worker.ended_at, worker.is_late = time.monotonic(), True
        if not is_ending and not go_on():
            is_ending, end = True, min(end, time.monotonic() + END_SECONDS)
            for worker in running:
                worker.process.terminate()
        if watcher is not None:
            watcher.look([one.process.stdout.fileno() for one in running if one.process.stdout], time.monotonic())
        time.sleep(LOOK_EVERY)


def lost(task: WorkerTask, died: float) -> Trace:
    """The trace of a worker that ended without a result."""
    intended = task.intended
    kinds = task.kinds[: len(intended)]
    nothing = np.full(len(intended), np.nan)
    return Trace(
        intended=intended,
        sent=nothing,
        first=nothing,
        done=nothing,
        status=np.where(intended < died, BROKEN, UNSENT).astype(np.int32),
        kind=kinds,
        worker=np.full(len(intended), task.number, np.int32),
        samples=task.samples[kinds],
        dispatched=nothing,
        client=task.client,
    )
