"""The runner's side of the warm server: start it, let it import, have it fork, hear of ends."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from paceline.core.errors import PacelineError
from paceline.core.supervisor import become_subreaper, children_of
from paceline.core.watch import Watched
from paceline.devices import fork_environment
from paceline.load.processes import on_cores
from paceline.runner.channel import Channel
from paceline.runner.control_group import ControlGroup
from paceline.runner.fork_server import END_SECONDS, end_adopted, has_children

_MARK = "PACELINE_RUNNER"  # in the environment of everything that the server started, whatever its parent is now
WATCHER_SECONDS = 5.0  # for what was seen
CLOSE_SECONDS = 5.0  # a server that has nothing more to do may take this long to leave


class ServerLost(PacelineError):
    """The warm server died."""

    def __init__(self, *, is_importing: bool) -> None:
        """`is_importing`: whether an import may have crashed it; otherwise something killed it."""
        while_importing = " while it imported; a library may have crashed"
        with_its_case = ", and the case with it; --resume measures it again"
        super().__init__("the warm server ended unexpectedly" + (while_importing if is_importing else with_its_case))
        self.is_importing = is_importing


class ServerTimeout(PacelineError):
    """The warm server did not answer in time."""


@dataclass
class WarmServer:
    """One warm server; started when first needed, restarted when it died."""

    cpus: frozenset[int] = frozenset()  # that it and its cases run on; empty for all
    _process: subprocess.Popen[bytes] | None = None
    _control: Channel | None = None
    _imported: set[str] = field(default_factory=set)
    _importing: list[list[str]] = field(default_factory=list)  # orders that were not answered yet
    _ends: dict[int, int] = field(default_factory=dict)  # pid: wait status, not asked for yet
    _watcher: Channel | None = None
    escaped: dict[int, str] = field(default_factory=dict)  # pid: name, of what outlived the last cases and was ended
    group: ControlGroup = field(default_factory=ControlGroup)  # that it and its cases are in

    def __enter__(self) -> WarmServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm(self, modules: tuple[str, ...], deadline: float) -> None:
        """Have these modules imported before the next fork; `deadline` is on the monotonic clock."""
        with contextlib.suppress(ServerLost):  # while nothing was asked of it: another one takes its place
            self._ends = self.poll_ends()
        if modules:
            self.begin(modules)
        while self._importing:
            self._note(self._await("imported", deadline))

    def begin(self, modules: tuple[str, ...] = ()) -> None:
        """Start the process, and let it import these while something else is done; `warm` waits for it."""
        known = self._imported.union(*self._importing)
        missing = [name for name in modules if name not in known]
        if missing or self._control is None:
            self._importing.append(missing)
            self._order({"do": "import", "modules": missing})

    def watch(self, targets: list[str]) -> None:
        """Have the machine and these targets watched by a process of its own, until `watched` asks what it has seen."""
        if self._watcher is None:
            self._watcher, theirs = Channel.pair()
            try:
                self._order({"do": "watch"}, [theirs.fileno()])
            finally:
                theirs.close()
        with contextlib.suppress(OSError):  # it is gone, which the next question shows
            self._watcher.send({"watch": targets})

    def watched(self) -> Watched | None:
        """What was seen; None where the process is gone, so that the next cases have another one."""
        watcher = self._watcher
        if watcher is not None:
            with contextlib.suppress(OSError, ValueError):
                watcher.send({"end": True})
                is_there = bool(select.select([watcher], [], [], WATCHER_SECONDS)[0])
                if is_there and (received := watcher.receive()) is not None:
                    return Watched.model_validate(received[0])
            self._unwatch()
        return None

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def fork(self, order: dict[str, Any], deadline: float) -> tuple[int, Channel]:
        """A new process for one rank of a case: its id, and the channel it reports on."""
        ours, theirs = Channel.pair()
        try:
            self._order({"do": "fork"} | order, [theirs.fileno()])
        finally:
            theirs.close()
        return int(self._await("forked", deadline)["forked"]), ours

    @property
    def pid(self) -> int | None:
        """Of its process, if it has one by now."""
        return self._process.pid if self._process is not None else None

    @property
    def control(self) -> Channel:
        """What becomes readable when a process has ended."""
        if self._control is None:
            ours, theirs = Channel.pair()
            self.group = ControlGroup.make()
            become_subreaper()  # should the server be killed, what its cases started comes to this process
            # From its start, for libraries count their threads when they are imported.
            with on_cores(tuple(self.cpus)) if self.cpus else contextlib.nullcontext():
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "paceline.runner.fork_server", str(theirs.fileno())]
                    + [str(entry) for entry in self.group.entries],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=os.environ | fork_environment() | {_MARK: str(os.getpid())},
                    start_new_session=True,
                )
            theirs.close()
            self._control = ours
        return self._control

    def poll_ends(self) -> dict[int, int]:
        """Wait statuses of processes that have ended since the last call."""
        while self._control is not None and select.select([self._control], [], [], 0)[0]:
            self._note(self._receive())
        ends, self._ends = self._ends, {}
        return ends

    def abandon(self) -> None:
        """End a server of which nothing is wanted any more, whatever it imports just now."""
        if self._process is not None:
            self._process.kill()
        self.close()

    def close(self) -> None:
        """End the server and everything it forked."""
        self._unwatch()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(timeout=CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=END_SECONDS)
            self._process = None
            self.escaped |= end_adopted(_not_of_server(), grace=0.0)
            become_subreaper(False)
        self.group.end()
        self._imported.clear()
        self._importing.clear()

    def _order(self, order: dict[str, Any], descriptors: list[int] | None = None) -> None:
        try:
            self.control.send(order, descriptors)
        except ConnectionError:
            self._lose()

    def _receive(self) -> dict[str, Any]:
        message = self.control.receive()
        return message[0] if message is not None else self._lose()

    def _lose(self) -> NoReturn:
        is_importing = bool(self._importing)
        self.close()
        raise ServerLost(is_importing=is_importing)

    def _await(self, key: str, deadline: float) -> dict[str, Any]:
        while True:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self.control], [], [], left)[0]:
                if self._process is not None:
                    self._process.kill()
                self.close()
                raise ServerTimeout("the heavy imports did not end within the case's timeout; raise it with --timeout")
            message = self._receive()
            if key in message:
                return message
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if "imported" in message and self._importing:
            self._imported.update(self._importing.pop(0))
        if "ended" in message:
            self._ends[int(message["ended"])] = int(message["status"])
            self.escaped |= {int(pid): name for pid, name in message.get("escaped", {}).items()}


def _not_of_server() -> set[int]:
    """The children of this process that were not handed over to it when the server was killed."""
    mark = f"{_MARK}={os.getpid()}".encode()
    others = set()
    for pid in children_of(os.getpid()) if has_children() else ():
        variables = b""
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes()
        if mark not in variables.split(b"\0"):
            others.add(pid)
    return others
