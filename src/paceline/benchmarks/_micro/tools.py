"""Programs of others that some benchmarks drive: found, run to their end, and their words kept when they fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import CaseError, MissingDependency

LAST_LINES = 15


@dataclass(frozen=True)
class Said:
    """What a program wrote."""

    output: str
    errors: str


class ToolError(CaseError):
    """A program failed, or said something that cannot be understood."""

    def __init__(self, message: str, said: Said | None = None) -> None:
        super().__init__(f"{message}: {last_words(said.errors or said.output)}" if said else message)
        self.message = message
        self.said = said  # all of it, where the program ran


def find_tool(name: str, package: str, *, purpose: str = "") -> str:
    """The path of a program; absent, the case is unsupported and says what to install."""
    found = shutil.which(name)
    if found is None:
        what = f"{name}{f', which {purpose},' if purpose else ''}"
        raise MissingDependency(what, f"install it (apt install {package})")
    return found


def run_tool(
    command: Sequence[str | Path],
    *,
    timeout: float,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Said:
    """Run a program to its end; a failure carries the last lines it wrote.

    The program stays in this process's group, so that whatever ends the case ends it too.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=_environment(environment),
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{words[0]} did not end within {timeout:.0f} s") from None
    except OSError as error:
        raise ToolError(f"{words[0]} cannot be started: {error.strerror or error}") from None
    return _checked(words[0], done.returncode, Said(done.stdout, done.stderr))


def follow_tool(
    command: Sequence[str | Path], hear: Callable[[str], None], *, environment: Mapping[str, str] | None = None
) -> Said:
    """Like `run_tool`, for a program that tells line by line how far it is; only the case's own deadline ends it."""
    words = [str(word) for word in command]
    lines: list[str] = []
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        try:
            running = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",
                env=_environment(environment),
            )
        except OSError as error:
            raise ToolError(f"{words[0]} cannot be started: {error.strerror or error}") from None
        with running:
            assert running.stdout is not None
            try:
                for line in running.stdout:
                    lines.append(line)
                    hear(line)
            except BaseException:
                running.kill()
                raise
        errors.seek(0)
        return _checked(words[0], running.returncode, Said("".join(lines), errors.read()))


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C", **(more or {})}


def _checked(program: str, code: int, said: Said) -> Said:
    """What a program said, if it ended well."""
    name = Path(program).name
    if code < 0:
        again = "--resume RUN --retry-failed measures it again"
        raise ToolError(f"{name} was ended by {_signal_name(-code)}, by somebody or for want of memory ({again})", said)
    if code > 0:
        raise ToolError(f"{name} ended with exit code {code}", said)
    return said


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def last_words(text: str) -> str:
    """The end of what a program wrote, on one line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " | ".join(lines[-LAST_LINES:]) or "it said nothing"


def garbled(name: str, why: str, text: str) -> ToolError:
    """The error for output that cannot be understood."""
    shown = text.strip()[:200] or "nothing"
    return ToolError(f"the output of {name} cannot be understood: {why}; it began with: {shown}")
