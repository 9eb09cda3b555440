"""Where a user's files belong, and how one is written whole or not at all."""

from __future__ import annotations

import os
import pwd
import uuid
from pathlib import Path

from paceline.core.errors import InputError


def data_directory() -> Path:
    """Where this user's data belongs."""
    # The XDG specification says to ignore a relative path.
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    if base.is_absolute():
        return base / "paceline"
    try:
        home = Path(os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise InputError("this user has no home folder; set $XDG_DATA_HOME, or $PACELINE_STORE for the store") from None
    return home / ".local" / "share" / "paceline"


def write_atomic(path: str | Path, content: str | bytes) -> Path:
    """Write beside the target and rename over it, so that a crash leaves the old file or the new one."""
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
