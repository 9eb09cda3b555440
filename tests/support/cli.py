"""Runs `paceline` as a user does: a process of its own, with a home, a store and a folder that are a test's own."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from paceline.core.record import Record
from paceline.core.run import RunRecords
from paceline.store import open_store

PLUGIN = Path(__file__).parent / "plugin"
MARK = "PACELINE_TEST_MARK"
GENEROUS = 120.0  # seconds; only what hangs takes so long
_FOREIGN = ("PACELINE_", "OMPI_", "PMI_", "MPI_", "TORCHELASTIC_", "MASTER_", "SLURM_", "XDG_")


def _plain_environment() -> dict[str, str]:
    ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN) and name not in ranks}


@dataclass
class Sandbox:
    """A folder, a home and a store that nothing else uses, and the processes that were started there."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        for path in (self.home, self.work, self.folder / "tmp"):
            path.mkdir(parents=True)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def work(self) -> Path:
        """The current folder of what is started."""
        return self.folder / "work"

    @property
    def store(self) -> Path:
        return self.folder / "store" / "paceline.db"

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {
            "HOME": str(self.home),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "TMPDIR": str(self.folder / "tmp"),
            "PACELINE_STORE": str(self.store),
            "PYTHONPATH": str(PLUGIN),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "200",
            MARK: self.mark,
        }
        return _plain_environment() | own | dict(more or {})

    def suite(self, *cases: Mapping[str, Any], name: str = "suite.yaml") -> str:
        """Write a suite of these cases; JSON is YAML."""
        return self.write(name, json.dumps({"name": Path(name).stem, "cases": list(cases)}))

    def write(self, name: str, text: str) -> str:
        (self.work / name).write_text(text, encoding="utf-8")
        return name

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """`paceline ...` until it ends."""
        return self.call([sys.executable, "-m", "paceline", *arguments], env=env, **more)

    def ask(
        self, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = GENEROUS
    ) -> subprocess.CompletedProcess[str]:
        """The same in a copy of a process that has imported everything: for tests of what a command says and stores."""
        said = [self.folder / name for name in ("stdout.txt", "stderr.txt")]
        for path in said:
            path.write_bytes(b"")
        order = {"arguments": arguments, "environment": self.environment(env), "folder": str(self.work)}
        code = _copies().run(order | {"stdout": str(said[0]), "stderr": str(said[1])}, timeout)
        return subprocess.CompletedProcess(["paceline", *arguments], code, *(path.read_text() for path in said))

    def call(
        self,
        command: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = GENEROUS,
        **more: Any,
    ) -> subprocess.CompletedProcess[str]:
        """A command until it ends, whatever it leaves behind."""
        return subprocess.run(
            command,
            cwd=cwd or self.work,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **more,
        )

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """`paceline ...` in a session of its own, to be watched; its output is line by line."""
        return subprocess.Popen(
            [sys.executable, "-m", "paceline", *arguments],
            cwd=self.work,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # What starts the tests may ignore the terminal's interrupt, as shells do for what runs in the background.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def load(self, run: str = "last") -> RunRecords:
        """A run out of the store."""
        with open_store(self.store) as store:
            return store.load(store.find_run(run))

    def attempts(self, run_id: str, index: int) -> list[Record]:
        with open_store(self.store) as store:
            return store.attempts(run_id, index)

    def processes(self) -> list[psutil.Process]:
        """Everything alive that was started here, however its parents ended."""
        wanted = f"{MARK}={self.mark}".encode()
        return [process for process in psutil.process_iter() if wanted in _environment_of(process.pid)]

    def left_behind(self, patience: float = 15.0) -> list[str]:
        """What is still alive when everything should be gone."""
        deadline = time.monotonic() + patience
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [_described(process) for process in left]

    def clean(self) -> None:
        """End whatever a failed test left."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()


class _Copies:
    """See `forked_cli`."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("forked_cli.py")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(program)],
            env=_plain_environment() | {"PYTHONPATH": str(PLUGIN)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, order: Mapping[str, Any], timeout: float) -> int:
        """The exit code of a command, which is killed if it takes longer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        copy = int(self._process.stdout.readline())
        ending = threading.Timer(timeout, os.kill, (copy, signal.SIGKILL))
        ending.start()
        try:
            return int(self._process.stdout.readline())
        finally:
            ending.cancel()


@functools.cache
def _copies() -> _Copies:
    """One for as long as the tests run; it ends with its input."""
    return _Copies()


@contextmanager
def sandbox_in(folder: Path) -> Iterator[Sandbox]:
    """A sandbox whose processes do not outlive it."""
    sandbox = Sandbox(folder)
    try:
        yield sandbox
    finally:
        sandbox.clean()


def events(output: str) -> list[dict[str, Any]]:
    """The events of `--json`; every line must be one."""
    return [json.loads(line) for line in output.splitlines()]


def ended(output: Iterable[dict[str, Any]]) -> list[Record]:
    """The records that were acknowledged, without their samples."""
    return [Record.model_validate(event["record"]) for event in output if event["event"] == "case_ended"]


def case_processes(runner: int) -> list[psutil.Process]:
    """The processes of the case in flight: children of the runner's warm server that write to a log of their own."""
    try:
        return [child for server in psutil.Process(runner).children() for child in server.children() if _has_log(child)]
    except psutil.NoSuchProcess:
        return []


def _has_log(process: psutil.Process) -> bool:
    """Not so before it is a rank, and neither is the watcher, which has no other name at first."""
    try:
        return Path(f"/proc/{process.pid}/fd/1").readlink().parent.name.startswith("paceline-")
    except OSError:  # it has ended
        return False


def _environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()  # empty for a zombie
    except OSError:
        return b""


def _described(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())}"
    except psutil.NoSuchProcess:
        return f"{process.pid}: gone by now"
