"""Several hosts send one load: processes that only call themselves hosts, and real network namespaces."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from paceline.core.record import Outcome
from paceline.load.clients import AGENT, ClientHosts, ClientLost
from paceline.load.generator import LoadPlan, drive
from paceline.load.live import Figures
from paceline.load.parameters import LoadParameters
from paceline.load.processes import CpuPlacement
from paceline.load.request import Prepared
from paceline.load.trace import BROKEN, UNSENT
from paceline.remote.hosts import HostTrouble, RemoteShell
from support.cli import Sandbox
from support.namespaces import ADDRESSES, TwoHosts, two_hosts
from support.null_server import Behaviour, running
from support.refused import refused
from support.watching import Watched

pytestmark = pytest.mark.alone

KINDS = [Prepared(b"a"), Prepared(b"bb", samples=4)]
PRETENDED = RemoteShell("env HOST={host}", sys.executable)  # where the network between them does not matter
POISSON = LoadParameters(arrival="poisson", rate=200, duration="1s")
ESTABLISHED = "01"  # as the kernel writes it
MODEL = ["--model", "generated/fc:layers=1,width=16", "--scale", "tiny", "--no-check-answers", "--warm-up", "300ms"]


@pytest.fixture
def pair() -> Iterator[ClientHosts]:
    with ClientHosts.reached(["one", "two"], PRETENDED, CpuPlacement.of_machine()) as clients:
        yield clients
    assert not agents()


def agents() -> dict[str, psutil.Process]:
    """The agents that this process has started, by the host that each was told to be."""
    children = psutil.Process().children(recursive=True)
    return {child.environ().get("HOST", ""): child for child in children if AGENT in child.cmdline()}


def test_hosts_send_the_schedule_of_one_and_what_they_saw_is_one_trace(pair: ClientHosts) -> None:
    bodies: list[int] = []
    with running(Behaviour(reports_stages=True)) as endpoint:
        pair.require_reach(endpoint)
        alone = drive(endpoint, KINDS, POISSON, seed=11, workers=2)
        trace, again = (
            drive(
                endpoint, KINDS, POISSON, seed=11, hosts=pair, keep=1, on_answer=lambda kind, _body: bodies.append(kind)
            )
            for _ in range(2)
        )
    plan = LoadPlan.of(POISSON, KINDS, 11)
    for found in (trace, again):
        assert np.allclose(found.intended, plan.intended, atol=1e-6)
        assert np.array_equal(found.kind, plan.kinds)
        assert np.array_equal(found.kind, alone.kind)
        assert found.ok.all()
        assert np.all((found.intended <= found.sent) & (found.sent <= found.first) & (found.first <= found.done))
        assert set(found.stages) == set(alone.stages)
    assert trace.host is not None
    assert [set(trace.worker[trace.host == host].tolist()) for host in (0, 1)] == [{0}, {1}]
    assert sorted(set(bodies)) == [0, 1]
    assert pair.lost == {}
    facts = pair.facts(trace)
    assert sum(fact["requests"] for fact in facts.values()) == len(trace)
    for fact in facts.values():  # both share this machine's clock
        assert abs(fact["clock_offset"]) <= fact["clock_uncertainty"]
        assert fact["lateness_p50"] >= 0
        assert fact["rate"] > 0


def test_users_who_wait_are_shared_out_and_a_host_may_have_none(pair: ClientHosts) -> None:
    with running() as endpoint:
        many = drive(endpoint, KINDS, LoadParameters(arrival="closed", users=4, requests=40), hosts=pair)
        single = drive(endpoint, KINDS, LoadParameters(arrival="single-stream", requests=5), hosts=pair)
    assert (len(many), len(single)) == (40, 5)
    assert many.ok.all() and single.ok.all()
    assert many.host is not None and single.host is not None
    assert (set(many.host.tolist()), set(single.host.tolist())) == ({0, 1}, {0})


def test_a_load_from_several_hosts_says_how_it_goes_while_it_goes(pair: ClientHosts) -> None:
    heard: list[Figures] = []
    load = LoadParameters(arrival="constant", rate=100, duration="300s")
    with running() as endpoint:  # which ends long before its time, as soon as something was heard
        trace = drive(endpoint, KINDS, load, hosts=pair, on_live=heard.append, go_on=lambda: len(heard) < 2)
    assert np.any(trace.status == UNSENT)
    assert all(one["rate"] + one["failures"] > 0 for one in heard)
    assert all(0 < one["p50"] <= one["p99"] for one in heard if one["rate"])
    assert pair.lost == {}


def once_after(seconds: float, act: Callable[[], object]) -> Callable[[], bool]:
    """For `go_on`, which is asked from the start of a load: acts after some time, and always says yes."""
    times: list[float] = []

    def go_on() -> bool:
        is_before = bool(times) and times[-1] - times[0] > seconds
        times.append(time.monotonic())
        if not is_before and times[-1] - times[0] > seconds:
            act()
        return True

    return go_on


def test_a_host_that_dies_is_named_and_the_others_keep_what_they_saw(pair: ClientHosts) -> None:
    load = LoadParameters(arrival="poisson", rate=100, duration="100s")
    kill_soon = once_after(1.0, lambda: agents()["two"].kill())
    with running() as endpoint:
        trace = drive(endpoint, KINDS, load, hosts=pair, go_on=kill_soon)
    assert len(trace) == len(LoadPlan.of(load, KINDS, 1234).intended)
    assert list(pair.lost) == ["two"]
    assert trace.of_host(0).ok.any()
    assert set(trace.of_host(1).status.tolist()) <= {BROKEN, UNSENT}
    assert np.any(trace.of_host(0).status == UNSENT)  # nobody waited for the rest
    with pytest.raises(ClientLost, match="client host two was lost: its process was ended by SIGKILL") as raised:
        pair.require_all(trace)
    assert f"{int(trace.ok.sum())} of {len(trace)} requests were answered" in str(raised.value)
    with running() as endpoint, pytest.raises(HostTrouble, match="two cannot be used"):
        drive(endpoint, KINDS, POISSON, hosts=pair)


def test_a_server_that_ends_ends_the_load_on_all_hosts(pair: ClientHosts) -> None:
    with running() as endpoint:
        ended: list[bool] = []
        look = once_after(1.0, lambda: ended.append(True))
        load = LoadParameters(arrival="constant", rate=50, duration="100s")
        trace = drive(endpoint, KINDS, load, hosts=pair, go_on=lambda: look() and not ended)
    assert trace.host is not None
    assert {0, 1} == set(trace.host[trace.ok].tolist())
    assert np.any(trace.status == UNSENT)
    assert pair.lost == {}


def test_a_host_that_cannot_be_entered_or_does_not_reach_the_server_is_named(pair: ClientHosts) -> None:
    closed = RemoteShell('sh -c \'test {host} = one || exit 7; exec "$0" "$@"\'', sys.executable)
    with (
        refused("unusable-host", value="two"),
        ClientHosts.reached(["one", "two"], closed, CpuPlacement.of_machine()),
    ):
        pass
    with running() as endpoint:
        pass
    with pytest.raises(HostTrouble, match=rf"one cannot reach the server at 127.0.0.1, port {endpoint.port}"):
        pair.require_reach(endpoint)


# Two hosts with a network between them


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    with two_hosts() as made:
        yield made


def asked_from(hosts: TwoHosts) -> list[str]:
    """A null model, served by the first host."""
    server = ["--server.engine", "null", "--server.host", ADDRESSES[0]]
    clients = ["--clients.hosts", f"{hosts.first},{hosts.second}", "--clients.remote-shell", "ip netns exec {host}"]
    return ["run", "serve", *MODEL, *server, *clients, "--no-report", "--json"]


def start_in(host: str, sandbox: Sandbox, *words: str) -> Watched:
    """`paceline ...` on a host."""
    return Watched(
        subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, "-m", "paceline", *words],
            cwd=sandbox.work,
            env=sandbox.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )


@pytest.mark.long
def test_two_hosts_ask_a_server_on_the_first(hosts: TwoHosts, sandbox: Sandbox) -> None:
    before = hosts.carried()
    run = start_in(hosts.first, sandbox, *asked_from(hosts), "--load.rate", "100", "--load.requests", "200")
    assert run.wait_for("run_ended")
    assert run.finish() == 0
    (record,) = sandbox.load().records
    assert record.outcome is Outcome.OK
    latency = record.measurement("latency")
    assert latency is not None
    assert len(latency.samples) == 200
    told = record.facts["clients"]
    assert [told[name]["requests"] for name in (hosts.first, hosts.second)] == [100, 100]
    assert record.facts["server_statistics"]["requests"]["ok"] >= 200
    assert min(now - then for now, then in zip(hosts.carried(), before, strict=True)) > 100 * 64  # over the cable
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_a_host_that_is_lost_ends_the_case_and_what_was_measured_is_kept(hosts: TwoHosts, sandbox: Sandbox) -> None:
    run = start_in(hosts.first, sandbox, *asked_from(hosts), "--load.rate", "50", "--load.duration", "60s")
    assert run.wait_for("case_progress", phase="measuring")
    while not (there := sending(sandbox, hosts)):
        assert run.process.poll() is None
        time.sleep(0.05)
    time.sleep(1.0)  # for answers to come
    there.kill()
    assert run.wait_for("run_ended")
    assert run.finish() == 1
    (record,) = sandbox.load().records
    assert record.outcome is Outcome.FAILED
    assert record.cause is not None
    assert f"client host {hosts.second} was lost: its process was ended by SIGKILL" in record.cause.message
    latency = record.measurement("latency")
    assert latency is not None
    assert latency.samples
    assert sandbox.left_behind() == []


def sending(sandbox: Sandbox, hosts: TwoHosts) -> psutil.Process | None:
    """The agent on the second host, if something there is connected to the server."""
    for process in sandbox.processes():
        with suppress(psutil.Error, OSError):
            if hosts.in_second(process) and AGENT in process.cmdline():
                lines = Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
                return process if any(line.split()[3] == ESTABLISHED for line in lines) else None
    return None
