"""Where a user's files belong, how one is read, and how one is written whole or not at all."""

from __future__ import annotations

import os
import pwd
import uuid
from pathlib import Path

from paceline.core.errors import InputError


def data_directory() -> Path:
    """Where this user's data belongs."""
    return _directory("XDG_DATA_HOME", ".local/share", "$XDG_DATA_HOME, or $PACELINE_STORE for the store")


def cache_directory() -> Path:
    """Where this user's files belong that can be made again."""
    return _directory("XDG_CACHE_HOME", ".cache", "$XDG_CACHE_HOME")


def _directory(variable: str, below_home: str, remedy: str) -> Path:
    # The XDG specification says to ignore a relative path.
    base = Path(os.environ.get(variable, ""))
    if base.is_absolute():
        return base / "paceline"
    try:
        home = Path(os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise InputError("no-home-folder", f"this user has no home folder; set {remedy}") from None
    return home / below_home / "paceline"


def read_text(path: Path, what: str = "", *, key: str | None = None, hint: str = "") -> str:
    """The text of a file that the user named; `what` it is, such as "the baseline", is part of a refusal.

    With a hint at what to do, a file that is not there is refused as such.
    """
    name = f"{what} '{path}'".strip()
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        if hint and isinstance(error, FileNotFoundError):
            message = f"there is no {name.removeprefix('the ')}; {hint}"
            raise InputError("missing-file", message, key=key, value=str(path)) from None
        message = f"cannot read {name}: {error.strerror}"
        raise InputError("unreadable-file", message, key=key, value=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("not-text", f"{name} is not text", key=key, value=str(path)) from None


def write_atomic(path: str | Path, content: str | bytes) -> Path:
    """Write next to the target and rename over it, so that a crash leaves the old file or the new one.

    A link stays one, and so does a device or a pipe: what is not a file is written to, never replaced by a file.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)  # of a folder, the system says so
        return path
    final = path.resolve()
    temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    return path
