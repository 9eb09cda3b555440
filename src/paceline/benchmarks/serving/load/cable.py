"""The way between users and server, emulated by the kernel: a server in a network namespace, at a cable that tc slows.

The namespace has no name. What keeps it are this process and those of the server, so that the kernel takes it away,
together with the cable, when they have ended in whatever way. All users share the cable and its bandwidth.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from paceline.benchmarks.serving.load.network import Link
from paceline.core.errors import MissingDependency, Unsupported

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_OWN = "/proc/thread-self/ns/net"
_BENCHMARKING = ipaddress.IPv4Network("198.18.0.0/15")  # set aside for tests between networks
_QUEUE = 100_000  # packets; what does not fit would be lost


@dataclass(frozen=True)
class Cable:
    """A namespace that is connected with this one."""

    address: str  # of the other end, where a server may listen
    namespace: int  # a descriptor
    home: int  # of the namespace at this end

    @contextmanager
    def other_end(self) -> Iterator[None]:
        """What is started within, by this thread, runs in the namespace."""
        _enter(self.namespace)
        try:
            yield
        finally:
            _enter(self.home)


@contextmanager
def connected(link: Link) -> Iterator[Cable]:
    """A cable that is as slow as the link; nothing is left of it afterwards."""
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise MissingDependency(program, "apt-get install iproute2, or set network_by to client")
    home = os.open(_OWN, os.O_RDONLY)
    try:
        namespace = _new_namespace(home)
        try:
            near, far = f"plc{os.getpid()}", f"pls{os.getpid()}"
            here, there, length = _free_addresses()
            cable = Cable(there, namespace, home)
            with _plugged_in(near, far, namespace):
                _configure(near, f"{here}/{length}", shaped(link, link.up))
                with cable.other_end():
                    _call("ip", "link", "set", "lo", "up")
                    _configure(far, f"{there}/{length}", shaped(link, link.down))
                yield cable
        finally:
            os.close(namespace)
    finally:
        os.close(home)


def shaped(link: Link, bandwidth: float | None) -> list[str]:
    """One direction of a link in tc's words.

    Jitter is even between nothing and twice its mean, where the client's own emulation has an exponential one.
    """
    middle = link.delay + link.jitter
    words = ["netem", "limit", str(_QUEUE), "delay", _micro(middle)]
    words += [_micro(link.jitter)] if link.jitter else []
    return words + (["rate", f"{8 * bandwidth:.0f}bit"] if bandwidth else [])


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}us"


def _new_namespace(home: int) -> int:
    """A descriptor of it; this thread is back at home."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK):
        why = os.strerror(ctypes.get_errno())
        raise Unsupported(f"network_by = tc needs a network namespace, which root alone can make ({why}); use client")
    try:
        return os.open(_OWN, os.O_RDONLY)
    finally:
        _enter(home)


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _NEW_NETWORK):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


@contextmanager
def _plugged_in(near: str, far: str, namespace: int) -> Iterator[None]:
    path = f"/proc/{os.getpid()}/fd/{namespace}"
    _call("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", path)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "delete", near], check=False, capture_output=True)


def _configure(interface: str, address: str, qdisc: Sequence[str]) -> None:
    _call("ip", "address", "add", address, "dev", interface)
    _call("ip", "link", "set", interface, "up")
    _call("tc", "qdisc", "add", "dev", interface, "root", *qdisc)


def _call(*words: str) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().removeprefix("Error: ")
        if "qdisc kind is unknown" in said:
            said += " (a kernel without sch_netem)"
        raise Unsupported(f"network_by = tc: '{' '.join(words)}' failed: {said}; use client")


def _free_addresses() -> tuple[str, str, int]:
    """Two neighbours in a network of their own that no interface has yet, and how long its prefix is."""
    length = 30
    taken = [
        ipaddress.IPv4Address(found.address)
        for addresses in psutil.net_if_addrs().values()
        for found in addresses
        if found.family == socket.AF_INET
    ]
    several = list(_BENCHMARKING.subnets(new_prefix=length))
    start = os.getpid() % len(several)
    for network in (*several[start:], *several[:start]):
        if not any(address in network for address in taken):
            here, there = network.hosts()
            return str(here), str(there), length
    raise Unsupported(f"network_by = tc: all of {_BENCHMARKING} is in use; use client")
