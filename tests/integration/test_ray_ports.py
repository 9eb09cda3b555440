"""What the nodes of a Ray cluster listen at, and that nobody joins without the cluster's secret."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from support.cli import PLUGIN, Sandbox

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[cluster]'")
pytestmark = [pytest.mark.alone, pytest.mark.long]

HOST = "127.0.0.2"  # the private interface of these tests, which other machines do not reach
EVERYWHERE = {"::", "0.0.0.0"}
PORTS = 50  # of a node, as the guide says
PATIENCE = 150.0  # seconds; only what hangs takes so long
JOIN = (
    f"import ray, sys; ray.init(sys.argv[1], _node_ip_address='{HOST}', log_to_driver=False); print(len(ray.nodes()))"
)


@dataclass
class Led:
    """A leader of a Ray cluster in a process of its own."""

    sandbox: Sandbox
    port: int
    environment: dict[str, str]

    def listeners(self) -> set[tuple[str, int, str]]:
        """Addresses, ports, and the processes that listen there."""
        found = set()
        for process in self.sandbox.processes():
            with suppress(psutil.Error):
                for one in process.net_connections(kind="tcp"):
                    if one.status == psutil.CONN_LISTEN:
                        found.add((one.laddr.ip.removeprefix("::ffff:"), one.laddr.port, process.name()))
        return found

    def join(self, **settings: str) -> subprocess.CompletedProcess[str]:
        """A program of somebody's own that connects to the cluster."""
        return subprocess.run(
            [sys.executable, "-c", JOIN, f"{HOST}:{self.port}"],
            env=self.environment | settings,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )


@pytest.fixture(scope="module")
def led(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Led]:
    sandbox = Sandbox(tmp_path_factory.mktemp("ray"))
    temporary = tempfile.mkdtemp(prefix="paceline-ray-", dir="/tmp")  # a socket's path may not be long
    paths = os.pathsep.join(map(str, (PLUGIN, Path(__file__).parent.parent)))
    environment = sandbox.environment({"PYTHONPATH": paths, "RAY_TMPDIR": temporary})
    made = Led(sandbox, _free_port(), environment)
    leader = subprocess.Popen(
        [sys.executable, "-m", "support.leader_process", str(sandbox.folder), str(made.port)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert leader.stdout is not None
        assert leader.stdout.readline().strip() == "leading"
        yield made
    finally:
        sandbox.clean()
        leader.wait(30)
        shutil.rmtree(temporary, ignore_errors=True)


def _free_port() -> int:
    for port in range(31000, 20000, -100):  # away from those that other tests take
        with socket.socket() as tried, suppress(OSError):
            tried.bind((HOST, port))
            return port
    raise AssertionError("no free port")


def test_what_ray_opens_to_all_interfaces_is_within_the_ports_that_the_guide_names(led: Led) -> None:
    deadline = time.monotonic() + PATIENCE
    while not any("Follower" in name for _, _, name in led.listeners()):  # the actor is the last to come
        assert time.monotonic() < deadline, "no follower came up"
        time.sleep(0.2)
    listeners = led.listeners()
    print("\n".join(f"{address}:{port} {name}" for address, port, name in sorted(listeners)))
    wide = {(port, name) for address, port, name in listeners if address in EVERYWHERE}
    assert led.port in {port for port, _ in wide}, "Ray's head no longer listens on all interfaces: correct the guide"
    assert {(port, name) for port, name in wide if not led.port <= port <= led.port + PORTS} == set()
    assert {address for address, _, _ in listeners} - EVERYWHERE <= {HOST, "127.0.0.1"}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"RAY_AUTH_MODE": "disabled"}, id="no token"),
        pytest.param({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}, id="another token"),
    ],
)
def test_a_client_without_the_secret_is_refused(led: Led, settings: dict[str, str]) -> None:
    refused = led.join(**settings)
    assert refused.returncode != 0
    assert refused.stdout == ""


def test_a_client_with_the_secret_is_let_in(led: Led) -> None:
    joined = led.join(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(led.sandbox.folder / "ray-token"))
    assert joined.returncode == 0, joined.stderr
    assert joined.stdout.split() == ["1"]
