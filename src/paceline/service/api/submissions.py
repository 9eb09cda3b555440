"""Turns what somebody sent into a job, or says what is wrong with it, entry by entry."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from paceline.benchmarks import registry
from paceline.core.case import Case
from paceline.core.errors import InputError, unknown
from paceline.core.only import only
from paceline.core.suite import Suite, expand
from paceline.runner.suite_file import read_yaml, shipped
from paceline.service import admission
from paceline.service.jobs import Job, MachineNeeds
from paceline.service.placing import where

_KEY = re.compile(r"(?:^|: |unknown key )'([A-Za-z_][\w.]*)'(?=:| =| is| names| must)|^'?(model) ")
_GUESS = re.compile(r"did you mean '([^']+)'")
_WHERE = re.compile(r"^.*?, case \d+(?: \([^)]*\))?: ", re.DOTALL)
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a suite."""

    message: str
    case: int | None = None  # the entry, from 1; None for the suite as a whole
    key: str | None = None
    suggestion: str | None = None  # the nearest known key or name


def document_of(suite: Mapping[str, Any] | str) -> dict[str, Any]:
    """The suite itself: as it was sent, one that ships, or one benchmark."""
    if not isinstance(suite, str):
        return dict(suite)
    if suite in shipped():  # never a path: names come from the network
        found: dict[str, Any] = read_yaml(shipped()[suite].read_text(encoding="utf-8"), f"suite {suite}")
        return found
    if suite in registry().entries:
        return {"name": suite, "cases": [{"benchmark": suite}]}
    raise unknown("suite or benchmark", suite[:100], [*shipped(), *registry().entries])


def cases_of(
    document: Mapping[str, Any], overrides: Mapping[str, Any], needs: MachineNeeds, wanted: Sequence[str] = ()
) -> list[Case]:
    """The cases of a suite where its needs are met; InputError if a job from the network may not ask for them."""
    admission.check_document(document, overrides)
    admission.check_document(needs.model_dump(), where="the needs")
    suite = Suite.read(document, "the suite", origin="network")
    if len(suite.name) > _LONGEST_NAME:
        raise InputError(f"the suite's name has {len(suite.name)} letters; {_LONGEST_NAME} are taken")
    cases = only(expand(suite, registry().get, where(needs), overrides, admission.MOST_CASES), wanted, suite.name)
    if needs.nodes > 1 and all(case.ranks == 1 for case in cases):
        raise InputError(
            f"'nodes' = {needs.nodes}: none of the cases is measured by several machines together: leave it out"
        )
    admission.refuse(cases, registry().get)
    return cases


def new_job(
    job_id: str,
    suite: Mapping[str, Any] | str,
    overrides: Mapping[str, Any],
    needs: MachineNeeds,
    *,
    wanted: Sequence[str] = (),
    priority: int = 0,
    tags: tuple[str, ...] = (),
    by: str = "",
) -> Job:
    """The job, checked as far as anybody but its follower can."""
    document = document_of(suite)
    cases_of(document, overrides, needs, wanted)
    now = datetime.now(UTC)
    return Job(
        id=job_id,
        name=str(document["name"]),
        suite=document,
        overrides=dict(overrides),
        only=tuple(wanted),
        needs=needs,
        priority=priority,
        tags=tags,
        submitted_by=by,
        submitted_at=now,
        state_at=now,
    )


def problems(
    document: Mapping[str, Any], overrides: Mapping[str, Any], needs: MachineNeeds
) -> tuple[list[Problem], list[Case]]:
    """Everything that is wrong, and the cases if nothing is."""
    try:
        return [], cases_of(document, overrides, needs)
    except InputError as error:
        first = _problem(str(error))
    found = []
    entries = document.get("cases")
    for number, entry in enumerate(entries if isinstance(entries, list) else [], start=1):
        try:
            cases_of({"name": str(document.get("name", "suite")), "cases": [entry]}, {}, needs)
        except InputError as error:
            if "no case is left" not in str(error):
                found.append(_problem(str(error), number))
        if len(found) >= 20:
            break
    return found or [first], []


def _problem(message: str, case: int | None = None) -> Problem:
    text = _WHERE.sub("", message) if case is not None else message
    guess, named = _GUESS.search(text), _KEY.search(text)
    key = "benchmark" if text.startswith("unknown benchmark") else named[1] or named[2] if named else None
    return Problem(text, case, key, guess[1] if guess else None)
