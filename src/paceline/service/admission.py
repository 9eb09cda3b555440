"""What a job from the network may ask for: cases in, refusals out.

A parameter whose type leaves no choice but numbers and listed words is harmless. Every other one (a text, a path,
anything) is refused unless it keeps its default, is in the table below, or says of itself what it takes:

    queue: str = Field(default="", json_schema_extra={"network": "[a-z]{1,20}"})

So a parameter that somebody adds tomorrow is refused until somebody has thought about it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from paceline.benchmarks.serving.parameters import ServerChoice
from paceline.benchmarks.serving.servers.url import is_allowed
from paceline.benchmarks.serving.workloads.distribution import Distribution
from paceline.core.benchmark import Benchmark
from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.models.user import is_reference

MOST_CASES = 2_000
MOST_ENTRIES = 500  # of a suite, before its lists are expanded
MOST_RANKS = 256
LONGEST_CASE = 24 * 3600.0  # seconds until a case is ended
LONGEST_TEXT = 4_000
MOST_VALUES = 20_000  # in a document, however they are nested
MOST_COMBINATIONS = 20_000  # of the lists of one entry, whether they expand or not
DEEPEST = 12

_CLOSED = (bool, int, float, NoneType, Distribution)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SERVED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99})?")
_LAYOUT = re.compile(r"[a-z0-9-]+/[a-z0-9_]+")
_GENERATED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:=,-]{0,199}")


@dataclass(frozen=True)
class Refusal:
    """One thing that a case may not ask for."""

    case: int  # place in the run, from 0
    benchmark: str
    parameter: str
    reason: str

    def __str__(self) -> str:
        return f"case {self.case + 1} ({self.benchmark}): '{self.parameter}' {self.reason}"


def _matches(pattern: re.Pattern[str]) -> Callable[[object], str]:
    def check(value: object) -> str:
        return "" if pattern.fullmatch(str(value)) else f"= {_short(value)} has letters that are not taken"

    return check


def _model(value: object) -> str:
    if is_reference(str(value)):
        return f"= {_short(value)} would import code; name a model of the zoo"
    return _matches(_GENERATED)(value) or ("would name a file" if ".." in str(value) else "")


def _address(value: object) -> str:
    return "" if is_allowed(str(value)) else f"= {_short(value)} is not among the addresses in $PACELINE_ALLOWED_URLS"


# What a text may be, of the parameters that take one. Whatever is not here is refused.
ADMITTED: Mapping[str, Callable[[object], str]] = {
    "train.model": _model,
    "inference.model": _model,
    "serve.model": _model,
    "blas-functions.models": _model,
    "dnn-functions.models": _model,
    "parallel.case": _matches(_LAYOUT),
    "megatron-core.case": _matches(_LAYOUT),
    "rdma.device": _matches(_WORD),
    "serve.instance": _matches(_WORD),
    "serve.server.kind": _matches(_WORD),
    "serve.server.url": _address,
    "serve.server.model": _matches(_SERVED_NAME),
}

# Why, where the type alone does not say it.
REASONS: Mapping[str, str] = {
    "collective.hosts": "names hosts, which the leader chooses",
    "rdma.peer": "names a host, and a job may not choose whom a machine talks to",
    "tcp.hosts": "names hosts, and a job may not choose whom a machine talks to",
    "tcp.peer": "names a host, and a job may not choose whom a machine talks to",
    "disk.folder": "names a folder, and a job has no place outside its own",
    "disk.raw_device": "names a device of the machine",
    "megatron-gpt.code_base": "names code to run",
    "megatron-gpt.python": "names a program to run",
    "megatron-gpt.extra": "is arguments of a program",
    "megatron-gpt.data_path": "names files of the machine",
    "megatron-gpt.vocab_file": "names files of the machine",
    "megatron-gpt.merge_file": "names files of the machine",
    "serve.clients.hosts": "names hosts, and a job may not choose whom a machine talks to",
    "serve.clients.remote_shell": "names a program to run",
    "serve.clients.remote_python": "names a program to run",
    "serve.server.host": "is an address to listen at",
    "serve.server.python": "names a program to run",
    "serve.server.token_env": "names a secret of the machine",
    "serve.server.token_file": "names a secret of the machine",
}


def refusals(cases: Iterable[Case], lookup: Callable[[str], type[Benchmark[Any]]]) -> list[Refusal]:
    """All that these cases may not ask for, in order."""
    found = []
    for case in cases:
        if case.ranks > MOST_RANKS:
            found.append(Refusal(case.index, case.benchmark, "ranks", f"= {case.ranks} is more than {MOST_RANKS}"))
        if case.timeout > LONGEST_CASE:
            reason = f"= {case.timeout:g} s is longer than {LONGEST_CASE / 3600:g} h"
            found.append(Refusal(case.index, case.benchmark, "timeout", reason))
        parameters = lookup(case.benchmark).Parameters.model_validate(case.parameters)
        found += [
            Refusal(case.index, case.benchmark, path, reason)
            for path, reason in _walk(parameters, case.benchmark, case.benchmark)
        ]
    return found


def refuse(cases: Iterable[Case], lookup: Callable[[str], type[Benchmark[Any]]]) -> None:
    """Raise InputError with the first refusal, if there is one."""
    found = refusals(cases, lookup)
    if found:
        more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
        raise InputError(f"not taken from the network: {found[0]}{more}")


def check_document(document: object, overrides: Mapping[str, Any] | None = None, where: str = "the suite") -> None:
    """Refuse what is too large, too deep, or could not be kept, before anything looks closer."""
    _check_values(document, where)
    _check_values(overrides, "the overrides")
    entries = document.get("cases") if isinstance(document, Mapping) else None
    if not isinstance(entries, list):
        return
    if len(entries) > MOST_ENTRIES:
        raise InputError(f"{where} has {len(entries):,} entries, and at most {MOST_ENTRIES:,} are taken")
    most = _combinations(overrides or {}) * max(map(_combinations, entries), default=1)
    if most > MOST_COMBINATIONS:
        raise InputError(
            f"{where}: the lists of a case make {most:,} combinations, and at most {MOST_COMBINATIONS:,} are taken: "
            "shorten them"
        )


def check_yaml(text: str) -> None:
    """Refuse YAML whose few letters unfold to a lot; what is merely wrong is for its reader to say."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, yaml.AliasEvent):
                raise InputError(f"line {line}: write out what '*{event.anchor}' stands for")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise InputError(f"line {line}: the suite is nested more than {DEEPEST} deep")
    except (yaml.YAMLError, ValueError):
        return


