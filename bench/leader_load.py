"""What a leader stands: 1,000 submissions from 50 clients at once, then 10,000 jobs in its queue.

The leader is the command itself, as a process. Each client has a token of its own, and waits as long as an answer says
before it sends the same again. The jobs ask for a machine that nobody has, so that all of them stay in the queue.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import numpy as np
import psutil

CLIENTS = 50
SUBMISSIONS = 1_000
QUEUED = 10_000
READS = 100  # of each page
SUITE = {"name": "small", "cases": [{"benchmark": "gemm", "size": 64}]}
PAGES = ("/", "/?part=live", "/api/v1/jobs", "/api/v1/jobs?limit=500", "/api/v1/followers")
PACELINE = [sys.executable, "-m", "paceline"]
PATIENCE = 120.0  # seconds for an answer


@dataclass
class Answers:
    """What was answered, and after how long."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        usual, late, worst = np.percentile(self.seconds, (50, 99, 100))
        told = ", ".join(f"{count:,} x {status}" for status, count in sorted(self.statuses.items()))
        return f"{usual * 1e3:10.0f} {late * 1e3:8.0f} {worst * 1e3:8.0f}   {told}"


@dataclass
class Leading:
    """A leader that runs."""

    host: str
    process: psutil.Process
    tokens: Sequence[str]

    @property
    def memory(self) -> str:
        """What it holds."""
        return f"{self.process.memory_info().rss / 1e6:.0f} MB"


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder, _leading(Path(folder)) as leading:
        _read(leading, PAGES, 1)  # what is loaded when first asked for is not what grows
        opening = _submitted(leading, range(QUEUED, QUEUED + 1))  # imports every benchmark, and is told apart for that
        begun, before = time.monotonic(), leading.memory
        first = _submitted(leading, range(SUBMISSIONS))
        seconds, after = time.monotonic() - begun, leading.memory
        rest = _submitted(leading, range(SUBMISSIONS, QUEUED))
        full = leading.memory
        pages = {page: _read(leading, [page], READS) for page in PAGES}
        read = leading.memory
        again = _submitted(leading, range(SUBMISSIONS))
        sent_again = leading.memory
    click.echo(f"{'milliseconds':40} {'median':>10} {'p99':>8} {'longest':>8}   answers")
    _print("the first submission of all", opening)
    _print(f"{SUBMISSIONS:,} submissions, {CLIENTS} clients at once", first)
    _print(f"{QUEUED - SUBMISSIONS:,} more", rest)
    _print(f"the first {SUBMISSIONS:,} once more", again)
    for page, answers in pages.items():
        _print(f"GET {page} with {QUEUED:,} queued", answers)
    click.echo(f"\n{SUBMISSIONS / seconds:.0f} submissions a second")
    click.echo(
        f"memory: {before} before, {after} with {SUBMISSIONS:,} jobs, {full} with {QUEUED:,}, {read} after "
        f"{len(PAGES) * READS:,} reads, {sent_again} after {SUBMISSIONS:,} submissions that were there already"
    )


@contextmanager
def _leading(folder: Path) -> Iterator[Leading]:
    environment = os.environ | {"XDG_DATA_HOME": str(folder), "PACELINE_STORE": str(folder / "store.db")}
    tokens = [_token(f"client-{number}", environment) for number in range(CLIENTS)]
    with subprocess.Popen(
        [*PACELINE, "leader", "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "http://" not in line:
                raise ValueError(f"the leader did not start: {line}")
            yield Leading(urlsplit(line.split()[-1]).netloc, psutil.Process(process.pid), tokens)
        finally:
            process.terminate()
            process.wait(30)


def _token(name: str, environment: dict[str, str]) -> str:
    from paceline.service.api import tokens
    from paceline.store import open_store

    token, row = tokens.make(name, tokens.Scope.of("submit"), None)
    with open_store(environment["PACELINE_STORE"]) as store, store.queue.writing("keep a token") as writing:
        writing.put_token(row)
    return token


def _submitted(leading: Leading, numbers: range) -> Answers:
    """Submit these jobs, each client its part of them, all clients at once."""

    def bodies(client: int) -> Iterator[tuple[str, bytes]]:
        for number in numbers[client::CLIENTS]:
            job = {"id": f"job-{number}", "suite": SUITE, "needs": {"labels": ["nowhere"]}}
            yield "/api/v1/jobs", json.dumps(job).encode()

    return _asked(leading, CLIENTS, "POST", bodies)


def _read(leading: Leading, pages: Sequence[str], times: int) -> Answers:
    """Read pages, by one who has no other to wait for."""
    return _asked(leading, 1, "GET", lambda client: ((page, b"") for page in pages for _ in range(times)))


def _asked(
    leading: Leading, clients: int, method: str, requests: Callable[[int], Iterator[tuple[str, bytes]]]
) -> Answers:
    answers, lock, failures = Answers(), threading.Lock(), list[BaseException]()

    def ask(client: int) -> None:
        connection = http.client.HTTPConnection(leading.host, timeout=PATIENCE)
        headers = {"Authorization": f"Bearer {leading.tokens[client]}", "Content-Type": "application/json"}
        try:
            for path, body in requests(client):
                status, wait = 429, 0.0
                while status in (429, 503):
                    time.sleep(wait)
                    status, seconds, wait = _answer(connection, method, path, body, headers)
                    with lock:
                        answers.statuses[status] += 1
                        answers.seconds.append(seconds)
        except (OSError, http.client.HTTPException) as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise ValueError(f"{len(failures)} of {clients} clients were not answered: {failures[0]!r}")
    return answers


def _answer(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes, headers: Any
) -> tuple[int, float, float]:
    begun = time.monotonic()
    connection.request(method, path, body or None, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status, time.monotonic() - begun, float(answer.headers.get("Retry-After") or 0.1)


def _print(name: str, answers: Answers) -> None:
    click.echo(f"{name:40} {answers}")
