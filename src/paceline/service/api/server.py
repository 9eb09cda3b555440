"""Serves a leader: a socket, the application, and the thread that leads."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import InputError, MissingDependency
from paceline.core.files import data_directory

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from paceline.service.leader import Leader
    from paceline.store.store import Store

_BACKLOG = 1024
_MOST_AT_ONCE = 1000  # connections; more are asked to come again
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


def require_packages() -> None:
    """What serving needs in addition to Paceline itself."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependency(error.name or "fastapi", "install it with `pip install 'paceline[cluster]'`") from None


@contextmanager
def only_leader(store: Store) -> Iterator[Path]:
    """The folder of this machine's own follower; a second leader on the same store is refused while this one lives."""
    name = hashlib.sha256(store.location.shown.encode()).hexdigest()[:12]
    folder = data_directory() / "leaders" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
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


def make_server(app: FastAPI, tls: Tls | None = None) -> uvicorn.Server:
    """A server that leaves signals to its caller."""
    import uvicorn

    class Quiet(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        proxy_headers=False,  # the caller is who is connected, whatever they claim
        server_header=False,
        limit_concurrency=_MOST_AT_ONCE,
        timeout_graceful_shutdown=_GRACE,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    return Quiet(config)


def serve(
    leader: Leader, app: FastAPI, opened: socket.socket, tls: Tls | None = None, *, ready: Callable[[], None]
) -> None:
    """Lead and answer until a signal says to stop; what is being measured goes on. `ready` is called once it can."""
    server = make_server(app, tls)

    def stop(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    ready()
    leading = threading.Thread(target=leader.run, name="leader", daemon=True)
    leading.start()
    try:
        server.run(sockets=[opened])
    finally:
        leader.close()
        leading.join(_GRACE)
