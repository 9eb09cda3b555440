"""Leaves out the cases of a suite that the user does not want now."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.case import Case
from paceline.core.errors import InputError


def only(cases: Sequence[Case], wanted: Sequence[str], suite: str) -> list[Case]:
    """The cases whose name has all words of one of the `wanted`; all of them, where nothing is named."""
    if not wanted:
        return list(cases)
    chosen: set[int] = set()
    for text in wanted:
        found = {case.index for case in cases if _has(case, text)}
        if not found:
            some = f"the first one is '{_name(cases[0])}'" if cases else "there are none here"
            raise InputError(
                "no-such-case",
                f"--only '{text}' is in the name of no case of '{suite}': {some}, and --dry-run shows them all",
                key="--only",
                value=text,
            )
        chosen |= found
    left = [case for case in cases if case.index in chosen]
    return [case.model_copy(update={"index": place}) for place, case in enumerate(left)]


def _has(case: Case, text: str) -> bool:
    name = _name(case).lower()
    return all(word in name for word in text.lower().split())


def _name(case: Case) -> str:
    return f"{case.benchmark} {case.title} on {case.target}"
