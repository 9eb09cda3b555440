"""A flood at a leader's front while a follower measures: whether its figures differ, and how soon others are answered.

Leader and clients have one core, the follower the other one, with a case of one thread. The follower measures the same
job again and again: with nobody at the front, with a crowd there (`bench.crowd`), and, for what the machine itself does
to a core when the other is busy, with a process that only computes on the leader's core. The order turns round with
each round, so that drift cancels. Two clients with a token submit, look and cancel all the while: one from an address
of its own, one from that of an attacker.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import numpy as np
import psutil

from bench import crowd
from bench.leader_load import PACELINE
from paceline.analysis.compare.sides import Decision, decision
from paceline.analysis.compare.significance import Ratio, ratio_of_pairs
from paceline.core.metric import Better
from paceline.service.api import tokens
from paceline.store import open_existing, open_store

ROUNDS = int(os.environ.get("PACELINE_FLOOD_ROUNDS", "8"))
FRONT, MEASURING = 0, 1  # cores
DESCRIPTORS = 1024  # of the leader: the usual soft limit
PEOPLE = 20  # who have the pages open
WAITING_JOBS = 500  # that make the queue's page long
CASE = {"benchmark": "gemm", "size": 512, "precision": "fp32", "warm_up": "1s", "steps": 800}
WITHIN = 0.02  # a difference that is smaller does not matter
SECONDS = 1.0  # within which whoever is let in is answered
SETTLE = 6.0  # seconds between the beginning of a crowd and the job
PAUSE = 0.2  # seconds between an answer and the next request
PATIENCE = 60.0  # seconds for an answer, after which it counts as none
JOB_SECONDS = 300.0
START_SECONDS = 180.0
SPIN = "while True: sum(range(1000))"

Ask = tuple[str, str, dict[str, Any] | None]  # method, path, body


@dataclass
class Leading:
    """A leader that runs, with a follower on the other core."""

    port: int
    process: psutil.Process
    store: Path
    tokens: Sequence[str]
    watched: dict[str, int] = field(default_factory=Counter)  # the most of each

    def watch(self) -> None:
        """Note what the leader holds now, if it is more than before."""
        held = {"memory": self.process.memory_info().rss, "descriptors": self.process.num_fds()}
        for name, value in {**held, "threads": self.process.num_threads()}.items():
            self.watched[name] = max(self.watched[name], value)


@dataclass
class Client:
    """Somebody with a token who uses the API all the while."""

    port: int
    token: str
    address: str
    name: str
    seconds: list[float] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    statuses: Counter[str] = field(default_factory=Counter)

    def use(self, until: threading.Event) -> None:
        """Ask for the state, submit a job, look at it, cancel it; and again."""
        while not until.is_set():
            job = f"{self.name}-{time.monotonic_ns()}"
            for ask in self._round(job):
                self.ask(*ask)
                if until.wait(PAUSE):
                    break

    def _round(self, job: str) -> Iterator[Ask]:
        yield "GET", "/api/v1/health", None
        yield "GET", "/api/v1/jobs?limit=20", None
        yield "POST", "/api/v1/jobs", waiting_job(job)
        yield "GET", f"/api/v1/jobs/{job}", None
        yield "GET", "/?part=live", None
        yield "POST", f"/api/v1/jobs/{job}/cancel", None

    def ask(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        """One answer, and how long it took; a connection that was closed is opened again within that time."""
        begun = time.monotonic()
        status, answer = "no answer", None
        while time.monotonic() - begun < PATIENCE:
            try:
                status, answer = self._once(method, path, body)
                break
            except (OSError, http.client.HTTPException) as error:
                self.statuses[f"again after {type(error).__name__}"] += 1
        self.seconds.append(time.monotonic() - begun)
        self.slowest = max(self.slowest, (self.seconds[-1], f"{method} {path[:20]}"))
        self.statuses[status] += 1
        return answer

    def _once(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[str, Any]:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=PATIENCE, source_address=(self.address, 0)
        )
        headers = {"Authorization": f"Bearer {self.token}"} | ({"Content-Type": "application/json"} if body else {})
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            data = answer.read()
            is_json = "json" in answer.headers.get("Content-Type", "")
            return str(answer.status), json.loads(data) if is_json else data
        finally:
            connection.close()


@dataclass
class Block:
    """One job of the follower, and what went on at the front meanwhile."""

    run_id: str
    attempts: int
    clients: Sequence[Client]
    crowd: dict[str, Any] = field(default_factory=dict)
    leader_cpu: float = 0.0  # share of its core
    seconds: float = 0.0


def waiting_job(name: str) -> dict[str, Any]:
    """A job that no machine can take."""
    return {"id": name, "suite": {"name": "waits", "cases": [CASE]}, "needs": {"labels": ["nowhere"]}}


def print_flood() -> None:
    """Measure, and print a line for each block and then what they come to."""
    require_machine()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {FRONT})
    try:
        with tempfile.TemporaryDirectory(prefix="flood-", dir="/tmp") as folder, leading(Path(folder)) as leader:
            blocks = measured_blocks(leader)
            report(leader, blocks)
    finally:
        os.sched_setaffinity(0, before)


def require_machine() -> None:
    """Refuse a machine on which this would mean nothing, and take the descriptors that the crowd needs."""
    if not {FRONT, MEASURING} <= os.sched_getaffinity(0):
        raise ValueError("this needs two cores, one for leader and clients and one for what is measured")
    needed = 2 * (crowd.HALF_OPEN + crowd.SLOW + crowd.POLLING)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(f"the crowd needs {needed:,} descriptors, and `ulimit -Hn` is {hard:,}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))


@contextmanager
def leading(folder: Path, *, is_alone: bool = False) -> Iterator[Leading]:
    """A leader with a Ray cluster on one core, and a follower of it on the other; or a leader that measures itself."""
    made = [tokens.make(f"person-{number}", tokens.Scope.SUBMIT, None) for number in range(PEOPLE)]
    path = folder / "store.db"
    with open_store(path) as store, store.queue.writing("make tokens") as writing:
        for _, row in made:
            writing.put_token(row)
    environment = os.environ | {
        "XDG_DATA_HOME": str(folder),
        "PACELINE_STORE": str(path),
        "RAY_TMPDIR": str(folder / "ray"),
        "OMP_NUM_THREADS": "1",
    }
    with ExitStack() as stack:
        options = ["--label", "measures"] if is_alone else ["--engine", "ray", "--ray-host", "127.0.0.1"]
        leader = stack.enter_context(
            _started([*PACELINE, "leader", "--port", "0", *options], FRONT, environment, folder / "leader.log")
        )
        said = _said(folder / "leader.log", leader, ["Leading at"] if is_alone else ["Followers:", "Leading at"])
        if not is_alone:
            invitation = said["Followers:"].split()
            follower = [*PACELINE, *invitation[1:], "--label", "measures", "--name", "measures"]
            stack.enter_context(
                _started([*follower, "--own-address", "127.0.0.3"], MEASURING, environment, folder / "follower.log")
            )
        port = urlsplit(said["Leading at"].split()[-1]).port or 0
        found = Leading(port, psutil.Process(leader.pid), path, [token for token, _ in made])
        _wait_for_follower(found)
        yield found


@contextmanager
def _started(
    command: list[str], core: int, environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process, and all that it starts, on one core."""

    def pinned() -> None:
        os.sched_setaffinity(0, {core})
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))

    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=pinned
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()


