"""A lean HTTP/1.1 client: requests are ready-made bytes, and no request ever waits for another one's connection."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import ssl
from typing import TYPE_CHECKING, cast

from paceline.load.http11 import AnswerReader, Unreadable
from paceline.load.language import read_stream
from paceline.load.request import ALONE, quoting
from paceline.load.trace import BROKEN, CANCELLED, OK, OUT_OF_SOCKETS, REFUSED, TIMED_OUT, UNREADABLE, WRONG, Log, clock

if TYPE_CHECKING:
    from paceline.load.expected import Expected
    from paceline.load.task import WorkerTask

_NO_SOCKETS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
_NO_REQUEST = -1  # instead of a row
_FRESH = 10_000_000  # ns; within this the event loop may not know yet that a connection was closed


class HttpClient:
    """Sends requests, each over a connection that is free at that moment or over a new one."""

    def __init__(self, log: Log, task: WorkerTask) -> None:
        self.log = log
        self.task = task
        self.idle: list[_Connection] = []  # the one used last is used next: the others may be closed by the server
        self.busy: set[_Connection] = set()
        self.connections = 0
        self.expected = task.endpoint.expected
        self.holds_bodies = task.outputs is not None or (task.endpoint.is_language and not task.streaming)
        self.wants_bodies = self.expected is not None or self.holds_bodies
        self._address = reachable_address(task.endpoint.host, task.endpoint.port)
        self._tls = ssl.create_default_context() if task.endpoint.tls else None
        self._opening: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._sweep_every = sweep_every(task.timeout)
        self._sweeping = self._loop.call_later(self._sweep_every, self._sweep)
        self.call_later = self._loop.call_later

    def send(self, row: int) -> None:
        """Send this request now; returns at once."""
        now = clock()
        log = self.log
        log.dispatched[row] = now
        idle = self.idle
        while idle:
            connection = idle.pop()
            if connection.is_usable(now):
                kind = log.kind(row)
                connection.ask(row, kind, self.payload(row, kind), now)
                return
        self._connect(row)

    def payload(self, row: int, kind: int) -> bytes:
        """What is sent for this row; a prompt gets its fresh words and the answers that it quotes now."""
        task, log = self.task, self.log
        payload = task.payloads[kind]
        if not task.slots and not task.turns:
            return payload
        first = log.first_of.get(row, row)  # all requests of a conversation have the words of its first one
        if task.slots and task.slots[kind].words:
            payload = task.fresh.put_into(payload, task.slots[kind], first)
        if task.turns and task.turns[kind].quotes:
            payload = quoting(payload, task.turns[kind], log.said[first])
        return payload

    def send_again(self, row: int) -> None:
        """Over a new connection: the server had closed the reused one before it saw the request."""
        self.log.retried += 1
        self._connect(row)

    def _connect(self, row: int) -> None:
        if self.connections >= self.task.limit:
            self._fail(row, OUT_OF_SOCKETS)
            return
        self.connections += 1
        opening = self._loop.create_task(self._open(row))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def close(self) -> None:
        """End all connections; requests that are still under way get no status."""
        self._sweeping.cancel()
        for opening in self._opening:
            opening.cancel()
        for connection in (*self.idle, *self.busy):
            connection.abandon()
        await asyncio.sleep(0)

    async def _open(self, row: int) -> None:
        try:
            async with asyncio.timeout(self.task.timeout):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self),
                    self._address,
                    self.task.endpoint.port,
                    ssl=self._tls,
                    server_hostname=self.task.endpoint.host if self._tls else None,
                )
        except TimeoutError:
            status = TIMED_OUT
        except OSError as error:
            status = OUT_OF_SOCKETS if error.errno in _NO_SOCKETS else REFUSED
        else:
            kind = self.log.kind(row)
            connection.ask(row, kind, self.payload(row, kind), clock())
            return
        self.connections -= 1
        self._fail(row, status)

    def _fail(self, row: int, status: int) -> None:
        self.log.status[row] = status
        self.log.finished(row)

    def _sweep(self) -> None:
        """One look at all requests under way now and then costs less than a timer for each."""
        latest = clock() - int(self.task.timeout * 1e9)
        for connection in [one for one in self.busy if one.since <= latest]:
            connection.give_up(TIMED_OUT)
        self._sweeping = self._loop.call_later(self._sweep_every, self._sweep)


class _Connection(asyncio.Protocol):
    """One connection with at most one request under way."""

    __slots__ = (
        "_answers", "_client", "_free_since", "_is_lost", "_log", "_reader", "_ready", "_row", "_transport", "_turn",
        "since",
    )  # fmt: skip

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._log = client.log
        self._reader = AnswerReader()
        self._row = _NO_REQUEST
        self._is_lost = False
        self._answers = 0  # that have come over it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses of it
        self._ready = select.poll()
        handle = transport.get_extra_info("socket")
        self._ready.register(handle.fileno(), select.POLLIN)

    def is_usable(self, now: int) -> bool:
        """Whether the server has neither closed it nor sent anything without a request."""
        if self._is_lost or self._transport.is_closing():
            return False
        if now - self._free_since > _FRESH and self._ready.poll(0):
            self._transport.abort()
            return False
        return True

    def ask(self, row: int, kind: int, payload: bytes, now: int) -> None:
        log, client = self._log, self._client
        if self._is_lost:  # accepted and closed at once
            self._row = row
            log.sent[row] = now
            self._end(BROKEN)
            return
        wants_body = client.wants_bodies or log.wants_body(kind)
        self._reader.expect(wants_body=wants_body, wants_events=client.task.streaming)
        self._row = row
        self.since = log.dispatched[row]  # it waits to be answered, and has waited for the connection itself
        client.busy.add(self)
        log.sent[row] = now
        self._turn = client.task.turns[kind] if client.task.turns else ALONE
        if self._turn.close_after:
            client.call_later(self._turn.close_after, self._leave, row)
        self._transport.write(payload)

    def data_received(self, data: bytes) -> None:
        now = clock()
        row = self._row
        if row == _NO_REQUEST:
            self._transport.abort()
            return
        log = self._log
        if not log.first[row]:
            log.first[row] = now
        try:
            is_whole = self._reader.feed(data, now)
        except Unreadable:
            self.give_up(UNREADABLE)
            return
        if is_whole:
            self._answered(now)
        elif self._turn.close_chunks and self._has_enough():
            self._leave(row)

    def _has_enough(self) -> bool:
        """Whether as many pieces of text have come as its user reads."""
        events, enough = self._reader.events or [], self._turn.close_chunks
        return len(events) >= enough and len(read_stream(events).chunks) >= enough

    def _leave(self, row: int) -> None:
        """The user closes the connection, if that request is still under way."""
        if self._row != row:
            return
        self._log.events[row] = self._reader.events
        self._log.done[row] = clock()
        self.give_up(CANCELLED)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._client.connections -= 1
        if self._row == _NO_REQUEST:
            return
        if error is None and self._reader.end():
            self._answered(clock())
        elif self._answers and not self._log.first[self._row]:
            row, self._row = self._row, _NO_REQUEST
            self._client.busy.discard(self)
            self._client.send_again(row)
        else:
            self._end(BROKEN)

    def give_up(self, status: int) -> None:
        """Stop waiting for the answer."""
        self._transport.abort()
        self._end(status)

    def abandon(self) -> None:
        """Close without a status for its request."""
        self._row = _NO_REQUEST
        self._transport.abort()

    def _answered(self, now: int) -> None:
        log, row, reader = self._log, self._row, self._reader
        log.done[row] = now
        log.size[row] = reader.size
        log.timing[row] = reader.timing
        self._answers += 1
        reader.close_stream(now)
        log.events[row] = reader.events
        if reader.events is not None and reader.other:
            log.bodies[row] = reader.other
        elif self._client.holds_bodies and (reader.status == OK or self._client.task.outputs is None):
            log.judge_later(row, bytes(reader.body or b""))
        if reader.body is not None and reader.status == OK:
            log.keep_body(log.kind(row), bytes(reader.body))
        if reader.keeps_alive and not self._is_lost:
            self._free_since = now
            self._client.idle.append(self)
        elif not self._is_lost:
            self._transport.close()
        status = reader.status
        if self._client.expected is not None:  # after all times were taken
            status, problem = judged(self._client.expected, status, bytes(reader.body or b""))
            if problem:
                log.add_cause(problem)
        self._end(status)

    def _end(self, status: int) -> None:
        row = self._row
        self._row = _NO_REQUEST
        self._client.busy.discard(self)
        self._log.status[row] = status
        self._log.finished(row)


def judged(expected: Expected, status: int, body: bytes) -> tuple[int, str]:
    """The status that counts, OK for every good answer and only for one; and what is wrong with the others."""
    problem = expected.problem(status, body)
    if not problem:
        return OK, ""
    return status if not expected.has_status(status) and status != OK else WRONG, problem


def sweep_every(timeout: float) -> float:
    """Seconds from one look at the requests under way to the next."""
    return min(0.1, timeout / 10)


def reachable_address(host: str, port: int) -> str:
    """The first of the host's addresses that accepts connections; looked up once, not for every connection."""
    addresses = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in dict.fromkeys(addresses if len(addresses) > 1 else ()):
        try:
            socket.create_connection((address, port), timeout=2.0).close()
        except OSError:
            continue
        return address
    return addresses[0]
