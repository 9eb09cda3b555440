"""The parser, and a connection on a transport of our own: what comes back for every kind of input."""

from __future__ import annotations

import pytest

from paceline.load.http11 import HttpError, RequestHead
from paceline.load.kserve import Buffer
from paceline.servers._embedded import http
from paceline.servers._embedded.http import Connection, parse_head

GET = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"


def post(body: bytes, headers: bytes = b"") -> bytes:
    return b"POST /infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n%b" % (len(body), headers, body)


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False
        self.is_reading = True

    def write(self, data: Buffer) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    @property
    def statuses(self) -> list[int]:
        parts = self.written.split(b"HTTP/1.1 ")[1:]
        return [int(part[:3]) for part in parts]


class Echo:
    """Answers with method, path and body: at once, or when `release()` is called."""

    def __init__(self, *, later: bool = False) -> None:
        self.later = later
        self.seen: list[tuple[str, str, bytes]] = []
        self.waiting: list[Connection] = []
        self.left: list[Connection] = []

    def handle(self, connection: Connection, head: RequestHead, body: Buffer) -> None:
        self.seen.append((head.method, head.path, bytes(body)))
        self.waiting.append(connection)
        if not self.later:
            self.release()

    def release(self) -> None:
        connection = self.waiting.pop(0)
        method, path, body = self.seen[-1]
        connection.answer(200, (method.encode(), b" ", path.encode(), b" ", body), b"")

    def gone(self, connection: Connection) -> None:
        self.left.append(connection)


def connected(handler: Echo) -> tuple[Connection, Transport]:
    connection, transport = Connection(handler, set()), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


def test_a_request_may_come_in_any_pieces() -> None:
    whole = post(b"hello world") + GET
    for cut in range(1, len(whole)):
        echo = Echo()
        connection, _ = connected(echo)
        connection.data_received(whole[:cut])
        connection.data_received(whole[cut:])
        assert echo.seen == [("POST", "/infer", b"hello world"), ("GET", "/v2", b"")]


def test_byte_by_byte() -> None:
    echo = Echo()
    connection, transport = connected(echo)
    for byte in post(b"abc") * 2:
        connection.data_received(bytes([byte]))
    assert [body for _, _, body in echo.seen] == [b"abc", b"abc"]
    assert transport.statuses == [200, 200]


def test_many_requests_at_once_are_answered_in_order() -> None:
    echo = Echo()
    connection, transport = connected(echo)
    connection.data_received(b"".join(post(b"%d" % number) for number in range(2000)))
    bodies = [part.rpartition(b" ")[2] for part in transport.written.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"%d" % number for number in range(2000)]


def test_the_next_request_waits_for_the_answer() -> None:
    echo = Echo(later=True)
    connection, transport = connected(echo)
    connection.data_received(post(b"1") + post(b"2"))
    assert len(echo.seen) == 1
    echo.release()
    assert len(echo.seen) == 2
    assert transport.statuses == [200]


def test_no_more_is_read_ahead_than_a_bound() -> None:
    echo = Echo(later=True)
    connection, transport = connected(echo)
    connection.data_received(post(b"1") + post(b"x" * http.MOST_AHEAD))
    assert not transport.is_reading
    echo.release()
    echo.release()
    assert transport.is_reading


def test_nothing_is_computed_for_who_does_not_take_answers() -> None:
    echo = Echo()
    connection, _ = connected(echo)
    connection.pause_writing()
    connection.data_received(post(b"1"))
    assert not echo.seen
    connection.resume_writing()
    assert len(echo.seen) == 1


def test_who_leaves_is_told_of() -> None:
    echo = Echo(later=True)
    connection, transport = connected(echo)
    connection.data_received(post(b"1"))
    connection.connection_lost(None)
    assert echo.left == [connection]
    echo.release()  # too late: nobody is there
    assert transport.written == b""


def test_who_leaves_with_half_a_request_was_never_there() -> None:
    echo = Echo()
    connection, _ = connected(echo)
    connection.data_received(post(b"12345")[:-1])
    connection.connection_lost(None)
    assert not echo.left
    assert not echo.seen


