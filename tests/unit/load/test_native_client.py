"""The client in C beside the one in Python: the same requests to the same server come to the same."""

from __future__ import annotations

import os
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import InputError, MissingDependency
from paceline.load import native_client, processes
from paceline.load.arrivals import Schedule
from paceline.load.expected import Expected
from paceline.load.generator import drive
from paceline.load.native_client import chosen
from paceline.load.parameters import LoadParameters
from paceline.load.request import ClientName, Endpoint, Prepared, Slot, Turn, http_bytes
from paceline.load.results import log_of, results
from paceline.load.task import WorkerTask
from paceline.load.trace import (
    BROKEN,
    OK,
    OUT_OF_SOCKETS,
    REFUSED,
    TIMED_OUT,
    UNREADABLE,
    UNSENT,
    WRONG,
    Trace,
    clock,
)
from paceline.measure import native

pytestmark = pytest.mark.skipif(bool(native_client.missing()), reason="there is no C compiler")
CLIENTS: tuple[ClientName, ...] = ("python", "c")
GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n0A\r\n0123456789\r\n0\r\nmore: 1\r\n\r\n"
CLOSE = b"(close)"  # what a server does, between the bytes that it sends
PIECES = b"(pieces)"
IF_USED = b"(close if used)"
SILENT = b"(silent)"


