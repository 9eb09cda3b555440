"""Says which database a path or URL means, how messages name it, and where its spool is."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from paceline.core.errors import InputError
from paceline.core.files import data_directory
from paceline.core.run import RunStatus

REVISIONS = ("0006", "0007", "0008", "0009", "0010", "0011")  # the first is that of 0.1.0
SCHEMA_VERSION = REVISIONS[-1]
DESCRIBED_SINCE = "0007"  # records describe themselves; older ones are described when they are migrated
SESSIONS_SINCE = "0008"  # runs belong to sessions; older ones are assigned to theirs when they are migrated
VERSION_TABLE = "alembic_version"
VARIABLE = "PACELINE_STORE"


def this_runner() -> dict[str, Any]:
    """What identifies this process on this host, also after its number was given to another."""
    import psutil

    return {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}


def status_of(status: RunStatus, runner: Mapping[str, Any]) -> RunStatus:
    """The status of a run; one whose runner is gone does not run any more."""
    return "interrupted" if status == "running" and not is_alive(runner) else status


def is_alive(runner: Mapping[str, Any]) -> bool:
    """Whether the runner's process exists; one on another host is taken to be alive, as nobody here can know."""
    if runner["host"] != socket.gethostname():
        return True
    import psutil  # takes as long as reading a small run, and most runs have ended

    try:
        process = psutil.Process(runner["pid"])
        # The start time is derived from the wall clock, which may be corrected while the process runs.
        is_same = abs(process.create_time() - float(runner["started"])) < 5.0
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True)
class Location:
    """Where a store is: a SQLite file or a PostgreSQL database."""

    shown: str  # for messages, without credentials
    spools: tuple[Path, ...]  # files for records that the database refuses, best first
    path: Path | None = None  # of the SQLite file
    url: str = field(default="", repr=False)  # of the PostgreSQL database, may hold a password


def default_url() -> str:
    """The store named by $PACELINE_STORE, or a SQLite file in the user's data directory."""
    return os.environ.get(VARIABLE) or f"sqlite:///{data_directory() / 'paceline.db'}"


def locate(url_or_path: str | Path) -> Location:
    """Which database a path or URL means."""
    text = str(url_or_path)
    scheme, mark, rest = text.partition("://")
    if isinstance(url_or_path, Path) or not mark:
        return _sqlite(text)
    if scheme == "sqlite":
        if not rest.startswith("/"):
            message = f"the store '{text}' has too few slashes: write sqlite:///relative.db or a plain path"
            raise InputError("too-few-slashes", message, key="--store", value=text)
        return _sqlite(rest.removeprefix("/"))
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        return _postgres(text)
    message = f"unknown kind of store '{scheme}': give a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE"
    raise InputError("unknown-kind-of-store", message, key="--store", value=scheme)


def bad_postgres_url(code: str, why: str) -> InputError:
    """The refusal of a URL; it cannot show the URL, as nobody can tell which part of a broken one is the password."""
    message = (
        f"the URL of the PostgreSQL store {why}: "
        f"write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters as %XX"
    )
    return InputError(code, message, key="--store")


def _sqlite(text: str) -> Location:
    if not text or text == ":memory:":
        message = f"'{text}' does not name a file, and a store must outlive its process: give the path of a file"
        raise InputError("not-a-file", message, key="--store", value=text)
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        suggestion = str(path / "paceline.db")
        message = f"the store '{path}' is a directory: give the path of a file, such as {suggestion}"
        raise InputError("is-a-directory", message, key="--store", value=str(path), suggestion=suggestion)
    spool = path.with_name(f"{path.name}.spool.jsonl")
    return Location(shown=str(path), spools=(spool, _temporary_spool(os.path.realpath(path))), path=path)


def _postgres(text: str) -> Location:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise bad_postgres_url("not-a-url", "is not valid") from None
    if "@" in parts.path + parts.query or parts.fragment:
        raise bad_postgres_url("misplaced-character", "has an @ or # in the wrong place")
    if not parts.path.strip("/"):
        raise bad_postgres_url("missing-database", "does not name a database")
    address = (parts.hostname or "") + (f":{port}" if port else "")
    options = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name != "password"])
    identity = f"{parts.username}@{address}{parts.path}?{options}"
    spool = data_directory() / f"postgresql-{_digest(identity)}.spool.jsonl"
    return Location(
        shown=f"postgresql://{address}{parts.path}",
        spools=(spool, _temporary_spool(identity)),
        url=f"postgresql+psycopg://{text.partition('://')[2]}",
    )


def _temporary_spool(identity: str) -> Path:
    return Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}-{_digest(identity)}.spool.jsonl"


def _digest(identity: str) -> str:
    return hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:16]
