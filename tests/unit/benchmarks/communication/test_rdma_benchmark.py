"""The rdma benchmark around perftest: stand-ins for its programs replay recorded tables, for want of an adapter."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.benchmarks._micro.tools import ToolError
from paceline.benchmarks.communication import rdma
from paceline.benchmarks.communication.rdma import Rdma, RdmaParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import MissingDependency, Unsupported
from paceline.core.record import Result
from support.perftest import MEET
from support.recordings import DATA
from support.refused import refused

STAND_IN = (
    """#!{python}
import os, socket, sys, time
from pathlib import Path
port = int(sys.argv[sys.argv.index("--port") + 1])
if sys.argv[-1] == str(port):
    if os.environ.get("FAIL_SERVER"):
        sys.exit("Unable to create QP")
    time.sleep(0.1)
"""
    + MEET
    + """print(Path({table!r}).read_text(), end="")
"""
)


@pytest.fixture
def perftest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an adapter, and perftest's programs for it."""
    devices, programs = tmp_path / "infiniband", tmp_path / "bin"
    for folder in (devices / "mlx5_0", devices / "mlx5_1", programs):
        folder.mkdir(parents=True)
    latency = (DATA / "perftest/read-lat.txt").read_text().replace(" 2       1000 ", " 8       1000 ")
    (tmp_path / "latency.txt").write_text(latency)
    for name, table in (("ib_write_bw", DATA / "perftest/write-bw-all-gbits.txt"), ("ib_write_lat", "latency.txt")):
        program = programs / name
        program.write_text(STAND_IN.format(python=sys.executable, table=str(tmp_path / table)))
        program.chmod(0o755)
    monkeypatch.setattr(rdma, "DEVICES", devices)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return programs


def measure(**given: Any) -> Result:
    parameters = RdmaParameters.read({"steps": 2} | given)
    case = Case(index=0, benchmark="rdma", parameters=given, title="")
    Rdma.check(parameters, case)
    return Rdma().measure(parameters, Context(case=case))


def test_bandwidth_of_every_size_and_the_largest_for_the_case(perftest: Path) -> None:
    result = measure(measure="bandwidth", sizes=["8B", "64KiB", "8MiB"])
    values = {(m.metric.name, m.at.get("size")): m.value for m in result.measurements}
    assert values["bandwidth_average", 8] == pytest.approx(0.54e9 / 8)
    assert values["bandwidth_average", 65536] == pytest.approx(203.85e9 / 8)
    assert values["bandwidth_peak", 65536] == pytest.approx(204.12e9 / 8)
    assert values["bandwidth_average", None] == pytest.approx(204.59e9 / 8)
    assert values["time", 8388608] == pytest.approx(8388608 / (204.59e9 / 8))
    assert result.facts["device"] == "mlx5_0"


def test_latency_of_the_smallest_for_the_case(perftest: Path) -> None:
    result = measure(measure="latency", sizes=[8], device="mlx5_1")
    values = {(m.metric.name, m.at.get("size")): m.value for m in result.measurements}
    assert values["latency", None] == values["latency", 8] == pytest.approx(1.79e-6)
    assert values["latency_99", None] == pytest.approx(1.88e-6)
    assert result.facts["device"] == "mlx5_1"


def test_a_size_that_was_not_told_is_an_error(perftest: Path) -> None:
    with pytest.raises(ToolError, match="no figure for 16 B"):
        measure(measure="latency", sizes=[16])


def test_a_server_that_fails_is_heard(perftest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL_SERVER", "1")
    with pytest.raises(ToolError, match="Unable to create QP"):
        measure()


def test_a_peer_that_never_listens_is_an_error(perftest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma, "SERVER_SECONDS", 0.3)
    with pytest.raises(ToolError, match="Couldn't connect to"):
        measure(remote_host="127.0.0.1", port=1)


def test_without_a_device_it_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path / "absent", tmp_path):
        monkeypatch.setattr(rdma, "DEVICES", folder)
        with pytest.raises(Unsupported, match=r"no RDMA device .* is empty"):
            measure()


def test_another_device_than_those_there_is_unsupported(perftest: Path) -> None:
    with pytest.raises(Unsupported, match="use mlx5_0, mlx5_1"):
        measure(device="mlx5_7")


def test_without_perftest_it_says_what_to_install(perftest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingDependency, match="apt install perftest"):
        measure()


@pytest.mark.parametrize(
    ("given", "code", "key"),
    [
        ({"sizes": [3]}, "not-a-power-of-two", "sizes"),
        ({"sizes": ["16MiB"]}, "not-a-power-of-two", "sizes"),
        ({"sizes": [1]}, "not-a-power-of-two", "sizes"),
        ({"remote_host": "-h"}, "invalid-value", "remote_host"),
        ({"device": "--help"}, "invalid-value", "device"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], code: str, key: str) -> None:
    with refused(code, key=key):
        measure(**given)


def test_all_devices_at_the_same_time_add_up(perftest: Path) -> None:
    one = measure(measure="bandwidth", sizes=["64KiB"])
    both = measure(measure="bandwidth", sizes=["64KiB"], device="all")
    [alone, together] = [
        next(m.value for m in result.measurements if m.metric.name == "bandwidth_average") for result in (one, both)
    ]
    assert together == pytest.approx(2 * alone)
    assert both.facts["device"] == "mlx5_0, mlx5_1"
    assert "bandwidth_peak" not in {m.metric.name for m in both.measurements}
    slowest = measure(measure="latency", sizes=[8], device="all")
    assert slowest.measurements[0].value == pytest.approx(1.79e-6)


def test_queue_pairs_and_gpu_memory_are_asked_of_perftest(perftest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    genuine = rdma.run_client

    def noted(command: list[str], peer: str | None) -> str:
        commands.append(command)
        return genuine(command, peer)

    monkeypatch.setattr(rdma, "run_client", noted)
    result = measure(sizes=[8], queue_pairs=4, cuda=1)
    bandwidth, latency = (next(c for c in commands if c[0].endswith(end)) for end in ("_bw", "_lat"))
    assert bandwidth[bandwidth.index("--qp") + 1] == "4"
    assert "--qp" not in latency
    assert "--use_cuda=1" in bandwidth and "--use_cuda=1" in latency
    assert result.facts["memory"] == "that of GPU 1"