class Server:
    """Answers each request with the bytes of its body, and closes, resets or waits where they say so."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.requests = 0
        self.ended = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("http", "127.0.0.1", self.listener.getsockname()[1], "/", "x")

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        answered = 0
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, connection.makefile("rb") as stream, suppress(OSError):
            while head := self._head(stream):
                wanted = stream.read(int(head[b"content-length"]))
                self.requests += 1
                if wanted.startswith(IF_USED):
                    if answered:
                        return
                    wanted = wanted.removeprefix(IF_USED)
                if wanted == SILENT:
                    self.ended.wait()
                    return
                data, close, _ = wanted.partition(CLOSE)
                if data.startswith(PIECES):
                    for byte in data.removeprefix(PIECES):
                        connection.sendall(bytes([byte]))
                else:
                    connection.sendall(data)
                if close:
                    return
                answered += 1

    @staticmethod
    def _head(stream: Any) -> dict[bytes, bytes]:
        headers: dict[bytes, bytes] = {}
        while (line := stream.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        return headers


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.ended.set()
    made.listener.close()


def asked(bodies: Sequence[bytes]) -> list[Prepared]:
    return [Prepared(body) for body in bodies]


def in_turn(bodies: Sequence[bytes], **more: Any) -> LoadParameters:
    return LoadParameters(arrival="closed", users=1, requests=len(bodies), **more)


def both(server: Server, bodies: Sequence[bytes], load: LoadParameters | Schedule, **more: Any) -> tuple[Trace, Trace]:
    """The traces of both clients, which agree in everything but the times."""
    given: dict[str, Any] = {"endpoint": server.endpoint, "workers": 1, "timeout": 60.0, "in_turn": True} | more
    one, other = (drive(requests=asked(bodies), load=load, client=client, **given) for client in CLIENTS)
    assert (one.client, other.client) == CLIENTS
    for name in ("status", "kind", "samples", "worker"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
    for name in ("intended", "dispatched", "sent", "first", "done"):
        assert np.isfinite(getattr(one, name)).tolist() == np.isfinite(getattr(other, name)).tolist(), name
    assert (one.retried, one.causes, len(one)) == (other.retried, other.causes, len(other))
    assert (one.batch is None) == (other.batch is None)
    assert list(one.stages) == list(other.stages)
    for name, values in one.stages.items():
        np.testing.assert_array_equal(values, other.stages[name])
    for trace in (one, other):
        known = np.isfinite(trace.done)
        assert trace.dispatched is not None
        assert (trace.intended <= trace.dispatched)[np.isfinite(trace.dispatched)].all()
        assert (trace.dispatched <= trace.sent)[np.isfinite(trace.sent)].all()
        assert ((trace.sent <= trace.first) & (trace.first <= trace.done))[known].all()
    return one, other


ANSWERS: list[tuple[bytes, int]] = [
    (GOOD, OK),
    (PIECES + GOOD, OK),
    (CHUNKS, OK),
    (PIECES + CHUNKS, OK),
    (b"HTTP/1.1 200\r\ncontent-length:0\r\n\r\n", OK),
    (b"HTTP/1.1 204 No Content\r\n\r\n", 204),
    (b"HTTP/1.1 304 Not Modified\r\n\r\n", 304),
    (b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", 503),
    (b"HTTP/1.1 429 Later\r\nCONTENT-LENGTH:\t4 \r\nConnection: Close\r\n\r\nbusy", 429),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD, OK),
    (PIECES + b"HTTP/1.1 102 Wait\r\n\r\n" + GOOD, OK),
    (b"HTTP/1.0 200 OK\r\n\r\nuntil the end" + CLOSE, OK),
    (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok", OK),
    (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", OK),
    (IF_USED + GOOD, OK),
    (CLOSE, BROKEN),
    (GOOD[:-1] + CLOSE, BROKEN),
    (GOOD[:9] + CLOSE, BROKEN),
    (CHUNKS[:-2] + CLOSE, BROKEN),
    (b"HTTP/2 200 OK\r\n\r\n", UNREADABLE),
    (b"hello", UNREADABLE),
    (b"HTTP/1.1 2x0 OK\r\n\r\n", UNREADABLE),
    (b"HTTP/1.1 2000 OK\r\n\r\n", UNREADABLE),
    (b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok", UNREADABLE),
    (b"HTTP/1.1 200 OK\r\ncontent-length: \r\n\r\nok", UNREADABLE),
    (GOOD + b"more", UNREADABLE),
    (CHUNKS + b"more", UNREADABLE),
    (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", UNREADABLE),
    (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabc\r\n", UNREADABLE),
    (b"HTTP/1.1 200 OK\r\nx: " + 70_000 * b"y", UNREADABLE),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n" + 300_000 * b"z", OK),
    (GOOD, OK),
]


def test_every_answer_has_the_same_status_from_both(server: Server) -> None:
    bodies = [answer for answer, _ in ANSWERS]
    one, _ = both(server, bodies, in_turn(bodies))
    assert one.status.tolist() == [status for _, status in ANSWERS]


def test_answers_with_faults_are_understood_or_refused_alike(server: Server) -> None:
    """What came may be cut, doubled or changed anywhere; the server closes, so that nobody waits for the rest."""
    chance, bodies = random.Random(7), []
    for _ in range(100):
        answer = bytearray(chance.choice([GOOD, CHUNKS, b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKS]))
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(answer))
            match chance.randrange(3):
                case 0:
                    answer[at] = chance.choice(b"\r\n :;019afxHh-+_\t")
                case 1:
                    del answer[at : at + chance.randint(1, 4)]
                case _:
                    answer[at:at] = answer[at : at + chance.randint(1, 6)]
        bodies.append(bytes(answer) + CLOSE)
    one, _ = both(server, bodies, in_turn(bodies))
    assert {OK, BROKEN, UNREADABLE} <= set(one.status.tolist())


def test_a_reused_connection_that_dies_is_tried_once_again(server: Server) -> None:
    bodies = [GOOD, IF_USED + GOOD, IF_USED + GOOD, IF_USED + CLOSE]
    one, _ = both(server, bodies, in_turn(bodies))
    assert one.status.tolist() == [OK, OK, OK, BROKEN]
    assert one.retried == 3


def test_an_answer_that_never_comes_is_given_up(server: Server) -> None:
    one, _ = both(server, [SILENT] * 3, Schedule(np.zeros(3)), timeout=0.3)
    assert one.status.tolist() == [TIMED_OUT] * 3


def test_no_request_waits_for_a_connection(server: Server) -> None:
    one, _ = both(server, [SILENT] * 4, Schedule(np.zeros(4)), timeout=0.3, connections=2)
    assert sorted(one.status.tolist()) == [TIMED_OUT, TIMED_OUT, OUT_OF_SOCKETS, OUT_OF_SOCKETS]


def test_a_port_that_nobody_listens_at_refuses_all(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = Endpoint("http", "127.0.0.1", closed.getsockname()[1], "/", "x")
    one, _ = both(server, [GOOD] * 3, in_turn([GOOD] * 3), endpoint=endpoint)
    assert one.status.tolist() == [REFUSED] * 3


def test_what_is_under_way_when_the_load_is_ended_is_broken_and_the_rest_unsent(server: Server) -> None:
    for client in CLIENTS:
        before = server.requests

        def go_on(before: int = before) -> bool:
            return server.requests == before

        trace = drive(
            server.endpoint,
            asked([SILENT, GOOD]),
            Schedule(np.array([0.0, 1000.0])),
            in_turn=True,
            timeout=2000.0,
            client=client,
            go_on=go_on,
        )
        assert trace.status.tolist() == [BROKEN, UNSENT]
        assert trace.client == client


@pytest.mark.parametrize(
    "load",
    [
        LoadParameters(arrival="poisson", rate=400, requests=60),
        LoadParameters(arrival="constant", rate=400, requests=60, network={"delay": "5ms", "jitter": "3ms"}),
        LoadParameters(arrival="closed", users=5, requests=60),
        LoadParameters(arrival="closed", users=5, requests=60, think_time="1ms"),
        LoadParameters(arrival="closed", users=5, requests=60, network={"delay": "1ms", "down": "100kB"}),
        LoadParameters(arrival="offline", users=7, requests=60),
    ],
    ids=lambda load: f"{load.arrival}{'-far' if load.network else ''}{'-think' if load.think_time else ''}",
)
def test_loads_of_all_loops_send_the_same(server: Server, load: LoadParameters) -> None:
    before = server.requests
    one, other = both(server, [GOOD, CHUNKS, GOOD], load, in_turn=False)
    assert len(one) == 60 and one.ok.all()
    assert server.requests - before == 120
    if load.loop == "open":
        np.testing.assert_allclose(one.intended, other.intended, atol=1e-9)
    if load.network is not None:
        link = load.network
        for trace in (one, other):  # a request is held back on its way, and its answer too
            assert (trace.latency >= 2 * link.delay).all()  # type: ignore[union-attr]


def test_a_duration_ends_when_nobody_is_to_send_any_more(server: Server) -> None:
    """With a duration each user sends once, however short it is; and no more requests than the most go."""
    short = LoadParameters(arrival="closed", users=4, duration=1e-9)
    assert len(both(server, [GOOD], short)[0]) == 4
    long = LoadParameters(arrival="closed", users=4, duration=1000)
    one, _ = both(server, [GOOD], long, most=25)
    assert len(one) == 25


def test_what_a_good_answer_is_counts_for_both(server: Server) -> None:
    def said(body: bytes, status: bytes = b"200") -> bytes:
        return b"HTTP/1.1 %b x\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)

    bodies = [said(b"a", b"201"), said(b"no"), said(b"b", b"404"), said(b"why", b"500"), said(b"", b"500"), CLOSE]
    endpoint = replace(server.endpoint, expected=Expected(status=("201-299", "404")))
    one, _ = both(server, bodies, in_turn(bodies), endpoint=endpoint)
    assert one.status.tolist() == [OK, WRONG, OK, 500, 500, BROKEN]
    assert [cause.rpartition("got ")[2] for cause in one.causes] == ["200: no", "500: why", "500: an empty body"]


def test_outputs_are_checked_and_the_first_good_answers_handed_back(server: Server) -> None:
    def said(values: bytes) -> bytes:
        body = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[%b]}]}' % values
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    bodies = [said(b"1.0,2.0"), said(b"1.0"), b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\nno"]
    endpoint = server.endpoint
    endpoint = Endpoint("kserve-json", endpoint.host, endpoint.port, "/", "x")
    answers: dict[ClientName, list[tuple[int, bytes]]] = {}
    traces = []
    for client in CLIENTS:
        kept = answers.setdefault(client, [])

        def keep(kind: int, body: bytes, kept: list[tuple[int, bytes]] = kept) -> None:
            kept.append((kind, body))

        traces.append(
            drive(
                endpoint,
                asked(bodies),
                LoadParameters(arrival="closed", users=1, requests=9),
                in_turn=True,
                outputs=((2,),),
                keep=2,
                on_answer=keep,
                client=client,
            )
        )
    assert traces[0].status.tolist() == traces[1].status.tolist() == 3 * [OK, WRONG, 500]
    assert traces[0].causes == traces[1].causes
    assert answers["c"] == answers["python"]
    assert [kind for kind, _ in answers["c"]] == [0, 1, 0, 1]


def sent_here(endpoint: Endpoint, bodies: Sequence[bytes], **more: Any) -> Trace:
    """What the client in C makes of these requests, in this process."""
    number = len(bodies)
    task = WorkerTask(
        parent=1, endpoint=endpoint, payloads=[http_bytes(endpoint, one) for one in asked(bodies)], metadata=[],
        samples=np.ones(number, np.int32), kinds=np.arange(number, dtype=np.int32), loop="closed", **more,
    )  # fmt: skip
    log, start = log_of(task, lambda _row: None), clock()
    run = native_client.NativeRun(task, log)
    stop, other = os.pipe()
    run.complete(start, stop)
    os.close(stop)
    os.close(other)
    run.write_log()
    return results(task, log, start, 0.0).trace


def test_bodies_beyond_what_is_held_are_judged_before_the_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The C code hands over as soon as it holds too much, and goes on where it was."""
    monkeypatch.setattr(native_client, "_PORTION", 64)
    answer = b"HTTP/1.1 %d x\r\ncontent-length: 40\r\n\r\n%040d"
    bodies = [answer % (201 if number % 2 else 500, number) for number in range(6)]
    endpoint = replace(server.endpoint, expected=Expected())
    trace = sent_here(endpoint, bodies, requests=18)
    assert trace.status.tolist() == 9 * [500, OK]
    assert [number for cause, number in trace.causes.items() if cause.endswith(("0", "2", "4"))] == [3, 3, 3]


