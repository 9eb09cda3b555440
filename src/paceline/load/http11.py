"""HTTP/1.1 as bytes, for the load generator, the null server and the embedded server: heads of requests, whole answers.

There is no socket and no clock in it. Requests are parsed strictly, because servers read what anybody sends; of an
answer only what a load generator needs: its status, its length, and the times that the server reports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from paceline.load.kserve import JSON_LENGTH

END_OF_HEAD = b"\r\n\r\n"
LARGEST_HEAD = 65536  # bytes, of an answer
MOST_OTHER = 4096  # bytes
_OF_A_STREAM = (b":", b"event:", b"id:", b"retry:")  # lines of a stream of events that carry nothing
_HEAD, _LENGTH, _CHUNK_SIZE, _CHUNK_DATA, _CHUNK_END, _TRAILER, _UNTIL_CLOSE, _WHOLE = range(8)
_START = b"HTTP/1."
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rf"({_TOKEN}) ([!-~]+) HTTP/1\.([01])")
_HEADER = re.compile(rf"({_TOKEN}):[ \t]*([^\r\n\0]*?)[ \t]*")
_NUMBER = re.compile(r"[0-9]{1,18}")


class HttpError(Exception):
    """A request that cannot be understood or will not be read; the connection ends with it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request line and its headers, by their names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    keep_alive: bool
    length: int  # of the body
    json_length: int | None  # of the JSON that the body begins with, where tensors follow it


@lru_cache(maxsize=512)  # a client's heads are mostly the same
def parse_request(text: bytes) -> RequestHead:
    """All before the empty line; HttpError if it is malformed."""
    first, *lines = text.decode("latin-1").split("\r\n")
    parts = _REQUEST_LINE.fullmatch(first)
    if not parts:
        raise HttpError(400, f"the request line {first[:80]!r} is not one of HTTP/1.1")
    method, target, minor = parts.groups()
    headers: dict[str, str] = {}
    for line in lines:
        parts = _HEADER.fullmatch(line)
        if not parts:
            raise HttpError(400, f"the header line {line[:80]!r} is malformed")
        name, value = parts[1].lower(), parts[2]
        if name in ("content-length", "host") and headers.get(name, value) != value:
            raise HttpError(400, f"there are several headers {parts[1]} that differ")
        headers[name] = value
    if minor == "1" and "host" not in headers:
        raise HttpError(400, "the header Host is missing")
    if target.startswith("http://"):
        target = "/" + target.removeprefix("http://").partition("/")[2]
    connection = headers.get("connection", "").lower()
    keep_alive = "close" not in connection if minor == "1" else "keep-alive" in connection
    length, json_length = _bytes_in(headers, "content-length"), _bytes_in(headers, JSON_LENGTH.lower())
    return RequestHead(method, target.partition("?")[0], headers, keep_alive, length or 0, json_length)


def _bytes_in(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name)
    if text is not None and not _NUMBER.fullmatch(text):
        raise HttpError(400, f"{name} is {text[:40]!r}; it must be a number of bytes")
    return None if text is None else int(text)


class Unreadable(Exception):
    """An answer that is not HTTP/1.1."""


def _header(head: bytes, name: bytes) -> bytes | None:
    at = head.find(name)
    return None if at == -1 else head[at + len(name) : head.index(b"\r\n", at + len(name))].strip()