def never_taken(benchmark: str, parameters: type[BaseModel]) -> list[str]:
    """The parameters of a benchmark that a job can only leave at their defaults."""
    return [
        name
        for name, field in parameters.model_fields.items()
        if not is_closed(field.annotation) and f"{benchmark}.{name}" not in ADMITTED and _own_pattern(field) is None
    ]


def _own_pattern(field: FieldInfo) -> str | None:
    """What a parameter says of itself that it takes."""
    extra = field.json_schema_extra
    own = extra.get("network") if isinstance(extra, dict) else None
    return own if isinstance(own, str) else None


def _walk(values: BaseModel, path: str, benchmark: str) -> Iterator[tuple[str, str]]:
    """Where a value is refused, and why."""
    if isinstance(values, ServerChoice):
        values = values.settings()
    for extra in values.model_extra or {}:
        yield _shown(f"{path}.{extra}", benchmark), "is a value of no known type"
    for name, field in type(values).model_fields.items():
        value, here = getattr(values, name), f"{path}.{name}"
        if isinstance(value, BaseModel):
            yield from _walk(value, here, benchmark)
        elif not is_closed(field.annotation) and value != field.get_default(call_default_factory=True):
            reason = _refused(value, field, here)
            if reason:
                yield _shown(here, benchmark), reason


def _refused(value: object, field: FieldInfo, path: str) -> str:
    check, own = ADMITTED.get(path), _own_pattern(field)
    if check is None and own is not None:
        check = _matches(re.compile(own))
    if check is not None:
        several = value if isinstance(value, list | tuple | set | frozenset) else [value]
        return next((reason for one in several if (reason := check(one))), "")
    if path in REASONS:
        return REASONS[path]
    if isinstance(value, PurePath):
        return "names a file, and a job has none outside its own folder"
    return "is free text, which this parameter takes only on the machine itself"


def is_closed(annotation: Any) -> bool:
    """Whether a type leaves only numbers, listed words, and parts that are looked at one by one."""
    origin = get_origin(annotation)
    if origin is Literal:
        return True
    if origin is Annotated:
        return is_closed(get_args(annotation)[0])
    if origin in (Union, UnionType, list, tuple, set, frozenset):
        return all(is_closed(part) for part in get_args(annotation) if part is not Ellipsis)
    return isinstance(annotation, type) and issubclass(annotation, (*_CLOSED, Enum, BaseModel))


def _check_values(document: object, where: str) -> None:
    waiting: list[tuple[object, int]] = [(document, 0)]
    for count, (value, depth) in enumerate(waiting):  # grows while it is walked
        if count > MOST_VALUES:
            raise InputError(f"{where} has more than {MOST_VALUES:,} values")
        if depth > DEEPEST:
            raise InputError(f"{where} is nested more than {DEEPEST} deep")
        if isinstance(value, Mapping):
            waiting += [(part, depth + 1) for pair in value.items() for part in pair]
        elif isinstance(value, list | tuple):
            waiting += [(part, depth + 1) for part in value]
        elif isinstance(value, str):
            _check_text(value, where)
        elif isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{where}: {value} is no number that can be measured with")
        elif isinstance(value, int) and abs(value) >= 2**63:
            raise InputError(f"{where}: a whole number of {len(str(value))} digits is too long")


def _check_text(text: str, where: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise InputError(f"{where}: the text '{text[:20]}...' has {len(text):,} letters; {LONGEST_TEXT:,} are taken")
    if any(ord(letter) < 32 and letter not in "\t\n\r" for letter in text) or not _is_unicode(text):
        raise InputError(f"{where}: {_short(text)} has letters that cannot be kept")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _combinations(value: object) -> int:
    """How many a mapping can expand to, at most."""
    if isinstance(value, Mapping):
        return math.prod(map(_combinations, value.values()))
    return max(1, len(value)) if isinstance(value, list) else 1


def _shown(path: str, benchmark: str) -> str:
    return path.removeprefix(f"{benchmark}.")


def _short(value: object) -> str:
    text = ascii(str(value))
    return text if len(text) <= 60 else f"{text[:60]}...'"
