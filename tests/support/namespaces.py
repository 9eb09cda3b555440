"""Hosts that are not there: network namespaces, two of them joined by a cable, or several by a switch.

Each knows the other by name, and itself by the loopback, as many distributions set it up.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ADDRESSES = ("10.77.0.1", "10.77.0.2")
NAMES = Path("/etc/netns")  # whose files `ip netns exec` puts over those of /etc


@dataclass(frozen=True)
class TwoHosts:
    """The names of the namespaces; each has one interface beside its loopback."""

    first: str
    second: str
    interface: str = "paceline0"

    @property
    def flags(self) -> list[str]:
        """What `paceline run` must be told."""
        return ["--hosts", f"{self.first},{self.second}", "--remote-shell", "ip netns exec {host}"]

    def carried(self) -> tuple[int, int]:
        """Bytes that have left the first host, and that have come to it."""
        folder = f"/sys/class/net/{self.interface}/statistics"
        said = ip("netns", "exec", self.first, "cat", f"{folder}/tx_bytes", f"{folder}/rx_bytes").split()
        return int(said[0]), int(said[1])

    def cut(self) -> None:
        """Pull the cable out of the second host."""
        ip("-n", self.second, "link", "set", self.interface, "down")

    def mend(self) -> None:
        """Put it back."""
        ip("-n", self.second, "link", "set", self.interface, "up")

    def in_second(self, process: psutil.Process) -> bool:
        """Whether a process is on the second host."""
        own = Path(f"/proc/{process.pid}/ns/net")
        return own.exists() and own.stat().st_ino == Path(f"/run/netns/{self.second}").stat().st_ino


def ip(*words: str) -> str:
    """`ip ...`, which must succeed; what it printed."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def _make(names: Sequence[str]) -> None:
    """Empty namespaces; skips loudly where they cannot be made."""
    try:
        for name in names:
            ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here (root can): {error.stderr.strip()}")


def _set_up(name: str, interface: str, addresses: dict[str, str], *, by_loopback: bool = False) -> None:
    """A host, whose interface exists: it knows the others by name, and itself by its address or the loopback."""
    known = addresses | {"localhost": "127.0.0.1"} | ({name: "127.0.1.1"} if by_loopback else {})
    (NAMES / name).mkdir(parents=True)
    (NAMES / name / "hosts").write_text("".join(f"{where} {who}\n" for who, where in known.items()))
    ip("-n", name, "address", "add", f"{addresses[name]}/24", "dev", interface)
    ip("-n", name, "link", "set", "lo", "up")
    ip("-n", name, "link", "set", interface, "up")


