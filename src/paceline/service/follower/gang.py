"""Measuring on several followers at once: the first leads through the others' agents, and these wait for it.

The first has them as hosts, as `paceline run --hosts` would; what takes it there is a connection instead of ssh: this
module as a program, `python -m paceline.service.follower.gang FOLLOWER COMMAND...`, in the place of a remote shell. It
runs in the folder of the attempt, whose assignment says who is where.
"""

from __future__ import annotations

import hmac
import os
import secrets
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from paceline.core.case import Case
from paceline.core.errors import InputError, PacelineError
from paceline.core.record import CauseKind
from paceline.remote.agent import Orders
from paceline.remote.hosts import HostTrouble, RemoteShell
from paceline.runner.agent import Agent
from paceline.runner.execute import CaseEnd
from paceline.runner.fork_client import WarmServer
from paceline.runner.hosts import Host, HostRanks
from paceline.runner.run import Execute
from paceline.service import admission
from paceline.service.engines.base import Assignment, Meeting
from paceline.service.follower.spool import Spool
from paceline.service.jobs import FailureKind, JobFailure
from paceline.version import VERSION

SECRET_SECONDS = 5.0  # that somebody who connects has to send the secret
_LOOK_SECONDS = 0.5

Words = dict[str, Any]


class GangBroken(PacelineError):
    """One of the gang is lost; another attempt may do better. Its own report counts more than that of the others."""

    def __init__(self, message: str, kind: FailureKind = FailureKind.BROKEN) -> None:
        super().__init__(message)
        self.kind = kind


@contextmanager
def lead(assignment: Assignment) -> Iterator[Execute]:
    """What executes a case on all followers of an attempt, or on the first alone; what runs on them ends with this."""
    relay = [sys.executable, "-P", "-m", "paceline.service.follower.gang"]
    shell = RemoteShell(f"{shlex.join(relay)} {{host}}", sys.executable)
    slots = max(1, len(assignment.devices))  # ranks on each follower: one for each GPU, or one
    hosts = [Host(name, slots) for name in (assignment.name, *assignment.peers)]

    def execute(server: WarmServer, case: Case, on_progress: Callable[[Words], None]) -> CaseEnd:
        end = ranks.execute(server, case, on_progress)
        if end.failure is not None and end.failure.cause.kind is CauseKind.INTERRUPTED:
            raise GangBroken(end.failure.cause.message)
        return end

    try:
        with closing(HostRanks(hosts, shell, assignment.address)) as ranks:
            yield execute
    except HostTrouble as trouble:
        raise GangBroken(str(trouble)) from None


class _Peer(Agent):
    """The agent of a peer: it measures what a job may ask for, in its own folder and its own environment."""

    def __init__(self, orders: Orders, server: WarmServer, spool: Spool) -> None:
        super().__init__(orders, server)
        self._spool = spool

    def _hello(self, order: Words) -> Words:
        from paceline.devices import counts

        return {"hello": {"version": VERSION, "devices": counts()}}

    def _run(self, order: Words) -> Words:
        case = Case.model_validate(order["case"])
        if case.origin != "network" or case.trace:
            message = f"was given {case.benchmark} {case.title}, which did not come from the network"
            raise InputError("not-a-network-case", message)
        admission.refuse([case])
        ranks = ", ".join(sorted(order["ranks"], key=int))
        _log(self._spool, f"{case.benchmark} {case.title}".strip() + f" on {case.target}: rank {ranks} of {case.ranks}")
        begun = time.monotonic()
        answer = super()._run(order)
        end = CaseEnd.of_words(answer["ended"])
        # How the ranks of this follower ended, whatever became of the others.
        outcome = end.failure.outcome.value if end.failure is not None else "ok" if end.results else "stopped"
        _log(self._spool, f"  {outcome} after {time.monotonic() - begun:.1f} s")
        if end.failure is not None:
            for line in (end.failure.cause.message, *end.failure.cause.detail.splitlines()):
                _log(self._spool, f"  {line}")
        return answer


