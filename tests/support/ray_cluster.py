"""A leader of a Ray cluster and its followers, all of them processes on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from paceline.service.api.tokens import Scope, make
from paceline.store import open_store
from paceline.store.store import Store
from support.cli import PLUGIN, Sandbox

PATIENCE = 150.0  # seconds for any one thing to happen; only what hangs takes so long
NODE = "PACELINE_TEST_NODE"
HOST = "127.0.0.2"  # of the head; the others count on from there
LABEL = "pair"


@dataclass
class RayCluster:
    """A leader with the head of a cluster, and followers that join it, all of them processes on loopback."""

    sandbox: Sandbox
    port: int
    temporary: Path
    others: dict[str, int]  # the last numbers of the addresses of followers
    http: int = 0  # the port of the leader's API, if it is to have one
    leader: subprocess.Popen[str] | None = None
    followers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def environment(self, node: str) -> dict[str, str]:
        tests = Path(__file__).parent.parent
        paths = os.pathsep.join(map(str, (PLUGIN, tests)))
        return self.sandbox.environment({"PYTHONPATH": paths, "RAY_TMPDIR": str(self.temporary), NODE: node})

    def lead(self) -> None:
        with self.log.open("ab") as errors:
            self.leader = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "support.leader_process",
                    str(self.sandbox.folder),
                    str(self.port),
                    str(self.http),
                ],
                env=self.environment("home"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.hear("leading")

    @property
    def log(self) -> Path:
        """What the leader complains of."""
        return self.sandbox.folder / "leader.log"

    def token_file(self, name: str) -> Path:
        return self.sandbox.folder / f"{name}.token"

    def give_token(self, name: str) -> None:
        """A token of its own, in place of an earlier one."""
        token, row = make(name, Scope.FOLLOWER, None)
        with open_store(self.sandbox.folder / "store.db") as store, store.queue.writing("make a token") as writing:
            writing.put_token(row)
        self.token_file(name).write_text(token)

    def hear(self, word: str) -> None:
        """Read on until the leader says this; Ray may say things in between."""
        assert self.leader is not None
        assert self.leader.stdout is not None
        said = iter(self.leader.stdout.readline, "")
        assert any(line.strip() == word for line in said), f"the leader ended before it said {word}"

    def submit(self, name: str, suite: dict[str, Any], **more: Any) -> None:
        assert self.leader is not None
        assert self.leader.stdin is not None
        self.leader.stdin.write(f"{json.dumps({'name': name, 'suite': suite, **more})}\n")
        self.leader.stdin.flush()
        self.hear(name)

    def knows(self, store: Store, name: str) -> bool:
        """Whether a follower was let in since it was started last."""
        begun = datetime.fromtimestamp(psutil.Process(self.followers[name].pid).create_time(), UTC)
        return any(row.id == name and row.seen_at > begun for row in store.queue.followers())

    def follow(self, name: str, token_of: str | None = None, **variables: str) -> None:
        options = ["--leader", f"{HOST}:{self.port}", "--token-file", str(self.sandbox.folder / "ray-token")]
        options += ["--own-token-file", str(self.token_file(token_of or name))]
        own = f"127.0.0.{self.others[name]}"
        with (self.sandbox.folder / f"{name}.log").open("wb") as output:
            self.followers[name] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "paceline", "follower", *options),
                    *("--name", name, "--label", LABEL, "--own-address", own),
                ],
                env=self.environment(name) | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def processes(self, node: str, what: str = "") -> list[psutil.Process]:
        """What runs on a node, or those of its processes whose command names something."""
        found = []
        for process in self.sandbox.processes():
            with suppress(psutil.Error):
                if process.environ().get(NODE) == node and what in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def signal(self, node: str, number: signal.Signals, what: str = "") -> None:
        hit = self.processes(node, what)
        assert hit
        for process in hit:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self, node: str) -> None:
        """As if its machine lost its power."""
        self.signal(node, signal.SIGKILL)
        self.followers[node].wait()


def free_port(host: str = HOST, first: int = 21_000) -> int:
    """One that Ray does not use for anything else."""
    for port in range(first, 65_000):
        with socket.socket() as tried, suppress(OSError):
            tried.bind((host, port))
            return port
    raise AssertionError("no free port")


def wait_for(what: str, is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


@contextmanager
def a_cluster(sandbox: Sandbox, nodes: dict[str, int], invited: Iterable[str], http: int = 0) -> Iterator[RayCluster]:
    """A cluster of these nodes, of whom those invited have a token; it is gone afterwards."""
    temporary = Path(tempfile.mkdtemp(prefix="paceline-ray-", dir="/tmp"))  # a socket's path may not be long
    made = RayCluster(sandbox, free_port(), temporary, nodes, http=http)
    for name in invited:
        made.give_token(name)
    try:
        yield made
    finally:
        sandbox.clean()
        for child in [made.leader, *made.followers.values()]:
            if child is not None:
                child.wait(30)
        shutil.rmtree(temporary, ignore_errors=True)
