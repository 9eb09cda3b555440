"""A host that measures whole cases by itself, as this machine would, while everything that it measures comes here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from paceline.core.case import Case
from paceline.core.errors import PacelineError
from paceline.remote.hosts import START_SECONDS, Agents, RemoteShell
from paceline.runner.execute import CaseEnd
from paceline.runner.fork_client import WarmServer
from paceline.runner.hosts import AGENT, LATE_SECONDS, Host, forwarded
from paceline.runner.run import OnProgress

LOOK_SECONDS = 0.5  # how soon it is noticed that the work is to stop


class NodeLost(PacelineError):
    """A host that was there is not any more; what it had not measured yet is still to be done."""


class RemoteNode:
    """One host with an agent on it, until it is closed; refused (HostTrouble) where it cannot be used."""

    size = nodes = 1  # its cases have their ranks on the host, as on a machine alone

    def __init__(self, host: Host, shell: RemoteShell, is_over: Callable[[], bool] = lambda: False) -> None:
        self._is_over = is_over
        self._agents = Agents(shell, AGENT)
        try:
            self._agent = self._agents.enter(host.name)
            hello = self._agents.greet([self._agent], {"environment": forwarded()})[self._agent]
        except BaseException:
            self.close()
            raise
        self.devices: dict[str, int] = hello["devices"]
        self.parts: dict[str, list[int | str]] = hello.get("parts", {})

    def environment(self) -> dict[str, Any]:
        """What the host is."""
        answer = self._agents.ask([self._agent], {"do": "describe"}, START_SECONDS)[self._agent]
        environment: dict[str, Any] = answer["environment"]
        return environment

    def announce(self, cases: Sequence[Case]) -> None:
        """Every case that fits the host is taken."""

    def execute(self, server: WarmServer, case: Case, on_progress: OnProgress) -> CaseEnd:
        """One case there."""
        return self.execute_at_once(server, [(case, on_progress)])[0]

    def execute_at_once(self, _server: WarmServer, cases: Sequence[tuple[Case, OnProgress]]) -> list[CaseEnd]:
        """Cases there at the same time; KeyboardInterrupt when the work is to stop."""
        heard_by = {case.index: on_progress for case, on_progress in cases}
        self._agents.recall([self._agent])
        self._agent.send({"do": "measure", "cases": [case.model_dump(mode="json") for case, _ in cases]})
        deadline = time.monotonic() + max(case.timeout for case, _ in cases) + LATE_SECONDS
        kept = {case.index: CaseEnd() for case, _ in cases}
        while True:
            heard = self._agents.listen(min(deadline, time.monotonic() + LOOK_SECONDS))
            if self._is_over():
                raise KeyboardInterrupt
            if heard is None:
                if time.monotonic() >= deadline:
                    raise NodeLost("it does not answer any more, well after the timeout of its case")
                continue
            _, message = heard
            if message is None:
                raise NodeLost(f"it was lost: {self._agent.how_it_ended()}{self._agent.quote()}")
            if "refused" in message:
                raise NodeLost(f"it {message['refused']}")
            if "progress" in message:
                kept[message["index"]].keep(message["progress"])
                heard_by[message["index"]](message["progress"])
            elif "ended" in message:
                ends = [CaseEnd.of_words(words) for words in message["ended"]]
                for end, (case, _) in zip(ends, cases, strict=True):
                    end.samples = kept[case.index].samples
                return ends

    def close(self) -> None:
        """End everything there."""
        self._agents.close()
