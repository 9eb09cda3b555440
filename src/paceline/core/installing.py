"""Runs the steps that make an environment, each with its output in a log, and one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from paceline.core.errors import PacelineError
from paceline.core.supervisor import supervised

GRACE = 2.0  # seconds that a step has to clean up when it is ended
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
    """One step; `failure` is what its failing means, and the error has the last lines of its output.

    Everything that it starts ends with it, and with this process.
    """
    # A user's PYTHONPATH or active environment would leak into the new one.
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    with log.open("a") as output:
        output.write(f"$ {' '.join(command)}\n")
        output.flush()
        process = subprocess.Popen(
            supervised(command, GRACE),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=clean | dict(variables or {}),
            cwd=folder,
            start_new_session=True,  # the terminal's interrupt is for this process, which ends that in order
        )
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code:
        last = "\n  ".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
        raise InstallFailed(f"{failure} (exit code {code}); the whole output is in {log}:\n  {last}")


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