def _remove(names: Sequence[str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        shutil.rmtree(NAMES / name, ignore_errors=True)


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Two namespaces of our own; skips loudly where they cannot be made."""
    if shutil.which("ip") is None:
        pytest.skip("ip is not here: apt-get install iproute2")
    hosts = TwoHosts(f"paceline-{os.getpid()}-1", f"paceline-{os.getpid()}-2")
    names = (hosts.first, hosts.second)
    try:
        _make(names)
        end = ("name", hosts.interface, "netns")
        ip("link", "add", *end, hosts.first, "type", "veth", "peer", *end, hosts.second)
        addresses = dict(zip(names, ADDRESSES, strict=True))
        for name in names:
            _set_up(name, hosts.interface, addresses, by_loopback=True)
        yield hosts
    finally:
        _remove(names)


@dataclass(frozen=True)
class SwitchedHosts:
    """Namespaces at one switch, each with one interface of a known speed beside its loopback."""

    names: tuple[str, ...]
    interface: str = "paceline0"

    @property
    def flags(self) -> list[str]:
        """What `paceline run` must be told."""
        return ["--hosts", ",".join(self.names), "--remote-shell", "ip netns exec {host}"]

    def address(self, name: str) -> str:
        return f"10.78.0.{self.names.index(name) + 1}"

    def limit(self, name: str, rate: str, slow: dict[str, str] | None = None) -> None:
        """How fast a host sends: to all, and to those that are named."""
        in_host = ["ip", "netns", "exec", name, "tc"]
        at = ["dev", self.interface]
        subprocess.run([*in_host, "qdisc", "del", *at, "root"], check=False, capture_output=True)  # an earlier one
        commands = [["qdisc", "add", *at, "root", "handle", "1:", "htb", "default", "10"]]
        for number, (whom, speed) in enumerate({"": rate, **(slow or {})}.items()):
            kind = ["htb", "rate", speed, "ceil", speed, "burst", "15k", "cburst", "15k"]
            commands.append(["class", "add", *at, "parent", "1:", "classid", f"1:{number + 10}", *kind])
            if whom:
                match = ["u32", "match", "ip", "dst", f"{self.address(whom)}/32", "flowid", f"1:{number + 10}"]
                commands.append(["filter", "add", *at, "parent", "1:", "protocol", "ip", *match])
        for words in commands:
            subprocess.run([*in_host, *words], check=True, capture_output=True, text=True)


@contextmanager
def switched_hosts(count: int) -> Iterator[SwitchedHosts]:
    """So many namespaces of our own at a switch; skips loudly where they cannot be made."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("ip or tc is not here: apt-get install iproute2")
    switch = f"pls{os.getpid()}"
    hosts = SwitchedHosts(tuple(f"paceline-{os.getpid()}-s{number}" for number in range(count)))
    try:
        _make((switch, *hosts.names))
        try:
            ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"the kernel has no bridges (modprobe bridge): {error.stderr.strip()}")
        ip("-n", switch, "link", "set", "bridge0", "up")
        for number, name in enumerate(hosts.names):
            end = ("name", hosts.interface, "netns", name, "type", "veth")
            ip("link", "add", *end, "peer", "name", f"port{number}", "netns", switch)
            ip("-n", switch, "link", "set", f"port{number}", "master", "bridge0", "up")
            _set_up(name, hosts.interface, {one: hosts.address(one) for one in hosts.names})
        yield hosts
    finally:
        _remove((switch, *hosts.names))


SSH_PORT = 2222


@dataclass
class SshHost:
    """A namespace with a cable to this one, and an ssh server in it."""

    name: str
    number: int
    folder: Path  # of the keys
    variables: dict[str, str]  # of what is started there
    _server: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"10.79.{self.number}.2"

    @property
    def outer(self) -> str:
        """The end of its cable that is here."""
        return f"plh{os.getpid() % 100_000}x{self.number}"

    def lay(self) -> None:
        """Make the namespace and its cable."""
        ip("netns", "add", self.name)
        ip("link", "add", self.outer, "type", "veth", "peer", "name", "paceline0", "netns", self.name)
        ip("address", "add", f"10.79.{self.number}.1/30", "dev", self.outer)
        ip("link", "set", self.outer, "up")
        ip("-n", self.name, "address", "add", f"{self.address}/30", "dev", "paceline0")
        for interface in ("lo", "paceline0"):
            ip("-n", self.name, "link", "set", interface, "up")

    def serve(self) -> None:
        """Start its ssh server, and wait until it takes connections."""
        server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
        assert server is not None
        settings = {
            "ListenAddress": f"{self.address}:{SSH_PORT}",
            "HostKey": self.folder / "host",
            "AuthorizedKeysFile": self.folder / "allowed",
            "StrictModes": "no",
            "UsePAM": "no",
            "PidFile": "none",
            "PermitRootLogin": "yes",
            "SetEnv": " ".join(f"{name}={value}" for name, value in self.variables.items()),
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        command = ["ip", "netns", "exec", self.name, server, "-D", "-e", "-f", "/dev/null", *options]
        self._server = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex((self.address, SSH_PORT)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError(f"sshd does not answer on {self.name}")

    @property
    def processes(self) -> Iterator[psutil.Process]:
        """Everything that runs on the host."""
        own = Path(f"/run/netns/{self.name}").stat().st_ino
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if Path(f"/proc/{process.pid}/ns/net").stat().st_ino == own:
                    yield process

    def kill(self) -> None:
        """End everything on the host at once, as if its power was cut."""
        for process in self.processes:
            with suppress(psutil.Error):
                process.kill()
        if self._server is not None:
            self._server.wait(timeout=10)

    def remove(self) -> None:
        """Take everything away again."""
        with suppress(OSError):
            self.kill()
        subprocess.run(["ip", "link", "delete", self.outer], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)


@contextmanager
def ssh_hosts(folder: Path, variables: list[dict[str, str]]) -> Iterator[tuple[list[SshHost], str]]:
    """Namespaces with ssh servers that have these variables, and the remote shell that enters them."""
    if shutil.which("ip") is None or shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("ip or sshd is not here: apt-get install iproute2 openssh-server")
    folder.mkdir(mode=0o700)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    shutil.copy(folder / "user.pub", folder / "allowed")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    hosts = [
        SshHost(f"paceline-{os.getpid()}-h{number}", number, folder, more)
        for number, more in enumerate(variables, start=1)
    ]
    options = ["-o StrictHostKeyChecking=no", f"-o UserKnownHostsFile={folder}/known", "-o BatchMode=yes"]
    options += ["-o ConnectTimeout=5", "-o ServerAliveInterval=5"]
    try:
        try:
            for host in hosts:
                host.lay()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here (root can): {error.stderr.strip()}")
        for host in hosts:
            host.serve()
        yield hosts, f"ssh -F none -p {SSH_PORT} -i {folder}/user {' '.join(options)} {{host}}"
    finally:
        for host in hosts:
            host.remove()


@contextmanager
def cpu_quota(name: str, share: float) -> Iterator[Path]:
    """A control group whose processes have a share of one core; skips loudly where there can be none."""
    old, new = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    period, quota = 100_000, round(share * 100_000)
    folder = (old if old.is_dir() else new) / name
    try:
        folder.mkdir()
        if old.is_dir():
            (folder / "cpu.cfs_period_us").write_text(str(period))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (folder / "cpu.max").write_text(f"{quota} {period}")
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group with a quota of CPU time can be made here (root can): {error}")
    try:
        yield folder / "cgroup.procs"
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (folder.parent / "cgroup.procs").write_text(pid)
        with suppress(OSError):
            folder.rmdir()
