"""Servers that stall, lie or die, and workers that are killed: everything is counted, and the run ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import psutil
import pytest

from paceline.load.generator import drive
from paceline.load.null_server import started
from paceline.load.parameters import LoadParameters
from paceline.load.processes import LoadFailed
from paceline.load.quality import LoadNotDelivered, RequestKind, measure, require_delivered, warnings
from paceline.load.request import Endpoint, Prepared
from paceline.load.trace import (
    BROKEN,
    FAILED,
    OK,
    OUT_OF_SOCKETS,
    REFUSED,
    SHED,
    TIMED_OUT,
    UNREADABLE,
    UNSENT,
    WRONG,
    Trace,
)  # fmt: skip
from support.null_server import Behaviour, running

ONE = [Prepared(b'{"inputs":[]}')]
HUNDRED = LoadParameters(arrival="constant", rate=100, requests=100)


def count(trace: Trace, status: int) -> int:
    return int(np.count_nonzero(trace.status == status))


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        (Behaviour(shed_every=10), SHED),
        (Behaviour(cut_every=10), BROKEN),
        (Behaviour(garbage_every=10), UNREADABLE),
    ],
    ids=["shed", "truncated", "garbage"],
)
def test_every_bad_answer_is_counted_for_what_it_is(behaviour: Behaviour, status: int) -> None:
    with running(behaviour) as endpoint:
        trace = drive(endpoint, ONE, HUNDRED)
    assert (count(trace, status), int(trace.ok.sum())) == (10, 90)
    assert np.isnan(trace.done[trace.status == status]).all() or status == SHED


def test_a_connection_that_the_server_closed_in_the_meantime_costs_no_request() -> None:
    """Gaps of 20 ms: time enough for the end of the connection to arrive before the next request."""
    with running(Behaviour(close_every=2)) as endpoint:
        trace = drive(endpoint, ONE, LoadParameters(arrival="constant", rate=50, requests=30))
    assert trace.ok.all()


def test_answers_that_do_not_come_are_given_up() -> None:
    with running(Behaviour(delay=5.0)) as endpoint:
        trace = drive(endpoint, ONE, LoadParameters(arrival="constant", rate=100, requests=20), timeout=0.3)
    assert count(trace, TIMED_OUT) == 20
    assert np.isfinite(trace.sent).all() and np.isnan(trace.latency).all()


def test_running_out_of_sockets_is_said_and_makes_nobody_wait() -> None:
    with running(Behaviour(delay=0.5)) as endpoint:
        trace = drive(endpoint, ONE, LoadParameters(arrival="constant", rate=200, requests=50), connections=5)
    assert (int(trace.ok.sum()), count(trace, OUT_OF_SOCKETS)) == (5, 45)
    assert "sockets" in {warning.kind for warning in warnings(trace)}
    with pytest.raises(LoadNotDelivered, match="45 found no free socket"):
        require_delivered(trace)


@pytest.mark.parametrize("arrival", [{"arrival": "poisson", "rate": 200}, {"arrival": "closed", "users": 4}])
def test_a_server_that_is_killed_is_seen_as_that_and_the_run_ends(arrival: dict[str, object]) -> None:
    timeout = 20.0
    begun = time.monotonic()
    with running(Behaviour(delay=0.02, die_at=0.5)) as endpoint:
        trace = drive(endpoint, ONE, LoadParameters.model_validate({**arrival, "duration": 1.5}), timeout=timeout)
    assert time.monotonic() - begun < timeout
    assert count(trace, UNSENT) == 0
    assert trace.ok.sum() > 0 and count(trace, REFUSED) > 0
    assert trace.ok.sum() + count(trace, REFUSED) + count(trace, BROKEN) == len(trace)
    assert trace.done[trace.ok].max() < trace.intended[trace.status == REFUSED].max()
    assert "refused" in {warning.kind for warning in warnings(trace)}


def test_nobody_there_is_refused() -> None:
    with running() as endpoint:
        pass
    trace = drive(endpoint, ONE, LoadParameters(arrival="constant", rate=100, requests=10))
    assert count(trace, REFUSED) == 10


def test_a_host_that_does_not_exist_is_an_error_with_its_reason() -> None:
    nowhere = Endpoint("kserve-json", "nowhere.invalid", 1, "/", "x")
    with pytest.raises(LoadFailed, match="did not start"):
        drive(nowhere, ONE, HUNDRED)


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in process.children():
        try:
            if "paceline.load.worker" in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def until_there(process: psutil.Process, number: int) -> list[psutil.Process]:
    for _ in range(600):
        found = workers_of(process)
        if len(found) == number and all(len(one.threads()) and one.num_fds() > 5 for one in found):
            return found
        time.sleep(0.05)
    raise AssertionError("the workers did not start")


def test_a_worker_that_is_killed_loses_its_requests_alone() -> None:
    traces: list[Trace] = []
    load = LoadParameters(arrival="constant", rate=100, duration="3s")
    with running() as endpoint:
        driving = threading.Thread(target=lambda: traces.append(drive(endpoint, ONE, load, workers=2)))
        driving.start()
        victim = until_there(psutil.Process(), 2)[0]
        time.sleep(1.0)
        victim.kill()
        driving.join()
    (trace,) = traces
    assert len(trace) == 300
    [loss] = trace.losses
    assert "was lost: killed by SIGKILL" in loss
    lost = next(int(worker) for worker in (0, 1) if not trace.ok[trace.worker == worker].any())
    assert trace.ok[trace.worker != lost].all()
    assert set(trace.status[trace.worker == lost]) <= {BROKEN, UNSENT}
    assert UNSENT in trace.status
    with pytest.raises(LoadNotDelivered, match=r"worker \d of the load generator was lost: killed by SIGKILL"):
        require_delivered(trace)


def test_workers_end_with_the_process_that_started_them() -> None:
    code = """
