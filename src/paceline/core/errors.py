"""One exception tree; every message says what, which value, and what to do next.

PacelineError
  InputError            the user's input was refused (exit code 2)
  StoreError            the store could not be read or written
  CaseError             ends one case with an outcome of its own; the run goes on
    Unsupported         this device or machine cannot do it
      MissingDependency a library or program is absent
    OutOfMemory         host or device memory did not suffice
    SilentCorruption    the same work gave two different answers, or one that is plainly wrong
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal


class PacelineError(Exception):
    """Anything Paceline raises on purpose."""

    exit_code = 1


class InputError(PacelineError):
    """The user's input was refused."""

    exit_code = 2


class StoreError(PacelineError):
    """The store could not be opened, read or written."""


class CaseError(PacelineError):
    """Ends one case; the class decides its outcome."""

    detail = ""  # what else to keep, like the last words of another program


class Unsupported(CaseError):
    """This device, machine or build cannot do what the case asks."""


class MissingDependency(Unsupported):
    """A library or program that the case needs is not installed."""

    def __init__(self, name: str, remedy: str) -> None:
        super().__init__(f"{name} is not available here; {remedy}")


class OutOfMemory(CaseError):
    """Host or device memory did not suffice."""

    def __init__(self, message: str, where: Literal["host", "device"]) -> None:
        super().__init__(message)
        self.where = where


class SilentCorruption(CaseError):
    """The same work on the same data gave two different answers, or one that a higher precision contradicts."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a person who typed `name` most likely meant."""
    candidates = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name.casefold(), candidates, n=1, cutoff=0.5)
    return candidates[found[0]] if found else None


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that nobody knows: the nearest one, or else all of them."""
    known = sorted(known)
    guess = nearest(name, known)
    if guess:
        return InputError(f"unknown {kind} '{name}': did you mean '{guess}'?")
    shown = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    return InputError(f"unknown {kind} '{name}': known are {shown or 'none'}")
