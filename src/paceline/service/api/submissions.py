"""Turns what somebody sent into a job, or says what is wrong with it, entry by entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from paceline.benchmarks import registry
from paceline.core.benchmark import Benchmark
from paceline.core.case import Case
from paceline.core.errors import InputError, unknown
from paceline.core.suite import Suite, expand, only
from paceline.runner.suite_file import read_yaml, shipped
from paceline.service import admission
from paceline.service.jobs import Job, JobRequest, MachineNeeds

_LONGEST_NAME = 200


def document_of(suite: Mapping[str, Any] | str) -> dict[str, Any]:
    """The suite itself: as it was sent, one that ships, or one benchmark."""
    if not isinstance(suite, str):
        return dict(suite)
    if suite in shipped():  # never a path: names come from the network
        document: dict[str, Any] = read_yaml(shipped()[suite].read_text(encoding="utf-8"), f"suite {suite}")
        return document
    if suite in registry().entries:
        return {"name": suite, "cases": [{"benchmark": suite}]}
    raise unknown("suite or benchmark", suite[:100], [*shipped(), *registry().entries], key="suite")


def cases_of(
    document: Mapping[str, Any], overrides: Mapping[str, Any], needs: MachineNeeds, names: Sequence[str] = ()
) -> list[Case]:
    """The cases of a suite where its needs are met; InputError if a job from the network may not ask for them."""
    admission.check_document(document, overrides)
    admission.check_document(needs.model_dump(), where="the needs")
    suite = Suite.read(document, "the suite", origin="network")
    if len(suite.name) > _LONGEST_NAME:
        message = f"the suite's name has {len(suite.name)} characters; at most {_LONGEST_NAME} are taken"
        raise InputError("name-too-long", message, key="name")

    def lookup(name: str) -> type[Benchmark[Any]]:
        try:
            return registry().get(name)
        except InputError as error:
            raise error.within("", key="benchmark") from None

    cases = only(expand(suite, lookup, needs.here(), overrides, admission.MOST_CASES), names, suite.name)
    if needs.nodes > 1 and all(case.ranks == 1 for case in cases):
        message = f"'nodes' = {needs.nodes}: none of the cases is measured by several machines together: leave it out"
        raise InputError("no-case-for-several-nodes", message, key="nodes", value=needs.nodes)
    admission.refuse(cases, registry().get)
    return cases


def new_job(request: JobRequest, by: str = "") -> Job:
    """The job, checked as far as anybody but its follower can."""
    document = document_of(request.suite)
    cases_of(document, request.overrides, request.needs, request.only)
    now = datetime.now(UTC)
    fields = dict(request) | {"name": str(document["name"]), "suite": document}
    return Job(**fields, submitted_by=by, submitted_at=now, state_at=now)


def problems(
    document: Mapping[str, Any], overrides: Mapping[str, Any], needs: MachineNeeds
) -> tuple[list[InputError], list[Case]]:
    """Everything that is wrong, and the cases if nothing is."""
    try:
        return [], cases_of(document, overrides, needs)
    except InputError as error:
        first = error
    errors: list[InputError] = []
    entries = document.get("cases")
    for number, entry in enumerate(entries if isinstance(entries, list) else [], start=1):
        try:
            cases_of({"name": str(document.get("name", "suite")), "cases": [entry]}, {}, needs)
        except InputError as error:
            if error.code != "no-case-left":
                error.case = number  # of the whole suite; here it was the only one
                errors.append(error)
        if len(errors) >= 20:
            break
    return errors or [first], []


def message_of(problem: InputError) -> str:
    """What is wrong; which entry of the suite it is in is left to whoever shows `case`."""
    return str(problem) if problem.case is None else problem.message
