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
from functools import lru_cache
from pathlib import Path

from paceline.core.errors import MissingDependency, Unsupported

FLAGS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC", "-pthread")
BUILD_SECONDS = 120.0


def compiler() -> list[str]:
    """The command of this machine's C compiler."""
    told = os.environ.get("CC")
    names = [told] if told else ["cc", "gcc", "clang"]
    for name in names:
        words = shlex.split(name)
        if words and shutil.which(words[0]):
            return words
    raise MissingDependency("a C compiler", "install one (apt install gcc), or name yours with $CC")


@lru_cache
def load(source: Path) -> ctypes.CDLL:
    """The C file as a loaded library; built once for each source, compiler and processor."""
    built = _cache() / f"{source.stem}-{_identity(source)}.so"
    if not built.exists():
        _build(source, built)
    return ctypes.CDLL(str(built))


def build_command(source: Path, output: Path) -> list[str]:
    """How a source becomes a library."""
    return [*compiler(), *FLAGS, str(source), "-o", str(output), "-ldl"]


def _build(source: Path, built: Path) -> None:
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        made = Path(folder) / built.name
        done = subprocess.run(
            build_command(source, made), capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            why = lines[0] if lines else f"exit code {done.returncode}"
            raise Unsupported(
                f"the C compiler '{compiler()[0]}' cannot build {source.name}: {why}; try another with $CC"
            )
        made.replace(built)  # at once, so that nobody loads half a library


def _identity(source: Path) -> str:
    words = [source.read_text(), *FLAGS, *compiler(), _version(), platform.machine(), _processor()]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _version() -> str:
    done = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout


def _processor() -> str:
    """What -march=native looks at: the instruction sets that the kernel lists."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path.home() / ".cache"
    folder = base / "paceline" / "native"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"paceline-native-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise Unsupported(f"{folder} belongs to somebody else; set $XDG_CACHE_HOME") from None
    return folder
