"""A worker of the load generator as a whole: it reads its task, waits for the start, and writes its result."""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import runpy
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from paceline.core import die_with_parent
from paceline.load import worker
from paceline.load.task import task_message
from paceline.load.trace import (
    OK,
    WorkerResults,
)  # fmt: skip
from paceline.load.worker import RESULT, TASK
from support.worker_tasks import endpoint_at, task_of, times


@contextmanager
def server() -> Iterator[int]:
    """The port of a server that answers everything."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.daemon_threads = True
        thread = Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made.server_port
        made.shutdown()
        thread.join()


@pytest.fixture
def parents(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int | None]]:
    """The processes that it would die with; what it changes in this one is changed back."""
    collected: list[int | None] = []
    monkeypatch.setattr(worker, "die_with_parent", collected.append)
    monkeypatch.setattr(die_with_parent, "die_with_parent", collected.append)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield collected
    gc.enable()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


PAYLOAD = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc"


@pytest.mark.parametrize("cpu", [None, 3])
def test_a_worker_reads_its_task_waits_for_the_start_and_writes_its_result(
    cpu: int | None,
    parents: list[int | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pinned: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append((pid, cores)))
    monkeypatch.setattr(sys, "argv", ["worker", str(tmp_path), "another"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{time.monotonic_ns()}\n"))
    before = time.process_time()
    with server() as port:
        kinds = np.array([1, 0, 1], np.int32)
        task = task_of(
            endpoint=endpoint_at(port),
            intended=times(0, 0.001, 0.002),
            kinds=kinds,
            payloads=[PAYLOAD] * 2,
            keep=1,
            parent=77,
            cpu=cpu,
            number=4,
        )
        (tmp_path / TASK).write_text(json.dumps(task_message(task)))
        runpy.run_path(str(worker.__file__), run_name="__main__")
    used = time.process_time() - before
    assert capsys.readouterr().out == "ready\n"
    assert parents == [77]
    assert pinned == ([] if cpu is None else [(0, {cpu})])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
    results = WorkerResults.unpacked((tmp_path / RESULT).read_bytes())
    trace = results.trace
    assert trace.status.tolist() == [OK] * 3
    assert trace.kind.tolist() == [1, 0, 1]
    assert trace.samples.tolist() == [2, 1, 2]
    assert trace.worker.tolist() == [4] * 3
    assert trace.dispatched is not None
    assert np.all(trace.intended <= trace.dispatched)
    assert np.all((trace.dispatched <= trace.sent) & (trace.sent <= trace.first))
    assert np.all(trace.first <= trace.done)
    assert sorted(results.answers) == [(0, b"{}"), (1, b"{}")]
    assert results.trace.losses == ()
    assert 0.0 <= trace.cpu_seconds <= used


@pytest.mark.usefixtures("parents")
def test_a_worker_whose_parent_is_gone_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    alone = task_of(intended=times(0.0), kinds=np.zeros(1, np.int32))
    (tmp_path / TASK).write_text(json.dumps(task_message(alone)))
    with pytest.raises(SystemExit, match="the parent is gone"):
        worker.main(tmp_path)
    assert not (tmp_path / RESULT).exists()
