"""Where a user's files belong, who may read them, and how one is read, and written whole or not at all."""

from __future__ import annotations

import csv
import os
import pwd
import uuid
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from paceline.core.errors import InputError
from paceline.core.text import clean

MOST_CHARACTERS = 2**28  # of a file that is read as a whole

OTHERS = 0o077  # what a mode allows users other than the owner


def shipped_rows(package: str, name: str) -> list[dict[str, str]]:
    """The rows of a table that ships with Paceline; its lines that start with # say where it is from."""
    text = (files(package) / name).read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if line and not line.startswith("#")))


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


def private_directory(path: Path) -> Path:
    """Make a directory that only this user may enter, and keep it so; it outlives a loss of power.

    One that exists is closed to others only if it is Paceline's own: below the data directory.
    """
    if not path.is_dir():
        private_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(path.parent)
    with suppress(InputError, OSError):  # no home folder, or a disk without modes
        for own in (path, *path.parents):
            if own.is_relative_to(data_directory()):
                close_to_others(own)
    return path


def close_to_others(path: Path) -> None:
    """Take from other users what they may do with a file or directory of this user."""
    found = path.stat()
    if found.st_uid == os.getuid() and found.st_mode & OTHERS:
        path.chmod(found.st_mode & 0o700)


def open_private(path: Path, flags: int) -> int:
    """Open a file that, if it is made by this, only its user may read."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def append_synced(descriptor: int, data: bytes) -> None:
    """Append data that is on the disk when this returns; a part of it may be in the file if it fails."""
    offset = os.fstat(descriptor).st_size
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
    os.fsync(descriptor)


def sync_directory(directory: Path) -> None:
    """Have the names in a directory on the disk: those of files that were made, renamed or removed."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_text(path: Path, what: str = "", *, key: str | None = None, hint: str = "") -> str:
    """The text of a file that the user named; `what` it is, such as "the baseline", is part of a refusal.

    With a hint at what to do, a file that is not there is refused as such.
    """
    name = f"{what} '{path}'".strip()
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except OSError as error:
        if hint and isinstance(error, FileNotFoundError):
            message = f"there is no {name.removeprefix('the ')}; {hint}"
            raise InputError("missing-file", message, key=key, value=str(path)) from None
        message = f"cannot read {name}: {error.strerror}"
        raise InputError("unreadable-file", message, key=key, value=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("not-text", f"{name} is not text", key=key, value=str(path)) from None
    except ValueError as error:  # a name that no file can have
        message = f"cannot read {clean(name)}: {error}"
        raise InputError("unreadable-file", message, key=key, value=str(path)) from None
    if len(text) > MOST_CHARACTERS:
        message = f"{name} is too large: at most {MOST_CHARACTERS:,} characters are read"
        raise InputError("too-large", message, key=key, value=str(path))
    return text


def write_atomic(path: str | Path, content: str | bytes, *, private: bool = False) -> Path:
    """Write next to the target and rename over it, so that a crash leaves the old file or the new one.

    A private file can be read by its user alone. A link stays one, and so does a device or a pipe: what is not a file
    is written to, never replaced by a file.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)  # of a folder, the system says so
        return path
    final = path.resolve()
    temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    return path
