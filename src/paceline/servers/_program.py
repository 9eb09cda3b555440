"""A server that is a program: its process, its ports, how to find out whether it is ready, and how it gets a model."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import psutil
from pydantic import Field

from paceline.core.errors import InputError, Unsupported
from paceline.core.network import PROGRAM, free_port
from paceline.core.quantity import Duration
from paceline.core.supervisor import supervised
from paceline.devices import kind_named
from paceline.load.kserve_grpc import METHOD as GRPC_METHOD
from paceline.load.request import Endpoint, Wire
from paceline.servers import _apps
from paceline.servers._environment import Requirements
from paceline.servers._environment import versions as read_versions
from paceline.servers.base import Artifact, Format, Need, Server, ServerFailed, ServerSettings
from paceline.servers.export import export

_LOG_END = 64 * 1024  # bytes of a log that are read for its last lines
_LOG_LINES = 40
_MOST_BODY = 1 << 20  # bytes that are read of an answer
_POLL = 0.02  # seconds between checks whether it is ready
_REAP = 10.0  # seconds for a supervisor to notice that all it watches over is gone
_SHORT = 34  # characters of a path that leave enough for the name of a socket

HOST = "127.0.0.1"
MODEL = "model"  # what most servers call their model
HTTP_ERRORS = (OSError, http.client.HTTPException)


def http_get(
    host: str,
    port: int,
    path: str,
    *,
    timeout: float = 10.0,
    tls: bool = False,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    """Status and body; one of HTTP_ERRORS if there is no answer. No proxy is used, no redirection is followed."""
    protocol = http.client.HTTPSConnection if tls else http.client.HTTPConnection
    with contextlib.closing(protocol(host, port, timeout=timeout)) as connection:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_BODY)


def answers(host: str, port: int, path: str) -> bool:
    """Whether an HTTP GET is answered with 200 within a second."""
    try:
        return http_get(host, port, path, timeout=1.0)[0] == 200
    except HTTP_ERRORS:
        return False


class PythonSettings(ServerSettings):
    """Of a server that runs in an environment of its own."""

    python: Annotated[Path | None, PROGRAM] = None
    """Interpreter to start it with, instead of the one that `paceline servers install` made"""


class Program(Server):
    """A server whose command is started here, in a session of its own; what it prints is in `server.log`.

    A supervisor process stands between: it adopts whatever the command starts, ends all of it on `stop()`, and also
    when this process dies, by whatever signal. Ports are free ones of the loopback.
    """

    grace: ClassVar[float] = 5.0  # seconds that it may take to end by itself
    requirements: ClassVar[Requirements | None] = None  # None for a program that pip does not install
    device_kind: ClassVar[str] = ""  # that its packages are built for; any if empty
    ready_path: ClassVar[str]  # answers 200 when it is ready

    def __init__(self, settings: ServerSettings, need: Need, folder: Path, say: Callable[[str], None]) -> None:
        super().__init__(settings, need, folder, say)
        self.log = folder / "server.log"
        self.port = self.grpc_port = 0
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._main: psutil.Process | None = None  # the command's own process, once it is known
        self._short: Path | None = None

    @classmethod
    def missing(cls) -> str | None:
        if cls.requirements is None:
            return None
        return cls.device_missing() or cls.requirements.missing()

    @classmethod
    def device_missing(cls) -> str | None:
        """Why the packages that pip installs do not run on this machine's devices."""
        # An interpreter that a user has made may have a build for other devices.
        assert cls.requirements is not None
        if not cls.device_kind or cls.requirements.has_own_python or kind_named(cls.device_kind).count():
            return None
        return (
            f"{cls.name} needs a GPU of the kind '{cls.device_kind}', and the driver shows none here; use llama-cpp or "
            f"embedded, or name the Python of a build for this device in ${cls.requirements.variable}"
        )

    @classmethod
    def check(cls, settings: ServerSettings, need: Need) -> None:
        if isinstance(settings, PythonSettings) and settings.python is not None and not need.allow_import:
            message = f"python = '{settings.python}': only a case that was started on this machine may name one"
            raise InputError("not-from-network", message, key="server.python", value=str(settings.python))

    @cached_property
    def python(self) -> Path:
        """The interpreter that it runs in."""
        assert self.requirements is not None
        assert isinstance(self.settings, PythonSettings)
        if self.settings.python is None and (reason := self.device_missing()):
            raise Unsupported(reason)
        return self.requirements.python(self.settings.python)

    @cached_property
    def versions(self) -> dict[str, str]:
        """Of the software, by name."""
        return {} if self.requirements is None else read_versions(self.python, self.requirements.shown)

    def prepare(self) -> None:
        _ = self.versions  # refuses an interpreter that does not work, before anything that takes long

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """What starts it; ports have been chosen."""

    def _facts(self) -> dict[str, Any]:
        """What else belongs into the record."""
        return {}

    def _environment(self) -> dict[str, str]:
        """Variables that it is started with."""
        if self.requirements is None:
            return {}
        # The import path of this interpreter must not reach another one.
        path = f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {"PYTHONPATH": "", "PATH": path}

    def _is_ready(self) -> bool:
        return answers(HOST, self.port, self.ready_path)

    def start(self) -> float:
        self.port = free_port()
        self.grpc_port = free_port() if "kserve-grpc" in self.wires else 0
        command, environment = self._command(), self._environment()
        self.say(f"starting {self.name}")
        return self._run(command, environment)

    def _run(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> float:
        """Start it, and ask until it is ready: the seconds it took."""
        self._main = None
        with self.log.open("ab") as log:
            self._supervisor = subprocess.Popen(
                supervised(command, self.grace),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd or self.folder,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | dict(environment or {}),
                start_new_session=True,
            )
        begin = time.monotonic()
        try:
            while not self._is_ready():
                if not self.is_alive():
                    code = self._supervisor.wait(timeout=self.grace + 10)  # what the command left is ended too by then
                    raise ServerFailed(f"the server ended with exit code {code} before it was ready", self.logs())
                timeout = self.settings.ready_timeout
                if time.monotonic() - begin > timeout:
                    message = (
                        f"the server was not ready after {timeout:g} s; raise ready_timeout if it only needs longer"
                    )
                    raise ServerFailed(message, self.logs())
                time.sleep(_POLL)
        except BaseException:
            self.stop()
            raise
        return time.monotonic() - begin

    def describe(self) -> dict[str, Any]:
        return {"server": self.name, "versions": self.versions} | self._facts()

    def processes(self) -> list[int]:
        """The command's process and all that it started."""
        if self._supervisor is None or self._supervisor.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self._supervisor.pid).children(recursive=True)]
        return []

    def is_alive(self) -> bool:
        if self._supervisor is None or self._supervisor.poll() is not None:
            return False
        try:  # the supervisor may not yet have noticed the end
            if self._main is None:
                children = psutil.Process(self._supervisor.pid).children()  # orphans that it adopts are younger
                self._main = min(children, key=lambda child: child.create_time(), default=None)
            return self._main is None or (self._main.is_running() and self._main.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def stop(self) -> None:
        """Ask it to end, and end it and everything it started after a grace."""
        if self._supervisor is not None and self._supervisor.poll() is None:
            self._supervisor.terminate()
            try:
                self._supervisor.wait(timeout=self.grace + 10)
            except subprocess.TimeoutExpired:  # as on a machine that stood still
                for pid in self.processes():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        psutil.Process(pid).kill()
                try:
                    self._supervisor.wait(timeout=_REAP)  # it alone can wait for the ends of what it adopted
                except subprocess.TimeoutExpired:
                    self._supervisor.kill()
                    self._supervisor.wait()
        if self._short is not None:
            shutil.rmtree(self._short, ignore_errors=True)
            self._short = None

    def logs(self) -> str:
        try:
            with self.log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(0, size - _LOG_END))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-_LOG_LINES:])

    def _short_path(self) -> Path:
        """A folder for sockets, whose path may have 107 characters only: in ours, or elsewhere if that is too deep."""
        inside = self.folder / "tmp"
        if len(str(inside)) <= _SHORT:
            inside.mkdir(exist_ok=True)
            return inside
        if self._short is None:
            self._short = Path(tempfile.mkdtemp(prefix="pl-"))
        return self._short


