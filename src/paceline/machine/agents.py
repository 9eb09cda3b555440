"""Agents on several hosts: entered, asked together, listened to, and ended together."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.core.errors import InputError
from paceline.machine.remote import Inbox, RemoteAgent, RemoteShell
from paceline.version import VERSION

START_SECONDS = 60.0
BEAT_SECONDS = 10.0
CLOSE_SECONDS = 10.0

Words = dict[str, Any]


class HostTrouble(InputError):
    """A host cannot be reached, or not be used."""

    def __init__(self, message: str, agent: RemoteAgent) -> None:
        super().__init__(message)
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
        found = {agent: answer["hello"] for agent, answer in self.ask(agents, order, START_SECONDS).items()}
        for agent, hello in found.items():
            if hello["version"] != VERSION:
                message = f"{agent.name} has paceline {hello['version']}, but this is {VERSION}"
                raise HostTrouble(f"{message}: install the same version on all hosts", agent)
        return found

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
            raise HostTrouble("\n".join(trouble.values()), next(agent for agent in orders if agent in trouble))
        return answers

    def recall(self, agents: Sequence[RemoteAgent]) -> None:
        """Say again which have ended, for it may have been heard while others were listened to."""
        for agent in agents:
            if agent.ended:
                self._inbox.put((agent, None))

    def listen(self, deadline: float) -> tuple[RemoteAgent, Words | None] | None:
        """What one says next; None when it is time to act. The others hear that this command is still there."""
        while (now := time.monotonic()) < deadline:
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
