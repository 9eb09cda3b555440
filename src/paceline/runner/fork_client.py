"""The runner's side of the warm server: start it, let it import, have it fork, hear of ends."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from paceline.core.errors import PacelineError
from paceline.devices import fork_environment
from paceline.runner.channel import Channel


class ServerLost(PacelineError):
    """The warm server died: an import crashed it, or somebody killed it."""


class ServerTimeout(PacelineError):
    """The warm server did not answer in time."""


@dataclass
class WarmServer:
    """One warm server; started when first needed, restarted when it died."""

    _process: subprocess.Popen[bytes] | None = None
    _control: Channel | None = None
    _imported: set[str] = field(default_factory=set)
    _ends: dict[int, int] = field(default_factory=dict)  # pid: wait status, not asked for yet

    def __enter__(self) -> WarmServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm(self, modules: tuple[str, ...], deadline: float) -> None:
        """Have these modules imported before the next fork; `deadline` is on the monotonic clock."""
        missing = [name for name in modules if name not in self._imported]
        if missing:
            self._live().send({"do": "import", "modules": missing})
            self._await("imported", deadline)
            self._imported.update(missing)

    def fork(self, order: dict[str, Any], deadline: float) -> tuple[int, Channel]:
        """A new process for one rank of a case: its id, and the channel it reports on."""
        ours, theirs = Channel.pair()
        try:
            self._live().send({"do": "fork"} | order, [theirs.fileno()])
        finally:
            theirs.close()
        return int(self._await("forked", deadline)["forked"]), ours

    @property
    def control(self) -> Channel:
        """What becomes readable when a process has ended."""
        return self._live()

    def poll_ends(self) -> dict[int, int]:
        """Wait statuses of processes that have ended since the last call."""
        while self._control is not None and select.select([self._control], [], [], 0)[0]:
            self._note(self._receive())
        ends, self._ends = self._ends, {}
        return ends

    def close(self) -> None:
        """End the server and everything it forked."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._imported.clear()

    def _live(self) -> Channel:
        if self._control is None:
            ours, theirs = Channel.pair()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "paceline.runner.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | fork_environment(),
                start_new_session=True,
            )
            theirs.close()
            self._control = ours
        return self._control

    def _receive(self) -> dict[str, Any]:
        message = self._control.receive() if self._control is not None else None
        if message is None:
            self.close()
            raise ServerLost("the warm server ended unexpectedly; a library may have crashed while it was imported")
        return message[0]

    def _await(self, key: str, deadline: float) -> dict[str, Any]:
        while True:
            left = max(0.0, deadline - time.monotonic())
            if self._control is not None and not select.select([self._control], [], [], left)[0]:
                if self._process is not None:
                    self._process.kill()
                self.close()
                raise ServerTimeout("the heavy imports did not end within the case's timeout; raise it with --timeout")
            message = self._receive()
            if key in message:
                return message
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if "ended" in message:
            self._ends[int(message["ended"])] = int(message["status"])
