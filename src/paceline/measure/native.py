"""Small C sources, compiled on the machine they measure and loaded: for loops that Python would dominate.

The compiler is the machine's own (`$CC`, cc, gcc or clang), the one that torch.compile needs too. What was built is
kept in the user's cache under a name made of the source, the compiler and the processor, so that a home folder
shared by different machines never mixes them up.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from paceline.core.errors import InputError, MissingDependency, Unsupported
from paceline.core.files import cache_directory
from paceline.core.probe import cpu_info

FLAGS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC", "-pthread")
BUILD_SECONDS = 120.0
VERSION_SECONDS = 30.0


def compiler() -> list[str]:
    """The command of this machine's C compiler."""
    if setting := os.environ.get("CC"):
        with suppress(ValueError):  # a quotation without an end
            words = shlex.split(setting)
            if words and shutil.which(words[0]):
                return words
        raise MissingDependency(f"the C compiler '{setting}', which $CC names,", "correct $CC, or unset it")
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise MissingDependency("a C compiler", "install one (apt install gcc), or name yours with $CC")


def is_possible() -> bool:
    """Whether this machine has a C compiler."""
    try:
        return bool(compiler())
    except MissingDependency:
        return False


@lru_cache
def load(source: Path) -> ctypes.CDLL:
    """The C file as a loaded library; built once for each source, compiler and processor."""
    name = f"{source.stem}-{_identity(source)}.so"
    failures = []
    for folder in _folders():
        try:
            built = folder / name
            if built.is_file():
                with suppress(OSError):  # damaged: another takes its place
                    return ctypes.CDLL(str(built), use_errno=True)
            _build(source, built)
            return ctypes.CDLL(str(built), use_errno=True)
        except OSError as error:  # read-only, full, or a place that nothing may be executed from
            failures.append(f"{folder}: {error.strerror or error}")
    raise Unsupported(f"built code can nowhere be kept and loaded ({'; '.join(failures)}): set $XDG_CACHE_HOME")


def build_command(source: Path, output: Path) -> list[str]:
    """How a source becomes a library."""
    return [*compiler(), *FLAGS, str(source), "-o", str(output), "-ldl"]


def _build(source: Path, built: Path) -> None:
    built.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        made = Path(folder) / built.name
        done = _ask_compiler(build_command(source, made), BUILD_SECONDS)
        if done.returncode != 0 or not made.is_file():
            lines = (done.stderr or done.stdout).strip().splitlines()
            why = lines[0] if lines else f"it made nothing, and ended with exit code {done.returncode}"
            raise Unsupported(
                f"the C compiler '{compiler()[0]}' cannot build {source.name}: {why}; try another with $CC"
            )
        with made.open("rb") as file:
            os.fsync(file.fileno())  # a machine that loses power must not keep half a library
        made.replace(built)  # at once, so that nobody loads half a library


def _ask_compiler(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        why = f"did not end within {seconds:.0f} s"
    except OSError as error:
        why = f"cannot be started ({error.strerror})"
    raise Unsupported(f"the C compiler '{command[0]}' {why}; try another with $CC")


def _identity(source: Path) -> str:
    version = _ask_compiler([*compiler(), "--version"], VERSION_SECONDS).stdout
    info = cpu_info()
    instructions = info.get("flags") or info.get("Features") or ""  # what -march=native looks at
    words = [source.read_text(encoding="utf-8"), *FLAGS, *compiler(), version, platform.machine(), instructions]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _folders() -> Iterator[Path]:
    """Where built code may be kept: the user's cache, otherwise among temporary files."""
    with suppress(InputError):  # a user without a home
        yield cache_directory() / "native"
    folder = Path(tempfile.gettempdir()) / f"paceline-native-{os.getuid()}"
    if folder.exists() and folder.lstat().st_uid != os.getuid():
        raise Unsupported(f"{folder} belongs to somebody else; set $XDG_CACHE_HOME")
    yield folder
