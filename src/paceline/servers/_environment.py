"""A virtual environment for each server that is a Python package, so that none disturbs another, or Paceline."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import InputError, Unsupported
from paceline.core.files import data_directory, write_atomic
from paceline.core.installing import InstallFailed, one_at_a_time, run_step

_PIN = re.compile(r"^[\w.-]+==[^\s\\]+", re.MULTILINE)


@dataclass(frozen=True)
class Requirements:
    """What a server's environment holds, and what else the server needs on this machine."""

    server: str
    packages: tuple[str, ...]  # for pip, pinned
    shown: tuple[str, ...]  # distributions whose versions belong into a record, the server's own first
    torch: bool = False  # whether it takes the torch that Paceline runs with
    system_python: bool = False  # whether it works with the distribution's interpreter only
    machines: tuple[str, ...] = ()  # architectures that it is built for; any if empty
    programs: tuple[tuple[str, str], ...] = ()  # a program that it starts, and what to do without it

    @property
    def variable(self) -> str:
        """The environment variable that names an interpreter which a user has made."""
        return f"PACELINE_{self.server.upper().replace('-', '_')}_PYTHON"

    @property
    def has_own_python(self) -> bool:
        """Whether a user has named an interpreter for every case."""
        return bool(os.environ.get(self.variable))

    @property
    def pins(self) -> Path:
        """The file with the versions of its dependencies, as they were tested; it may be missing."""
        return Path(__file__).parent / "_pins" / f"{self.server}.txt"

    @property
    def pinned(self) -> list[str]:
        """What that file pins, as in numpy==2.4.6, without the hashes."""
        return _PIN.findall(self.pins.read_text(encoding="utf-8")) if self.pins.exists() else []

    @property
    def pip_packages(self) -> list[str]:
        """The arguments of pip. A torch of another build than Paceline's could be gigabytes of another platform."""
        if not self.torch:
            return list(self.packages)
        try:
            return [f"torch=={importlib.metadata.version('torch')}", *self.packages]
        except importlib.metadata.PackageNotFoundError:
            raise InstallFailed(
                f"{self.server} takes the torch that Paceline runs with; run: pip install '.[torch]'"
            ) from None

    @property
    def made_for(self) -> list[str]:
        """What decides whether an environment that was made before can be used."""
        return [*self.pip_packages, *self.pinned]

    @property
    def marker(self) -> Path:
        """The file that a complete environment has."""
        return folder_of(self.server) / "complete.json"

    @property
    def interpreter(self) -> Path:
        """The one of the environment made here."""
        return folder_of(self.server) / "venv" / "bin" / "python"

    def is_complete(self) -> bool:
        """Whether the environment was made, for these packages."""
        try:
            made: dict[str, Any] = json.loads(self.marker.read_text())
            return made.get("made_for") == self.made_for and _is_program(self.interpreter)
        except (OSError, ValueError, InstallFailed):
            return False

    def missing(self) -> str | None:
        """Why the server cannot start here and what to do about it; None if it can."""
        if self.machines and platform.machine() not in self.machines:
            return f"there is no {self.server} for {platform.machine()}, only for {' and '.join(self.machines)}"
        for program, remedy in self.programs:
            if shutil.which(program) is None:
                return f"{self.server} needs {program}, which is not installed; {remedy}"
        if named := os.environ.get(self.variable):
            return None if _is_program(named) else f"${self.variable} = '{named}' is not an interpreter"
        if self.is_complete():
            return None
        state = "is not installed" if not self.marker.exists() else "was installed for another version of Paceline"
        return f"{self.server} {state}; run: paceline servers install {self.server}"

    def python(self, setting: Path | None = None) -> Path:
        """The interpreter to start the server with: the user's own, otherwise that of the environment made here."""
        if setting is not None:
            if not _is_program(setting):
                message = f"python = '{setting}' is not an interpreter; name the file, as in /path/to/venv/bin/python"
                raise InputError("not-an-interpreter", message, key="server.python", value=str(setting))
            return setting.absolute()
        if reason := self.missing():
            raise Unsupported(reason)
        named = os.environ.get(self.variable)
        return Path(named).absolute() if named else self.interpreter


