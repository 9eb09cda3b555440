"""One command measures over several hosts: real network namespaces, real ssh, and what goes wrong on the way."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from paceline.core.record import CauseKind, Outcome, Record
from paceline.runner.watcher import NAME as WATCHER
from paceline.version import VERSION
from support.cli import GENEROUS, Sandbox, sandbox_in
from support.namespaces import ADDRESSES, TwoHosts, two_hosts
from support.watching import Watched

WORD = "gpt2/nl2_fp32_2x1x1_mb2_gb4_{}"
SHAPE = ["--hidden", "64", "--heads", "4", "--sequence", "32", "--vocabulary", "256"]
SHORT = ["--steps", "2", "--warm-up", "1ms", "--no-report"]
LONG = ["--steps", "1000000", "--budget", "10min", "--warm-up", "1ms", "--no-report", "--json"]
TRACED_STEPS = 5
# Processes that only call themselves hosts, where the network between them does not matter.
NO_HOSTS = ["--hosts", "one,two", "--remote-shell", "env HOST={host}", "--master-address", "127.0.0.1"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    with two_hosts() as made:
        yield made


def only(sandbox: Sandbox) -> Record:
    (record,) = sandbox.load().records
    return record


def parallel(machines: str, *more: str) -> list[str]:
    return ["run", "parallel", "--case", WORD.format(machines), *SHAPE, *more]


def losses(record: Record) -> list[float]:
    found = record.measurement("loss")
    assert found is not None, record.cause
    return found.samples


def rank_processes(sandbox: Sandbox, hosts: TwoHosts) -> list[psutil.Process]:
    """Of the case in flight on the second host: what its warm server forked, but for what watches the machine."""
    there = [process for process in sandbox.processes() if hosts.in_second(process)]
    servers = {other.pid for other in there if is_warm(other)}
    return [process for process in there if process.ppid() in servers and process.name() != WATCHER]


def is_warm(process: psutil.Process) -> bool:
    return (
        "paceline.runner.fork_server" in process.cmdline()
        and "paceline.runner.fork_server" not in process.parent().cmdline()
    )  # type: ignore[union-attr]


@pytest.mark.long
def test_two_hosts_train_what_two_ranks_of_one_host_train_and_the_gradients_cross_the_cable(
    hosts: TwoHosts, tmp_path: Path
) -> None:
    with sandbox_in(tmp_path / "apart") as apart:
        before = hosts.carried()
        done = apart.run(*parallel("2n1g", *SHORT, *hosts.flags))
        after = hosts.carried()
        assert done.returncode == 0, done.stdout + done.stderr
        assert apart.left_behind() == []
        record = only(apart)
        assert apart.load().run.environment.is_known
    with sandbox_in(tmp_path / "together") as together:
        done = together.run(*parallel("1n2g", *SHORT))
        assert done.returncode == 0, done.stdout + done.stderr
        beside = only(together)
    assert record.outcome is Outcome.OK
    assert (record.facts["ranks"], record.facts["nodes"]) == (2, 2)
    assert record.facts["hosts"] == [hosts.first, hosts.second]
    assert record.measurement("step_time", "rank 1") is not None
    assert losses(record) == pytest.approx(losses(beside), rel=1e-6)
    assert len(set(losses(record))) == TRACED_STEPS  # it trains
    gradient = 4 * record.facts["parameter_count"]
    # An all-reduce of two ranks sends as many bytes as the gradient has, each way.
    for sent in (after[0] - before[0], after[1] - before[1]):
        assert sent >= (TRACED_STEPS + 2) * gradient


@pytest.mark.long
def test_a_rank_that_is_killed_on_another_host_is_the_cause(hosts: TwoHosts, sandbox: Sandbox) -> None:
    watched = Watched.start(
        sandbox, *parallel("2n1g", *LONG, "--timeout", "100s", *hosts.flags, "--master-address", ADDRESSES[0])
    )
    assert watched.wait_for("case_progress", phase="measuring"), watched.finish()
    (victim,) = rank_processes(sandbox, hosts)
    victim.kill()
    assert watched.finish() == 1, watched.errors
    record = only(sandbox)
    assert record.outcome is Outcome.FAILED
    assert record.cause is not None
    assert (record.cause.rank, record.cause.kind) == (1, CauseKind.INTERRUPTED)
    assert "SIGKILL" in record.cause.message
    assert hosts.second in record.cause.message
    assert record.seconds < 60
    assert sandbox.left_behind() == []
    elsewhere = sandbox.run("run", "--resume", "last")
    assert elsewhere.returncode == 2
    assert "is for 2 nodes, but it would run on 1: give the same --hosts as before" in elsewhere.stderr


@pytest.mark.long
def test_a_cable_that_is_pulled_ends_the_case_by_its_timeout(hosts: TwoHosts, sandbox: Sandbox) -> None:
    watched = Watched.start(sandbox, *parallel("2n1g", *LONG, "--timeout", "30s", *hosts.flags))
    try:
        assert watched.wait_for("case_progress", phase="measuring"), watched.finish()
        hosts.cut()
        assert watched.finish() == 1, watched.errors
    finally:
        hosts.mend()
    record = only(sandbox)
    assert record.outcome is Outcome.TIMEOUT
    assert record.cause is not None
    assert record.cause.rank in (0, 1)
    assert record.measurement("step_time") is not None  # what it had seen until then
    assert sandbox.left_behind() == []


def test_a_host_that_cannot_be_entered_is_named_before_anything_is_measured(hosts: TwoHosts, sandbox: Sandbox) -> None:
    flags = [word.replace(hosts.second, "nowhere") for word in hosts.flags]
    done = sandbox.run(*parallel("2n1g", *SHORT, *flags))
    assert done.returncode == 2
    assert "nowhere cannot be used: its process ended with code" in done.stderr
    assert "nowhere: Cannot open network namespace" in done.stderr
    assert hosts.first not in done.stderr
    assert not sandbox.store.exists()
    assert sandbox.left_behind() == []


def test_a_first_host_that_the_others_do_not_reach_is_said_before_anything_is_measured(
    hosts: TwoHosts, sandbox: Sandbox
) -> None:
    own = ["--master-address", "127.0.0.1"]  # which is another machine on every host
    done = sandbox.run(*parallel("2n1g", *SHORT, *hosts.flags, *own))
    assert done.returncode == 2
    assert f"{hosts.second} cannot reach the first host at 127.0.0.1" in done.stderr
    assert "--master-address" in done.stderr
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_processes_that_a_launcher_started_on_two_hosts_find_each_other(hosts: TwoHosts, sandbox: Sandbox) -> None:
    """The first host's name is the loopback there, so that gloo alone would tell the second to call itself."""

    def start(host: str, rank: int) -> subprocess.Popen[str]:
        told = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        told |= {"MASTER_ADDR": hosts.first, "MASTER_PORT": 29512}
        command = ["ip", "netns", "exec", host, sys.executable, "-m", "paceline", *parallel("2n1g", *SHORT)]
        environment = sandbox.environment({name: str(value) for name, value in told.items()})
        return subprocess.Popen(command, cwd=sandbox.work, env=environment, stderr=subprocess.PIPE, text=True)

    processes = [start(hosts.first, 0), start(hosts.second, 1)]
    errors = [process.communicate(timeout=GENEROUS)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    record = only(sandbox)
    assert record.outcome is Outcome.OK
    assert record.facts["ranks"] == 2
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_the_first_cause_counts_and_a_host_that_was_lost_is_entered_again(sandbox: Sandbox) -> None:
    suite = sandbox.suite(
        {"benchmark": "rankfail", "how": "both", "timeout": "90s"},
        {"benchmark": "hang", "timeout": "60s"},
        {"benchmark": "rankfail", "how": "kill", "timeout": "90s"},
    )
    watched = Watched.start(sandbox, "run", suite, "--no-report", "--json", *NO_HOSTS)
    assert watched.wait_for("case_progress", index=1)
    agent_on(sandbox, "two").kill()
    agent_on(sandbox, "one").kill()
    assert watched.finish() == 1
    raised, hung, killed = sandbox.load().records
    assert raised.cause is not None
    assert (raised.cause.rank, raised.cause.kind) == (1, CauseKind.ERROR)
    assert raised.cause.message == "ValueError: rank one has a fault of its own (on two)"
    assert hung.cause is not None
    assert (hung.cause.rank, hung.cause.kind) == (None, CauseKind.INTERRUPTED)  # it runs on the first host alone
    assert hung.cause.message == "one was lost: its process was ended by SIGKILL"
    assert killed.cause is not None
    assert killed.cause.rank == 1
    assert "SIGKILL" in killed.cause.message
    assert sandbox.left_behind() == []


def agent_on(sandbox: Sandbox, host: str) -> psutil.Process:
    """The agent that runs on a host; ranks of the case before may be ending while one looks."""
    found = []
    for process in sandbox.processes():
        with suppress(psutil.Error):
            if process.environ().get("HOST") == host and "paceline.runner.agent" in process.cmdline():
                found.append(process)
    (agent,) = found
    return agent


def test_an_interrupt_ends_everything_everywhere(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "hang", "timeout": "100s"})
    watched = Watched.start(sandbox, "run", suite, "--no-report", "--json", *NO_HOSTS)
    assert watched.wait_for("case_progress")
    os.killpg(watched.process.pid, signal.SIGINT)
    assert watched.finish() == 130
    resumed = f"paceline run --resume {watched.run_id} --hosts one,two --remote-shell 'env HOST={{host}}'"
    assert resumed in watched.errors
    assert sandbox.left_behind() == []