def test_outputs_beyond_what_is_held_are_judged_before_the_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_client, "MOST_HELD", 64)
    good = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,1],"data":[%d]}]}'
    bodies = [good % number if number % 2 else b"%040d" % number for number in range(6)]
    bodies = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body) for body in bodies]
    trace = sent_here(replace(server.endpoint, wire="kserve-json"), bodies, requests=18, outputs=((1,),))
    assert trace.status.tolist() == 9 * [WRONG, OK]


def test_an_answer_that_came_during_a_pause_is_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can tell when it came: what lies there is read before anything is given up."""
    listener = socket.create_server(("127.0.0.1", 0))
    has_come, may_answer, was_answered = (threading.Event() for _ in range(3))

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            has_come.set()
            may_answer.wait()
            connection.sendall(GOOD)
            was_answered.set()

    def pause(*_: object) -> None:
        if has_come.is_set() and not may_answer.is_set():
            may_answer.set()
            was_answered.wait()
            time.sleep(1.2)

    monkeypatch.setattr(native_client, "write_line", pause)
    monkeypatch.setattr(native_client, "EVERY", 0.01)
    monkeypatch.setattr(os, "set_blocking", lambda *_: None)
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    threading.Thread(target=answer, daemon=True).start()
    endpoint = Endpoint("http", "127.0.0.1", listener.getsockname()[1], "/", "x")
    assert sent_here(endpoint, [b""], requests=1, timeout=1.0, live=True).status.tolist() == [OK]
    listener.close()


def test_a_stop_that_comes_after_the_last_answer_loses_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from paceline.load import worker
packed = worker.results
def stopped(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    return packed(*given)
worker.results = stopped
worker.main(Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGTERM)
"""
    monkeypatch.setattr(processes, "COMMAND", [sys.executable, "-P", "-c", script])
    trace = drive(server.endpoint, asked([GOOD]), in_turn([GOOD] * 3), workers=1, client="c")
    assert trace.status.tolist() == [OK] * 3


