"""A server that is a program: its process, its ports, how it is asked whether it is ready."""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from paceline.benchmarks.serving.servers._environment import Requirements, versions
from paceline.benchmarks.serving.servers._process import ServedProcess, answers, free_port
from paceline.benchmarks.serving.servers.base import Need, Server, ServerSettings, Started
from paceline.core.errors import InputError

HOST = "127.0.0.1"
_SHORT = 34  # characters of a path that leave enough for the name of a socket


class Program(Server):
    """Started as a process on this machine, with free ports of the loopback."""

    ready_path: ClassVar[str]  # answers 200 when it is ready
    grace: ClassVar[float] = 5.0  # seconds to end by itself

    def __init__(self, settings: ServerSettings, need: Need, folder: Path, say: Callable[[str], None]) -> None:
        super().__init__(settings, need, folder, say)
        self.port = 0
        self._process: ServedProcess | None = None
        self._short: Path | None = None

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """What starts it; ports have been chosen."""

    def _environment(self) -> dict[str, str]:
        """Variables that it is started with."""
        return {}

    def _versions(self) -> dict[str, str]:
        """Of the software, by name."""
        return {}

    def _facts(self) -> dict[str, Any]:
        """What else belongs into the record."""
        return {}

    def _choose_ports(self) -> None:
        self.port = free_port()

    def _is_ready(self) -> bool:
        """Ask it once."""
        return answers(HOST, self.port, self.ready_path)

    def start(self) -> Started:
        self._choose_ports()
        self._process = ServedProcess(
            self._command(), folder=self.folder, environment=self._environment(), grace=self.grace
        )
        self.say(f"starting {self.name}")
        try:
            self._process.start()
            return Started(ready=self._process.wait(self._is_ready, self.settings.ready_timeout))
        except BaseException:
            self.stop()
            raise

    def describe(self) -> dict[str, Any]:
        return {"server": self.name, "versions": self._versions()} | self._facts()

    def processes(self) -> list[int]:
        return self._process.pids() if self._process else []

    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
        if self._short is not None:
            shutil.rmtree(self._short, ignore_errors=True)
            self._short = None

    def logs(self) -> str:
        return self._process.logs() if self._process else ""

    def _short_path(self) -> Path:
        """A folder for sockets, whose path may have 107 characters only: in ours, or elsewhere if that is too deep."""
        inside = self.folder / "tmp"
        if len(str(inside)) <= _SHORT:
            inside.mkdir(exist_ok=True)
            return inside
        if self._short is None:
            self._short = Path(tempfile.mkdtemp(prefix="pl-"))
        return self._short


class PythonSettings(ServerSettings):
    """Of a server that runs in an environment of its own."""

    python: Path | None = None
    """Interpreter to start it with, instead of the one that `paceline servers install` made"""


class PythonProgram(Program):
    """A Python package, started with the interpreter of its own environment."""

    Settings: ClassVar[type[ServerSettings]] = PythonSettings
    requirements: ClassVar[Requirements]

    settings: PythonSettings

    def __init__(self, settings: ServerSettings, need: Need, folder: Path, say: Callable[[str], None]) -> None:
        super().__init__(settings, need, folder, say)
        self._python: Path | None = None
        self._found: dict[str, str] = {}

    @classmethod
    def missing(cls) -> str | None:
        return cls.requirements.missing()

    @classmethod
    def check(cls, settings: ServerSettings, need: Need) -> None:
        assert isinstance(settings, PythonSettings)
        if settings.python is not None and not need.allow_import:
            raise InputError(f"python = '{settings.python}': only a case that was started on this machine may name one")

    @property
    def python(self) -> Path:
        """The interpreter that it runs in."""
        if self._python is None:
            self._python = self.requirements.python(self.settings.python)
            self._found = versions(self._python, self.requirements.shown)
        return self._python

    def prepare(self) -> None:
        _ = self.python  # before anything that takes long

    def _environment(self) -> dict[str, str]:
        # What this interpreter is told to import has no place in another one.
        path = f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {"PYTHONPATH": "", "PATH": path}

    def _versions(self) -> dict[str, str]:
        return dict(self._found) if self.python else {}
