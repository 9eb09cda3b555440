"""A leader with 10,000 followers that are simulated in memory: what it costs to look at them, and to show them.

The leader, its store, its API and its pages are real. Jobs are submitted until as many of the followers measure as said
here; each then brings a record of many samples into the store, and gets the next job, until the time is over.
`PACELINE_BENCH_STORE` names the store, such as a PostgreSQL URL; it is filled and not emptied. Without it a SQLite file
is made and removed. `PACELINE_BENCH_SECONDS` is how long it is filled, `PACELINE_BENCH_SAMPLES` how many samples each
record has.
"""

from __future__ import annotations

import http.client
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np
import psutil

from bench.soak import Followers
from paceline.service.api.app import create_app
from paceline.service.api.server import bind, make_server
from paceline.service.engines.base import AttemptKey, AttemptReport, FollowerState
from paceline.service.jobs import Job, JobState
from paceline.service.leader import Leader
from paceline.store import open_store
from paceline.store.store import Store
from paceline.web.pages import pages_of

FOLLOWERS = 10_000
BUSY = 500  # of them measure at once
SAMPLES = int(os.environ.get("PACELINE_BENCH_SAMPLES", "10000"))  # of each record
READS = 3  # of each page
PAGES = ("/", "/machines", "/machines?page=100", "/submit", "/runs", "/api/v1/followers", "/api/v1/jobs")
SUITE = {"name": "small", "cases": [{"benchmark": "gemm", "size": 64}]}


class ManyFollowers(Followers):
    """They measure for as long as they are held."""

    def __init__(self) -> None:
        super().__init__(lambda: datetime.now(UTC), 1, FOLLOWERS, SAMPLES, away=0.0)
        self._states = list(super().followers())
        self.is_held = True

    def followers(self) -> Sequence[FollowerState]:
        return self._states

    def poll(self, follower: str, acknowledged: dict[AttemptKey, int]) -> Sequence[AttemptReport]:
        if self.is_held:
            return [AttemptReport(job_id=job, attempt=attempt) for job, attempt in self._held[follower]]
        return super().poll(follower, acknowledged)


def print_ten_thousand() -> None:
    """Print the figures as they come."""
    where, seconds = os.environ.get("PACELINE_BENCH_STORE"), float(os.environ.get("PACELINE_BENCH_SECONDS", "480"))
    with tempfile.TemporaryDirectory() as folder, open_store(where or Path(folder) / "store.db") as store:
        followers, numbers = ManyFollowers(), itertools.count(1)
        leader = Leader(store, followers)
        _timed(f"to let {FOLLOWERS:,} followers in", leader.step)
        _timed("a look at all, nothing runs", leader.step)
        threading.Thread(target=leader.run, daemon=True).start()
        _timed(f"to take and to place {BUSY:,} jobs", lambda: _submit(leader, numbers, BUSY))
        with _served(leader, store) as port:
            _read(port, f"{BUSY:,} busy")
            followers.is_held = False
            begun = time.monotonic()
            while time.monotonic() - begun < seconds:
                _submit(leader, numbers, max(0, BUSY - leader.unfinished_count))
                time.sleep(0.1)
            ended = store.queue.counts().get(JobState.SUCCEEDED, 0)
            took = time.monotonic() - begun
            click.echo(f"{ended * SAMPLES:,} samples of {ended:,} jobs in the store after {took:.0f} s")
            _read(port, "with these")
        used = psutil.Process().memory_info().rss / 1e6
        click.echo(f"memory of the leader, its API, and the followers that it has here: {used:.0f} MB")
        leader.close()


def _submit(leader: Leader, numbers: Iterator[int], count: int) -> None:
    for number in itertools.islice(numbers, count):
        now = datetime.now(UTC)
        name = f"job-{now:%Y%m%d%H%M%S}-{number}"
        leader.submit(Job(id=name, name="small", suite=SUITE, submitted_at=now, state_at=now))


@contextmanager
def _served(leader: Leader, store: Store) -> Iterator[int]:
    app = create_app(leader, store, is_local=True, report=lambda run: "", pages=pages_of(leader, store, lambda run: ""))
    listening, server = bind("127.0.0.1", 0), make_server(app, None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)


def _read(port: int, when: str) -> None:
    for page in PAGES:
        seconds, size, status = [], 0, 0
        for _ in range(READS):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
            begun = time.monotonic()
            connection.request("GET", page)
            answer = connection.getresponse()
            size, status = len(answer.read()), answer.status
            seconds.append(time.monotonic() - begun)
            connection.close()
        middle = np.median(seconds) * 1e3
        click.echo(f"GET {page:22} {when:12} {status} {middle:8.0f} ms {size / 1e3:10.0f} kB")


def _timed(what: str, act: Callable[[], object]) -> None:
    wall, cpu = time.monotonic(), time.process_time()
    act()
    click.echo(f"{what:40} {time.monotonic() - wall:8.2f} s, {time.process_time() - cpu:8.2f} s of the processor")