def test_a_command_that_is_killed_leaves_nothing_on_the_hosts(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "hang", "timeout": "100s"})
    watched = Watched.start(sandbox, "run", suite, "--no-report", "--json", *NO_HOSTS)
    assert watched.wait_for("case_progress")
    watched.process.kill()
    watched.finish()
    assert sandbox.left_behind() == []


def interpreter(sandbox: Sandbox, name: str, script: str) -> str:
    """An interpreter on a host, which this script stands for."""
    path = sandbox.folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_a_host_without_paceline_is_named(sandbox: Sandbox) -> None:
    python = interpreter(sandbox, "bare", f'exec {sys.executable} -S "$@"')
    done = sandbox.run("run", "nap", *NO_HOSTS, "--remote-python", python)
    assert done.returncode == 2
    assert f"one has no paceline {VERSION} for {python}" in done.stderr
    assert f"two has no paceline {VERSION} for {python}" in done.stderr
    assert "No module named" in done.stderr
    assert not sandbox.store.exists()


def test_a_host_with_another_version_is_named(sandbox: Sandbox) -> None:
    program = (
        "import runpy, paceline.version as own; own.VERSION = '0.0.7';"
        "runpy.run_module('paceline.runner.agent', run_name='__main__')"
    )
    python = interpreter(sandbox, "old", f'exec {sys.executable} -P -c "{program}"')
    done = sandbox.run("run", "nap", *NO_HOSTS, "--remote-python", python)
    assert done.returncode == 2
    # Both have, and whichever answers first is named.
    assert re.search(rf"(one|two) has paceline 0\.0\.7, but this is {re.escape(VERSION)}", done.stderr), done.stderr
    assert not sandbox.store.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (parallel("2n1g"), "its layout is for 2 nodes, but it would run on 1: name the hosts with --hosts a,b"),
        (parallel("1n2g", *NO_HOSTS), "its layout is for 1 nodes, but it would run on 2"),
        (parallel("2n1g", "--hosts", "one:2,two", *NO_HOSTS[2:]), "call for 2 ranks, but there are 3"),
        (["run", "nap", "--hosts", "one,one"], "duplicate host 'one'"),
        (["run", "nap", "--hosts", "one", "--remote-shell", "ssh there"], "for the name of the host"),
        (["run", "nap", "--remote-shell", "ssh {host}"], "go with --hosts"),
        (["run", "nap", "--hosts", "hosts/none"], "there is no such file"),
    ],
)
def test_what_does_not_fit_is_refused(sandbox: Sandbox, words: list[str], message: str) -> None:
    done = sandbox.ask(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert sandbox.left_behind() == []


@contextmanager
def ssh_server(folder: Path) -> Iterator[list[str]]:
    """An ssh server on the loopback, and how to get in."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if server is None:
        pytest.skip("sshd is not here: apt-get install openssh-server")
    folder.mkdir(mode=0o700)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    shutil.copy(folder / "user.pub", folder / "allowed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    settings = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "allowed",
    }
    settings |= {"StrictModes": "no", "UsePAM": "no", "PidFile": "none", "PermitRootLogin": "yes"}
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen([server, "-D", "-e", "-f", "/dev/null", *options], stderr=subprocess.PIPE)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                    break
            time.sleep(0.05)
        yield ["ssh", "-F", "none", "-p", port, "-i", str(folder / "user"), "-o", "StrictHostKeyChecking=no"]
    finally:
        process.terminate()
        process.communicate(timeout=10)


def test_ssh_enters_a_host_whose_interpreter_has_a_space_in_its_path(sandbox: Sandbox, tmp_path: Path) -> None:
    with ssh_server(tmp_path / "ssh") as way:
        shell = " ".join([*way, "-o", f"UserKnownHostsFile={tmp_path}/known", "-o", "BatchMode=yes", "{host}"])
        python = interpreter(sandbox, "my python", f'exec {sys.executable} "$@"')
        hosts = ["--hosts", "127.0.0.1", "--remote-shell", shell]
        suite = sandbox.suite({"benchmark": "nap", "steps": 3})
        done = sandbox.run("run", suite, "--no-report", *hosts, "--remote-python", python)
        assert done.returncode == 0, done.stdout + done.stderr
        record = only(sandbox)
        assert record.outcome is Outcome.OK
        step_time = record.measurement("step_time")
        assert step_time is not None
        assert len(step_time.samples) == 3
        refused = sandbox.run("run", suite, *hosts, "--remote-python", "/nowhere/python")
        assert refused.returncode == 2
        assert "127.0.0.1 cannot be used: its process ended with code 127" in refused.stderr
        assert "/nowhere/python" in refused.stderr
