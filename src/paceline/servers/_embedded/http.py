"""HTTP/1.1 as far as a model server needs it: the head of a request, and a connection that answers one at a time.

Bodies come with a Content-Length; chunked ones are refused. Nothing that a client sends, withholds or breaks off makes
the server wait for it for ever, keep unbounded memory for it, or fail for others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol, cast

from paceline.load.http11 import END_OF_HEAD, HttpError, RequestHead, parse_request
from paceline.load.kserve import JSON_TYPE, Buffer, encode_error

MOST_HEAD = 16 * 1024  # bytes of a request line with its headers
MOST_BODY = 256 * 1024 * 1024
MOST_ROOM = 512 * 1024 * 1024  # bytes of memory that are kept for large bodies while there are none
LARGE_BODY = 256 * 1024  # bytes that are missing of a body from which on it is received where it will stay
MOST_AHEAD = 64 * 1024  # bytes taken from a client that sends more requests before it has its answer
PATIENCE = 30  # seconds to send one request, or to take one answer
IDLENESS = 600  # seconds that a connection is kept without a request

_TYPE_JSON = f"Content-Type: {JSON_TYPE}\r\n".encode()
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


@lru_cache(maxsize=512)  # a client's heads are mostly the same
def parse_head(text: bytes) -> RequestHead:
    """All before the empty line; HttpError if it is malformed, or of a request that is not taken."""
    head = parse_request(text)
    if "transfer-encoding" in head.headers:
        raise HttpError(411, "Transfer-Encoding is not supported; send the body with a Content-Length")
    if head.method == "POST" and "content-length" not in head.headers:
        raise HttpError(411, "the header Content-Length is missing")
    if head.length > MOST_BODY:
        raise HttpError(413, f"the body has {head.length} bytes; at most {MOST_BODY} are taken")
    return head


class App(Protocol):
    """What answers requests."""

    def handle(self, connection: Connection, head: RequestHead, body: Buffer) -> None:
        """Leads to exactly one answer, now or later, unless the client is `gone`."""

    def gone(self, connection: Connection) -> None:
        """The client left before it had its answer."""


class Connection(asyncio.Protocol):
    """One client: requests are read and answered strictly one after the other."""

    def __init__(self, app: App, open_connections: set[Connection], rooms: Rooms | None = None) -> None:
        self.ticket: object = None  # what the app wants to remember of the request in work
        self._app = app
        self._open = open_connections
        self._head: RequestHead | None = None  # of the request that is received or in work
        self._is_busy = False  # from a whole request until its answer
        self._is_advancing = False
        self._is_closing = False
        self._buffer = b""  # received, not yet part of a request
        self._parts: list[Buffer] = []  # of the body that is received
        self._large = _LargeBody(self, Rooms() if rooms is None else rooms)
        self._missing = 0  # bytes of that body
        self._is_blocked = False  # the client does not take what is written
        self._is_reading = True
        self._quiet = 0  # seconds since something was completed

    # called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._open.discard(self)
        self._is_closing = True
        self._buffer = b""
        self._parts.clear()
        self._large.forget()
        if self._is_busy:
            self._is_busy = False
            self._app.gone(self)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        if self._missing:
            self._take_body(data)
        elif self._buffer:
            self._buffer += data
        else:
            self._buffer = data
            self._quiet = 0  # patience begins with the first byte of a request
        self._advance()
        if (self._is_busy or self._is_blocked) and len(self._buffer) > MOST_AHEAD and self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._is_blocked = True
        self._quiet = 0

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._advance()

    # called by the server

    @property
    def is_busy(self) -> bool:
        """Whether a request is in work or its answer is not yet taken."""
        return self._is_busy or self._transport.get_write_buffer_size() > 0

    def tick(self) -> None:
        """A second has passed; whoever makes no progress is given up."""
        if self._is_busy:
            return
        self._quiet += 1
        if self._is_blocked or self._is_closing:
            if self._quiet > PATIENCE:
                self._transport.abort()
        elif self._head is not None or self._buffer:
            if self._quiet > PATIENCE:
                self._refuse(HttpError(408, f"the request was not complete after {PATIENCE} s"))
        elif self._quiet > IDLENESS:
            self.close()

    def close(self) -> None:
        """End it once everything written has been taken."""
        self._is_closing = True
        self._quiet = 0
        self._transport.close()

    def abort(self) -> None:
        """End it now."""
        self._is_closing = True
        self._transport.abort()

    def answer(self, status: int, parts: Iterable[Buffer], headers: bytes, *, close: bool = False) -> None:
        """Answer the request in work; `headers` are whole lines, without Content-Length."""
        if self._is_closing:
            return
        close = close or (self._head is not None and not self._head.keep_alive)
        parts = tuple(parts)
        length = sum(map(len, parts))
        connection = b"Connection: close\r\n" if close else b""
        start = b"%bContent-Length: %d\r\n%b%b\r\n" % (_STATUS_LINES[status], length, headers, connection)
        self._large.leave()
        if length < MOST_AHEAD:
            self._transport.write(start + b"".join(parts))
        else:
            self._transport.write(start)
            for part in parts:
                self._transport.write(part)
        self._answered(close=close)

    def begin_stream(self, headers: bytes) -> None:
        """Answer the request in work piece by piece: `stream()` sends each, and `end_stream()` comes last."""
        if not self._is_closing:
            self._transport.write(b"%bTransfer-Encoding: chunked\r\n%b\r\n" % (_STATUS_LINES[200], headers))

    def stream(self, piece: bytes) -> None:
        """The next piece of an answer."""
        if not self._is_closing:
            self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def end_stream(self, *, close: bool = False) -> None:
        """The answer is complete."""
        if not self._is_closing:
            self._transport.write(b"0\r\n\r\n")
            self._answered(close=close or (self._head is not None and not self._head.keep_alive))

    def _answered(self, *, close: bool) -> None:
        self._head = None
        self._is_busy = False
        self._quiet = 0
        self.ticket = None
        if close:
            self.close()
        else:
            self._advance()

    def answer_json(self, result: object, status: int = 200) -> None:
        """Answer the request in work with a description."""
        self.answer(status, (json.dumps(result).encode(),), _TYPE_JSON)

    def answer_error(self, status: int, message: str, headers: bytes = b"", *, close: bool = False) -> None:
        """Answer the request in work with a failure."""
        self.answer(status, (encode_error(message),), _TYPE_JSON + headers, close=close)

    # the work

    def _advance(self) -> None:
        """Hand over whatever requests are complete, as long as each is answered at once."""
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while not (self._is_busy or self._is_blocked or self._is_closing):
                if self._head is None and not (self._buffer and self._take_head()):
                    break
                if self._missing or self._head is None:
                    break
                parts, self._parts = self._parts, []
                self._is_busy = True
                self._app.handle(self, self._head, parts[0] if len(parts) == 1 else b"".join(parts))
        except HttpError as error:
            self._refuse(error)
        finally:
            self._is_advancing = False
        if not (self._is_reading or self._is_busy or self._is_blocked or self._is_closing):
            self._is_reading = True
            self._transport.resume_reading()

    def _take_head(self) -> bool:
        """Read a head if it is complete, and what has come of its body."""
        while self._buffer[:2] == b"\r\n":  # allowed before a request line
            self._buffer = self._buffer[2:]
        end = self._buffer.find(END_OF_HEAD)
        if end > MOST_HEAD or (end < 0 and len(self._buffer) > MOST_HEAD):
            raise HttpError(431, f"the headers have more than {MOST_HEAD} bytes")
        if end < 0:
            return False
        head = parse_head(self._buffer[:end])
        rest = self._buffer[end + 4 :]
        self._buffer = b""
        self._head = head
        self._missing = head.length
        self._take_body(rest)
        if self._missing and head.headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._missing >= LARGE_BODY:
            self._large.receive(rest, head.length)
            self._switch_to(self._large)
        return True

    def received(self, body: memoryview) -> None:
        """A large body is complete."""
        self._switch_to(self)
        self._parts = [body]
        self._missing = 0
        self._advance()

    def _switch_to(self, protocol: asyncio.BaseProtocol) -> None:
        # A transport asks once, when it begins to read, how its protocol wants the data.
        self._transport.pause_reading()
        self._transport.set_protocol(protocol)
        self._transport.resume_reading()
        self._is_reading = True

    def _take_body(self, data: bytes) -> None:
        if len(data) > self._missing:
            self._buffer = data[self._missing :]
            data = data[: self._missing]
        if data:
            self._parts.append(data)
            self._missing -= len(data)

    def _refuse(self, error: HttpError) -> None:
        self._buffer = b""
        self._parts.clear()
        self._missing = 0
        self.answer_error(error.status, str(error), close=True)


class Rooms:
    """Memory for large bodies, to be used again: in fresh memory a copy takes nearly twice as long."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def take(self, length: int) -> memoryview:
        """Room for exactly so many bytes."""
        for index, room in enumerate(self._free):
            if len(room) == length:
                return self._free.pop(index)
        return memoryview(bytearray(length))

    def give_back(self, room: memoryview) -> None:
        """It is not used any more."""
        self._free.append(room)
        while sum(map(len, self._free)) > MOST_ROOM:
            self._free.pop(0)