def test_the_client_that_expects_it_is_told_to_continue() -> None:
    echo = Echo()
    connection, transport = connected(echo)
    request = post(b"12345", b"Expect: 100-continue\r\n")
    connection.data_received(request[:-5])
    assert transport.statuses == [100]
    connection.data_received(request[-5:])
    assert transport.statuses == [100, 200]


@pytest.mark.parametrize(
    ("head", "closes"),
    [
        (b"GET / HTTP/1.1\r\nHost: x", False),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close", True),
        (b"GET / HTTP/1.0", True),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive", False),
    ],
)
def test_the_connection_lasts_as_the_client_wishes(head: bytes, closes: bool) -> None:
    connection, transport = connected(Echo())
    connection.data_received(head + b"\r\n\r\n")
    assert transport.is_closed == closes
    assert (b"Connection: close" in transport.written) == closes


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, "request line"),
        (b"GET /v2\r\n\r\n", 400, "request line"),
        (b"GET /v2 HTTP/2.0\r\nHost: x\r\n\r\n", 400, "request line"),
        (b"GET  /v2 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "request line"),
        (b"GET /v2 HTTP/1.1\r\n\r\n", 400, "Host is missing"),
        (b"GET /v2 HTTP/1.1\r\nHost : x\r\n\r\n", 400, "malformed"),
        (b"GET /v2 HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400, "malformed"),
        (b"GET /v2 HTTP/1.1\r\nHost: x\nEvil: y\r\n\r\n", 400, "malformed"),
        (b"GET /v2 HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n", 400, "malformed"),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", 411, "Content-Length is missing"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 411, "Transfer-Encoding"),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            411,
            "Transfer-Encoding",
        ),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "differ"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, "number of bytes"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n", 400, "number of bytes"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1e3\r\n\r\n", 400, "number of bytes"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413, "at most"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n", 413, "at most"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * http.MOST_HEAD, 431, "more than"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * http.MOST_HEAD + b"\r\n\r\n", 431, "more than"),
    ],
)
def test_what_is_malformed_or_too_much_ends_the_connection(request_: bytes, status: int, said: str) -> None:
    echo = Echo()
    connection, transport = connected(echo)
    connection.data_received(request_ + GET)
    assert transport.statuses == [status]
    assert said in transport.written.decode()
    assert transport.is_closed
    assert not echo.seen


def test_who_sends_slowly_is_given_up_and_who_is_idle_is_not() -> None:
    connection, transport = connected(Echo())
    for _ in range(http.PATIENCE * 3):
        connection.tick()
    assert not transport.is_closed
    for byte in GET[:-1]:  # a byte now and then does not buy more time
        connection.data_received(bytes([byte]))
        for _ in range(3):
            connection.tick()
    assert transport.statuses == [408]
    assert transport.is_closed


def test_an_idle_connection_ends_at_last() -> None:
    connection, transport = connected(Echo())
    for _ in range(http.IDLENESS + 1):
        connection.tick()
    assert transport.is_closed


def test_a_slow_model_is_not_the_clients_fault() -> None:
    connection, transport = connected(Echo(later=True))
    connection.data_received(GET)
    for _ in range(http.IDLENESS * 2):
        connection.tick()
    assert not transport.is_closed


def test_who_does_not_read_is_given_up() -> None:
    connection, transport = connected(Echo())
    connection.pause_writing()
    for _ in range(http.PATIENCE + 1):
        connection.tick()
    assert transport.is_closed


def test_what_matters_of_a_head() -> None:
    head = parse_head(
        b"POST http://h:1/v2/m?x=1 HTTP/1.1\r\nhost: h\r\nCONTENT-LENGTH:  7 \r\nInference-Header-Content-Length: 5"
    )
    headers = {"host": "h", "content-length": "7", "inference-header-content-length": "5"}
    assert head == RequestHead("POST", "/v2/m", headers, keep_alive=True, length=7, json_length=5)
    with pytest.raises(HttpError):
        parse_head(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\nInference-Header-Content-Length: x")
