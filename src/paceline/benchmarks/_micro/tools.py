"""External programs that some benchmarks run: where they are, how they ended, what they wrote."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from paceline.core.errors import CaseError, MissingDependency
from paceline.core.interrupt import signal_name

LAST_LINES = 15


@dataclass(frozen=True)
class ToolOutput:
    """What a program wrote."""

    output: str
    errors: str


class ToolError(CaseError):
    """A program failed, or its output cannot be understood."""

    def __init__(self, message: str, written: ToolOutput | None = None) -> None:
        super().__init__(f"{message}: {last_words(written.errors or written.output)}" if written else message)
        self.message = message
        self.written = written  # all of it, where the program ran


def find_tool(name: str, package: str, *, purpose: str) -> str:
    """The path of a program; absent, the case is unsupported and says what to install."""
    path = shutil.which(name)
    if path is None:
        raise MissingDependency(f"{name}, which {purpose},", f"install it (apt install {package})")
    return path


def run_tool(
    command: Sequence[str],
    *,
    timeout: float | None = None,
    on_line: Callable[[str], None] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
) -> ToolOutput:
    """Run a program to its end, in this process's environment or another; a failure carries the last lines it wrote.

    `on_line` is called with every line as it is written, and then only the case's own deadline ends the program. The
    program stays in this process's group, so that whatever ends the case ends it too.
    """
    name = Path(command[0]).name
    lines: list[str] = []
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        try:
            running = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",
                cwd=folder,
                env={**(environment or os.environ), "LC_ALL": "C"},
            )
        except OSError as error:
            raise ToolError(f"{command[0]} cannot be started: {error.strerror or error}") from None
        with running:
            assert running.stdout is not None
            try:
                if on_line is None:
                    lines.append(running.communicate(timeout=timeout)[0])
                else:
                    for line in running.stdout:
                        lines.append(line)
                        on_line(line)
            except BaseException as error:
                running.kill()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise ToolError(f"{command[0]} did not end within {timeout:.0f} s") from None
                raise
        errors.seek(0)
        written = ToolOutput("".join(lines), errors.read())
    code = running.returncode
    if code < 0:
        again = "--resume RUN --retry-failed measures it again"
        ended = f"{name} was ended by {signal_name(-code)}, by another process or for lack of memory"
        raise ToolError(f"{ended} ({again})", written)
    if code > 0:
        raise ToolError(f"{name} ended with exit code {code}", written)
    return written


def last_words(text: str) -> str:
    """The end of what a program wrote, on one line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " | ".join(lines[-LAST_LINES:]) or "it wrote nothing"


def garbled(name: str, why: str | Exception, text: str) -> ToolError:
    """The error for output that cannot be understood, because of a reason or of an error of its parser."""
    if isinstance(why, ValidationError):
        first = why.errors()[0]
        why = f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"
    elif isinstance(why, Exception):
        why = f"its JSON breaks off or is wrong ({why})"
    shown = text.strip()[:200] or "nothing"
    return ToolError(f"the output of {name} cannot be understood: {why}; it began with: {shown}")
