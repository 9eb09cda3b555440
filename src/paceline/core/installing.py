"""Runs the steps that make an environment, each with its output in a log, and one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from paceline.core.errors import PacelineError

SHOWN_LINES = 15  # of the output of a step that failed


class InstallFailed(PacelineError):
    """An environment could not be made."""


def run_step(
    command: Sequence[str],
    log: Path,
    failure: str,
    *,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> None:
    """One step; `failure` is what its failing means, and the error has the last lines of its output."""
    # A user's PYTHONPATH or active environment would leak into the new one.
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    with log.open("a") as output:
        output.write(f"$ {' '.join(command)}\n")
        output.flush()
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=clean | dict(variables or {}),
            cwd=folder,
            check=False,
        )
    if done.returncode:
        last = "\n  ".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
        raise InstallFailed(f"{failure} (exit code {done.returncode}); the whole output is in {log}:\n  {last}")


@contextlib.contextmanager
def one_at_a_time(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """A lock next to the folder, so that this can be removed; the kernel releases it if the process dies."""
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that installs it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