class WorkerSettings(ServerSettings):
    """Of a server that runs a model in workers."""

    workers: int = Field(default=1, ge=1, le=1024)
    """How many run the model side by side"""
    threads: int | None = Field(default=None, ge=1)
    """Threads of each worker's engine; the cores divided by the workers unless set"""
    max_batch: int = Field(default=1, ge=1, le=65_536)
    """Requests that are run together, at most; 1 runs each by itself"""

    @property
    def threads_of_worker(self) -> int:
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.workers)


class BatchingSettings(WorkerSettings):
    """Of a server that takes the longest wait for a batch as a setting."""

    max_delay: Duration = Field(default=0.005, gt=0, le=3600)
    """How long the first request of a batch waits for others, at most"""


class WorkerAppSettings(WorkerSettings, PythonSettings):
    """Of a Python package that decides itself how long to wait for a batch."""


class AppSettings(BatchingSettings, PythonSettings):
    """Of a Python package with batching."""


class ExportedModelServer(Program):
    """Serves a model that Paceline has exported, by an app of ours if the server needs one."""

    Settings: ClassVar[type[ServerSettings]] = AppSettings
    path: ClassVar[str]  # of an inference request
    format: ClassVar[Format] = "onnx"
    apps: ClassVar[tuple[str, ...]] = ()  # files of _apps, copied into the server's folder; the first is started

    settings: WorkerSettings
    artifact: Artifact

    @classmethod
    def check(cls, settings: ServerSettings, need: Need) -> None:
        super().check(settings, need)
        requirements = cls.requirements
        if requirements is None or requirements.torch or requirements.has_own_python or need.device == "cpu":
            return
        assert isinstance(settings, PythonSettings)
        if settings.python is None:
            message = (
                f"{cls.name} on {need.device}: the environment made here has ONNX Runtime for the CPU; "
                f"run it with target: cpu, or name an interpreter with onnxruntime-gpu as 'python'"
            )
            raise InputError("needs-cpu", message, key="target", value=need.device, suggestion="cpu")

    def prepare(self) -> None:
        super().prepare()
        self.say(f"exporting {self.need.model}")
        self.artifact = export(self.need, self.format)
        for name in self.apps:
            shutil.copyfile(Path(_apps.__path__[0]) / name, self.folder / name)

    def endpoint(self, wire: Wire) -> Endpoint:
        if wire == "kserve-grpc":
            return Endpoint(wire=wire, host=HOST, port=self.grpc_port, path=GRPC_METHOD, model=MODEL)
        return Endpoint(wire=wire, host=HOST, port=self.port, path=self.path, model=MODEL)

    def _command(self) -> Sequence[str]:
        self._write_app_config()
        return [str(self.python), str(self.folder / self.apps[0])]

    def _batching(self) -> dict[str, Any]:
        settings = self.settings
        delay = settings.max_delay if isinstance(settings, BatchingSettings) else None  # None: the server decides
        sizes = {"workers": settings.workers, "threads": settings.threads_of_worker, "max_batch": settings.max_batch}
        return sizes | {"max_delay": delay}

    def _facts(self) -> dict[str, Any]:
        facts = {"engine": "onnxruntime" if self.format == "onnx" else "torch"} | self._batching()
        if facts["max_batch"] == 1 or facts["max_delay"] is None:
            del facts["max_delay"]
        return facts

    def _write_app_config(self) -> None:
        """What an app of ours reads when it is started."""
        config = {
            "model": MODEL,
            "path": str(self.artifact.path),
            "inputs": [spec.metadata | {"dtype": spec.dtype.name} for spec in self.artifact.inputs],
            "outputs": [spec.metadata | {"dtype": spec.dtype.name} for spec in self.artifact.outputs],
            "device": self.need.device,
            "host": HOST,
            "port": self.port,
            **({"grpc_port": self.grpc_port} if self.grpc_port else {}),
            **self._batching(),
        }
        (self.folder / "serve.json").write_text(json.dumps(config, indent=2))


def with_onnxruntime(server: str, package: str, version: str, **more: Any) -> Requirements:
    """A Python package in which an app of ours runs the model in ONNX Runtime."""
    name = package.partition("[")[0]
    packages, shown = (f"{package}=={version}", "onnxruntime==1.31.1"), (name, "onnxruntime", "onnxruntime-gpu")
    return Requirements(server=server, packages=packages, shown=shown, **more)
