"""Connections of the tcp benchmark: addresses, attempts to connect, messages there and back, bulk transfers."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self

from paceline.benchmarks.communication._tcp_peer import BUFFER, COUNT, ECHO, GREETING, MAGIC, SWALLOW, receive_exactly
from paceline.core.errors import CaseError
from paceline.devices.timeline import monotonic

PATIENCE_SECONDS = 30.0  # of one answer; only a lost peer takes so long


class PeerError(CaseError):
    """The other end cannot be reached, or does not speak our protocol."""


@dataclass(frozen=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def read(cls, text: str, default_port: int | None = None) -> Self:
        """`host:port`, `[address]:port`, or a host alone where a default port is given; otherwise a ValueError."""
        host, separator, port = text.rpartition(":")
        if not separator or (":" in host and not host.endswith("]")):  # a name, or an IPv6 address, without a port
            host, port = text, "" if default_port is None else str(default_port)
        host = host.removeprefix("[").removesuffix("]")
        if not host or any(letter.isspace() or letter == "/" for letter in host):
            raise ValueError(f"'{text}' does not name a host; write it like node2:22 or [::1]:22")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"'{text}' needs a port from 1 to 65535; write it like node2:22 or [::1]:22")
        return cls(host, int(port))


def connect(address: Address, timeout: float) -> socket.socket:
    """A connection without delays of its own."""
    connection = socket.create_connection((address.host, address.port), timeout=timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def greet(address: Address, kind: int, size: int, timeout: float) -> socket.socket:
    """A connection to a peer that is ready to echo or to swallow; anything else is a PeerError."""
    try:
        connection = connect(address, timeout)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise PeerError("too many connections for this process: use fewer streams, or raise ulimit -n") from None
        raise PeerError(f"{address} cannot be reached: {error.strerror or error}") from None
    try:
        connection.sendall(GREETING.pack(MAGIC, kind, size))
        answer = bytearray(len(MAGIC))
        understood = receive_exactly(connection, memoryview(answer)) and bytes(answer) == MAGIC
    except OSError:
        understood = False
    if not understood:
        connection.close()
        raise PeerError(f"{address} is not a peer of Paceline")
    connection.settimeout(PATIENCE_SECONDS)
    return connection


@contextmanager
def echoing(address: Address, size: int, timeout: float) -> Iterator[Callable[[], None]]:
    """A call that sends a message and waits until the whole of it is back."""
    with greet(address, ECHO, size, timeout) as connection:
        message = bytes(size)
        buffer = memoryview(bytearray(size))

        def there_and_back() -> None:
            connection.sendall(message)
            if not receive_exactly(connection, buffer):
                raise PeerError(f"{address} closed the connection")

        yield there_and_back


@contextmanager
def swallowing(address: Address, streams: int, timeout: float) -> Iterator[Callable[[int], float]]:
    """A call that sends so many bytes through every stream at once; seconds until the peer has all of them."""
    with ExitStack() as stack:
        connections = [stack.enter_context(greet(address, SWALLOW, 0, timeout)) for _ in range(streams)]
        data = memoryview(bytes(BUFFER))

        def send_all(amount: int) -> float:
            failures: list[OSError | PeerError] = []

            def send(connection: socket.socket) -> None:
                try:
                    _send(connection, data, amount)
                except (OSError, PeerError) as error:
                    failures.append(error)

            others = [threading.Thread(target=send, args=(connection,)) for connection in connections[1:]]
            begun = monotonic()
            for thread in others:
                thread.start()
            send(connections[0])
            for thread in others:
                thread.join()
            seconds = monotonic() - begun
            if failures:
                raise PeerError(f"{address} was lost while {streams} streams were sent: {failures[0]}")
            return seconds

        yield send_all


@contextmanager
def local_peer() -> Iterator[Address]:
    """A peer of our own on the loopback device; it ends with this process, however that ends."""
    command = [sys.executable, "-P", "-m", "paceline.benchmarks.communication._tcp_peer"]
    with subprocess.Popen(
        [*command, "--bind", "127.0.0.1", "--port", "0", "--until-input-ends"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as peer:
        try:
            assert peer.stdout is not None
            port = peer.stdout.readline().strip()
            if not port.isdecimal():
                raise PeerError(f"the peer on this host did not start (exit code {peer.wait()})")
            yield Address("127.0.0.1", int(port))
        finally:
            peer.kill()


def free_port() -> int:
    """A port of the loopback device that nobody used a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _send(connection: socket.socket, data: memoryview, amount: int) -> None:
    announced = COUNT.pack(amount)
    connection.sendall(announced)
    left = amount
    while left:
        part = data[: min(left, len(data))]
        connection.sendall(part)
        left -= len(part)
    answer = bytearray(COUNT.size)
    if not receive_exactly(connection, memoryview(answer)) or bytes(answer) != announced:
        raise PeerError("the peer closed the connection")
