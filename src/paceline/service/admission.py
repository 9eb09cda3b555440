"""What somebody sent becomes a job, or is refused, entry by entry; what a job from the network may ask for, and use.

What a parameter takes, its field says. What the jobs of one token may use of what all share, its quotas say.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import PurePath
from threading import BoundedSemaphore
from typing import Any, Self

from pydantic import BaseModel, Field

from paceline.core.benchmark import BENCHMARKS, Benchmark
from paceline.core.case import Case
from paceline.core.errors import InputError, StoreError, unknown
from paceline.core.network import is_closed, rule_of, shorten
from paceline.core.parameters import Parameters
from paceline.core.quantity import show_count
from paceline.core.suite import Suite, expand, only
from paceline.core.yaml_text import read_yaml
from paceline.runner.suite_file import shipped
from paceline.service.jobs import Job, JobRequest, JobState, MachineNeeds, StrictModel
from paceline.store.queue import TokenRow
from paceline.store.store import Store

MOST_CASES = 2_000
MOST_ENTRIES = 500  # of a suite, before its lists are expanded
MOST_RANKS = 256
LONGEST_CASE = 24 * 3600.0  # seconds until a case is ended
LONGEST_TEXT = 4_000
MOST_BYTES = 100 * 1024  # of a document in YAML
MOST_VALUES = 20_000  # in a document, however they are nested
MOST_COMBINATIONS = 20_000  # of the lists of all entries, whether they expand or not
LONGEST_CHECK = 10.0  # seconds for checking a suite
LARGE = 100  # combinations of a suite of which only some are checked at once
DEEPEST = 12
_LONGEST_NAME = 200
_CHECKED_AT_ONCE = BoundedSemaphore(2)
_WAITING_FOR_IT = BoundedSemaphore(8)  # so that requests for other things find a thread
_INVALID = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")  # control characters, and lone surrogates


def document_of(suite: Mapping[str, Any] | str) -> dict[str, Any]:
    """The suite itself: as it was sent, one that ships, or one benchmark."""
    if not isinstance(suite, str):
        return dict(suite)
    if suite in shipped():  # never a path: names come from the network
        document: dict[str, Any] = read_yaml(shipped()[suite].read_text(encoding="utf-8"), f"suite {suite}")
        return document
    if suite in BENCHMARKS.registry().entries:
        return {"name": suite, "cases": [{"benchmark": suite}]}
    raise unknown("suite or benchmark", suite[:100], [*shipped(), *BENCHMARKS.registry().entries], key="suite")


def parsed_suite(document: Any) -> dict[str, Any]:
    """A document that was read from YAML, if it is a suite."""
    if not isinstance(document, dict):
        raise InputError("not-a-suite", "a suite is a mapping with 'name' and 'cases'")
    return document


class Busy(StoreError):
    """Others have large suites checked just now: nothing is taken."""


class _Limited:
    """One check of a suite: it ends after a time, and of large ones there are few at once."""

    def __init__(self, combinations: int) -> None:
        self._until = time.monotonic() + LONGEST_CHECK
        self._is_large = combinations > LARGE

    def __enter__(self) -> Self:
        if self._is_large:
            if not _WAITING_FOR_IT.acquire(blocking=False):
                raise Busy("many large suites are being checked just now")
            if not _CHECKED_AT_ONCE.acquire(timeout=LONGEST_CHECK):
                _WAITING_FOR_IT.release()
                raise Busy("the large suites before this one take long to check")
            self._until = time.monotonic() + LONGEST_CHECK
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_large:
            _CHECKED_AT_ONCE.release()
            _WAITING_FOR_IT.release()

    def lookup(self, name: str) -> type[Benchmark[Any]]:
        """A benchmark by its name, while there is time; whoever checks a suite looks up that of every case."""
        if time.monotonic() > self._until:
            message = f"it takes longer than {LONGEST_CHECK:g} s to check: split it into several"
            raise InputError("too-long-to-check", message, where="the suite")
        try:
            return BENCHMARKS.registry().get(name)
        except InputError as error:
            raise error.within("", key="benchmark") from None


def cases_of(
    document: Mapping[str, Any], overrides: Mapping[str, Any], needs: MachineNeeds, names: Sequence[str] = ()
) -> list[Case]:
    """The cases of a suite where its needs are met; InputError if a job from the network may not ask for them."""
    with _Limited(check_document(document, overrides)) as limited:
        return _cases_of(document, overrides, needs, names, limited)


def _cases_of(
    document: Mapping[str, Any],
    overrides: Mapping[str, Any],
    needs: MachineNeeds,
    names: Sequence[str],
    limited: _Limited,
) -> list[Case]:
    check_document(needs.model_dump(), where="the needs")
    suite = Suite.read(document, "the suite", origin="network")
    if len(suite.name) > _LONGEST_NAME:
        message = f"the suite's name has {len(suite.name)} characters; at most {_LONGEST_NAME} are taken"
        raise InputError("name-too-long", message, key="name")
    cases = only(expand(suite, limited.lookup, needs.here(), overrides, MOST_CASES), names, suite.name)
    if needs.nodes > 1 and all(case.ranks == 1 for case in cases):
        message = f"'nodes' = {needs.nodes}: none of the cases is measured by several machines together: leave it out"
        raise InputError("no-case-for-several-nodes", message, key="nodes", value=needs.nodes)
    refuse(cases, limited.lookup)
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
        combinations = check_document(document, overrides)
    except InputError as error:
        return [error], []
    with _Limited(combinations) as limited:
        try:
            return [], _cases_of(document, overrides, needs, (), limited)
        except InputError as error:
            first = error
        errors: list[InputError] = []
        entries = document.get("cases")
        for number, entry in enumerate(entries if isinstance(entries, list) else [], start=1):
            alone = {"name": str(document.get("name", "suite")), "cases": [entry]}
            try:
                _cases_of(alone, {}, needs, (), limited)
            except InputError as error:
                if error.code == "too-long-to-check":
                    break
                if error.code != "no-case-left":
                    error.case = number  # of the whole suite; here it was the only one
                    errors.append(error)
            if len(errors) >= 20:
                break
    return errors or [first], []


def message_of(problem: InputError) -> str:
    """What is wrong; which entry of the suite it is in is left to whoever shows `case`."""
    return str(problem) if problem.case is None else problem.message


def refusals(cases: Iterable[Case], lookup: Callable[[str], type[Benchmark[Any]]]) -> list[InputError]:
    """All that these cases may not ask for, in order."""
    errors = []
    for case in cases:
        refused: list[tuple[str, object, str]] = []
        if case.ranks > MOST_RANKS:
            refused.append(("ranks", case.ranks, f"= {case.ranks} is more than {MOST_RANKS}"))
        if case.timeout > LONGEST_CASE:
            reason = f"= {case.timeout:g} s is longer than {LONGEST_CASE / 3600:g} h"
            refused.append(("timeout", case.timeout, reason))
        refused += _refused_values(lookup(case.benchmark).Parameters.model_validate(case.parameters))
        number, where = case.index + 1, f"case {case.index + 1} ({case.benchmark})"
        for key, value, reason in refused:
            message = f"not taken from the network: '{key}' {reason}"
            errors.append(InputError("not-from-network", message, where=where, case=number, key=key, value=value))
    return errors


def refuse(cases: Iterable[Case], lookup: Callable[[str], type[Benchmark[Any]]] | None = None) -> None:
    """Raise the first refusal, if there is one."""
    refused = refusals(cases, lookup or BENCHMARKS.registry().get)
    if refused:
        refused[0].message += f"; and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise refused[0]


def check_document(document: object, overrides: Mapping[str, Any] | None = None, where: str = "the suite") -> int:
    """Refuse what is too large, too deep, or could not be stored, before anything looks closer.

    How many combinations its lists make, at most.
    """
    _check_values(document, where)
    _check_values(overrides, "the overrides")
    entries = document.get("cases") if isinstance(document, Mapping) else None
    if not isinstance(entries, list):
        return 1
    if len(entries) > MOST_ENTRIES:
        message = f"{where} has {len(entries):,} entries, and at most {MOST_ENTRIES:,} are taken"
        raise InputError("too-many-entries", message, key="cases", value=len(entries))
    combinations = _combinations(overrides or {}) * sum(map(_combinations, entries))
    if combinations > MOST_COMBINATIONS:
        message = f"its lists make {combinations:,} combinations, more than {MOST_COMBINATIONS:,}: shorten them"
        raise InputError("too-many-combinations", message, where=where, value=combinations)
    return combinations


def read_document(text: str, where: str, *, takes_aliases: bool = True) -> Any:
    """A document in YAML that somebody sent."""
    return read_yaml(
        text, where, most_bytes=MOST_BYTES, deepest=DEEPEST, most_values=MOST_VALUES, takes_aliases=takes_aliases
    )


def _refused_values(values: BaseModel, prefix: str = "") -> Iterator[tuple[str, object, str]]:
    """The path of each refused value, the value, and why it is refused."""
    if isinstance(values, Parameters):
        values = values.whole()
    for extra, value in (values.model_extra or {}).items():
        yield f"{prefix}{extra}", value, "is a value of no known type"
    for name, field in type(values).model_fields.items():
        value, path = getattr(values, name), f"{prefix}{name}"
        if isinstance(value, BaseModel):
            yield from _refused_values(value, f"{path}.")
        elif not is_closed(field.annotation) and value != field.get_default(call_default_factory=True):
            rule = rule_of(field)
            if rule is not None:
                reason = rule.refusal(value)
            elif isinstance(value, PurePath):
                reason = "names a file, and a job has none outside its own folder"
            else:
                reason = "is free text, which this parameter takes only on the machine itself"
            if reason:
                yield path, value, reason


def _check_values(document: object, where: str) -> None:
    waiting: list[tuple[object, int]] = [(document, 0)]
    for count, (value, depth) in enumerate(waiting):  # grows while it is walked
        if count > MOST_VALUES:
            raise InputError("too-many-values", f"{where} has more than {MOST_VALUES:,} values")
        if depth > DEEPEST:
            raise InputError("too-deep", f"{where} is nested more than {DEEPEST} deep")
        if isinstance(value, Mapping):
            waiting += [(part, depth + 1) for pair in value.items() for part in pair]
        elif isinstance(value, list | tuple):
            waiting += [(part, depth + 1) for part in value]
        elif isinstance(value, str):
            if len(value) > LONGEST_TEXT:
                size = f"has {len(value):,} characters; at most {LONGEST_TEXT:,} are taken"
                raise InputError("too-many-characters", f"the text '{value[:20]}...' {size}", where=where)
            if _INVALID.search(value):
                raise InputError("invalid-characters", f"{shorten(value)} has invalid characters", where=where)
        elif isinstance(value, float) and not math.isfinite(value):
            message = f"{value} is not a number that can be measured with"
            raise InputError("not-finite", message, where=where, value=value)
        elif isinstance(value, int) and abs(value) >= 2**63:
            message = f"a whole number of {len(str(value))} digits is too long"
            raise InputError("too-many-digits", message, where=where)


def _combinations(value: object) -> int:
    """How many a mapping can expand to, at most."""
    if isinstance(value, Mapping):
        return math.prod(map(_combinations, value.values()))
    return max(1, len(value)) if isinstance(value, list) else 1


PERIOD = timedelta(days=30)  # in which machine-hours count
OVER_QUOTA = "over-quota"


class Quotas(StrictModel):
    """What the jobs of a token may use; what is None has no limit."""

    max_queued: int | None = Field(default=None, ge=0, le=1_000_000, description="Jobs that wait")
    max_running: int | None = Field(default=None, ge=0, le=1_000_000, description="Jobs that run at once")
    max_priority: int | None = Field(default=None, ge=-100, le=100, description="Of each job")
    machine_hours: float | None = Field(
        default=None, ge=0, le=1e9, description="Hours that its jobs have had machines within 30 days"
    )


def most_running(tokens: Iterable[TokenRow]) -> dict[str, int]:
    """How many jobs of each owner may run at once, where that is limited."""
    limited = (row for row in tokens if "admin" not in row.scopes and row.revoked_at is None)
    return {row.name: int(row.quotas["max_running"]) for row in limited if "max_running" in row.quotas}


def check_quotas(job: Job, quotas: Quotas, store: Store) -> None:
    """Refuse a job that would go beyond what its owner may use."""
    refusals: list[tuple[str, object, str]] = []
    if quotas.max_priority is not None and job.priority > quotas.max_priority:
        reason = f"priority {job.priority} is above {quotas.max_priority}: submit it with less"
        refusals.append(("priority", job.priority, reason))
    if quotas.max_queued is not None:
        waiting = store.queue.counts(of=job.submitted_by).get(JobState.QUEUED, 0)
        if waiting >= quotas.max_queued:
            reason = f"{waiting} of at most {quotas.max_queued} jobs wait already: submit it once one has begun"
            refusals.append(("max_queued", waiting, reason))
    if quotas.machine_hours is not None:
        used = machine_hours(store, job.submitted_by)
        if used >= quotas.machine_hours:
            reason = f"{show_count(used)} of {quotas.machine_hours:g} machine-hours within {PERIOD.days} days are used"
            refusals.append(("machine_hours", round(used, 2), reason))
    for key, value, reason in refusals:
        message = f"beyond the quota of '{job.submitted_by}': {reason}; who has an admin token may raise it"
        raise InputError(OVER_QUOTA, message, key=key, value=value)


def machine_hours(store: Store, owner: str, now: datetime | None = None) -> float:
    """Hours that the jobs of somebody have had machines, each machine counted, within the period."""
    now = now or datetime.now(UTC)
    since = now - PERIOD
    seconds = 0.0
    held: dict[str, tuple[datetime, int]] = {}  # by job: since when, and how many machines
    for job_id, event in store.queue.placements(owner, since):
        if event.kind == "placed":
            held[job_id] = (event.at, len(event.document.get("followers", ())) or 1)
        else:
            begun, machines = held.pop(job_id, (since, 1))  # one that was placed earlier than the period
            seconds += machines * (event.at - begun).total_seconds()
    seconds += sum(machines * (now - begun).total_seconds() for begun, machines in held.values())
    return max(0.0, seconds) / 3600  # a clock that was put back gives nobody more