from paceline.load.generator import drive
from paceline.load.parameters import LoadParameters
from paceline.load.request import Prepared
from paceline.load.request import Endpoint
import sys
endpoint = Endpoint("kserve-json", "127.0.0.1", int(sys.argv[1]), "/", "x")
drive(endpoint, [Prepared(b"")], LoadParameters(arrival="constant", rate=10, duration=300))
"""
    with running() as endpoint, subprocess.Popen([sys.executable, "-c", code, str(endpoint.port)]) as parent:
        (worker,) = until_there(psutil.Process(parent.pid), 1)
        parent.kill()
        gone, alive = psutil.wait_procs([worker], timeout=30)
    assert (len(gone), alive) == (1, [])


@pytest.mark.long
def test_a_calibration_measures_the_generator_itself_with_what_it_is_to_send() -> None:
    found = {}
    for kind in (RequestKind(), RequestKind(4_000_000), RequestKind(grpc=True)):
        with started(grpc=kind.grpc) as (endpoint, _):
            ceiling = found[kind] = measure(endpoint, kind=kind)
        rates = [probe.rate for probe in ceiling.probes]
        assert rates == sorted(rates)
        assert all(0 <= probe.lateness_p50 <= probe.lateness_p99 for probe in ceiling.probes)
        assert ceiling.rate in {0.0, *rates}
    small, large, call = (found[kind].requests_per_cpu_second for kind in found)
    assert large < small / 4
    assert call < small / 2


def test_a_load_that_is_ended_early_keeps_what_was_seen() -> None:
    asked: list[float] = []

    def go_on() -> bool:
        """Asked from the start of the load on, however long its workers took to be ready."""
        asked.append(time.monotonic())
        return asked[-1] < asked[0] + 4.0

    with running() as endpoint:
        load = LoadParameters(arrival="constant", rate=100, duration="600s")
        trace = drive(endpoint, ONE, load, go_on=go_on)
    assert time.monotonic() - asked[0] < 300.0
    assert len(trace) == 60_000
    answered, sent = int(trace.ok.sum()), int((trace.status != UNSENT).sum())
    assert 0 < answered <= sent < 30_000
    assert set(trace.status[sent:].tolist()) == {UNSENT}, "what was sent is what was due first"


def test_requests_under_way_when_a_load_is_ended_are_broken() -> None:
    asked: list[float] = []  # from when all workers are there, which takes a while on a busy machine

    def go_on() -> bool:
        asked.append(time.monotonic())
        return asked[-1] < asked[0] + 2.0

    with running(Behaviour(delay=60.0)) as endpoint:
        load = LoadParameters(arrival="closed", users=3, duration="60s")
        trace = drive(endpoint, ONE, load, go_on=go_on)
    assert time.monotonic() - asked[0] < 30.0
    assert trace.status.tolist() == [BROKEN] * 3


def test_users_of_a_worker_that_is_killed_are_missed() -> None:
    failed: list[LoadFailed] = []
    load = LoadParameters(arrival="closed", users=4, duration="60s")

    def driving() -> None:
        try:
            drive(endpoint, ONE, load, workers=2)
        except LoadFailed as error:
            failed.append(error)

    with running(Behaviour(delay=0.02)) as endpoint:
        thread = threading.Thread(target=driving)
        thread.start()
        workers = until_there(psutil.Process(), 2)
        time.sleep(0.5)
        for worker in workers:
            worker.kill()
        thread.join()
    (error,) = failed
    assert "of the load generator was lost" in str(error)


@pytest.mark.parametrize("length", [{"duration": "500ms"}, {"requests": 2}])
def test_nobody_is_waited_for_who_has_nothing_more_to_ask(length: dict[str, object]) -> None:
    """Each of two users would think for a minute after the only answer that there is time for."""
    begun = time.monotonic()
    with running() as endpoint:
        load = LoadParameters.model_validate({"arrival": "closed", "users": 2, "think_time": "60s", **length})
        trace = drive(endpoint, ONE, load, timeout=1.0)
    assert time.monotonic() - begun < 40.0
    assert (len(trace), int(trace.ok.sum())) == (2, 2)


def test_every_user_asks_once_however_short_the_time() -> None:
    with running() as endpoint:
        trace = drive(endpoint, ONE, LoadParameters(arrival="closed", users=3, duration="1us"))
        few = drive(endpoint, ONE, LoadParameters(arrival="closed", users=3, requests=2))
    assert trace.ok.tolist() == [True] * 3
    assert few.ok.tolist() == [True] * 2


@pytest.mark.parametrize(("outputs", "is_good"), [(((1,),), True), (((2,),), False), (((1,), (1,)), False), ((), True)])
def test_answers_of_another_shape_have_failed(outputs: tuple[tuple[int, ...], ...], is_good: bool) -> None:
    """The null server answers with one output of one value."""
    with running() as endpoint:
        trace = drive(endpoint, ONE, LoadParameters(arrival="closed", users=2, requests=10), outputs=outputs)
    assert set(trace.status.tolist()) == {OK if is_good else WRONG}
    assert sum(trace.causes.values()) == (0 if is_good else 10)


class _BreaksOff(BaseHTTPRequestHandler):
    """Streams a token, then says that it failed: the status was sent before."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = b'data: {"choices":[{"text":"a"}]}\n\ndata: {"error":{"message":"no memory","code":500}}\n\n'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Nothing to say."""


def test_a_stream_that_tells_of_an_error_is_no_good_answer() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _BreaksOff) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        endpoint = Endpoint("openai-completions", "127.0.0.1", server.server_port, "/", "x")
        trace = drive(endpoint, ONE, LoadParameters(arrival="constant", rate=50, requests=5), streaming=True)
        server.shutdown()
        thread.join()
    assert set(trace.status.tolist()) == {FAILED}
    assert trace.chunks is not None and [len(pieces) for pieces in trace.chunks] == [1] * 5