def test_stages_that_a_server_reports_are_read(server: Server) -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Paceline: d=%d,q=5,i=%d,n=4\r\ncontent-length: 2\r\n\r\nok"
    bodies = [head % (1000, 2000), GOOD, head % (3000, 10**18)]
    one, other = both(server, bodies, in_turn(bodies))
    assert one.batch is not None and other.batch is not None
    assert one.batch.tolist() == other.batch.tolist() == [4, 0, 4]
    assert one.stages["decode"][0] == pytest.approx(1e-6)


def test_a_connection_that_the_server_resets_is_broken(server: Server) -> None:
    """As a process does that is killed: no end of the stream, but an error."""
    listener = socket.create_server(("127.0.0.1", 0))

    def reset() -> None:
        for _ in CLIENTS:
            connection, _ = listener.accept()
            connection.recv(10)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    thread = threading.Thread(target=reset)
    thread.start()
    endpoint = Endpoint("http", "127.0.0.1", listener.getsockname()[1], "/", "x")
    one, _ = both(server, [GOOD], in_turn([GOOD]), endpoint=endpoint)
    thread.join()
    listener.close()
    assert one.status.tolist() == [BROKEN]


def test_large_requests_arrive_whole(server: Server) -> None:
    """Sockets take them piece by piece."""
    bodies = [GOOD + CLOSE + 8_000_000 * b"x", GOOD]
    one, _ = both(server, bodies, LoadParameters(arrival="closed", users=2, requests=4))
    assert one.ok.all()


