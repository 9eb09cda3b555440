"""Other hosts: the remote shell that enters them, the agent on each, and all agents together."""

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import InputError
from paceline.core.interrupt import check_interrupts
from paceline.remote import messages
from paceline.version import VERSION

# Never asks for a password, for several hosts would ask at once; notices a host that has gone.
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 {host}"
LOCAL = "localhost"  # entered without a remote shell
KEPT_LINES = 12

START_SECONDS = 60.0
BEAT_SECONDS = 10.0
CLOSE_SECONDS = 10.0

Words = dict[str, Any]


@dataclass(frozen=True)
class RemoteShell:
    """How a command gets to a host."""

    template: str = SSH
    python: str = ""  # the interpreter there

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.template)
        except ValueError as error:
            message = f"the remote shell {self.template!r} cannot be read: {error}"
            raise InputError("not-a-command", message, value=self.template) from None
        if not any("{host}" in word for word in words):
            message = f"the remote shell {self.template!r} does not say where the host goes: write {{host}}"
            raise InputError("missing-host", message, value=self.template)

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
        self._said: deque[str] = deque(maxlen=KEPT_LINES)  # besides its answers: errors, greetings
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
            message = f"{command[0]} cannot be started: {error.strerror}"
            raise InputError("cannot-start", message, where=name, value=command[0]) from None
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
            self._process.stdin.write(messages.encode(message))
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
            message = messages.decode(line)
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


class HostTrouble(InputError):
    """A host cannot be reached, or not be used."""

    def __init__(self, code: str, message: str, agent: RemoteAgent) -> None:
        super().__init__(code, message, value=agent.name)
        self.agent = agent


class Agents:
    """The agents of one command; what they say comes in one after the other."""

    def __init__(self, shell: RemoteShell, module: str) -> None:
        self._shell = shell
        self._module = module
        self._inbox: Inbox = queue.SimpleQueue()
        self._all: list[RemoteAgent] = []
        self._beat_at = time.monotonic()

    def enter(self, host: str) -> RemoteAgent:
        """Start an agent on a host."""
        agent = RemoteAgent(host, self._shell.command(host, self._module), self._inbox)
        self._all.append(agent)
        return agent

    def forget(self, agent: RemoteAgent) -> None:
        """End one that is lost."""
        agent.close(time.monotonic())
        self._all.remove(agent)

    def greet(self, agents: Sequence[RemoteAgent], more: Words) -> dict[RemoteAgent, Words]:
        """Tell each who this is, and hear that it is there and of the same version; what it says of itself."""
        order = {
            "do": "hello",
            "folder": str(Path.cwd()),
            "path": [str(Path(p).absolute()) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p],
            **more,
        }
        greetings = {agent: answer["hello"] for agent, answer in self.ask(agents, order, START_SECONDS).items()}
        for agent, hello in greetings.items():
            if hello["version"] != VERSION:
                versions = f"{agent.name} has paceline {hello['version']}, but this is {VERSION}"
                raise HostTrouble("other-version", f"{versions}: install the same version on all hosts", agent)
        return greetings

    def ask(self, agents: Sequence[RemoteAgent], order: Words, seconds: float) -> dict[RemoteAgent, Words]:
        """What each of them answers to the same order; one message names all that do not."""
        return self.ask_each(dict.fromkeys(agents, order), seconds)

    def ask_each(self, orders: Mapping[RemoteAgent, Words], seconds: float) -> dict[RemoteAgent, Words]:
        """What each of them answers to an order of its own."""
        self.recall(list(orders))
        for agent, order in orders.items():
            agent.send(order)
        deadline = time.monotonic() + seconds
        answers: dict[RemoteAgent, Words] = {}
        trouble: dict[RemoteAgent, str] = {}
        waiting = set(orders)
        while waiting:
            heard = self.listen(deadline)
            if heard is None:
                for agent in waiting:
                    agent.ended = True
                    trouble[agent] = f"{agent.name} did not answer within {seconds:g} s{_said(agent)}"
                break
            agent, message = heard
            if agent not in waiting:
                continue
            waiting.remove(agent)
            if message is None:
                trouble[agent] = self._why_ended(agent)
            elif "refused" in message:
                trouble[agent] = f"{agent.name} {message['refused']}"
            else:
                answers[agent] = message
        if trouble:
            first = next(agent for agent in orders if agent in trouble)
            raise HostTrouble("unusable-host", "\n".join(trouble.values()), first)
        return answers

    def recall(self, agents: Sequence[RemoteAgent]) -> None:
        """Say again which have ended, for it may have been heard while others were listened to."""
        for agent in agents:
            if agent.ended:
                self._inbox.put((agent, None))

    def listen(self, deadline: float) -> tuple[RemoteAgent, Words | None] | None:
        """What one says next; None when it is time to act. The others hear that this command is still there."""
        while (now := time.monotonic()) < deadline:
            check_interrupts()
            if now >= self._beat_at + BEAT_SECONDS:
                self._beat_at = now
                for agent in self._all:
                    agent.send({"do": "live"})
            try:
                agent, message = self._inbox.get(timeout=min(deadline - now, BEAT_SECONDS))
            except queue.Empty:
                continue
            agent.ended |= message is None
            return agent, message
        return None

    def close(self) -> None:
        """End everything on every host."""
        for agent in self._all:
            agent.ask_to_leave()
        deadline = time.monotonic() + CLOSE_SECONDS
        for agent in self._all:
            agent.close(deadline)

    def _why_ended(self, agent: RemoteAgent) -> str:
        if agent.has_said("No module named") and agent.has_said("paceline"):
            return (
                f"{agent.name} has no paceline {VERSION} for {self._shell.python}: install it there, or name the "
                f"interpreter that has it as remote-python{_said(agent)}"
            )
        return f"{agent.name} cannot be used: {agent.how_it_ended()}{_said(agent)}"


def _said(agent: RemoteAgent) -> str:
    words = agent.last_words()
    return f"; it said:\n{words}" if words else "; it said nothing"