@dataclass(frozen=True)
class Installed:
    """An environment that was made now or before."""

    folder: Path
    seconds: float  # 0 if it was made before
    size: int  # bytes


def folder_of(server: str) -> Path:
    """Where the environment of a server is, with its log."""
    return data_directory() / "servers" / server


def install(requirements: Requirements, say: Callable[[str], None]) -> Installed:
    """Make the environment unless it exists; only one process does at a time."""
    folder = folder_of(requirements.server)
    folder.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(folder, say):
        seconds = 0.0
        if not requirements.is_complete():
            begin = time.monotonic()
            requirements.marker.unlink(missing_ok=True)
            shutil.rmtree(folder / "venv", ignore_errors=True)
            _build(requirements, folder, say)
            seconds = time.monotonic() - begin
            made = {"made_for": requirements.made_for, "python": str(requirements.interpreter.resolve())}
            write_atomic(requirements.marker, json.dumps(made | {"seconds": round(seconds, 1)}, indent=2))
        size = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
        return Installed(folder, seconds, size)


def remove(server: str) -> bool:
    """Remove the environment of a server; whether there was one."""
    folder = folder_of(server)
    if not folder.exists():
        return False
    with one_at_a_time(folder, lambda _: None):
        (folder / "complete.json").unlink(missing_ok=True)  # first, so that a remainder is not taken for a whole
        shutil.rmtree(folder)
    return True


def versions(python: Path, distributions: Sequence[str]) -> dict[str, str]:
    """The versions of these distributions in an interpreter's environment, and its own."""
    program = (
        "import sys, json, platform, importlib.metadata as m\n"
        "versions = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n"
        "    try: versions[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(versions))"
    )
    done = subprocess.run(
        [str(python), "-I", "-c", program, *distributions], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        message = f"the interpreter '{python}' does not work: {(done.stderr or 'no output').strip()[-300:]}"
        raise InputError("broken-interpreter", message, key="server.python", value=str(python))
    installed: dict[str, str] = json.loads(done.stdout)
    return installed


def _build(requirements: Requirements, folder: Path, say: Callable[[str], None]) -> None:
    pip_packages, base = requirements.pip_packages, sys.executable
    log = folder / "install.log"
    log.unlink(missing_ok=True)
    if requirements.system_python:
        base = "/usr/bin/python3"  # where every Linux distribution has its own
        if not _is_program(base):
            raise InstallFailed(
                f"{requirements.server} is built for the distribution's Python; install it ({base} is missing)"
            )
    say(f"making an environment with {base}")
    run_step(
        [base, "-m", "venv", str(folder / "venv")],
        log,
        f"the environment of {requirements.server} could not be installed",
    )
    bare = _installed(requirements.interpreter)
    say(f"installing {', '.join(pip_packages)}")
    pip = [str(requirements.interpreter), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    failure = f"the packages of {requirements.server} could not be installed"
    if requirements.pins.exists():
        # First, and without what they depend on: all of that is pinned as well, and nothing comes in without a hash.
        run_step([*pip, "--require-hashes", "--no-deps", "--requirement", str(requirements.pins)], log, failure)
    pins = folder / "pins.txt"  # pip takes hashes for all or for none, and torch has none that is known beforehand
    write_atomic(pins, "".join(f"{pin}\n" for pin in requirements.pinned))
    run_step([*pip, "--constraint", str(pins), *pip_packages], log, failure)
    pinned = {_normalized(pin.partition("==")[0]) for pin in requirements.pinned}
    new = sorted(_installed(requirements.interpreter) - bare)
    if unchecked := [f"{name} {version}" for name, version in new if _normalized(name) not in pinned]:
        say(f"without a hash to compare with: {', '.join(unchecked)}")


def _installed(python: Path) -> set[tuple[str, str]]:
    """The distributions of an interpreter's environment, with their versions."""
    program = (
        "import json, importlib.metadata as m\n"
        "print(json.dumps([(d.metadata['Name'], d.version) for d in m.distributions()]))"
    )
    answer = subprocess.check_output([str(python), "-I", "-c", program], text=True, timeout=60)
    return {(name, version) for name, version in json.loads(answer)}


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_program(path: str | Path) -> bool:
    return Path(path).is_file() and os.access(path, os.X_OK)