# Which client sends.

PLAIN = Endpoint("kserve-json", "127.0.0.1", 1, "/", "x")


@pytest.mark.parametrize(
    ("endpoint", "request_", "streaming", "why"),
    [
        (Endpoint("http", "h", 1, "/", "x", tls=True), Prepared(b""), False, "TLS"),
        (Endpoint("kserve-grpc", "h", 1, "/", "x"), Prepared(b""), False, "kserve-grpc"),
        (Endpoint("openai-chat", "h", 1, "/", "x"), Prepared(b""), True, "as a stream"),
        (PLAIN, Prepared(b"", turn=Turn(follows=(0,))), False, "made as they are sent"),
        (PLAIN, Prepared(b"", fresh=Slot(0, 1)), False, "made as they are sent"),
        (replace(PLAIN, wire="http", expected=Expected(json=("a",))), Prepared(b""), False, "what answers contain"),
    ],
)
def test_what_needs_more_than_plain_http_is_sent_by_python(
    endpoint: Endpoint, request_: Prepared, streaming: bool, why: str
) -> None:
    name, said = chosen(None, endpoint, [request_], streaming=streaming)
    assert name == "python" and why in said
    with pytest.raises(InputError, match=r"set load\.client to auto"):
        chosen("c", endpoint, [request_], streaming=streaming)


def test_the_client_in_c_sends_unless_another_is_asked_for() -> None:
    assert chosen(None, PLAIN, [Prepared(b"")], streaming=False) == ("c", "")
    assert chosen("auto", PLAIN, [Prepared(b"")], streaming=False) == ("c", "")
    assert chosen("python", PLAIN, [Prepared(b"")], streaming=False)[0] == "python"


def test_without_a_compiler_python_sends_and_says_why(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    native.load.cache_clear()
    name, why = chosen("auto", PLAIN, [Prepared(b"")], streaming=False)
    assert name == "python" and "a C compiler" in why
    with pytest.raises(MissingDependency):
        chosen("c", PLAIN, [Prepared(b"")], streaming=False)
    assert chosen("c", PLAIN, [Prepared(b"")], streaming=False, here=False) == ("c", "")  # another host may have one
    trace = drive(server.endpoint, asked([GOOD]), in_turn([GOOD]))
    assert trace.client == "python" and trace.ok.all()
