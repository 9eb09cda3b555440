"""`--profile [DIR]`: which cases are traced, and where each trace goes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.files import data_directory

FLAG = "--profile"
NAME_LENGTH = 32  # of what a case is called in the name of its file, so that a path fits into a line


def joined_value(args: Sequence[str], names_what: Callable[[Sequence[str]], bool]) -> list[str]:
    """The same words with the flag and its folder as one.

    The word after the flag is its folder if the others name what to run, or if it is plainly a path; else it is itself
    what to run, as in `paceline run --profile train`.
    """
    if FLAG not in args:
        return list(args)
    place = args.index(FLAG)
    before, after = list(args[:place]), list(args[place + 1 :])
    is_path = bool(after) and "/" in after[0] and not after[0].endswith((".yaml", ".yml"))
    if after and not after[0].startswith("-") and (is_path or names_what([*before, *after[1:]])):
        return [*before, f"{FLAG}={after[0]}", *after[1:]]
    return [*before, f"{FLAG}=", *after]


def folder_of(given: str | None) -> Path | None:
    """Where traces go, seen to be writable before hours are spent; None if none are wanted."""
    if given is None:
        return None
    folder = Path(given).expanduser().absolute() if given else data_directory() / "traces"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{FLAG} {folder}: the folder cannot be made: {error.strerror}; choose another"
        raise InputError("cannot-make-folder", message, key=FLAG, value=str(folder)) from None
    if not os.access(folder, os.W_OK):
        message = f"{FLAG} {folder}: the folder is not writable; choose another"
        raise InputError("cannot-write", message, key=FLAG, value=str(folder))
    return folder


def refuse_if_none_can(cases: Sequence[Case]) -> None:
    """Refuse a run of which no case could be traced."""
    from paceline.benchmarks import registry

    known = registry().entries
    if any(known[case.benchmark].traceable for case in cases):
        return
    traceable = ", ".join(sorted(name for name, benchmark in known.items() if benchmark.traceable))
    measured = ", ".join(dict.fromkeys(case.benchmark for case in cases))
    remedy, suggestion = f"profile one of {traceable}", None
    if any(case.benchmark == "serve" for case in cases):
        model = next(case.parameters.get("model") for case in cases if case.benchmark == "serve")
        suggestion = f"paceline run inference --model {model} {FLAG}"
        remedy = f"the model alone can be: {suggestion}"
    message = f"{FLAG} traces the steps of a model, and {measured} has none that can be traced: {remedy}"
    raise InputError("not-traceable", message, key=FLAG, value=measured, suggestion=suggestion)


def with_traces(cases: Sequence[Case], folder: Path) -> list[Case]:
    """The cases, each that can be traced with a file of its own; the user's home is not named in them."""
    from paceline.benchmarks import registry
    from paceline.machine.privacy import scrub

    refuse_if_none_can(cases)
    known = registry().entries
    return [
        case.model_copy(update={"trace": scrub(str(folder / _file_name(case)))})
        if known[case.benchmark].traceable
        else case
        for case in cases
    ]


def _file_name(case: Case) -> str:
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{case.benchmark} {case.title}")[:NAME_LENGTH].strip("-")
    return f"{case.index + 1:02}-{words}.json.gz"
