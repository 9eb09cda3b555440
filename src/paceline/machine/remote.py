"""One other host: the agent that a remote shell starts there, what it is told, and what it says."""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import InputError
from paceline.machine import wire

# Never asks for a password, for several hosts would ask at once; notices a host that has gone.
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 {host}"
LOCAL = "localhost"  # entered without a remote shell
KEPT_LINES = 12


@dataclass(frozen=True)
class RemoteShell:
    """How a command gets to a host."""

    template: str = SSH
    python: str = ""  # the interpreter there

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.template)
        except ValueError as error:
            raise InputError(f"the remote shell {self.template!r} cannot be read: {error}") from None
        if not any("{host}" in word for word in words):
            raise InputError(f"the remote shell {self.template!r} does not say where the host goes: write {{host}}")

    def command(self, host: str, module: str) -> list[str]:
        """What starts the agent there: a module of Paceline's."""
        agent = [self.python, "-P", "-m", module]
        if host == LOCAL:
            return agent
        way = [word.replace("{host}", host) for word in shlex.split(self.template)]
        # ssh has a shell on the other side read the words again; other ways pass them on as they are.
        return [*way, shlex.join(agent)] if Path(way[0]).name == "ssh" else [*way, *agent]


# A host and what it said; None when it has ended.
Inbox = queue.SimpleQueue[tuple["RemoteAgent", dict[str, Any] | None]]


class RemoteAgent:
    """The agent on one host, behind its remote shell."""

    def __init__(self, name: str, command: Sequence[str], inbox: Inbox) -> None:
        self.name = name
        self.ended = False
        self._said: deque[str] = deque(maxlen=KEPT_LINES)  # beside its answers: errors, greetings
        self._inbox = inbox
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # the terminal's interrupt is for the command alone, which ends this in order
            )
        except OSError as error:
            raise InputError(f"{name}: {command[0]} cannot be started: {error.strerror}") from None
        self._readers = [
            threading.Thread(target=self._hear, daemon=True),
            threading.Thread(target=self._overhear, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def send(self, message: dict[str, Any]) -> None:
        """Say something; that nobody is there any more will be heard from the other direction."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(wire.encode(message))
            self._process.stdin.flush()

    def how_it_ended(self) -> str:
        """For people; waits a moment for an end that is near."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        code = self._process.poll()
        if code is None:
            return "its process is still there"
        return f"its process ended with code {code}" if code >= 0 else f"its process was ended by {_signal(-code)}"

    def last_words(self) -> str:
        """What it printed last, line by line under its name."""
        if self._process.poll() is not None:
            self._readers[1].join(timeout=1)
        return "\n".join(f"  {self.name}: {line}" for line in self._said)

    def has_said(self, words: str) -> bool:
        """Whether this was printed lately."""
        return any(words in line for line in self._said)

    def ask_to_leave(self) -> None:
        """No more orders: the agent ends, and everything that it started."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self, deadline: float) -> None:
        """Until it is gone; a remote shell that stays is killed."""
        self.ask_to_leave()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=max(0.0, deadline - time.monotonic()))
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for reader in self._readers:
            reader.join(timeout=1)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None and not any(reader.is_alive() for reader in self._readers):
                stream.close()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = wire.decode(line)
            if message is None:
                self._note(line)
            else:
                self._inbox.put((self, message))
        self._inbox.put((self, None))

    def _overhear(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._note(line)

    def _note(self, line: bytes) -> None:
        if text := line.decode(errors="replace").strip():
            self._said.append(text)


def _signal(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
