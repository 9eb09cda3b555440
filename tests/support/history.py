"""Random histories of a leader and its followers, and what must be true of each of them, whatever happened in it.

A world has one leader with its API and three followers, all of them processes; what happens is drawn from a seed. The
checker knows three things that do not depend on each other: what clients were answered, what the store holds in the
end, and the diary that was written by what really ran.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from paceline.core.network import free_port
from paceline.store import open_store
from support.cli import PLUGIN, Sandbox
from support.relay import Relay

FOLLOWERS = ("ada", "bob", "cyd")
LEASE = 6.0
ANSWER_SECONDS = 8.0
PATIENCE = 150.0  # without any progress; only what hangs takes so long
FINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Look:
    """States of jobs as somebody was shown them, asked and answered at these moments."""

    asked: float
    answered: float
    states: Mapping[str, str]
    is_whole: bool  # a list of all jobs rather than one of them


@dataclass
class History:
    """What clients did and were answered."""

    submitted: dict[str, float | None] = field(default_factory=dict)  # when it was acknowledged, if it was
    looks: list[Look] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)


class World:
    """The processes of one history."""

    def __init__(self, sandbox: Sandbox, url: str, seed: int, defect: str = "-", database: Relay | None = None) -> None:
        self.history = History()
        self._sandbox, self._url, self._defect, self._database = sandbox, url, defect, database
        self._rng = random.Random(seed)
        self._diary, self._clock = sandbox.folder / "diary", sandbox.folder / "clock"
        self._clock.write_text("0")
        self._log = (sandbox.folder / "processes.log").open("ab")
        self._relays = {name: Relay(free_port()) for name in FOLLOWERS}
        self._api = free_port()
        self._followers: dict[str, subprocess.Popen[bytes]] = {}
        self._leader: subprocess.Popen[bytes] | None = None
        self._heal: list[tuple[float, Callable[[], None]]] = []

    # What can happen

    def run(self, operations: int) -> None:
        """So many operations, in an order and at moments of their own, and then peace."""
        weights: dict[str, tuple[int, Callable[[], None]]] = {
            "submit": (38, self._submit_new),
            "cancel": (9, self._cancel),
            "look at jobs": (18, self._look_at_all),
            "look at a page": (8, self._look_at_one),
            "kill a follower": (4, self._kill_follower),
            "kill what measures": (3, self._kill_measuring),
            "pause a follower": (4, self._pause_follower),
            "cut a follower off": (4, lambda: self._break_relay("cut")),
            "lose answers of a follower": (4, lambda: self._break_relay("deaf")),
            "kill the leader": (3, self._kill_leader),
            "pause the leader": (2, self._pause_leader),
            "set the clock": (3, self._set_clock),
            "take the store away": (3, self._break_store),
        }
        names, chances = list(weights), [weight for weight, _ in weights.values()]
        for name in FOLLOWERS:
            self._start_follower(name)
        self._start_leader()
        for _ in range(operations):
            name = self._rng.choices(names, chances)[0]
            self.history.operations[name] += 1
            weights[name][1]()
            self._pass(self._rng.uniform(0.0, 0.3))
        self._make_peace()

    def _submit_new(self) -> None:
        job = f"job-{len(self.history.submitted)}"
        self.history.submitted[job] = None
        self._submit(job)

    def _submit(self, job: str) -> None:
        """The same id with the same suite again, if it was never acknowledged."""
        drawn = random.Random(job)
        case = {"benchmark": "diary", "duration": f"{drawn.randrange(100, 900)}ms", "steps": 5}
        sent = {"id": job, "suite": {"name": "diary", "cases": [case]}}
        status, _ = self._ask("POST", "/api/v1/jobs", sent)
        if status in (200, 201):
            self.history.submitted[job] = time.monotonic()

    def _cancel(self) -> None:
        if self.history.submitted:
            self._ask("POST", f"/api/v1/jobs/{self._any_job()}/cancel", {})

    def _look_at_all(self) -> None:
        asked = time.monotonic()
        status, answer = self._ask("GET", "/api/v1/jobs?limit=500")
        if status == 200:
            states = {job["id"]: job["state"] for job in answer["jobs"]}
            self.history.looks.append(Look(asked, time.monotonic(), states, is_whole=True))

    def _look_at_one(self) -> None:
        job = self._any_job() if self.history.submitted else ""
        asked = time.monotonic()
        status, page = self._ask("GET", f"/jobs/{job}")
        if job and status == 200:
            head = page[: page.index("submitted ")]
            shown = [state for state in (*FINAL, "queued", "placed", "running") if f'badge state {state}"' in head]
            assert len(shown) == 1, f"the page of {job} shows {len(shown)} states"
            self.history.looks.append(Look(asked, time.monotonic(), {job: shown[0]}, is_whole=False))

    def _kill_follower(self) -> None:
        """Its process alone; what measures goes on, and its next process takes it up."""
        name = self._rng.choice(FOLLOWERS)
        self._followers[name].kill()
        self._followers[name].wait()
        self._later(self._rng.uniform(0.1, 1.5 * LEASE), lambda: self._start_follower(name))

    def _kill_measuring(self) -> None:
        running = [one for one in self._sandbox.processes() if "follower.measuring" in " ".join(one.cmdline())]
        if running:
            with suppress(Exception):
                self._rng.choice(running).kill()

    def _pause_follower(self) -> None:
        name = self._rng.choice(FOLLOWERS)
        paused = self._followers[name]
        paused.send_signal(signal.SIGSTOP)
        self._later(self._rng.uniform(0.2, 1.5 * LEASE), lambda: paused.send_signal(signal.SIGCONT))

    def _break_relay(self, how: Literal["cut", "deaf"]) -> None:
        relay = self._relays[self._rng.choice(FOLLOWERS)]
        relay.set(how)
        self._later(self._rng.uniform(0.2, 1.5 * LEASE), lambda: relay.set("open"))

    def _kill_leader(self) -> None:
        assert self._leader is not None
        self._leader.kill()
        self._leader.wait()
        self._pass(self._rng.uniform(0.0, 1.5))
        self._start_leader()

    def _pause_leader(self) -> None:
        assert self._leader is not None
        self._leader.send_signal(signal.SIGSTOP)
        self._pass(self._rng.uniform(0.2, 1.3 * LEASE))
        self._leader.send_signal(signal.SIGCONT)

    def _set_clock(self) -> None:
        self._clock.write_text(str(self._rng.choice((-3600.0, -40.0, 0.0, 40.0, 3600.0, 86400.0))))

    def _break_store(self) -> None:
        if self._database is not None:
            self._database.set("cut")
            self._later(self._rng.uniform(0.2, 3.0), lambda: self._database and self._database.set("open"))
            return
        threading.Thread(target=self._hold_store, args=(self._rng.uniform(0.2, 3.0),), daemon=True).start()

    def _hold_store(self, seconds: float) -> None:
        with suppress(sqlite3.Error):
            connection = sqlite3.connect(self._url, timeout=0.1)
            connection.execute("BEGIN EXCLUSIVE")
            time.sleep(seconds)
            connection.rollback()
            connection.close()

    # Processes

    def _start_follower(self, name: str) -> None:
        folder = self._sandbox.folder / "followers" / name
        port = self._relays[name].target
        self._followers[name] = self._start("support.history_follower", str(folder), str(port))

    def _start_leader(self) -> None:
        followers = [f"{name}={relay.port}" for name, relay in self._relays.items()]
        arguments = [self._url, str(self._api), str(self._clock), str(LEASE), self._defect, *followers]
        self._leader = self._start("support.history_leader", *arguments)

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        tests = Path(__file__).parents[1]
        more = {"PYTHONPATH": os.pathsep.join(map(str, (PLUGIN, tests))), "PACELINE_TEST_DIARY": str(self._diary)}
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=self._sandbox.environment(more),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    # Time

    def _later(self, seconds: float, heal: Callable[[], None]) -> None:
        self._heal.append((time.monotonic() + seconds, heal))

    def _pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            for due, heal in [one for one in self._heal if one[0] <= time.monotonic()]:
                self._heal.remove((due, heal))
                heal()
            if time.monotonic() >= end:
                return
            time.sleep(0.02)

    def _make_peace(self) -> None:
        """Everything heals, whoever was not answered asks again, and all jobs come to their end."""
        self._pass(max((due - time.monotonic() for due, _ in self._heal), default=0.0) + 0.1)
        standing, deadline = -1, time.monotonic() + PATIENCE
        while True:
            for job, acknowledged in self.history.submitted.items():
                if acknowledged is None:
                    self._submit(job)
            self._look_at_all()
            states = self.history.looks[-1].states if self.history.looks else {}
            left = sum(state not in FINAL for state in states.values())
            if not left and None not in self.history.submitted.values() and states:
                return
            if left != standing:
                standing, deadline = left, time.monotonic() + PATIENCE
            assert time.monotonic() < deadline, f"{left} jobs do not end; see {self._log.name}"
            self._pass(0.5)

    def close(self) -> None:
        """End what this world has started."""
        for process in (*self._followers.values(), self._leader):
            if process is not None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        for relay in self._relays.values():
            relay.close()
        self._log.close()

    # Clients

    def _any_job(self) -> str:
        return self._rng.choice(list(self.history.submitted))

    def _ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """The status and the answer; 0 where there was none."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._api}{path}",
            json.dumps(body).encode() if body is not None else None,
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if path.startswith("/api") else text
        except urllib.error.HTTPError as error:
            return error.code, None
        except (OSError, ValueError):
            return 0, None


