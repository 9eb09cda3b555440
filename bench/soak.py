"""Thirty days of a leader in minutes: 20,000 jobs under a clock of its own, and what it holds at the end of each day.

The leader, its API and its store are the real ones; followers answer from memory, as fast as they are asked. Once a day
somebody prunes the results, once in five days the leader is started again, and followers come and go.
"""

from __future__ import annotations

import functools
import http.client
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil

from paceline.core.case import Case
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run
from paceline.service.engines.base import Assignment, AttemptKey, AttemptReport, FollowerGone, FollowerState, Item
from paceline.service.job_store import Policy
from paceline.service.jobs import Job, JobState
from paceline.service.leader import Leader
from paceline.store import open_store, retention
from paceline.store.store import Store

DAYS, JOBS, FOLLOWERS = 30, 20_000, 8
LOOK = timedelta(minutes=5)  # of the leader's clock, between two looks at its followers
KEPT = timedelta(days=7)
POLICY = Policy(jobs=KEPT, logs=timedelta(days=3))
SETTLED = 10  # days, after which nothing may grow
GROWTH = 1.1
PAGES = ("/", "/runs", "/machines", "/api/v1/jobs", "/api/v1/metrics", "/api/v1/health/ready")
SUITE = {"name": "small", "cases": [{"benchmark": "gemm", "size": 64}]}

_TIME = Metric(name="step_time", unit="s", better=Better.LOWER)


@dataclass
class Clock:
    """Time that passes when it is told to."""

    time: datetime = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


@dataclass
class Attempt:
    """One attempt on a follower, until it is acknowledged."""

    assignment: Assignment
    looks_left: int
    items: list[Item] = field(default_factory=list)


class Followers:
    """Followers in memory: a job takes some looks, and now and then one of them is away for a while."""

    invitation = ""

    def __init__(
        self, clock: Callable[[], datetime], seed: int, count: int = FOLLOWERS, samples: int = 50, away: float = 0.0005
    ) -> None:
        self._clock, self._random = clock, random.Random(seed)
        self._held: dict[str, dict[AttemptKey, Attempt]] = {f"node-{one}": {} for one in range(count)}
        self._samples = np.random.default_rng(seed).normal(1.0, 0.01, samples)
        self._away: dict[str, datetime] = {}
        self._away_chance = away  # at each look

    def followers(self) -> Sequence[FollowerState]:
        return [FollowerState(id=one, host=one, seen_at=self._clock()) for one in self._held]

    def begin(self, follower: str, assignment: Assignment) -> None:
        key = (assignment.job_id, assignment.attempt)
        self._answering(follower).setdefault(key, Attempt(assignment, self._random.choice((1, 1, 2, 3))))

    def poll(self, follower: str, acknowledged: dict[AttemptKey, int]) -> Sequence[AttemptReport]:
        if self._random.random() < self._away_chance:
            self._away[follower] = self._clock() + self._random.randrange(1, 6) * LOOK
        held = self._answering(follower)
        reports = []
        for key, attempt in list(held.items()):
            if attempt.items and acknowledged.get(key, 0) >= attempt.items[-1].number:
                del held[key]
                continue
            attempt.looks_left -= 1
            if attempt.looks_left <= 0 and not attempt.items:
                attempt.items = self._measured(attempt.assignment)
            new = tuple(item for item in attempt.items if item.number > acknowledged.get(key, 0))
            reports.append(AttemptReport(job_id=key[0], attempt=key[1], items=new))
        return reports

    def cancel(self, follower: str, job_id: str, attempt: int) -> None:
        held = self._answering(follower).get((job_id, attempt))
        if held is not None:
            held.looks_left = 0

    def close(self) -> None:
        """They go on."""

    def _answering(self, follower: str) -> dict[AttemptKey, Attempt]:
        if self._away.get(follower, self._clock()) > self._clock():
            raise FollowerGone("it is away")
        return self._held[follower]

    def _measured(self, assignment: Assignment) -> list[Item]:
        now = self._clock()
        case = Case(index=0, benchmark="gemm", parameters={"size": 64}, title="gemm 64")
        run = Run(id=assignment.run_id, name="small", started_at=now, version="1", command=[], cases=[case])
        measured = Measurement.of_samples(_TIME, (self._samples * self._random.uniform(0.9, 1.1)).tolist())
        record = Record(
            run_id=run.id, case=case, outcome=Outcome.OK, started_at=now, seconds=1.0, measurements=[measured]
        )
        parts: list[dict[str, Any]] = [
            {"kind": "began", "run": run},
            {"kind": "log", "text": "gemm 64 on cpu\n" * 20},
            {"kind": "record", "record": record},
            {"kind": "ended"},
        ]
        return [Item.model_validate({"number": n, "at": now, **part}) for n, part in enumerate(parts, start=1)]


@dataclass(frozen=True)
class Day:
    """What the process and its files hold at the end of a day."""

    number: int
    jobs: int
    memory: int
    descriptors: int
    threads: int
    store: int
    write_ahead: int
    log: int

    @property
    def held(self) -> dict[str, int]:
        """What may not grow, by name."""
        return {
            "memory": self.memory,
            "descriptors": self.descriptors,
            "threads": self.threads,
            "store": self.store,
            "write-ahead log": self.write_ahead,
        }