class _OrdersOfFirst(Orders):
    """Orders of the first of a gang; should it vanish, that is reported even while something still runs."""

    def __init__(self, connection: int, spool: Spool, first: str) -> None:
        self._spool, self._first = spool, first
        super().__init__(connection, connection)

    def leave(self) -> None:
        with suppress(OSError):
            self._spool.append("ended", failure=JobFailure(kind=FailureKind.BROKEN, message=_lost(self._first)))
        super().leave()


def follow(spool: Spool, assignment: Assignment) -> None:
    """Wait for the first of the gang, and measure with it until it is through."""
    first = assignment.peers[0]
    try:
        family, _, _, _, where = socket.getaddrinfo(assignment.address, 0, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(where, family=family)
    except OSError as error:
        raise GangBroken(f"it cannot listen at {assignment.address}: {error}", FailureKind.LOST) from None
    with listening:
        _log(spool, f"waits for {first} at {assignment.address}")
        meeting = Meeting(address=assignment.address, port=listening.getsockname()[1], secret=secrets.token_urlsafe(32))
        spool.meeting = meeting
        connection = _accept(listening, meeting.secret)
    with connection, WarmServer() as server:
        try:
            _Peer(_OrdersOfFirst(connection.fileno(), spool, first), server, spool).serve()
        except OSError:
            raise GangBroken(_lost(first)) from None


def _lost(first: str) -> str:
    return f"the connection to {first}, the first of the gang, is lost"


def _log(spool: Spool, text: str) -> None:
    with suppress(OSError):  # a line of the log is not worth an attempt
        spool.append("log", text=f"{text}\n")


def _accept(listening: socket.socket, secret: str) -> socket.socket:
    """The connection of the one who has the secret; whoever ends this meanwhile does so by a signal."""
    listening.settimeout(_LOOK_SECONDS)
    while True:
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            continue
        try:
            connection.settimeout(SECRET_SECONDS)
            line = b""  # not a byte more than it: what follows are the first orders
            while len(line) <= len(secret) and (more := connection.recv(len(secret) + 1 - len(line))):
                line += more
            is_valid = hmac.compare_digest(line.rstrip(b"\n"), secret.encode())
        except OSError:
            is_valid = False
        if is_valid:
            connection.settimeout(None)
            watch_closely(connection)
            return connection
        connection.close()


CONNECT_SECONDS = 10.0
_SOON = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds until a peer that is cut off is noticed


def watch_closely(connection: socket.socket) -> None:
    """Have the system end a connection whose other side is gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SOON.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def main() -> None:
    """Connect standard input and output with a peer, or become the command."""
    follower, *command = sys.argv[1:]
    assignment = Spool(Path.cwd()).assignment
    if assignment is None:
        sys.exit(f"no assignment in {Path.cwd()}")
    meeting = dict(zip(assignment.peers, assignment.meetings, strict=True)).get(follower)
    if meeting is None:  # it is not a peer, but this follower itself
        os.execv(command[0], command)
    try:
        connection = socket.create_connection((meeting.address, meeting.port), timeout=CONNECT_SECONDS)
        connection.settimeout(None)
        watch_closely(connection)
        connection.sendall(f"{meeting.secret}\n".encode())  # by which the peer knows that it is the right one
    except OSError as error:
        sys.exit(f"{follower} cannot be reached at {meeting.address}, port {meeting.port}: {error}")

    def send_orders() -> None:
        with suppress(OSError):
            while data := os.read(sys.stdin.fileno(), 1 << 16):
                connection.sendall(data)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)  # no more orders: the peer ends

    threading.Thread(target=send_orders, daemon=True).start()
    with suppress(OSError):
        while data := connection.recv(1 << 16):
            view = memoryview(data)
            while view:
                view = view[os.write(sys.stdout.fileno(), view) :]


if __name__ == "__main__":
    main()