class _LargeBody(asyncio.BufferedProtocol):
    """Receives the rest of a body where it will stay: small parts must be joined, which is one more copy."""

    def __init__(self, connection: Connection, rooms: Rooms) -> None:
        self._connection = connection
        self._rooms = rooms
        self._room: memoryview | None = None
        self._end = 0  # of what has come

    def receive(self, begun: bytes, length: int) -> None:
        """A body of this length begins with these bytes."""
        self._room = self._rooms.take(length)
        self._end = len(begun)
        self._room[: self._end] = begun

    def leave(self) -> None:
        """The request is answered: others may have its room."""
        if self._room is not None:
            self._rooms.give_back(self._room)
            self._room = None

    def forget(self) -> None:
        """The client has left, but an instance may still compute with what it sent."""
        self._room = None

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._room is not None
        return self._room[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        assert self._room is not None
        self._end += nbytes
        if self._end == len(self._room):
            self._connection.received(self._room)

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


async def listen(app: App, host: str, port: int) -> tuple[asyncio.Server, set[Connection]]:
    """Accept connections; OSError if the address is not to be had."""
    connections: set[Connection] = set()
    loop = asyncio.get_running_loop()
    rooms = Rooms()
    server = await loop.create_server(lambda: Connection(app, connections, rooms), host, port, backlog=4096)

    def tick() -> None:
        for connection in list(connections):
            connection.tick()
        loop.call_later(1.0, tick)

    loop.call_later(1.0, tick)
    return server, connections
