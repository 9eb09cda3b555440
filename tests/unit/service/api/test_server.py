"""A leader's socket, its lock, and how it starts and stops."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI

from paceline.service.api.server import Front, Tls, address_of, bind, make_server, only_leader, serve, session_secret
from paceline.service.leader import Leader
from paceline.store import open_store
from paceline.store.store import Store
from support.refused import refused

TLS = Tls(Path("leader.crt"), Path("leader.key"))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with open_store(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def signals() -> Iterator[None]:
    """What signals do, put back afterwards."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_the_leader_of_a_store_has_the_same_folder_each_time(store: Store, tmp_path: Path) -> None:
    name = hashlib.sha256(store.location.shown.encode()).hexdigest()[:12]
    for _ in range(2):
        with only_leader(store) as folder:
            assert folder == tmp_path / "data" / "paceline" / "leaders" / name / "work"
            assert folder.parent.is_dir()


def test_a_second_leader_on_a_store_is_refused_while_the_first_lives(store: Store) -> None:
    with only_leader(store), refused("store-in-use", key="--store", value=store.location.shown), only_leader(store):
        pass
    with only_leader(store):
        pass


def test_what_signs_sessions_is_the_leaders_own_and_survives_it(tmp_path: Path) -> None:
    first = session_secret(tmp_path)
    assert (len(first), session_secret(tmp_path)) == (32, first)
    file = tmp_path / "session-secret"
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"cut short")
    assert len(session_secret(tmp_path)) == 32
    with refused("cannot-write", key="XDG_DATA_HOME"):
        session_secret(tmp_path / "missing")


def test_a_folder_that_cannot_be_made_is_refused(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with refused("cannot-write", key="XDG_DATA_HOME"), only_leader(store):
        pass


def test_an_address_may_be_used_again_at_once_but_not_twice() -> None:
    with bind("127.0.0.1", 0) as first:
        assert first.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        port = first.getsockname()[1]
        with refused("cannot-listen", key="--port", value=port):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "tls", "shown"),
    [
        ("127.0.0.1", None, "http://127.0.0.1:{}"),
        ("leader.example", TLS, "https://leader.example:{}"),
        ("::1", None, "http://[::1]:{}"),
    ],
)
def test_the_address_is_one_that_a_browser_takes(host: str, tls: Tls | None, shown: str) -> None:
    with bind("127.0.0.1", 0) as opened:
        assert address_of(opened, tls, host) == shown.format(opened.getsockname()[1])


@pytest.mark.parametrize("tls", [None, TLS])
def test_a_server_tells_nothing_of_itself_and_believes_no_proxy(tls: Tls | None) -> None:
    config = make_server(FastAPI(), Front(tls)).config
    assert (config.access_log, config.proxy_headers, config.server_header) == (False, False, False)
    files = (TLS.certificate, TLS.key) if tls else (None, None)
    assert (config.ssl_certfile, config.ssl_keyfile) == files


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    with refused("invalid-certificate", key="--tls-cert"):
        Tls(tmp_path / "missing.crt", tmp_path / "missing.key").check()


class Led:
    """What a leader does while it is served."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.threads: list[threading.Thread] = []

    def run(self) -> None:
        self.threads.append(threading.current_thread())
        self.closed.wait(30)

    def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_leading_and_answering(signals: Any, number: signal.Signals) -> None:
    leader = Led()
    with bind("127.0.0.1", 0) as opened:
        serve(cast(Leader, leader), FastAPI(), opened, ready=lambda: os.kill(os.getpid(), number))
    assert leader.closed.is_set()
    (thread,) = leader.threads
    assert (thread.name, thread.daemon, thread.is_alive()) == ("leader", True, False)
