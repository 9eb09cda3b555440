"""Networks between users and server: how long messages take in the client's own emulation, and what tc is told."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from paceline.core.errors import MissingDependency, Unsupported
from paceline.load import network
from paceline.load.network import PRESETS, Link, connected, link_of, shaped


def test_a_request_takes_the_delay_and_its_size_at_the_bandwidth() -> None:
    sizes = np.array([0.0, 100.0, 1000.0])
    random = np.random.default_rng(1)
    assert Link(delay=0.5, up=200).way_up(sizes, random).tolist() == [0.5, 1.0, 5.5]
    assert Link(delay=0.5).way_up(sizes, random).tolist() == [0.5] * 3
    assert Link(delay=0.5, down=200).way_down(3, random).tolist() == [0.5] * 3


def test_jitter_is_added_to_the_delay_and_has_its_mean() -> None:
    added = Link(delay=1.0, jitter=0.25).way_down(20_000, np.random.default_rng(1)) - 1.0
    assert added.min() >= 0.0
    assert added.mean() == pytest.approx(0.25, rel=0.05)


def test_a_link_is_named_or_written() -> None:
    written = Link(delay=1.0)
    assert link_of(written) is written
    assert link_of("wifi") is PRESETS["wifi"]


@pytest.mark.parametrize(
    ("link", "bandwidth", "expected"),
    [
        (Link(delay="2ms"), None, "netem limit 100000 delay 2000us"),
        (Link(delay="2ms", jitter="1ms"), None, "netem limit 100000 delay 3000us 1000us"),
        (Link(delay="2ms"), 1000.0, "netem limit 100000 delay 2000us rate 8000bit"),
    ],
)
def test_one_direction_of_a_link_is_told_to_tc(link: Link, bandwidth: float | None, expected: str) -> None:
    assert " ".join(shaped(link, bandwidth)) == expected


# A cable.


def descriptors() -> int:
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("program", ["ip", "tc"])
def test_a_cable_needs_the_programs_that_make_it(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == program else f"/sbin/{name}")
    with pytest.raises(MissingDependency, match=f"{program}.*iproute2"), connected(Link()):
        pass


def test_why_there_is_no_namespace_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(network, "_NEW_NETWORK", 1)  # which no kernel knows
    before = descriptors()
    with pytest.raises(Unsupported, match=r"root alone can make \(Invalid argument\); use client"), connected(Link()):
        pass
    assert descriptors() == before


def test_a_namespace_that_cannot_be_entered_is_an_error() -> None:
    with pytest.raises(OSError, match="setns: Bad file descriptor") as caught:
        network._enter(-1)
    assert caught.value.errno == errno.EBADF


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[str]]:
    """Makes ip and tc do what a shell's commands say; calling it with none tells what was done with them."""
    log = tmp_path / "log"
    log.touch()

    def set_to(commands: str) -> list[str]:
        if commands:
            for name in ("ip", "tc"):
                path = tmp_path / name
                path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{log}"\necho output; echo error >&2\n{commands}\n')
                path.chmod(0o755)
        return log.read_text().splitlines()

    set_to("exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    entered: list[tuple[int, int]] = []
    libc = SimpleNamespace(unshare=lambda _flag: 0, setns=lambda *where: entered.append(where))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: libc)
    monkeypatch.setattr(network, "_free_addresses", lambda: ("198.18.0.1", "198.18.0.2"))
    return set_to


def test_a_cable_has_two_ends_that_are_slow_each_in_its_direction(
    programs: Callable[[str], list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    programs('case "$*" in *delete*) exit 1;; esac')  # the other end took it along
    link, pid = Link(delay="2ms", up=1000, down=2000), os.getpid()
    before = descriptors()
    with connected(link) as cable:
        assert cable.address == "198.18.0.2"
        made = programs("")
        assert str(Path(f"/proc/self/fd/{cable.namespace}").readlink()).startswith("net:")
    slow = "root netem limit 100000 delay 2000us rate"
    assert made == [
        f"ip link add plc{pid} type veth peer name pls{pid} netns /proc/{pid}/fd/{cable.namespace}",
        f"ip address add 198.18.0.1/30 dev plc{pid}",
        f"ip link set plc{pid} up",
        f"tc qdisc add dev plc{pid} {slow} 8000bit",
        "ip link set lo up",
        f"ip address add 198.18.0.2/30 dev pls{pid}",
        f"ip link set pls{pid} up",
        f"tc qdisc add dev pls{pid} {slow} 16000bit",
    ]
    assert programs("")[len(made) :] == [f"ip link delete plc{pid}"]
    assert descriptors() == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("Error: Specified qdisc kind is unknown.", "qdisc kind is unknown. (a kernel without sch_netem); use client"),
        ("Error: no permission", "'tc qdisc add dev [^']*' failed: error\nError: no permission; use client"),
    ],
)
def test_what_a_program_refused_is_quoted(
    programs: Callable[[str], list[str]], capfd: pytest.CaptureFixture[str], error: str, says: str
) -> None:
    programs(f'case "$0" in */tc) echo "{error}" >&2; exit 2;; esac')
    pattern = says.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(Unsupported, match=pattern) as caught, connected(Link()):
        pass
    assert ("sch_netem" in str(caught.value)) == ("kind is unknown" in error)
    assert programs("")[-1] == f"ip link delete plc{os.getpid()}"
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets which addresses this machine has."""

    def set_to(pid: int, *addresses: str) -> None:
        made = [
            SimpleNamespace(family=socket.AF_INET6 if ":" in address else socket.AF_INET, address=address)
            for address in addresses
        ]
        monkeypatch.setattr(os, "getpid", lambda: pid)
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": made[:1], "eth0": made[1:]})

    return set_to


@pytest.mark.parametrize(
    ("pid", "used", "expected"),
    [
        (0, (), ("198.18.0.1", "198.18.0.2")),
        (3, (), ("198.18.0.13", "198.18.0.14")),
        (32768 + 3, ("127.0.0.1",), ("198.18.0.13", "198.18.0.14")),
        (3, ("127.0.0.1", "fe80::1", "198.18.0.13"), ("198.18.0.17", "198.18.0.18")),
        (3, ("198.18.0.14", "198.18.0.18"), ("198.18.0.21", "198.18.0.22")),
        (32767, ("127.0.0.1", "198.19.255.253"), ("198.18.0.1", "198.18.0.2")),
    ],
)
def test_a_cable_has_a_network_that_no_interface_is_in(
    interfaces: Callable[..., None], pid: int, used: tuple[str, ...], expected: tuple[str, str]
) -> None:
    interfaces(pid, *used)
    assert network._free_addresses() == expected


def test_where_all_addresses_are_in_use_there_is_no_cable(
    interfaces: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_BENCHMARKING", ipaddress.IPv4Network("198.18.0.0/29"))
    interfaces(1, "198.18.0.1", "198.18.0.5")
    with pytest.raises(Unsupported, match=r"all of 198\.18\.0\.0/29 is in use"):
        network._free_addresses()