def _said(log: Path, process: subprocess.Popen[bytes], words: Sequence[str]) -> dict[str, str]:
    """What a process has printed after these words, once it has printed all of them."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        lines = log.read_text(errors="replace").splitlines()
        said = {word: line.partition(word)[2].strip() for word in words for line in lines if line.startswith(word)}
        if len(said) == len(words):
            return said
        time.sleep(0.2)
    raise ValueError(f"the leader did not start: {log.read_text(errors='replace')[-2000:]}")


def _wait_for_follower(leader: Leading) -> None:
    client = Client(leader.port, leader.tokens[0], "127.0.0.1", "waits")
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        followers = client.ask("GET", "/api/v1/followers", None)["followers"]
        if any("measures" in one["labels"] and one["present"] for one in followers):
            return
        time.sleep(0.5)
    raise ValueError(f"no follower came within {START_SECONDS:g} s")


def measured_blocks(leader: Leading) -> dict[str, list[Block]]:
    """Blocks of each kind, in rounds whose order turns round."""
    fill(leader, WAITING_JOBS)
    measured_block(leader, "warm-up", _nothing)  # what is loaded when first used
    kinds: dict[str, Callable[[Leading, Block], Any]] = {"idle": _nothing, "flooded": crowded, "busy": _computing}
    blocks: dict[str, list[Block]] = {kind: [] for kind in kinds}
    for number in range(ROUNDS):
        for kind in list(kinds)[:: -1 if number % 2 else 1]:
            block = measured_block(leader, f"{kind}-{number}", kinds[kind])
            blocks[kind].append(block)
            click.echo(_line(leader, kind, number, block))
    return blocks


def fill(leader: Leading, jobs: int) -> None:
    """Jobs that wait, and make pages long."""
    client = Client(leader.port, leader.tokens[0], "127.0.0.1", "fills")
    for number in range(jobs):
        client.ask("POST", "/api/v1/jobs", waiting_job(f"waits-{number}"))


def measured_block(leader: Leading, name: str, front: Callable[[Leading, Block], Any]) -> Block:
    """A job of the follower with this at the front."""
    addresses = {"own": "127.0.3.1", "attacker": crowd.ATTACKERS[0]}
    clients = [
        Client(leader.port, token, address, f"{where}-{name}")
        for token, (where, address) in zip(leader.tokens, addresses.items(), strict=False)
    ]
    block = Block("", 0, clients)
    over = threading.Event()
    threads = [threading.Thread(target=client.use, args=(over,)) for client in clients]
    with front(leader, block):
        time.sleep(SETTLE)
        for thread in threads:
            thread.start()
        used, begun = sum(leader.process.cpu_times()[:2]), time.monotonic()
        try:
            job = _measured(leader, name)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        block.seconds = time.monotonic() - begun
        block.leader_cpu = (sum(leader.process.cpu_times()[:2]) - used) / block.seconds
    block.run_id, block.attempts = job["run_id"], job["attempt"]
    return block


def _measured(leader: Leading, name: str) -> Any:
    """The job, once it is over; submitted and looked at in the store's own process."""
    client = Client(leader.port, leader.tokens[-1], "127.0.3.2", "measures")
    suite = {"name": "flood", "cases": [CASE]}
    client.ask("POST", "/api/v1/jobs", {"id": name, "suite": suite, "needs": {"labels": ["measures"]}})
    deadline = time.monotonic() + JOB_SECONDS
    while time.monotonic() < deadline:
        leader.watch()
        job = client.ask("GET", f"/api/v1/jobs/{name}", None)
        if isinstance(job, dict) and job.get("state") in ("succeeded", "failed", "cancelled"):
            if job["state"] != "succeeded":
                raise ValueError(f"job {name} ended as {job['state']}: {job.get('failure')}")
            return job
        time.sleep(0.5)
    raise ValueError(f"job {name} did not end within {JOB_SECONDS:g} s")


