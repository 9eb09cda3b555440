"""Emulated networks between users and server: in the client, or by the kernel (netem) at a cable that tc slows.

In the client every request has a link of its own, as users at different places have. A request is really held back on
its way up, so that the server sees the arrivals that such users would cause; what the way down takes is added to the
times of the answer. Nothing is lost and nothing is sent twice, and connections open as fast as the real network lets
them.

By the kernel the server is in a network namespace without a name. It lasts as long as this process and those of the
server, so that the kernel removes it, together with the cable, when they have ended in whatever way. All users share
the cable and its bandwidth.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import psutil
from pydantic import Field

from paceline.core.errors import MissingDependency, Unsupported
from paceline.core.parameters import Parameters
from paceline.core.quantity import Duration, Size
from paceline.load.trace import Times

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_OWN = "/proc/thread-self/ns/net"
_BENCHMARKING = ipaddress.IPv4Network("198.18.0.0/15")  # set aside for tests between networks
_PREFIX = 30  # length: a network of two hosts
_QUEUE = 100_000  # packets; what does not fit would be lost


class Link(Parameters):
    """A network as one user has it."""

    delay: Duration = 0.0
    """One-way delay that every message has at least"""
    jitter: Duration = 0.0
    """Mean of what is added to it, exponentially distributed"""
    up: Size | None = Field(default=None, gt=0)
    """Bytes per second from user to server; unset is without limit"""
    down: Size | None = Field(default=None, gt=0)
    """Bytes per second from server to user; unset is without limit"""

    def way_up(self, sizes: Times, random: np.random.Generator) -> Times:
        """How long each request of so many bytes is on its way."""
        return self.way_down(len(sizes), random) + (sizes / self.up if self.up else 0.0)

    def way_down(self, number: int, random: np.random.Generator) -> Times:
        """How long the first byte of each answer is on its way; the others follow at the bandwidth."""
        return self.delay + random.exponential(1.0, number) * self.jitter


# Round figures of everyday networks, not measurements; a suite may write the four numbers itself instead.
PRESETS = {
    "lan": Link(delay="0.1ms", jitter="0.02ms", up="125MB", down="125MB"),
    "wifi": Link(delay="2ms", jitter="1ms", up="5MB", down="12MB"),
    "4g": Link(delay="25ms", jitter="10ms", up="1MB", down="4MB"),
}
Preset = Literal["lan", "wifi", "4g"]


def link_of(network: Preset | Link) -> Link:
    """The link that a user wrote or named."""
    return network if isinstance(network, Link) else PRESETS[network]


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
    with ExitStack() as stack:
        home = os.open(_OWN, os.O_RDONLY)
        stack.callback(os.close, home)
        if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
            why = os.strerror(ctypes.get_errno())
            message = f"network_by = tc needs a network namespace, which root alone can make ({why}); use client"
            raise Unsupported(message)
        try:
            namespace = os.open(_OWN, os.O_RDONLY)
        finally:
            _enter(home)
        stack.callback(os.close, namespace)
        near, far = f"plc{os.getpid()}", f"pls{os.getpid()}"
        here, there = _free_addresses()
        cable = Cable(there, namespace, home)
        path = f"/proc/{os.getpid()}/fd/{namespace}"
        _call("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", path)
        stack.callback(subprocess.run, ["ip", "link", "delete", near], check=False, capture_output=True)
        _configure(near, here, shaped(link, link.up))
        with cable.other_end():
            _call("ip", "link", "set", "lo", "up")
            _configure(far, there, shaped(link, link.down))
        yield cable


def shaped(link: Link, bandwidth: float | None) -> list[str]:
    """One direction of a link as arguments of tc.

    Jitter is even between nothing and twice its mean, where the client's own emulation has an exponential one.
    """
    arguments = ["netem", "limit", str(_QUEUE), "delay", f"{(link.delay + link.jitter) * 1e6:.0f}us"]
    arguments += [f"{link.jitter * 1e6:.0f}us"] if link.jitter else []
    return arguments + (["rate", f"{8 * bandwidth:.0f}bit"] if bandwidth else [])


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _NEW_NETWORK):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _configure(interface: str, address: str, qdisc: Sequence[str]) -> None:
    _call("ip", "address", "add", f"{address}/{_PREFIX}", "dev", interface)
    _call("ip", "link", "set", interface, "up")
    _call("tc", "qdisc", "add", "dev", interface, "root", *qdisc)


def _call(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        error = done.stderr.strip().removeprefix("Error: ")
        if "qdisc kind is unknown" in error:
            error += " (a kernel without sch_netem)"
        raise Unsupported(f"network_by = tc: '{' '.join(command)}' failed: {error}; use client")


def _free_addresses() -> tuple[str, str]:
    """Two neighbours in a network of their own that no interface has yet."""
    used = [
        ipaddress.IPv4Address(address.address)
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    ]
    networks = list(_BENCHMARKING.subnets(new_prefix=_PREFIX))
    start = os.getpid() % len(networks)
    for network in (*networks[start:], *networks[:start]):
        if not any(address in network for address in used):
            here, there = network.hosts()
            return str(here), str(there)
    raise Unsupported(f"network_by = tc: all of {_BENCHMARKING} is in use; use client")
