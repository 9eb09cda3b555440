"""Addresses are read as people write them; peers echo, swallow, and end with whoever started them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.benchmarks.communication import _tcp_peer
from paceline.benchmarks.communication.tcp import (
    Address,
    PeerError,
    TcpParameters,
    echoing,
    greet,
    local_peer,
    swallowing,
)
from paceline.core.errors import InputError
from paceline.core.network import free_port


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node2:22", "node2", 22),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("[::1]:80", "::1", 80),
        ("node2", "node2", 7),
        ("::1", "::1", 7),
        ("[fe80::1]", "fe80::1", 7),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = Address.read(text, default_port=7)
    assert address == Address(host, port)
    assert Address.read(str(address)) == address


@pytest.mark.parametrize("text", ["", ":22", "a:0", "a:65536", "a:b", "a b:1", "a/b:1", "node2", "a:²"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        Address.read(text)


@given(st.text(max_size=20))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = Address.read(text, default_port=1)
    except ValueError:
        return
    assert address.host
    assert 0 < address.port < 65536


def test_one_host_is_a_list_of_one_and_a_wrong_one_is_named() -> None:
    assert TcpParameters.read({"endpoints": "a:1", "streams": "2"}).endpoints == ["a:1"]
    with pytest.raises(InputError, match="'nowhere' needs a port"):
        TcpParameters.read({"endpoints": ["a:1", "nowhere"]})
    assert TcpParameters.read({"remote_host": "node2"}).remote_host == "node2"


def test_messages_come_back_whole_and_bulk_arrives() -> None:
    with local_peer() as address:
        for size in (1, 64, 3 * 1024**2):
            with echoing(address, size, 5.0) as there_and_back:
                for _ in range(3):
                    there_and_back()
        for streams in (1, 3):
            with swallowing(address, streams, 5.0) as send:
                assert send(5 * 1024**2 + 1) > 0
                assert send(1) > 0


def test_somebody_else_is_no_peer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(PeerError, match="not a peer"):
            greet(Address("127.0.0.1", listener.getsockname()[1]), _tcp_peer.ECHO, 1, 5.0)
    with pytest.raises(PeerError, match="cannot be reached"):
        greet(Address("127.0.0.1", free_port()), _tcp_peer.ECHO, 1, 5.0)


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        _tcp_peer.GREETING.pack(_tcp_peer.MAGIC, 9, 1),
        _tcp_peer.GREETING.pack(_tcp_peer.MAGIC, _tcp_peer.ECHO, 0),
        _tcp_peer.GREETING.pack(_tcp_peer.MAGIC, _tcp_peer.ECHO, 2**60),
    ],
)
def test_the_peer_closes_on_strangers_and_goes_on(greeting: bytes) -> None:
    with local_peer() as address:
        with socket.create_connection((address.host, address.port), timeout=5) as stranger:
            stranger.sendall(greeting)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
        with echoing(address, 8, 5.0) as there_and_back:
            there_and_back()


def test_a_peer_that_goes_away_is_an_error() -> None:
    with local_peer() as address, swallowing(address, 2, 5.0) as send:
        send(1024)
        (peer,) = [child for child in psutil.Process().children() if "_tcp_peer" in " ".join(child.cmdline())]
        peer.kill()
        peer.wait(10)
        with pytest.raises(PeerError, match="was lost"):
            for _ in range(3):
                send(64 * 1024**2)


def test_a_local_peer_ends_with_the_process_that_started_it() -> None:
    code = f"from {local_peer.__module__} import local_peer\nwith local_peer(): print('started', flush=True), input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"started\n"
        (peer,) = psutil.Process(starter.pid).children()
        starter.kill()
    deadline = time.monotonic() + 20.0
    while peer.is_running() and peer.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [sys.executable, "-m", "paceline.benchmarks.communication._tcp_peer", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "cannot listen on 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr
