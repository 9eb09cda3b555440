"""A leader behind its real HTTP server, with followers that do what a test says."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from paceline.core.run import RunRecords
from paceline.service.admission import Quotas
from paceline.service.api import tokens
from paceline.service.api.app import create_app
from paceline.service.api.guard import Limits
from paceline.service.api.server import Front, bind, make_server
from paceline.service.engines.base import Assignment, AttemptReport, FollowerState, Item
from paceline.service.jobs import JobFailure
from paceline.service.leader import Leader
from paceline.store import open_store
from paceline.store.store import Store

SEEN = datetime(2026, 1, 1, tzinfo=UTC)
GEMM = {"name": "small", "cases": [{"benchmark": "gemm", "size": 64}]}


@dataclass
class Puppet:
    """Followers without processes: they say what they are told to say."""

    name: str = "puppet"
    present: list[str] = field(default_factory=lambda: ["one"])
    on: str = ""  # the host of them all; empty: each is on one of its own name
    begun: list[Assignment] = field(default_factory=list)
    stopped: list[tuple[str, int]] = field(default_factory=list)
    told: dict[tuple[str, int], list[Item]] = field(default_factory=dict)

    def followers(self) -> Sequence[FollowerState]:
        return [
            FollowerState(id=name, host=self.on or name, cpus=4.0, memory_gib=16.0, seen_at=SEEN)
            for name in self.present
        ]

    def begin(self, follower: str, assignment: Assignment) -> None:
        if assignment not in self.begun:
            self.begun.append(assignment)

    def poll(self, follower: str, acknowledged: dict[tuple[str, int], int]) -> Sequence[AttemptReport]:
        return [
            AttemptReport(
                job_id=key[0],
                attempt=key[1],
                items=tuple(item for item in items if item.number > acknowledged.get(key, 0)),
            )
            for key, items in self.told.items()
        ]

    def cancel(self, follower: str, job_id: str, attempt: int) -> None:
        self.stopped.append((job_id, attempt))

    def close(self) -> None:
        pass

    def say(self, job_id: str, text: str) -> None:
        """A line of the first attempt's log."""
        self._tell(job_id, kind="log", text=text)

    def end(self, job_id: str, failure: JobFailure | None = None) -> None:
        """The first attempt is through."""
        self._tell(job_id, kind="ended", failure=failure)

    def _tell(self, job_id: str, **words: Any) -> None:
        items = self.told.setdefault((job_id, 1), [])
        items.append(Item(number=len(items) + 1, at=SEEN, **words))


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, str]:
        found: dict[str, str] = self.json["error"]
        return found


@dataclass
class Served:
    """A leader that answers, and everything that a test may want to look at."""

    port: int
    leader: Leader
    store: Store
    engine: Puppet
    app: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: Any = None, *, token: str | None = None, **headers: str) -> Answer:
        """One request; a body that is no bytes is sent as JSON."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = body
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path if path.startswith("/") else f"/api/v1/{path}", data, sent)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def submit(self, job_id: str = "job-1", **more: Any) -> Answer:
        token = more.pop("token", None)
        return self.ask("POST", "jobs", {"id": job_id, "suite": GEMM} | more, token=token)

    def raw(self, data: bytes) -> bytes:
        """Bytes as they are; what comes back until the other side closes or says no more."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(data)
            return connection.recv(1 << 16)

    def add_token(self, name: str, scope: str, *, lasts: Any = None, now: datetime | None = None, **quotas: Any) -> str:
        token, row = tokens.make(name, tokens.Scope.of(scope), lasts, now, Quotas(**quotas))
        with self.store.queue.writing("keep a token") as writing:
            writing.put_token(row)
        self._look_again()
        return token

    def revoke_token(self, name: str) -> None:
        with self.store.queue.writing("revoke a token") as writing:
            assert writing.revoke_token(name)
        self._look_again()

    def _look_again(self) -> None:
        """A leader looks for tokens that somebody has made or revoked once a second."""
        self.app.state.context.tokens._looked_at = None

    def audit(self) -> list[tuple[str, str, str, str]]:
        """Who, what, about what, with which outcome; the newest last."""
        rows = reversed(self.store.queue.audited(1000))
        return [(row.who, row.what, row.subject, row.outcome) for row in rows]


def plain_page(records: RunRecords) -> str:
    return f"<title>{records.run.id}</title>"


@contextmanager
def served_in(
    folder: Path,
    *,
    limits: Limits | None = None,
    is_local: bool = True,
    pages: Callable[[Leader, Store], APIRouter] | None = None,
    front: Front | None = None,
    engine: Any = None,
) -> Iterator[Served]:
    """A leader on a store of its own; it takes a step only when a test says so."""
    engine = engine or Puppet()
    with open_store(folder / "store.db") as store:
        leader = Leader(store, engine)
        shown = pages(leader, store) if pages is not None else None
        app = create_app(leader, store, is_local=is_local, report=plain_page, pages=shown, limits=limits)
        listening = bind("127.0.0.1", 0)
        server = make_server(app, front)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield Served(listening.getsockname()[1], leader, store, engine, app)
        finally:
            server.should_exit = True
            thread.join(30)
            listening.close()
            leader.close()
