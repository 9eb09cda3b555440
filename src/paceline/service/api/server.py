"""Serves a leader: a socket, the application, and the thread that leads."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import InputError, MissingDependency
from paceline.core.files import data_directory, private_directory
from paceline.service.api.connections import ConnectionLimits, Gate, WaitingRoom

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from paceline.service.leader import Leader
    from paceline.store.store import Store

_BACKLOG = 4096  # that wait to be accepted; the kernel drops more, who try again seconds later
_AT_ONCE = 4  # requests that are worked on: more threads only keep those who accept and read from their turn
_TURN = 0.0001  # seconds that a thread may compute while others want to: who accepts asks after every system call
_GRACE = 5  # seconds for answers in flight when the leader is asked to stop


@dataclass(frozen=True)
class Tls:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Refuse files that are not a certificate and its key, before anything is started."""
        import ssl

        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            message = f"--tls-cert {self.certificate} with --tls-key {self.key}: {error}; give both as PEM files"
            raise InputError("invalid-certificate", message, key="--tls-cert", value=str(self.certificate)) from None


@dataclass(frozen=True)
class Front:
    """How a leader is reached."""

    tls: Tls | None = None
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))  # that signs the sessions of its pages
    proxies: tuple[str, ...] = ()  # addresses whose word about who sends a request is taken
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)


def require_packages() -> None:
    """What serving needs in addition to Paceline itself."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependency(error.name or "fastapi", "install it with `pip install '.[cluster]'`") from None


@contextmanager
def only_leader(store: Store) -> Iterator[Path]:
    """The folder of this machine's own follower; a second leader on the same store is refused while this one lives."""
    name = hashlib.sha256(store.location.shown.encode()).hexdigest()[:12]
    folder = data_directory() / "leaders" / name
    try:
        private_directory(folder)
        file = (folder / "lock").open("a")
    except OSError as error:
        message = f"cannot use the folder {folder}: {error.strerror}; set $XDG_DATA_HOME to another"
        raise InputError("cannot-write", message, key="XDG_DATA_HOME", value=str(folder)) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            shown = store.location.shown
            message = f"another leader uses the store {shown} already: end it first, or name another --store"
            raise InputError("store-in-use", message, key="--store", value=shown) from None
        yield folder / "work"


def session_secret(folder: Path) -> bytes:
    """What signs sessions: in a file of the leader's own, not in the store, so that no copy of that lets anybody in."""
    path = folder / "session-secret"
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
    except FileExistsError:
        pass
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}; set $XDG_DATA_HOME to another folder"
        raise InputError("cannot-write", message, key="XDG_DATA_HOME", value=str(path)) from None
    secret = path.read_bytes()
    if len(secret) < 32:  # the disk was full when it was made
        path.unlink()
        return session_secret(folder)
    return secret


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any that is free."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)  # the same address again after a crash
        opened.bind(address)
        opened.listen(_BACKLOG)
    except OSError as error:
        why = f"{error.strerror}; is another leader running? --port 0 takes any free port"
        message = f"cannot listen at {host}:{port}: {why}"
        raise InputError("cannot-listen", message, key="--port", value=port) from None
    return opened


def address_of(opened: socket.socket, tls: Tls | None, host: str) -> str:
    """The URL of a listening socket."""
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{opened.getsockname()[1]}"


def make_server(app: FastAPI, front: Front | None = None) -> uvicorn.Server:
    """A server that leaves signals to its caller."""
    import anyio.to_thread
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    front = front or Front()
    gate = Gate(front.limits, front.proxies)

    class Protocol(H11Protocol):
        sent = b""  # before the server had the connection

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in its base
            super().connection_made(transport)
            if self.sent:
                self.data_received(self.sent)

        def handle_events(self) -> None:
            super().handle_events()
            self._note()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._note()

        def _note(self) -> None:
            is_busy = self.cycle is not None and not self.cycle.response_complete
            gate.note(self.transport.get_extra_info("peername"), is_busy=is_busy)

    class Quiet(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            anyio.to_thread.current_default_thread_limiter().total_tokens = _AT_ONCE
            await super().startup([])
            self.rooms = [WaitingRoom(opened, gate, self._protocol, self.config.ssl) for opened in sockets or ()]

        def _protocol(self, sent: bytes) -> Protocol:
            made = Protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
            made.sent = sent
            return made

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for room in self.rooms:
                room.close()
            await super().shutdown(sockets)

        async def on_tick(self, counter: int) -> bool:
            gate.sweep()
            return await super().on_tick(counter)

    config = uvicorn.Config(
        app,
        http=Protocol,
        loop="asyncio",
        ws="none",
        log_config=None,
        log_level=logging.ERROR,  # whoever sends rubbish must not fill the log
        access_log=False,
        proxy_headers=False,  # the caller is who is connected, whatever they claim
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_GRACE,
        ssl_certfile=front.tls.certificate if front.tls else None,
        ssl_keyfile=front.tls.key if front.tls else None,
    )
    app.state.gate = gate
    return Quiet(config)


def serve(
    leader: Leader, app: FastAPI, opened: socket.socket, front: Front | None = None, *, ready: Callable[[], None]
) -> None:
    """Lead and answer until a signal says to stop; what is being measured goes on. `ready` is called once it can."""
    server = make_server(app, front)

    def stop(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    sys.setswitchinterval(_TURN)
    ready()
    leading = threading.Thread(target=leader.run, name="leader", daemon=True)
    leading.start()
    try:
        server.run(sockets=[opened])
    finally:
        leader.close()
        leading.join(_GRACE)
