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

from paceline.core.errors import InputError
from paceline.core.interrupt import check_interrupts, signal_name
from paceline.remote.agent import Message, decode, encode
from paceline.version import VERSION

# Never asks for a password, for several hosts would ask at once; notices a host that has gone.
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 {host}"
LOCAL = "localhost"  # entered without a remote shell
KEPT_LINES = 12

START_SECONDS = 60.0
BEAT_SECONDS = 10.0
CLOSE_SECONDS = 10.0


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
            message = f"the remote shell {self.template!r} has no {{host}} for the name of the host"
            raise InputError("missing-host", message, value=self.template)

    def command(self, host: str, module: str) -> list[str]:
        """What starts the agent there: a module of Paceline's."""
        agent = [self.python, "-P", "-m", module]
        if host == LOCAL:
            return agent
        way = [word.replace("{host}", host) for word in shlex.split(self.template)]
        # ssh has a shell on the other side read the words again; other ways pass them on as they are.
        return [*way, shlex.join(agent)] if Path(way[0]).name == "ssh" else [*way, *agent]


# A host and its message; None when it has ended.
Inbox = queue.SimpleQueue[tuple["RemoteAgent", Message | None]]


class RemoteAgent:
    """The agent on one host, behind its remote shell."""

    def __init__(self, name: str, command: Sequence[str], inbox: Inbox) -> None:
        self.name = name
        self.ended = False
        self._output: deque[str] = deque(maxlen=KEPT_LINES)  # apart from its answers: errors, greetings
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
        targets = (self._read_answers, self._read_errors)
        self._readers = [threading.Thread(target=target, daemon=True) for target in targets]
        for reader in self._readers:
            reader.start()

    def send(self, message: Message) -> None:
        """Send a message; that nobody receives it any more shows in the other direction."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(encode(message))
            self._process.stdin.flush()

    def how_it_ended(self) -> str:
        """For people; waits a moment for an end that is near."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        code = self._process.poll()
        if code is None:
            return "its process still runs"
        return f"its process ended with code {code}" if code >= 0 else f"its process was ended by {signal_name(-code)}"

    def last_words(self) -> str:
        """What it printed last, line by line under its name."""
        if self._process.poll() is not None:
            self._readers[1].join(timeout=1)
        return "\n".join(f"  {self.name}: {line}" for line in self._output)

    def why_ended(self, python: str) -> str:
        """Why it cannot be used, now that it has ended; `python` is the interpreter that it was started with."""
        how, output = self.how_it_ended(), self.quote()
        if "No module named" in output and "paceline" in output:
            install = "install it there, or name the interpreter that has it as remote-python"
            return f"{self.name} has no paceline {VERSION} for {python}: {install}{output}"
        return f"{self.name} cannot be used: {how}{output}"

    def quote(self) -> str:
        """What it printed last, as the end of a message."""
        words = self.last_words()
        return f"; it printed:\n{words}" if words else "; it printed nothing"

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

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = decode(line)
            if message is None:
                self._note(line)
            else:
                self._inbox.put((self, message))
        self._inbox.put((self, None))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._note(line)

    def _note(self, line: bytes) -> None:
        if text := line.decode(errors="replace").strip():
            self._output.append(text)


class HostTrouble(InputError):
    """A host cannot be reached, or not be used."""

    def __init__(self, code: str, message: str, agent: RemoteAgent) -> None:
        super().__init__(code, message, value=agent.name)
        self.agent = agent


class Agents:
    """The agents of one command; their messages come in one after the other."""

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

    def greet(self, agents: Sequence[RemoteAgent], more: Message) -> dict[RemoteAgent, Message]:
        """What each says of itself; refused where one is missing, or has another version."""
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

    def ask(self, agents: Sequence[RemoteAgent], order: Message, seconds: float) -> dict[RemoteAgent, Message]:
        """What each of them answers to the same order."""
        return self.ask_each(dict.fromkeys(agents, order), seconds)

    def ask_each(self, orders: Mapping[RemoteAgent, Message], seconds: float) -> dict[RemoteAgent, Message]:
        """What each of them answers to its order; one error names all that do not."""
        self.recall(list(orders))
        for agent, order in orders.items():
            agent.send(order)
        deadline = time.monotonic() + seconds
        answers: dict[RemoteAgent, Message] = {}
        trouble: dict[RemoteAgent, str] = {}
        waiting = set(orders)
        while waiting:
            received = self.listen(deadline)
            if received is None:
                for agent in waiting:
                    agent.ended = True
                    trouble[agent] = f"{agent.name} did not answer within {seconds:g} s{agent.quote()}"
                break
            agent, message = received
            if agent not in waiting:
                continue
            waiting.remove(agent)
            if message is None:
                trouble[agent] = agent.why_ended(self._shell.python)
            elif "refused" in message:
                trouble[agent] = f"{agent.name} {message['refused']}"
            else:
                answers[agent] = message
        if trouble:
            first = next(agent for agent in orders if agent in trouble)
            raise HostTrouble("unusable-host", "\n".join(trouble.values()), first)
        return answers

    def recall(self, agents: Sequence[RemoteAgent]) -> None:
        """Report once more which have ended: the first report may have come while others were waited for."""
        for agent in agents:
            if agent.ended:
                self._inbox.put((agent, None))

    def listen(self, deadline: float) -> tuple[RemoteAgent, Message | None] | None:
        """The next message; None at the deadline. Agents are kept informed that this command still runs."""
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
