"""An independent client: sends bodies from standard input at their times, and prints what came back of each, and when.

It shares no code with Paceline, so that what both see of one server can be compared. Plain sockets, and nothing is
looked into before all answers are there: what it adds to a time is one wake-up.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

KEPT = 2.0  # seconds that a connection may wait for its next request, less than servers keep it
END = b"0\r\n\r\n"  # of a chunked answer
SPUN = 0.002  # seconds before a request that are not slept: waiting counts in whole milliseconds
LONGEST = 300.0  # seconds until the last answer


@dataclass
class Exchange:
    """A request, and every piece of its answer with the time at which it came."""

    due: float
    request: bytes = b""
    is_repeated: bool = False  # its connection was closed before anything came
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        _, _, body = b"".join(piece for _, piece in self.pieces).partition(b"\r\n\r\n")
        return body.endswith(END)  # a header that comes alone may end like that, too: max=100


def main(url: str, times: list[float], bodies: list[str]) -> None:
    """Send all, and print all answers together, as JSON, when the last one has come."""
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 80)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\nContent-Length: "
    requests = [f"{head}{len(body.encode())}\r\n\r\n{body}".encode() for body in bodies]
    begin = time.monotonic() + 0.1
    exchanges = [Exchange(begin + after, request) for after, request in zip(times, requests, strict=True)]
    ready = selectors.DefaultSelector()
    idle: list[tuple[float, socket.socket]] = []
    sent = open_count = 0
    while sent < len(exchanges) or open_count:
        now = time.monotonic()
        if now > begin + times[-1] + LONGEST:
            break
        if sent < len(exchanges) and exchanges[sent].due <= now:
            connection = _connection(idle, address, now)
            connection.sendall(exchanges[sent].request)
            ready.register(connection, selectors.EVENT_READ, exchanges[sent])
            sent, open_count = sent + 1, open_count + 1
            continue
        wait = max(0.0, exchanges[sent].due - now - SPUN) if sent < len(exchanges) else 1.0
        for key, _ in ready.select(wait):
            answering, exchange = key.fileobj, key.data
            assert isinstance(answering, socket.socket)
            piece = answering.recv(1 << 16)
            if not (piece or exchange.pieces or exchange.is_repeated):
                ready.unregister(answering)
                exchange.is_repeated, connection = True, _connection([], address, now)
                connection.sendall(exchange.request)
                ready.register(connection, selectors.EVENT_READ, exchange)
                continue
            exchange.pieces.append((time.monotonic(), piece))
            if not piece or exchange.has_ended:
                ready.unregister(answering)
                open_count -= 1
                idle += [(time.monotonic(), answering)] if piece else []
    sys.stdout.write(json.dumps([read(one) for one in exchanges]))


def _connection(idle: list[tuple[float, socket.socket]], address: tuple[str, int], now: float) -> socket.socket:
    while idle:
        since, kept = idle.pop()
        if now - since < KEPT:
            return kept
        kept.close()
    made = socket.create_connection(address)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def read(exchange: Exchange) -> dict[str, Any]:
    """Status, the times of pieces with text, and the usage that the server says."""
    whole = b"".join(piece for _, piece in exchange.pieces)
    head, _, _ = whole.partition(b"\r\n\r\n")
    ends, length = [], 0  # of pieces, by place in the whole
    for at, piece in exchange.pieces:
        length += len(piece)
        ends.append((length, at))
    times: list[float] = []
    usage: dict[str, Any] = {}
    place = 0
    while (place := whole.find(b"data: {", place)) >= 0:
        end = whole.index(b"\n", place) if b"\n" in whole[place:] else len(whole)
        event = json.loads(whole[place + 6 : end])
        usage = event.get("usage") or usage
        choices = event.get("choices") or [{}]
        if (choices[0].get("delta") or {}).get("content") or choices[0].get("text"):
            times.append(next(at for until, at in ends if until >= end) - exchange.due)
        place = end
    status = int(head.split()[1]) if head else 0
    return {"due": exchange.due, "status": status, "chunks": times, "usage": usage}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    main(asked["url"], asked["times"], asked["bodies"])