@contextmanager
def _nothing(leader: Leading, block: Block) -> Iterator[None]:
    yield


@contextmanager
def _computing(leader: Leading, block: Block) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def crowded(leader: Leading, block: Block, numbers: Sequence[int] = ()) -> Iterator[None]:
    """A crowd at the front, of these numbers of each kind."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.crowd", str(leader.port), *map(str, numbers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parent.parent,
    )
    try:
        assert process.stdin is not None
        process.stdin.write("\n".join([*leader.tokens[2:-1], "", ""]))
        process.stdin.flush()
        yield
        said, _ = process.communicate(timeout=PATIENCE)
        block.crowd = json.loads(said)
    finally:
        process.kill()
        process.wait()


def report(leader: Leading, blocks: dict[str, list[Block]]) -> None:
    """What the blocks come to."""
    with open_existing(leader.store) as store:
        rates = {
            kind: [_rate(store.load(block.run_id).records) for block in of_kind] for kind, of_kind in blocks.items()
        }
    click.echo(f"\ngemm 512 fp32, one thread, {ROUNDS} rounds: FLOP/s relative to the idle front, 95 % intervals")
    for kind in ("flooded", "busy"):
        click.echo(f"  {kind:8} {_verdict(ratio_of_pairs(list(zip(rates['idle'], rates[kind], strict=True))))}")
    of_front = ratio_of_pairs(list(zip(rates["busy"], rates["flooded"], strict=True)))
    click.echo(f"  flooded against a core that is busy without a front: {_verdict(of_front)}")
    again = [block.attempts for of_kind in blocks.values() for block in of_kind if block.attempts != 1]
    click.echo(f"  jobs that needed more than one attempt: {len(again)}")
    click.echo(f"\n{'seconds until an answer':42} {'p50':>7} {'p99':>7} {'longest':>8} {'<= 1 s':>7}  answers")
    for kind, of_kind in blocks.items():
        for place, where in enumerate(("an address of its own", "the address of an attacker")):
            _print_answers(f"{kind}, from {where}", [block.clients[place] for block in of_kind])
    polls = [seconds for block in blocks["flooded"] for seconds in block.crowd["polls"]]
    counts = sum((Counter(block.crowd["counts"]) for block in blocks["flooded"]), Counter[str]())
    click.echo(f"{'flooded, pages that poll':42} {_spread(polls)}  {_counted(counts, 'poll: ')}")
    most = max(block.crowd["half_open_most"] for block in blocks["flooded"])
    slow = min(block.crowd["slow_most"] for block in blocks["flooded"])
    click.echo(f"\nhalf-open: {most:,} at once at most; {_counted(counts, 'half-open: ')}")
    click.echo(f"slow readers: at least {slow} at once in each block; {_counted(counts, 'slow: ')}")
    watched = leader.watched
    limit = leader.process.rlimit(psutil.RLIMIT_NOFILE)[0]  # Ray raises it
    click.echo(
        f"leader: at most {watched['memory'] / 1e6:.0f} MB, {watched['descriptors']} of {limit:,} descriptors, "
        f"{watched['threads']} threads"
    )
    click.echo(f"load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _rate(records: Sequence[Any]) -> float:
    found = next(m for m in records[0].measurements if m.metric.name == "compute_rate")
    return float(found.value)


def _verdict(ratio: Ratio) -> str:
    interval = ratio.interval
    if interval is None or ratio.value is None:
        return "no interval"
    holds_one = interval.low <= 1.0 <= interval.high
    decided = decision(ratio, Better.HIGHER, WITHIN, is_change=not holds_one)
    words = {Decision.EQUAL: f"any difference above {WITHIN:.0%} is ruled out", Decision.OPEN: "undecided"}
    inside = "1 is within the interval" if holds_one else "1 is outside the interval"
    return (
        f"{ratio.value:.4f} ({interval.low:.4f} to {interval.high:.4f}): {inside}; {words.get(decided, decided.value)}"
    )


def _print_answers(name: str, clients: Sequence[Client]) -> None:
    seconds = [one for client in clients for one in client.seconds]
    statuses = sum((client.statuses for client in clients), Counter[str]())
    click.echo(f"{name:42} {_spread(seconds)}  {_counted(statuses)}")


def _spread(seconds: Sequence[float]) -> str:
    usual, late, worst = np.percentile(seconds, (50, 99, 100))
    in_time = np.mean(np.array(seconds) <= SECONDS)
    return f"{usual:7.3f} {late:7.3f} {worst:8.3f} {in_time:7.1%}"


def _counted(counts: Counter[str], prefix: str = "") -> str:
    return ", ".join(
        f"{count:,} x {name.removeprefix(prefix)}" for name, count in sorted(counts.items()) if name.startswith(prefix)
    )


def _line(leader: Leading, kind: str, number: int, block: Block) -> str:
    with open_existing(leader.store) as store:
        rate = _rate(store.load(block.run_id).records)
    slowest, what = max(client.slowest for client in block.clients)
    return (
        f"round {number + 1} {kind:8} {rate / 1e9:8.3f} GFLOP/s  slowest answer {slowest:6.3f} s ({what})  "
        f"leader's CPU {block.leader_cpu:4.0%}  half-open {block.crowd.get('half_open_most', 0):5,}  "
        f"{block.seconds:5.1f} s"
    )
