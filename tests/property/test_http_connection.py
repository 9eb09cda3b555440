"""Whatever bytes arrive in whatever pieces: a connection answers in HTTP, keeps its bounds, and does not crash."""

from __future__ import annotations

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from paceline.load.http11 import RequestHead
from paceline.load.kserve import Buffer
from paceline.servers._embedded.http import Connection

LINES = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /v2/models/m/infer HTTP/1.1\r\n",
        b"Host: x\r\n",
        b"Content-Length: 3\r\n",
        b"Content-Length: 0\r\n",
        b"Content-Length: 999999999999\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: close\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n",
        b"\n",
        b"abc",
    ]
)
STREAMS = st.lists(LINES | st.binary(max_size=8), max_size=25).map(b"".join)


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def write(self, data: Buffer) -> None:
        assert not self.is_closed
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Handler:
    """Says ok."""

    def handle(self, connection: Connection, head: RequestHead, body: Buffer) -> None:
        assert len(body) == head.length
        connection.answer(200, (b"ok",), b"")

    def gone(self, connection: Connection) -> None: ...


def answers(pieces: list[bytes]) -> bytes:
    connection, transport = Connection(Handler(), set()), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    for piece in pieces:
        if not transport.is_closed:
            connection.data_received(piece)
    return transport.written


@given(STREAMS, st.lists(st.integers(0, 200), max_size=6))
def test_how_the_bytes_are_cut_does_not_matter(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[begin:end] for begin, end in itertools.pairwise(edges)]

    def without_continue(written: bytes) -> bytes:
        return written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")

    whole = without_continue(answers([stream]))
    assert without_continue(answers(pieces)) == whole
    assert re.fullmatch(rb"(HTTP/1\.1 \d\d\d [^\r]+\r\n(?:[^\r]+\r\n)+\r\n(?:ok|\{[^\r\n]*\}))*", whole)
