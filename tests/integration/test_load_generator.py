"""The load generator against real servers: what it sends, when, and what it says about the answers."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.load.generator import LoadPlan, drive
from paceline.load.kserve_grpc import METHOD
from paceline.load.null_server import BODY
from paceline.load.parameters import LoadParameters
from paceline.load.quality import delivered
from paceline.load.request import Endpoint, Prepared
from paceline.load.trace import REFUSED
from support.null_server import Behaviour, running

pytestmark = pytest.mark.alone

ONE = [Prepared(b'{"inputs":[]}')]
STEADY = LoadParameters(arrival="constant", rate=100, duration="500ms")


def test_an_open_loop_sends_what_was_drawn_and_counts_latency_from_intended_times() -> None:
    kinds = [Prepared(b"a"), Prepared(b"bb", samples=4)]
    load = LoadParameters(arrival="poisson", rate=200, duration="1s")
    with running() as endpoint:
        trace = drive(endpoint, kinds, load, seed=11, workers=2)
    plan = LoadPlan.of(load, kinds, 11)
    assert np.allclose(trace.intended, plan.intended, atol=1e-6)
    assert np.array_equal(trace.kind, plan.kinds)
    assert set(trace.worker) == {0, 1}
    assert np.array_equal(trace.samples, np.where(trace.kind == 1, 4, 1))
    assert trace.ok.all()
    assert np.all(trace.intended <= trace.sent)
    assert np.all((trace.sent <= trace.first) & (trace.first <= trace.done))
    assert np.allclose(trace.latency, trace.lateness + (trace.done - trace.sent))
    assert delivered(trace) > 0.9
    assert trace.cpu_seconds > 0


def test_the_null_server_takes_requests_in_whatever_pieces_they_come() -> None:
    one = b"POST / HTTP/1.1\r\nhost: null\r\ncontent-length: 3\r\n\r\nabc"
    large = b"POST / HTTP/1.1\r\nhost: null\r\ncontent-length: 3000000\r\n\r\n" + b"x" * 3_000_000
    with running() as endpoint, socket.create_connection((endpoint.host, endpoint.port), timeout=20) as client:
        client.sendall(one + large + one[:20])
        assert answers_in(client, 2) == 2
        for byte in one[20:]:
            client.sendall(bytes([byte]))
            time.sleep(0.001)
        assert answers_in(client, 1) == 1


def answers_in(client: socket.socket, expected: int) -> int:
    """How many are there, once as many have come and then none for a moment."""
    found = b""
    with suppress(TimeoutError):
        while data := client.recv(65536):
            found += data
            client.settimeout(20 if found.count(BODY) < expected else 0.2)
    client.settimeout(20)
    return found.count(BODY)


def test_a_stall_is_seen_by_all_who_came_during_it_but_hardly_by_those_who_wait() -> None:
    """Of 1,500 requests in 3 s, 150 fall into a stall of 300 ms; the slowest 15 of those are above the p99.

    So the p99 is about nine tenths of the stall, and three in ten of the 150 wait for at least seven tenths of it.
    """
    stall = Behaviour(stall_at=1.0, stall_for=0.3)
    with running(stall) as endpoint:
        trace = drive(endpoint, ONE, LoadParameters(arrival="poisson", rate=500, duration="3s"))
    assert trace.ok.all()
    assert np.percentile(trace.latency, 99) >= 0.7 * stall.stall_for
    since = trace.intended - trace.sent[0] - stall.stall_at
    in_the_stall = trace.latency[(since >= 0) & (since < stall.stall_for)]
    assert np.mean(in_the_stall >= 0.7 * stall.stall_for) >= 0.2

    with running(stall) as endpoint:
        waiting = drive(endpoint, ONE, LoadParameters(arrival="closed", users=1, duration="3s"))
    assert waiting.latency.max() >= 0.7 * stall.stall_for
    assert np.percentile(waiting.latency, 99) < 0.5 * stall.stall_for


def test_a_closed_loop_keeps_its_users_and_counts_from_sending() -> None:
    with running(Behaviour(delay=0.01)) as endpoint:
        trace = drive(endpoint, ONE, LoadParameters(arrival="closed", users=4, think_time="20ms", requests=40))
        alone = drive(endpoint, ONE, LoadParameters(arrival="single-stream", duration="300ms"))
    assert len(trace) == 40
    assert trace.ok.all()
    starts, ends = np.sort(trace.intended), np.sort(trace.done)
    under_way = np.searchsorted(starts, starts, side="right") - np.searchsorted(ends, starts, side="right")
    assert under_way.max() == 4
    assert trace.latency.min() >= 0.01
    assert np.all(alone.intended[1:] >= alone.done[:-1])


def test_offline_is_due_at_once_and_counts_the_wait() -> None:
    with running(Behaviour(delay=0.02)) as endpoint:
        trace = drive(endpoint, ONE, LoadParameters(arrival="offline", requests=60, users=20))
    assert len(trace) == 60
    assert np.all(trace.intended == 0) and trace.ok.all()
    assert trace.latency.max() >= 3 * 0.02


def test_a_stream_tells_when_each_piece_came() -> None:
    with running(Behaviour(pieces=5, delay=0.02)) as endpoint:
        trace = drive(endpoint, ONE, LoadParameters(arrival="constant", rate=20, requests=10), streaming=True)
    assert trace.ok.all()
    assert trace.chunks is not None
    assert [len(pieces) for pieces in trace.chunks] == [5] * 10
    for pieces, first, done in zip(trace.chunks, trace.first, trace.done, strict=True):
        assert np.all(np.diff(pieces) >= 0)
        assert first <= pieces[0] and pieces[-1] <= done
    waited = trace.done - trace.sent
    assert waited.min() >= 5 * 0.02  # before each piece but the first, and before the end


def test_stages_and_the_first_answers_come_back() -> None:
    answers: list[tuple[int, bytes]] = []
    with running(Behaviour(reports_stages=True)) as endpoint:
        trace = drive(endpoint, ONE * 2, STEADY, keep=3, on_answer=lambda kind, body: answers.append((kind, body)))
    assert trace.stages["queue"].tolist() == pytest.approx([2e-6] * len(trace))
    assert set(trace.stages) == {"decode", "queue", "batch", "inference", "post"}
    assert trace.batch is not None and set(trace.batch) == {2}
    assert sorted(answers) == [(kind, BODY) for kind in (0, 0, 0, 1, 1, 1)]


def test_an_emulated_network_delays_requests_and_answers_but_is_not_the_clients_lateness() -> None:
    link = {"delay": "40ms", "up": "1MB"}
    large = [Prepared(b"x" * 20_000)]
    with running() as endpoint:
        trace = drive(endpoint, large, LoadParameters(arrival="constant", rate=50, requests=20, network=link))
        closed = drive(endpoint, large, LoadParameters(arrival="closed", users=2, requests=6, network=link))
    for one in (trace, closed):
        assert one.ok.all()
        assert one.latency.min() >= 0.04 + 0.02 + 0.04 - 1e-6  # but for rounding
        assert np.median(one.lateness) < 0.04


def test_what_a_users_machine_does_is_in_the_latency_but_not_in_the_lateness() -> None:
    """Of requests that need 50 ms before they can leave and 30 ms after their answer came."""
    work = [Prepared(b"a", before=0.05, after=0.03), Prepared(b"b")]
    with running(Behaviour(reports_stages=True)) as endpoint:
        trace = drive(endpoint, work, LoadParameters(arrival="constant", rate=50, requests=30))
        closed = drive(endpoint, work[:1], LoadParameters(arrival="closed", users=1, requests=5))
    for one in (trace, closed):
        assert one.ok.all()
        assert one.latency[one.kind == 0].min() >= 0.05 + 0.03 - 1e-6
        assert one.lateness.min() >= -1e-6
        assert np.array_equal(one.stages["client pre"], np.where(one.kind == 0, 0.05, 0.0))
        assert {"client post", "queue"} < one.stages.keys()
    assert np.median(trace.latency[trace.kind == 1]) < np.median(trace.latency[trace.kind == 0])
    assert np.all(closed.intended[1:] >= closed.done[:-1] - 1e-6)


def test_without_uvloop_it_works_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError('hidden')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running() as endpoint:
        assert drive(endpoint, ONE, STEADY).ok.all()


def test_workers_import_nothing_heavy() -> None:
    code = "import sys, paceline.load.worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pydantic", "torch", "grpc", "sqlalchemy", "yaml", "rich", "click", "psutil", "scipy"}
    assert not heavy & set(done.stdout.split())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """Nothing to say."""


@pytest.fixture
def https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes a certificate, is not here: apt-get install openssl")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    yield Endpoint("kserve-json", "localhost", server.server_port, "/", "x", tls=True)
    server.shutdown()
    thread.join()
    server.server_close()


def test_https_and_somebody_elses_server(https: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bytes] = []
    trace = drive(https, ONE, STEADY, keep=1, on_answer=lambda _kind, body: answers.append(body))
    assert trace.ok.all()
    assert answers == [ONE[0].body]
    monkeypatch.delenv("SSL_CERT_FILE")
    assert set(drive(https, ONE, STEADY).status) == {REFUSED}


def test_grpc_calls_carry_the_bytes_as_they_are() -> None:
    grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install '.[serving]'")
    seen: list[bytes] = []

    def infer(request: bytes, context: Any) -> bytes:
        seen.append(request)
        context.set_trailing_metadata((("x-paceline", "q=1000000,n=3"),))
        if len(seen) % 10 == 0:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full")
        return b"answer"

    service, _, method = METHOD.strip("/").partition("/")
    handler = grpc.method_handlers_generic_handler(service, {method: grpc.unary_unary_rpc_method_handler(infer)})
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    endpoint = Endpoint("kserve-grpc", "127.0.0.1", port, METHOD, "x")
    answers: list[bytes] = []
    try:
        trace = drive(
            endpoint, [Prepared(b"\x00raw")], STEADY, keep=1, on_answer=lambda _kind, body: answers.append(body)
        )
    finally:
        server.stop(0).wait()
    assert set(seen) == {b"\x00raw"}
    assert (len(trace), int(trace.shed.sum()), int(trace.ok.sum())) == (50, 5, 45)
    assert trace.stages["queue"][trace.ok].tolist() == pytest.approx([1e-3] * 45)
    assert answers == [b"answer"]
    gone = drive(endpoint, [Prepared(b"")], LoadParameters(arrival="constant", rate=50, requests=5), timeout=5)
    assert set(gone.status) == {REFUSED}


def test_workers_stay_on_their_cores() -> None:
    cpu = max(os.sched_getaffinity(0))
    with running(cpu=cpu) as endpoint:
        assert drive(endpoint, ONE, STEADY, cpus=[cpu]).ok.all()
