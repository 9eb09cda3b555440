"""A server's process: started, watched and ended together with everything that it starts."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from paceline.benchmarks.serving.servers import _keeper
from paceline.benchmarks.serving.servers.base import ServerFailed

_LOG_END = 64 * 1024  # bytes of a log that are read for its last lines
_POLL = 0.02  # seconds between questions whether it is ready


class ServedProcess:
    """One command in a session of its own; what it prints is in `server.log` in its folder.

    A keeper process stands between: it adopts whatever the command starts, ends all of it on `stop()`, and also when
    this process dies, by whatever signal.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        grace: float = 5.0,
    ) -> None:
        self.command = list(command)
        self.log = folder / "server.log"
        self.grace = grace  # seconds that it may take to end by itself when asked
        self._environment = environment or {}
        self._cwd = cwd or folder
        self._keeper: subprocess.Popen[bytes] | None = None
        self._main: psutil.Process | None = None  # the command's own process, once it was seen

    def start(self) -> None:
        """Start it; call `wait()` to know that it is of use."""
        if self._keeper is not None:
            raise RuntimeError("already started")
        keep = [sys.executable, "-I", "-S", _keeper.__file__, str(os.getpid()), str(self.grace)]
        with self.log.open("ab") as log:
            self._keeper = subprocess.Popen(
                [*keep, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._cwd,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | dict(self._environment),
                start_new_session=True,
            )

    def wait(self, ready: Callable[[], bool], timeout: float) -> float:
        """Ask until it is ready; the seconds it took. ServerFailed, with its logs, if it dies or takes too long."""
        begin = time.monotonic()
        while not ready():
            if not self.is_alive():
                raise ServerFailed(f"the server ended with exit code {self._end()} before it was ready", self.logs())
            if time.monotonic() - begin > timeout:
                raise ServerFailed(
                    f"the server was not ready after {timeout:g} s; raise ready_timeout if it only needs longer",
                    self.logs(),
                )
            time.sleep(_POLL)
        return time.monotonic() - begin

    @property
    def exit_code(self) -> int | None:
        """Of the command, 128 + n if signal n ended it; None while it runs or before it was started."""
        return self._keeper.poll() if self._keeper is not None else None

    def pids(self) -> list[int]:
        """The command's process and all that it started."""
        if self._keeper is None or self._keeper.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self._keeper.pid).children(recursive=True)]
        return []

    def is_alive(self) -> bool:
        """Whether the command still runs."""
        if self._keeper is None or self._keeper.poll() is not None:
            return False
        try:  # the keeper may not yet have noticed the end
            if self._main is None:
                children = psutil.Process(self._keeper.pid).children()  # orphans that it adopts are younger
                self._main = min(children, key=lambda child: child.create_time(), default=None)
            return self._main is None or (self._main.is_running() and self._main.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def stop(self) -> None:
        """Ask it to end, and end it and everything it started after a grace; may be called at any time."""
        if self._keeper is None or self._keeper.poll() is not None:
            return
        self._keeper.terminate()
        try:
            self._keeper.wait(timeout=self.grace + 10)
        except subprocess.TimeoutExpired:
            for pid in self.pids():
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).kill()
            self._keeper.kill()
            self._keeper.wait()

    def _end(self) -> int:
        """The exit code of a command that has ended, once what it left is ended too."""
        assert self._keeper is not None
        return self._keeper.wait(timeout=self.grace + 10)

    def logs(self, lines: int = 40) -> str:
        """The last lines of what it printed."""
        try:
            with self.log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(0, size - _LOG_END))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now, for servers that cannot choose one themselves."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def answers(host: str, port: int, path: str, timeout: float = 1.0) -> bool:
    """Whether an HTTP GET is answered with 200."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
