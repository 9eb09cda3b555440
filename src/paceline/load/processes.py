"""The processes of the load generator: started together, watched, and ended, whatever happens to them."""

from __future__ import annotations

import io
import os
import pickle
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import CaseError
from paceline.load.trace import BROKEN, UNSENT, Trace
from paceline.load.worker import READY, RESULT, TASK, WorkerTask

CORES_FOR_EACH = 8  # one of so many sends
MOST_SENDING = 8


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
        taken = workers or min(MOST_SENDING, max(1, len(cores) // CORES_FOR_EACH))
        taken = min(taken, len(cores) - 1)
        return cls(tuple(cores[:-taken]), tuple(cores[-taken:]))

    @classmethod
    def without_load(cls) -> CpuPlacement:
        """All cores for serving: the load comes from other machines."""
        return cls(tuple(sorted(os.sched_getaffinity(0))), ())

    def is_shared(self, processes: Iterable[int]) -> bool:
        """Whether one of the server's processes may run where the load comes from."""
        for pid in processes:
            try:
                allowed = os.sched_getaffinity(pid)
            except OSError:  # it has ended
                continue
            if allowed & set(self.load):
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


COMMAND = [sys.executable, "-P", "-m", "paceline.load.worker"]
START_SECONDS = 60.0  # within which a worker must be ready; only a broken machine takes so long
HEAD_START = 0.05  # s from the word to the start: every worker has heard it by then
LOOK_EVERY = 0.05
END_SECONDS = 10.0  # to hand over what was seen
_STDERR = "stderr"

_COLUMNS = ("intended", "sent", "first", "done", "status", "kind", "worker", "samples")
_SOMETIMES = ("batch", "dispatched", "host")
_STAGE = "stage_"


class LoadFailed(CaseError):
    """The load generator itself could not work."""


@dataclass(frozen=True)
class WorkerResults:
    """What all workers saw together."""

    trace: Trace
    answers: list[tuple[int, bytes]]  # kind and body
    losses: list[str]  # what befell workers that did not come to their end


@dataclass
class _Worker:
    number: int
    task: WorkerTask
    folder: Path
    process: subprocess.Popen[str]
    ended_at: float | None = None  # on the monotonic clock

    @property
    def last_words(self) -> str:
        lines = (self.folder / _STDERR).read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {self.process.returncode}")


def soon() -> int:
    """A start that all on this machine hear of in time, in nanoseconds of the monotonic clock."""
    return time.monotonic_ns() + int(HEAD_START * 1e9)


def run(
    tasks: Sequence[WorkerTask],
    samples: NDArray[np.int32],
    longest: float,
    go_on: Callable[[], bool] = lambda: True,
    begin: Callable[[], int] = soon,
) -> WorkerResults:
    """Do all tasks at the same time; after `longest` seconds nobody is waited for any more.

    When all are ready, `begin` says when to start. When `go_on` says no, all end at once, with what they have seen by
    then.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-load-") as folder, ExitStack() as stack:
        workers = []
        for number, task in enumerate(tasks):
            own = Path(folder) / str(number)
            own.mkdir()
            workers.append(stack.enter_context(_started(number, task, own)))
        until = time.monotonic() + START_SECONDS
        for worker in workers:
            _wait_until_ready(worker, until)
        start = begin()
        for worker in workers:
            with suppress(BrokenPipeError):  # it died in between, which is noticed below
                assert worker.process.stdin is not None
                worker.process.stdin.write(f"{start}\n")
                worker.process.stdin.flush()
        _wait_until_ended(workers, start / 1e9 + longest, go_on)
        parts, answers, losses = [], [], []
        for worker in workers:
            path = worker.folder / RESULT
            if worker.process.returncode == 0 and path.exists():
                part, some = _result(worker, path, samples)
                answers += some
            elif worker.task.loop != "open":  # what it would have sent nobody knows: its users were not there
                raise LoadFailed(f"worker {worker.number} of the load generator was lost: {worker.last_words}")
            else:
                part = lost(worker.task, worker.number, (worker.ended_at or 0.0) - start / 1e9, samples)
                losses.append(f"worker {worker.number} of the load generator was lost: {worker.last_words}")
            parts.append(part)
        return WorkerResults(Trace.merged(parts), answers, losses)


@contextmanager
def _started(number: int, task: WorkerTask, folder: Path) -> Iterator[_Worker]:
    (folder / TASK).write_bytes(pickle.dumps(task))
    with (folder / _STDERR).open("wb") as errors:
        process = subprocess.Popen(
            [*COMMAND, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        yield _Worker(number, task, folder, process)
    finally:
        process.kill()
        with suppress(BrokenPipeError):
            process.communicate()


def _wait_until_ready(worker: _Worker, until: float) -> None:
    output = worker.process.stdout
    assert output is not None
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        is_heard = bool(selector.select(max(0.0, until - time.monotonic())))
    if not is_heard:
        raise LoadFailed(f"a worker of the load generator was not ready after {START_SECONDS:g} s")
    if output.readline().strip() != READY:
        worker.process.wait()
        raise LoadFailed(f"a worker of the load generator did not start: {worker.last_words}")


def _wait_until_ended(workers: Sequence[_Worker], end: float, go_on: Callable[[], bool]) -> None:
    """Until all have ended or their time is over; those who have not by then are killed."""
    is_told = False
    while running := [worker for worker in workers if worker.ended_at is None]:
        for worker in running:
            if worker.process.poll() is not None:
                worker.ended_at = time.monotonic()
            elif time.monotonic() > end:
                worker.process.kill()
                worker.process.wait()
                worker.ended_at = time.monotonic()
        if not is_told and not go_on():
            is_told, end = True, min(end, time.monotonic() + END_SECONDS)
            for worker in running:
                worker.process.terminate()
        time.sleep(LOOK_EVERY)


def _result(worker: _Worker, path: Path, samples: NDArray[np.int32]) -> tuple[Trace, list[tuple[int, bytes]]]:
    with np.load(path, allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    number = len(found["intended"])
    trace = Trace(
        intended=found["intended"],
        dispatched=found["dispatched"],
        sent=found["sent"],
        first=found["first"],
        done=found["done"],
        status=found["status"],
        kind=found["kind"],
        worker=np.full(number, worker.number, np.int32),
        samples=samples[found["kind"]],
        stages={name.removeprefix("stage_"): found[name] for name in found if name.startswith("stage_")},
        batch=found["batch"] if len(found["batch"]) else None,
        tokens=split(found["token_times"], found["token_counts"]) if worker.task.streaming else None,
        cpu_seconds=float(found["cpu_seconds"]),
    )
    bodies = split(found["answer_bytes"], found["answer_lengths"])
    kinds = found["answer_kinds"].tolist()
    return trace, [(kind, body.tobytes()) for kind, body in zip(kinds, bodies, strict=True)]


def lost(task: WorkerTask, number: int, died: float, samples: NDArray[np.int32]) -> Trace:
    """What can be said of the requests of a worker that took its knowledge with it."""
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
        worker=np.full(len(intended), number, np.int32),
        samples=samples[kinds],
        dispatched=nothing,
    )


def split(values: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Rows of different lengths that were written one behind the other."""
    return np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []


def packed(seen: WorkerResults) -> bytes:
    """Everything that was seen."""
    trace = seen.trace
    columns: dict[str, NDArray[Any]] = {name: getattr(trace, name) for name in _COLUMNS}
    columns |= {name: getattr(trace, name) for name in _SOMETIMES if getattr(trace, name) is not None}
    columns |= {f"{_STAGE}{name}": values for name, values in trace.stages.items()}
    if trace.tokens is not None:
        columns["token_times"] = np.concatenate([np.empty(0), *trace.tokens])
        columns["token_counts"] = np.array([len(times) for times in trace.tokens], np.int64)
    columns["cpu_seconds"] = np.array(trace.cpu_seconds)
    columns["answer_kinds"] = np.array([kind for kind, _ in seen.answers], np.int32)
    columns["answer_lengths"] = np.array([len(body) for _, body in seen.answers], np.int64)
    columns["answer_bytes"] = np.frombuffer(b"".join(body for _, body in seen.answers), np.uint8)
    columns["losses"] = np.array(seen.losses, np.str_)
    file = io.BytesIO()
    np.savez(file, **columns)  # type: ignore[arg-type]
    return file.getvalue()


def unpacked(data: bytes) -> WorkerResults:
    """The same again."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    columns: dict[str, Any] = {name: found.get(name) for name in (*_COLUMNS, *_SOMETIMES)}
    trace = Trace(
        **columns,
        stages={name.removeprefix(_STAGE): found[name] for name in found if name.startswith(_STAGE)},
        tokens=split(found["token_times"], found["token_counts"]) if "token_counts" in found else None,
        cpu_seconds=float(found["cpu_seconds"]),
    )
    bodies = split(found["answer_bytes"], found["answer_lengths"])
    answers = [(kind, body.tobytes()) for kind, body in zip(found["answer_kinds"].tolist(), bodies, strict=True)]
    return WorkerResults(trace, answers, found["losses"].tolist())
