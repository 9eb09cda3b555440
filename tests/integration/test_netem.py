"""A network that the kernel emulates: a server in a namespace, and nothing left of it however it ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from paceline.core.errors import MissingDependency, Unsupported
from paceline.load import network
from paceline.load.generator import drive
from paceline.load.network import PRESETS, Link
from paceline.load.parameters import LoadParameters
from paceline.load.request import Endpoint, Prepared
from support.null_server import running

pytestmark = pytest.mark.alone

REQUESTS = [Prepared(b'{"inputs":[]}')]
STEADY = LoadParameters(arrival="constant", rate=50, requests=30)
LINK = Link(delay="10ms", jitter="2ms", up="2MB", down="2MB")
OWN = Path("/proc/thread-self/ns/net")
PLAIN = ["pfifo", "limit", "1000"]  # a queue that every kernel has, where only the namespace matters


@pytest.fixture(autouse=True)
def root() -> None:
    """What all of this needs."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("ip or tc is not here: apt-get install iproute2")
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("network namespaces cannot be made here (root can)")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "shaped", lambda _link, _bandwidth: PLAIN)


@pytest.fixture
def has_netem() -> None:
    """Whether this kernel emulates networks."""
    try:
        with network.connected(LINK):
            pass
    except Unsupported as error:
        pytest.skip(f"tc cannot emulate a network here: {error}")


@contextmanager
def served(link: Link) -> Iterator[Endpoint]:
    """A null server at the other end."""
    with network.connected(link) as made, ExitStack() as stack:
        with made.other_end():
            endpoint = stack.enter_context(running(host=made.address))
        yield endpoint


def interfaces() -> set[str]:
    """Near ends of cables."""
    return {name for name in psutil.net_if_addrs() if name.startswith("plc")}


@pytest.mark.usefixtures("plain")
def test_a_server_at_the_other_end_is_asked_and_nothing_is_left_of_the_cable() -> None:
    before, home = interfaces(), OWN.readlink()
    with served(LINK) as endpoint:
        assert interfaces() - before == {f"plc{os.getpid()}"}
        trace = drive(endpoint, REQUESTS, STEADY)
    assert trace.ok.all()
    assert interfaces() == before
    assert OWN.readlink() == home


@pytest.mark.usefixtures("plain")
def test_a_failure_leaves_nothing_either() -> None:
    before = interfaces()
    with pytest.raises(RuntimeError, match="on purpose"), served(LINK):
        raise RuntimeError("on purpose")
    assert interfaces() == before


def test_who_is_killed_leaves_no_cable() -> None:
    program = f"""
import time
from paceline.load import network
from paceline.load.network import Link
network.shaped = lambda *_: {PLAIN!r}
with network.connected(Link()):
    print("up", flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        name = f"plc{process.pid}"
        assert name in interfaces()
        process.kill()
    deadline = time.monotonic() + 60
    while name in interfaces() and time.monotonic() < deadline:  # the kernel tidies up on its own time
        time.sleep(0.05)
    assert name not in interfaces()


def test_what_a_kernel_cannot_do_is_said_in_one_sentence_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = interfaces()
    monkeypatch.setattr(network, "shaped", lambda _link, _bandwidth: ["nosuchqueue"])
    with pytest.raises(Unsupported, match=r"network_by = tc: 'tc qdisc .*nosuchqueue' failed: .*; use client"):  # noqa: SIM117
        with network.connected(LINK):
            pass
    assert interfaces() == before


def test_who_is_not_root_is_told_so() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.seteuid(65534)
        try:
            with network.connected(LINK):
                os.write(writing, b"connected")
        except Unsupported as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        words = said.read()
    os.waitpid(child, 0)
    assert "network_by = tc needs a network namespace, which root alone can make" in words
    assert words.endswith("use client")


def test_without_tc_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else name)
    with pytest.raises(MissingDependency, match=r"tc is not available here; apt-get install iproute2"):  # noqa: SIM117
        with network.connected(LINK):
            pass


@pytest.mark.usefixtures("has_netem")
@pytest.mark.parametrize("link", [LINK, *PRESETS.values()], ids=["own", *PRESETS])
def test_no_answer_is_faster_than_the_link_and_the_client_emulates_about_the_same(link: Link) -> None:
    with served(link) as endpoint:
        by_tc = drive(endpoint, REQUESTS, STEADY)
    with running() as endpoint:
        by_client = drive(endpoint, REQUESTS, STEADY.model_copy(update={"network": link}))
    assert by_tc.ok.all() and by_client.ok.all()
    assert by_tc.latency.min() >= 2 * link.delay * 0.999  # tc counts in microseconds
    if link.delay >= 1e-3:  # below, the machines' own times are longer than the network's
        assert 1 / 3 <= np.median(by_tc.latency) / np.median(by_client.latency) <= 3