# What must be true


@dataclass(frozen=True)
class Stay:
    """A stretch of time in which a process really measured an attempt at a job."""

    follower: str
    job: str
    attempt: int
    process: int
    begin: float
    end: float
    is_whole: bool


def read_diary(path: Path) -> list[Stay]:
    """What ran, where and when, as it wrote itself."""
    stays: dict[tuple[str, str, str], list[tuple[float, str]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        at, follower, attempt, process, what = line.split()
        stays[follower, attempt, process].append((float(at), what))
    made = []
    for (follower, attempt, process), lines in stays.items():
        job, _, number = attempt.rpartition(".")
        times = [at for at, _ in lines]
        is_whole = lines[-1][1] == "ends"
        made.append(Stay(follower, job, int(number), int(process), min(times), max(times), is_whole))
    return sorted(made, key=lambda stay: stay.begin)


def violations(history: History, url: str, diary: Path) -> Iterator[str]:
    """Every way in which a history is not as it must be."""
    stays = read_diary(diary)
    with open_store(url) as store:
        jobs = {job["id"]: job for job in store.queue.jobs(limit=None)}
        events = {name: [(event.kind, event.document) for event in store.queue.events(name)] for name in jobs}
        runs = {row.id: store.load(row.id) for row in store.runs(limit=None)}
    yield from _endings(history, jobs, events)
    yield from _results(jobs, runs, stays)
    yield from _overlaps(stays)
    yield from _lies(history, jobs, events)


def _endings(history: History, jobs: Mapping[str, Any], events: Mapping[str, list[tuple[str, Any]]]) -> Iterator[str]:
    for name, acknowledged in history.submitted.items():
        if name not in jobs and acknowledged is not None:
            yield f"{name} was acknowledged and is not there"
    for name, job in jobs.items():
        kinds = Counter(kind for kind, _ in events[name])
        if kinds["submitted"] != 1:
            yield f"{name} was submitted {kinds['submitted']} times"
        if job["state"] not in FINAL:
            yield f"{name} has not ended: {job['state']}"
        if kinds["ended"] + kinds["refused"] > 1:
            yield f"{name} ended {kinds['ended'] + kinds['refused']} times"
        if job["state"] == "succeeded" and kinds["ended"] != 1:
            yield f"{name} succeeded, and ended {kinds['ended']} times"


def _results(jobs: Mapping[str, Any], runs: Mapping[str, Any], stays: list[Stay]) -> Iterator[str]:
    owners = Counter(run for job in jobs.values() for run in job["run_ids"])
    measured = {(stay.job, stay.attempt): stay for stay in stays if stay.is_whole}
    for run, count in owners.items():
        if count != 1:
            yield f"run {run} belongs to {count} attempts"
    for run in runs:
        if run not in owners:
            yield f"run {run} belongs to no job"
    for name, job in jobs.items():
        for attempt, run in enumerate(job["run_ids"], start=1):
            records = runs[run].records if run in runs else []
            if len(records) > 1:
                yield f"{name}.{attempt} is stored {len(records)} times"
            good = [record for record in records if record.is_success]
            if good and (name, attempt) not in measured:
                yield f"{name}.{attempt} has a result that nobody measured"
        if job["state"] == "succeeded":
            last = runs.get(job["run_ids"][-1])
            if last is None or last.run.status != "finished" or not any(one.is_success for one in last.records):
                yield f"{name} succeeded without a result"


def _overlaps(stays: list[Stay]) -> Iterator[str]:
    by_follower: dict[str, list[Stay]] = defaultdict(list)
    by_job: dict[str, list[Stay]] = defaultdict(list)
    for stay in stays:
        by_follower[stay.follower].append(stay)
        by_job[stay.job].append(stay)
    for follower, ones in by_follower.items():
        for one, other in pairwise(ones):
            if other.begin < one.end:
                yield f"{follower} measures {one.job}.{one.attempt} and {other.job}.{other.attempt} at once"
    for ones in by_job.values():
        for one, other in pairwise(ones):
            if other.begin < one.end:
                where = f"{one.follower} ({one.attempt}) and {other.follower} ({other.attempt})"
                yield f"{one.job} is held by two at once: {where}"
        held = Counter((stay.job, stay.attempt) for stay in ones)
        for (job, attempt), count in held.items():
            if count > 1:
                yield f"{job}.{attempt} was measured {count} times"


_STATES = {"submitted": "queued", "placed": "placed", "began": "running"}


def _states(job: Mapping[str, Any], events: list[tuple[str, Any]]) -> list[str]:
    """The states that a job was in, one after the other."""
    states: list[str] = []
    for kind, _ in events:
        if kind in _STATES:
            states.append(_STATES[kind])
        elif kind == "lost":
            states.append("queued")
    if not states or states[-1] != job["state"]:
        states.append(job["state"])
    return states


def _lies(history: History, jobs: Mapping[str, Any], events: Mapping[str, list[tuple[str, Any]]]) -> Iterator[str]:
    """Answers that no order of what happened explains: a job that is not there, or one that goes back in time."""
    at: dict[str, tuple[int, float]] = {}  # how far in its states a job was seen to be, and when that was answered
    states = {name: _states(job, events[name]) for name, job in jobs.items()}
    for look in sorted(history.looks, key=lambda look: look.answered):
        if look.is_whole:
            for name, acknowledged in history.submitted.items():
                if acknowledged is not None and acknowledged < look.asked and name not in look.states:
                    yield f"{name} was acknowledged, and a list that was asked for later does not have it"
        for name, state in look.states.items():
            known, answered = at.get(name, (0, 0.0))
            least = known if answered < look.asked else 0  # two that were asked at once may be answered in any order
            further = [index for index, one in enumerate(states.get(name, ())) if one == state and index >= least]
            if not further:
                yield f"{name} is shown as {state} after {states.get(name, ['nothing'])[known]}: {states.get(name)}"
            else:
                at[name] = (max(known, further[0]), look.answered)


@contextmanager
def world(sandbox: Sandbox, url: str, seed: int, defect: str = "-", database: Relay | None = None) -> Iterator[World]:
    """A world that ends with the test."""
    made = World(sandbox, url, seed, defect, database)
    try:
        yield made
    finally:
        made.close()
