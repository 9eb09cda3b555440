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
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, Self


class PacelineError(Exception):
    """Anything Paceline raises on purpose."""

    exit_code = 1


class InputError(PacelineError):
    """The user's input was refused: the message is for people, the fields are for programs.

    A code says what is wrong in a few words joined by hyphens (`unknown-benchmark`, `missing-key`, `not-a-layout`), and
    is specific enough that a test which asserts it needs to read no prose.
    """

    exit_code = 2

    def __init__(
        self,
        code: str,
        message: str,
        *,
        where: str = "",
        case: int | None = None,
        key: str | None = None,
        value: object = None,
        suggestion: str | None = None,
    ) -> None:
        super().__init__(code, message)  # by which the error is made again in another process
        self.code = code
        self.message = message
        self.where = where  # a file, a line, an entry of a suite: what the message is about
        self.case = case  # the entry of a suite, from 1
        self.key = key  # the parameter or option, as the user writes it
        self.value = value
        self.suggestion = suggestion  # what the user most likely meant

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def within(self, where: str, *, case: int | None = None, key: str | None = None) -> Self:
        """The error as seen from outside: it says where, and fills in what was not known further in."""
        self.where = ", ".join(part for part in (where, self.where) if part)
        self.case = case if self.case is None else self.case
        self.key = key if self.key is None else self.key
        return self


@contextmanager
def located(where: str, *, case: int | None = None, key: str | None = None) -> Iterator[None]:
    """Refusals from in here say where they are from."""
    try:
        yield
    except InputError as error:
        raise error.within(where, case=case, key=key) from None


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


def nearest(name: str, valid: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """The valid name that a person who typed `name` most likely meant; the cutoff says how alike they must be."""
    candidates = {candidate.casefold(): candidate for candidate in valid}
    matches = difflib.get_close_matches(name.casefold(), candidates, cutoff=cutoff)
    return candidates[matches[0]] if matches else None


def unknown(kind: str, name: str, valid: Iterable[str], *, key: str | None = None) -> InputError:
    """The error for an unknown name, with the nearest valid one, or otherwise all of them.

    Its code is `unknown-KIND`: `unknown-benchmark`, `unknown-key`.
    """
    valid = sorted(valid)
    guess = nearest(name, valid)
    if guess:
        hint = f"did you mean '{guess}'?"
    else:
        shown = ", ".join(valid[:20]) + (f" and {len(valid) - 20} more" if len(valid) > 20 else "")
        hint = f"known are {shown or 'none'}"
    code = "unknown-" + re.sub(r"[^a-z0-9]+", "-", kind.partition(" in ")[0].lower()).strip("-")
    return InputError(code, f"unknown {kind} '{name}': {hint}", key=key, value=name, suggestion=guess)