def soak(jobs: int = JOBS, days: int = DAYS, seed: int = 1) -> list[Day]:
    """So many jobs over so many days, and each evening."""
    made: list[Day] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = logging.FileHandler(folder / "leader.log")
        logging.getLogger("paceline").addHandler(log)
        try:
            with open_store(folder / "store.db") as store:
                _lead(store, folder, jobs, days, seed, made)
        finally:
            logging.getLogger("paceline").removeHandler(log)
            log.close()
    return made


def _lead(store: Store, folder: Path, jobs: int, days: int, seed: int, made: list[Day]) -> None:
    clock, drawn, submitted = Clock(), random.Random(seed), 0
    engine = Followers(clock, seed)
    looks = days * int(timedelta(days=1) / LOOK)
    front: _Front | None = None
    for look in range(looks):
        if look % (looks * 5 // max(days, 5)) == 0:  # started again
            if front is not None:
                front.close()
            front = _Front(Leader(store, engine, clock, retention=POLICY), store)
        assert front is not None
        for _ in range(jobs * (look + 1) // looks - submitted):
            submitted += 1
            front.leader.submit(_job(f"job-{submitted}", clock()))
            if drawn.random() < 0.02:
                front.leader.cancel(f"job-{submitted}")
        front.leader.step()
        if look % 12 == 0:
            front.ask(PAGES[look // 12 % len(PAGES)])
        clock.time += LOOK
        if (look + 1) % (looks // days) == 0:
            _prune(store, clock())
            made.append(_evening(len(made) + 1, store, folder, submitted))
            click.echo(_row(made[-1]))
    if front is not None:
        front.close()


class _Front:
    """A leader and its API, asked as browsers do."""

    def __init__(self, leader: Leader, store: Store) -> None:
        from paceline.service.api import server
        from paceline.service.api.app import create_app
        from paceline.web.pages import pages_of

        self.leader = leader
        pages = pages_of(leader, store, lambda records: "")
        app = create_app(leader, store, is_local=True, report=lambda records: "", pages=pages)
        opened = server.bind("127.0.0.1", 0)
        self._port = opened.getsockname()[1]
        self._server = server.make_server(app)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [opened]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def ask(self, path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 200:
            raise ValueError(f"{path} was answered with {answer.status}")

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.leader.close()
        _forget_routes()


def _forget_routes() -> None:
    """What FastAPI remembers of every route of the process: a leader that is started again is a new process."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fastapi"):
            for one in list(vars(module).values()):
                if isinstance(one, functools._lru_cache_wrapper):
                    one.cache_clear()


def _job(name: str, at: datetime) -> Job:
    return Job(id=name, name="small", suite=SUITE, submitted_at=at, state=JobState.QUEUED, state_at=at)


def _prune(store: Store, now: datetime) -> None:
    """What `paceline results prune` does, by the leader's clock."""
    retention.delete_runs(store, [row.id for row in store.runs(limit=None) if row.started_at < now - KEPT])
    retention.shrink(store, whole=False)


def _evening(number: int, store: Store, folder: Path, submitted: int) -> Day:
    process = psutil.Process()
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    return Day(
        number=number,
        jobs=submitted,
        memory=process.memory_info().rss,
        descriptors=process.num_fds(),
        threads=process.num_threads(),
        store=sizes["store.db"],
        write_ahead=sizes.get("store.db-wal", 0),
        log=sizes["leader.log"],
    )


HEAD = f"{'day':>4} {'jobs':>7} {'memory':>9} {'descriptors':>12} {'threads':>8} {'store':>9} {'WAL':>9} {'log':>9}"


def _row(day: Day) -> str:
    return (
        f"{day.number:4} {day.jobs:7,} {day.memory / 1e6:6.0f} MB {day.descriptors:12} {day.threads:8} "
        f"{day.store / 1e6:6.1f} MB {day.write_ahead / 1e6:6.1f} MB {day.log / 1e3:6.0f} kB"
    )


def grown(days: Sequence[Day], settled: int = SETTLED) -> list[str]:
    """What was larger at the end than it may be, after the days that it takes until as much goes as comes."""
    before, after = days[:settled], days[settled:]
    limits = {name: GROWTH * max(day.held[name] for day in before) for name in before[0].held}
    return [name for name in limits if max(day.held[name] for day in after) > limits[name]]


def print_soak() -> None:
    """A row for each day, and whether anything grew."""
    begun = time.monotonic()
    click.echo(HEAD)
    days = soak(int(os.environ.get("PACELINE_SOAK_JOBS", str(JOBS))))
    grew = grown(days)
    click.echo(
        f"{days[-1].jobs:,} jobs in {len(days)} days took {time.monotonic() - begun:.0f} s; "
        + (f"grew: {', '.join(grew)}" if grew else f"nothing grew by more than {GROWTH - 1:.0%} after day {SETTLED}")
    )
