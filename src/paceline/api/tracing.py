"""Traces of a run's models: which cases have one, and in which files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.files import data_directory

FLAG = "--profile"
NAME_LENGTH = 32  # of what a case is called in the name of its file, so that a path fits into a line


def folder_of(given: str | None) -> Path | None:
    """Where traces go, checked to be writable before hours are spent; None if there are none."""
    if given is None:
        return None
    folder = Path(given).expanduser().absolute() if given else data_directory() / "traces"
    require_writable(folder, FLAG, folder)
    return folder


def require_writable(folder: Path, flag: str, value: Path) -> None:
    """Make a folder if it is missing, and refuse one that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{flag} {value}: the folder cannot be made: {error.strerror}; choose another"
        raise InputError("cannot-make-folder", message, key=flag, value=str(value)) from None
    if not os.access(folder, os.W_OK):
        message = f"{flag} {value}: the folder is not writable; choose another"
        raise InputError("cannot-write", message, key=flag, value=str(value))


def refuse_if_none_can(cases: Sequence[Case]) -> None:
    """Refuse a run of which no case could be traced."""
    from paceline.core.benchmark import BENCHMARKS

    benchmarks = BENCHMARKS.registry().entries
    if any(benchmarks[case.benchmark].traceable for case in cases):
        return
    traceable = ", ".join(sorted(name for name, benchmark in benchmarks.items() if benchmark.traceable))
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
    from paceline.core.benchmark import BENCHMARKS
    from paceline.machine.software import scrub

    refuse_if_none_can(cases)
    traced = []
    for case in cases:
        if BENCHMARKS.registry().entries[case.benchmark].traceable:
            words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{case.benchmark} {case.title}")[:NAME_LENGTH].strip("-")
            path = folder / f"{case.index + 1:02}-{words}.json.gz"
            case = case.model_copy(update={"trace": scrub(str(path))})
        traced.append(case)
    return traced
