"""A throw-away PostgreSQL server for tests."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

PASSWORD = "pass:word@1"
QUOTED_PASSWORD = "pass%3Aword%401"


class PostgresServer:
    """A cluster of its own in a temporary directory, on a free port of the loopback device."""

    def __init__(self, programs: Path, home: Path) -> None:
        self._programs = programs
        self._home = home
        self._numbers = count(1)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    def create(self) -> None:
        """Make the cluster's files."""
        secret = self._home / "secret"
        secret.write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (self._home, secret):
                shutil.chown(path, "postgres", "postgres")
        self._call("initdb", "-U", "tester", "-A", "scram-sha-256", f"--pwfile={secret}", "-N", "-E", "UTF8")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self._home} -c fsync=off -c max_connections=40"
        self._call("pg_ctl", "-w", "-l", str(self._home / "log"), "-o", options, "start")

    def stop(self) -> None:
        """Stop the server at once, as a machine that fails would."""
        self._call("pg_ctl", "-w", "-m", "immediate", "stop")

    def url(self, database: str, password: str = QUOTED_PASSWORD) -> str:
        """The URL of a database."""
        return f"postgresql://tester:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{next(self._numbers)}"
        import psycopg  # only here: the tests of a GPU run where it is not installed

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def _call(self, program: str, *arguments: str) -> None:
        # PostgreSQL refuses to run as root.
        prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        command = [*prefix, str(self._programs / program), "-D", str(self._home / "data"), *arguments]
        # Into a file, not a pipe: the server inherits it, and a pipe would stay open as long as the server runs.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(command, stdout=output, stderr=output, cwd=self._home, timeout=120, check=False)
            output.seek(0)
            assert done.returncode == 0, f"{program} failed: {output.read().decode()}"


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server, stopped and removed in the end; skips the test where PostgreSQL is not installed."""
    programs = _find_programs()
    if programs is None or (os.geteuid() == 0 and not _has_user("postgres")):
        pytest.skip("PostgreSQL is not installed here: apt-get install postgresql")
    # Not under pytest's directories: another user may not enter them, and the path of a socket must be short.
    home = tempfile.mkdtemp(prefix="paceline-postgres-", dir="/tmp")
    server = PostgresServer(programs, Path(home))
    try:
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        subprocess.Popen(["rm", "-rf", home])  # hundreds of databases: seconds for which nobody need wait


def _find_programs() -> Path | None:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