class AnswerReader:
    """Is fed with what a socket receives, in pieces of any size."""

    __slots__ = (
        "_left",
        "_line",
        "_rest",
        "_state",
        "body",
        "events",
        "keeps_alive",
        "other",
        "size",
        "status",
        "timing",
    )

    def expect(self, *, wants_body: bool, wants_events: bool) -> None:
        """Forget the last answer, if there was one, and wait for the next one."""
        self.status = 0
        self.size = 0
        self.keeps_alive = True
        self.timing: bytes | None = None
        self.body: bytearray | None = bytearray() if wants_body else None
        self.events: list[tuple[int, bytes]] | None = [] if wants_events else None
        self.other = b""  # the begin of what is not an event, where events are wanted
        self._state = _HEAD
        self._left = 0
        self._rest = b""
        self._line = b""

    def feed(self, data: bytes, now: int) -> bool:
        """Take the data that came at this time; whether the answer is whole now."""
        self.size += len(data)
        if self._state == _HEAD:
            rest = self._after_head(data)
            if rest is None:
                return False
            data = rest
        if self._state == _LENGTH:
            self._left -= len(data)
            if self._left < 0:
                raise Unreadable("more than the length")
            self._take(data, now)
            return self._left == 0
        if self._state == _UNTIL_CLOSE:
            self._take(data, now)
            return False
        return self._chunks(data, now)

    def end(self) -> bool:
        """The connection was closed; whether the answer is whole with that."""
        return self._state == _UNTIL_CLOSE

    def _after_head(self, data: bytes) -> bytes | None:
        """The data after the head, once that is whole."""
        if self._rest:
            data = self._rest + data
        if not data.startswith(_START[: len(data)]):
            raise Unreadable("no status line")
        head, end, after = data.partition(END_OF_HEAD)
        if not end:
            if len(data) > LARGEST_HEAD:
                raise Unreadable("a head without an end")
            self._rest = data
            return None
        self._rest = b""
        self._read_head(head + b"\r\n")
        if 100 <= self.status < 200:  # an interim answer; the real one follows
            self._state = _HEAD
            return self._after_head(after) if after else None
        return after

    def _read_head(self, head: bytes) -> None:
        code = head[9:12]
        if head[8:9] != b" " or not code.isdigit() or head[12:13] not in (b" ", b"\r"):
            raise Unreadable("no status")
        self.status = int(code)
        lowered = head.lower()
        if (at := lowered.find(b"\r\nx-paceline:")) != -1:
            self.timing = head[at + 13 : head.index(b"\r\n", at + 13)]
        connection = _header(lowered, b"\r\nconnection:") or b""
        self.keeps_alive = b"close" not in connection and (head[7:8] != b"0" or b"keep-alive" in connection)
        length = _header(lowered, b"\r\ncontent-length:")
        if b"chunked" in (_header(lowered, b"\r\ntransfer-encoding:") or b""):
            self._state = _CHUNK_SIZE
        elif length is not None:
            if not length.isdigit():
                raise Unreadable("a length that is not a number")
            self._left = int(length)
            self._state = _LENGTH
        elif self.status in (204, 304):
            self._state = _LENGTH
        else:
            self.keeps_alive = False
            self._state = _UNTIL_CLOSE

    def _chunks(self, data: bytes, now: int) -> bool:
        data = self._rest + data if self._rest else data
        at = 0
        while self._state != _WHOLE:
            if self._state == _CHUNK_DATA:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                self._take(piece, now)
                if self._left:
                    break
                self._state = _CHUNK_END
            end = data.find(b"\r\n", at)
            if end < 0:
                if len(data) - at > LARGEST_HEAD or (self._state == _CHUNK_END and len(data) - at > 1):
                    raise Unreadable("a chunk without an end")
                break
            self._chunk_line(data[at:end])
            at = end + 2
        self._rest = data[at:]
        if self._state == _WHOLE and self._rest:
            raise Unreadable("more than the last chunk")
        return self._state == _WHOLE

    def _chunk_line(self, line: bytes) -> None:
        if self._state == _CHUNK_END:
            if line:
                raise Unreadable("a chunk longer than its size")
            self._state = _CHUNK_SIZE
        elif self._state == _TRAILER:
            self._state = _TRAILER if line else _WHOLE
        else:
            digits = line.partition(b";")[0].strip()
            try:
                self._left = int(digits, 16)
            except ValueError:
                raise Unreadable("a chunk without a size") from None
            if not digits.isalnum():
                raise Unreadable("a chunk without a size")
            self._state = _CHUNK_DATA if self._left else _TRAILER

    def _take(self, data: bytes, now: int) -> None:
        if self.body is not None:
            self.body += data
        if self.events is not None:
            *lines, self._line = (self._line + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    self.events.append((now, line[5:].strip()))
                elif not line.startswith(_OF_A_STREAM) and len(self.other) < MOST_OTHER:
                    self.other += line

    def close_stream(self, now: int) -> None:
        """The answer is whole: what follows its last line break is a line, too."""
        if self.events is not None and self._line:
            self._take(b"\n", now)
