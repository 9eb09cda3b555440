"""Programs of others that some benchmarks drive: found, run to their end, and their words kept when they fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import CaseError, MissingDependency

LAST_LINES = 15


class ToolError(CaseError):
    """A program failed, or said something that cannot be understood."""


@dataclass(frozen=True)
class Said:
    """What a program wrote."""

    output: str
    errors: str


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
    env = {**os.environ, "LC_ALL": "C", **(environment or {})}
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=env,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{words[0]} did not end within {timeout:.0f} s") from None
    except OSError as error:
        raise ToolError(f"{words[0]} cannot be started: {error.strerror or error}") from None
    if done.returncode != 0:
        raise ToolError(
            f"{Path(words[0]).name} ended with exit code {done.returncode}: {last_words(done.stderr or done.stdout)}"
        )
    return Said(done.stdout, done.stderr)


def last_words(text: str) -> str:
    """The end of what a program wrote, on one line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " | ".join(lines[-LAST_LINES:]) or "it said nothing"


def garbled(name: str, why: str, text: str) -> ToolError:
    """The error for output that cannot be understood."""
    shown = text.strip()[:200] or "nothing"
    return ToolError(f"the output of {name} cannot be understood: {why}; it began with: {shown}")
