"""Micro benchmarks of disk, TCP and RDMA through the real command: what they yield, and what they leave behind."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from paceline.benchmarks.storage import disk
from paceline.core.network import free_port
from paceline.core.record import CauseKind, Outcome, Record
from support.cli import Sandbox, case_processes
from support.watching import Watched

needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed here: apt-get install fio")
needs_iperf3 = pytest.mark.skipif(
    shutil.which("iperf3") is None, reason="iperf3 is not installed here: apt-get install iperf3"
)
ALONE = ("--no-report", "--json")
SHORT = ("--size", "16MiB", "--budget", "0.5s", "--warm-up", "0.3s")
QUICK = ("--budget", "0.2s", "--warm-up", "0.1s", "--streams", "1,2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if disk.file_system_of(tmp_path) in disk.IN_MEMORY:
        pytest.skip("temporary files are in memory here: set TMPDIR to a folder on a disk")
    made = tmp_path / "scratch"
    made.mkdir()
    return made


def only(sandbox: Sandbox) -> Record:
    (record,) = sandbox.load().records
    return record


def without(sandbox: Sandbox, program: str) -> dict[str, str]:
    """An environment in which a program does not exist."""
    folders = [path for path in os.environ["PATH"].split(os.pathsep) if not (Path(path) / program).exists()]
    return {"PATH": os.pathsep.join([str(Path(sys.executable).parent), *folders])}


@needs_fio
@pytest.mark.long
def test_every_pattern_yields_its_figures_and_leaves_no_file(sandbox: Sandbox, folder: Path) -> None:
    patterns = "read,write,random-read,random-write,mixed,random-mixed"
    done = sandbox.ask("run", "disk", "--pattern", patterns, "--folder", str(folder), *SHORT, *ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    records = sandbox.load().records
    assert [record.case.parameters["pattern"] for record in records] == patterns.split(",")
    for record in records:
        assert_figures_agree(record)
    assert list(folder.iterdir()) == []


def assert_figures_agree(record: Record) -> None:
    bandwidth, iops, latency = (record.measurement(name) for name in ("bandwidth", "iops", "latency"))
    assert bandwidth is not None
    assert iops is not None
    assert latency is not None
    assert bandwidth.value == pytest.approx(iops.value * record.facts["block_size"])
    percentiles = [latency.summary.percentiles[name] for name in ("50", "95", "99", "99.9")]
    assert percentiles == sorted(percentiles)
    assert percentiles[0] == latency.value > 0
    parts = [record.measurement("bandwidth", at={"direction": name}) for name in ("read", "write")]
    if "mixed" in record.case.parameters["pattern"]:
        assert sum(part.value for part in parts if part) == pytest.approx(bandwidth.value)
        reads = record.measurement("iops", at={"direction": "read"})
        assert reads is not None
        assert 0.5 < reads.value / iops.value < 0.9
    else:
        assert parts == [None, None]
    assert any(warning.kind == "buffered" for warning in record.warnings) == (not record.facts["direct"])


@needs_fio
@pytest.mark.long
@pytest.mark.parametrize("engine", ["libaio", "psync"])
def test_engines_and_jobs(sandbox: Sandbox, folder: Path, engine: str) -> None:
    given = ("--engine", engine, "--jobs", "2", "--pattern", "random-read")
    done = sandbox.ask("run", "disk", *given, "--folder", str(folder), *SHORT, *ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert only(sandbox).facts["engine"] == engine
    assert only(sandbox).facts["jobs"] == 2


@needs_fio
def test_a_killed_case_leaves_neither_file_nor_fio(sandbox: Sandbox, folder: Path) -> None:
    given = ("--pattern", "random-write", "--folder", str(folder), "--size", "64MiB", "--steps", "1000")
    watched = Watched.start(sandbox, "run", "disk", *given, *ALONE)
    assert watched.wait_for("case_progress", phase="measuring")
    (case,) = case_processes(watched.process.pid)
    while not any(child.name() == "fio" for child in case.children(recursive=True)):
        time.sleep(0.01)  # between two of them
    case.kill()
    assert watched.finish() == 1
    assert list(folder.iterdir()) == []
    assert sandbox.left_behind() == []
    cause = only(sandbox).cause
    assert cause is not None
    assert cause.kind is CauseKind.INTERRUPTED


@pytest.mark.long
@needs_fio
def test_a_killed_fio_takes_its_jobs_with_it(sandbox: Sandbox, folder: Path) -> None:
    given = ("--pattern", "random-write", "--jobs", "2", "--folder", str(folder), "--size", "64MiB", "--steps", "1000")
    watched = Watched.start(sandbox, "run", "disk", *given, *ALONE)
    assert watched.wait_for("case_progress", phase="measuring")
    (case,) = case_processes(watched.process.pid)
    while not (programs := [child for child in case.children(recursive=True) if child.name() == "fio"]):
        time.sleep(0.01)  # between two of them
    assert len(programs) == 1, "jobs are threads, which cannot outlive it"
    programs[0].kill()
    assert watched.finish() == 1
    record = only(sandbox)
    assert record.cause is not None
    assert "fio was ended by SIGKILL" in record.cause.message
    assert record.measurements, "what was measured until then is kept"


@pytest.mark.long
@needs_fio
def test_a_killed_runner_leaves_neither_file_nor_fio(sandbox: Sandbox, folder: Path) -> None:
    given = ("--folder", str(folder), "--size", "64MiB", "--steps", "1000")
    watched = Watched.start(sandbox, "run", "disk", *given, *ALONE)
    assert watched.wait_for("case_progress", phase="measuring")
    watched.process.kill()
    watched.finish()
    assert sandbox.left_behind() == []
    assert list(folder.iterdir()) == []
    assert list((sandbox.folder / "tmp").glob("paceline-*")) == []


@needs_fio
@pytest.mark.skipif(disk.file_system_of(Path("/dev/shm")) != "tmpfs", reason="/dev/shm is no tmpfs here")
def test_memory_and_full_disks_are_not_measured(sandbox: Sandbox, folder: Path) -> None:
    suite = sandbox.suite(
        {"benchmark": "disk", "folder": "/dev/shm"},
        {"benchmark": "disk", "folder": str(folder), "size": "100000TB"},
    )
    assert sandbox.ask("run", suite, *ALONE).returncode == 1, "nothing was measured"
    memory, full = sandbox.load().records
    assert memory.outcome is full.outcome is Outcome.UNSUPPORTED
    assert memory.cause is not None
    assert "tmpfs" in memory.cause.message
    assert full.cause is not None
    assert "free" in full.cause.message


def test_without_fio_it_says_what_to_install(sandbox: Sandbox) -> None:
    assert sandbox.ask("run", "disk", *ALONE, env=without(sandbox, "fio")).returncode == 1
    record = only(sandbox)
    assert record.outcome is Outcome.UNSUPPORTED
    assert record.cause is not None
    assert record.cause.kind is CauseKind.MISSING_DEPENDENCY
    assert "apt install fio" in record.cause.message


def test_a_raw_device_is_not_written_without_saying_so(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "disk", "--pattern", "write", "--raw-device", "/dev/null", *ALONE)
    assert done.returncode == 2
    assert "destroy_data" in done.stderr
    done = sandbox.ask("run", "disk", "--pattern", "write", "--raw-device", "/dev/null", "--destroy-data", *ALONE)
    assert done.returncode == 2
    assert "not a block device" in done.stderr
    assert not sandbox.store.exists()


def test_a_folder_that_does_not_exist_is_refused_before_anything_runs(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "node-check", "--folder", "nowhere", *ALONE)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "folder 'nowhere' does not exist" in done.stderr
    assert not sandbox.store.exists()


def test_loopback_has_figures_of_everything(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "tcp", *QUICK, *ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    record = only(sandbox)
    success, connect, trip, whole = (
        record.measurement(name) for name in ("success_rate", "connect_time", "round_trip_time", "bandwidth")
    )
    assert success is not None
    assert success.value == 100.0
    assert connect is not None
    assert len(connect.samples) == 20
    assert trip is not None
    assert len(trip.samples) > 50
    points = [record.measurement("bandwidth", at={"streams": streams}) for streams in (1, 2)]
    assert all(point is not None and point.value > 0 for point in points)
    assert whole is not None
    assert points[1] is not None
    assert whole.value == points[1].value
    assert record.facts["engine"] == "own"
    assert sandbox.left_behind() == []


@needs_iperf3
def test_iperf3_on_loopback(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "tcp", "--engine", "iperf3", *QUICK, *ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    record = only(sandbox)
    assert record.facts["engine"] == "iperf3"
    assert record.measurement("bandwidth", at={"streams": 2}) is not None
    assert record.measurement("round_trip_time") is not None
    assert sandbox.left_behind() == []


@contextmanager
def running(command: list[str], ready: str) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any(ready in line for line in process.stdout)
            Thread(target=process.stdout.read, daemon=True).start()  # a pipe that is full would stop it
            yield
        finally:
            process.kill()


@pytest.mark.long
def test_a_peer_that_somebody_started_is_used(sandbox: Sandbox) -> None:
    port = str(free_port())
    command = [sys.executable, "-m", "paceline.benchmarks.communication._tcp_peer", "--port", port]
    with running(command, port):
        done = sandbox.ask("run", "tcp", "--remote-host", f"127.0.0.1:{port}", *QUICK, *ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert only(sandbox).facts["engine"] == "own"
    assert only(sandbox).measurement("round_trip_time") is not None


@pytest.mark.long
@needs_iperf3
def test_a_peer_that_is_iperf3_is_recognised(sandbox: Sandbox) -> None:
    port = str(free_port())
    with running(["iperf3", "--server", "--bind", "127.0.0.1", "--port", port, "--forceflush"], "listening"):
        done = sandbox.ask("run", "tcp", "--remote-host", f"127.0.0.1:{port}", "--attempts", "3", *QUICK, *ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    record = only(sandbox)
    assert record.facts["engine"] == "iperf3"
    assert record.measurement("bandwidth") is not None
    assert record.measurement("round_trip_time") is None


@pytest.mark.long
def test_hosts_are_told_apart_and_a_closed_port_fails_the_case(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as first, socket.create_server(("127.0.0.1", 0)) as second:
        open_ports = [f"127.0.0.1:{one.getsockname()[1]}" for one in (first, second)]
        done = sandbox.ask("run", "tcp", "--endpoints", ",".join(open_ports), "--attempts", "5", *ALONE)
        assert done.returncode == 0, done.stdout + done.stderr
        record = only(sandbox)
        for label in open_ports:
            connect = record.measurement("connect_time", at={"host": label})
            assert connect is not None
            assert len(connect.samples) == 5
        closed = f"127.0.0.1:{free_port()}"
        done = sandbox.ask("run", "tcp", "--endpoints", f"{open_ports[0]},{closed}", "--attempts", "5", *ALONE)
    assert done.returncode == 1
    record = only(sandbox)
    assert record.outcome is Outcome.FAILED
    assert record.cause is not None
    assert closed in record.cause.message
    assert "Connection refused" in record.cause.message
    assert open_ports[0] not in record.cause.message


def test_a_killed_case_ends_its_peer(sandbox: Sandbox) -> None:
    watched = Watched.start(sandbox, "run", "tcp", "--steps", "1000000000", *ALONE)
    assert watched.wait_for("case_progress", phase="measuring")
    (case,) = case_processes(watched.process.pid)
    assert any("_tcp_peer" in " ".join(child.cmdline()) for child in case.children())
    case.kill()
    assert watched.finish() == 1
    assert sandbox.left_behind() == []


@pytest.mark.long
@pytest.mark.skipif(
    Path("/sys/class/infiniband").is_dir() and any(Path("/sys/class/infiniband").iterdir()), reason="there is RDMA here"
)
def test_without_rdma_it_is_unsupported_and_a_failure_only_where_required(sandbox: Sandbox) -> None:
    tcp = {"benchmark": "tcp", "budget": "0.1s", "warm_up": "0.1s", "streams": [1]}
    assert sandbox.ask("run", sandbox.suite({"benchmark": "rdma"}, tcp), *ALONE).returncode == 0
    record = sandbox.load().records[0]
    assert record.outcome is Outcome.UNSUPPORTED
    assert record.cause is not None
    assert "/sys/class/infiniband" in record.cause.message
    required = sandbox.suite({"benchmark": "rdma", "require": True}, tcp, name="required.yaml")
    assert sandbox.ask("run", required, *ALONE).returncode == 1
    assert sandbox.ask("run", "rdma", *ALONE).returncode == 1, "nothing was measured"
