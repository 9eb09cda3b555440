"""Parameters in a form: what each field offers, how what was typed is read, and what to type to run something again."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import Case, current_names
from paceline.core.errors import InputError
from paceline.core.grouping import group_by
from paceline.core.parameters import MeasuringParameters, refusal
from paceline.core.quantity import parse_duration, read_latency, show_count
from paceline.core.run import Run
from paceline.core.suite import CaseKeys, parts_of, takes_list
from paceline.models import MODELS
from paceline.models.sources import MODEL_NAME
from paceline.report.text import humanize, one_line
from paceline.servers import SERVERS
from paceline.service import admission

_SERVER = "server.kind"  # a name of the registry of servers
PREFIX = "p."  # before the name of a parameter, so that it cannot be taken for a field of the form itself
_SETTING = re.compile(r"\s*\w+=")
MOST_BOXES = 8  # choices that have a box each; of more, one is selected
_CASE_KEYS = ("target", "ranks", "repeat", "timeout")


class Entry(BaseModel):
    """One field of the form."""

    name: str  # of the parameter; a part of one is `load.rate`
    title: str
    help: str
    default: str
    choices: list[str]  # all that it takes, or, where it takes others, some
    is_closed: bool = False  # nothing but the choices is taken
    is_switch: bool = False
    is_required: bool = False
    value: str = ""
    error: str = ""

    @property
    def is_ticked(self) -> bool:
        """Whether it is a box for each choice: several make a case of each."""
        return self.is_closed and not self.is_switch and len(self.choices) <= MOST_BOXES and not self.others

    @property
    def chosen(self) -> list[str]:
        """The values that were given."""
        return [part.strip() for part in split_values(self.value) if part.strip()]

    @property
    def others(self) -> list[str]:
        """Values that are no choice: a mistake to be shown, or a list."""
        return [value for value in self.chosen if value not in self.choices]


class Group(BaseModel):
    """Fields that belong together; those of a parameter with parts have its name."""

    title: str
    entries: list[Entry]
    is_folded: bool = False


def groups_of(parameters: type[BaseModel]) -> list[Group]:
    """The fields of a benchmark: its own, those of its parameters that have parts, and how it is measured."""
    plain, nested, measuring = [], [], []
    for name, field in parameters.model_fields.items():
        parts = parts_of(field.annotation, {})
        if parts is not None:
            nested.append(
                Group(title=humanize(name), entries=[_entry(f"{name}.{part}", one) for part, one in parts.items()])
            )
        elif name in MeasuringParameters.model_fields:
            measuring.append(_entry(name, field))
        else:
            plain.append(_entry(name, field))
    where = [_entry(name, CaseKeys.model_fields[name]) for name in _CASE_KEYS]
    groups = [
        Group(title="", entries=plain),
        *nested,
        Group(title="How long and how exactly", entries=measuring, is_folded=True),
        Group(title="Where and how often", entries=where, is_folded=True),
    ]
    return [group for group in groups if group.entries]


def read_parameters(typed: Mapping[str, str], parameters: type[BaseModel]) -> tuple[dict[str, Any], dict[str, str]]:
    """What was typed, as an entry of a suite, and what is wrong with each field."""
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, text in typed.items():
        try:
            value = read_value(text)
        except InputError as error:
            errors[name] = str(error)
            continue
        whole, _, part = name.partition(".")
        if problem := _problem(whole, part, value, CaseKeys if name in _CASE_KEYS else parameters):
            errors[name] = problem
        if not part:
            values[name] = value
        elif isinstance(parts := values.setdefault(whole, {}), dict):
            parts[part] = value
        else:
            errors[name] = f"'{whole}' is given as a whole as well: leave one of them out"
    return values, errors


def read_value(text: str) -> Any:
    """One value, or a list where there are several; brackets and braces are YAML."""
    if len(text) > admission.LONGEST_TEXT:
        message = f"it has {len(text):,} characters; at most {admission.LONGEST_TEXT:,} are taken"
        raise InputError("too-many-characters", message)
    if text.lstrip().startswith(("[", "{")):
        return admission.read_document(text, "the value")
    parts = [part.strip() for part in split_values(text) if part.strip()]
    return parts[0] if len(parts) == 1 else parts


def split_values(text: str) -> list[str]:
    """The texts between commas, but for commas within brackets and before a setting, as in fc:layers=2,width=64.

    From the end, so that whether a comma is within brackets is known when it is met.
    """
    parts: list[str] = []
    end, is_within = len(text), False
    for at in range(len(text) - 1, -1, -1):
        letter = text[at]
        if letter in ")]}([{":
            is_within = letter in ")]}"
        elif letter == "," and not is_within and not _SETTING.match(text, at + 1):
            parts.append(text[at + 1 : end])
            end = at
    return [text[:end], *reversed(parts)]


def read_settings(text: str) -> dict[str, Any]:
    """Lines of `key=value`, as overrides of a suite."""
    settings = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        key, equals, value = line.partition("=")
        if not equals or not key.strip() or not value.strip():
            message = f"'{one_line(line)[:60]}': write it as key=value or benchmark.key=value"
            raise InputError("not-a-setting", message, key="set", value=line)
        settings[key.strip().replace("-", "_")] = read_value(value.strip())
    return settings


def _problem(whole: str, part: str, value: Any, model: type[BaseModel]) -> str:
    """What is wrong with a field, or a part of it, by itself; of a list that makes several cases, with each value."""
    field = model.model_fields.get(whole)
    if field is None:
        return ""  # the suite as a whole is checked, too, and knows the nearest name
    if part:
        field = (parts_of(field.annotation, {}) or {}).get(part)
    # A part that only some alternatives have is left to the check of the whole suite.
    is_several = isinstance(value, list) and field is not None and not takes_list(field.annotation)
    for one in value if is_several else [value]:
        try:
            model.model_validate({whole: {part: one} if part else one})
        except ValidationError as error:
            complaints = [one for one in error.errors() if one["loc"][:1] == (whole,)]
            complaints = [one for one in complaints if not part or part in one["loc"]]
            if complaints:
                return refusal(complaints, model).message
    return ""


def _entry(name: str, field: FieldInfo) -> Entry:
    is_switch = field.annotation is bool
    default = "" if field.is_required() or field.default is None else field.default
    choices = ["yes", "no"] if is_switch else _choices(field.annotation) or _known(name, field)
    return Entry(
        name=name,
        title=humanize(name.rpartition(".")[2]),
        help=one_line(field.description or ""),
        default=_default_text(default),
        choices=choices,
        is_closed=is_switch or _is_closed(field.annotation) or name == _SERVER,
        is_switch=is_switch,
        is_required=field.is_required(),
    )


def _known(name: str, field: FieldInfo) -> list[str]:
    """What a field that takes any text is usually given."""
    if MODEL_NAME in field.metadata:
        return sorted(MODELS.registry().entries)
    return sorted(SERVERS.registry().entries) if name == _SERVER else []


def _is_closed(annotation: Any) -> bool:
    """Whether it takes nothing but the values that its type lists."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return all(part is types.NoneType or _is_closed(part) for part in get_args(annotation))
    if origin in (Annotated, list, tuple):
        return all(_is_closed(part) for part in get_args(annotation)[: 1 if origin is Annotated else None])
    return origin is Literal


def _default_text(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, float):
        return show_count(default)
    if isinstance(default, BaseModel):
        return ""
    if isinstance(default, list | tuple):
        return ", ".join(map(str, default))
    return "" if "object at 0x" in str(default) or str(default) == "PydanticUndefined" else str(default)


def _choices(annotation: Any) -> list[str]:
    origin = get_origin(annotation)
    if origin is Literal:
        return [str(choice) for choice in get_args(annotation)]
    if origin is Annotated:
        return _choices(get_args(annotation)[0])
    if origin in (Union, types.UnionType, list, tuple):
        return [choice for part in get_args(annotation) for choice in _choices(part)]
    return []


Values = Mapping[str, Any]


def needs_of(run: Run, cases: list[Case]) -> dict[str, str]:
    """The machine that these cases were measured on, as far as the form asks for it."""
    ranks = [case.ranks for case in cases if not case.target.startswith("cpu")]
    if not ranks:
        return {}
    names = {gpu.name for gpu in run.environment.gpus if gpu.name}
    return {"gpus": str(max(ranks))} | ({"gpu": names.pop()} if len(names) == 1 else {})


def suite_text(run: Run, cases: list[Case]) -> str:
    """These cases as a suite, without what is a default."""
    entries = []
    for same in group_by(cases, lambda case: case.key).values():
        repeat = {"repeat": len(same)} if len(same) > 1 else {}
        entries.append(_suite_entry(same[0]) | repeat)
    document = {"name": run.name, "cases": entries}
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110))


def form_values(case: Case) -> dict[str, str]:
    """The parameters of a case that are not defaults, by field of the form."""
    benchmark = BENCHMARKS.registry().entries[case.benchmark]
    values: dict[str, str] = {}
    for name, value in _changed(case).items():
        field = benchmark.Parameters.model_fields.get(name)
        is_whole = field is None or parts_of(field.annotation, {}) is None or not isinstance(value, dict)
        parts = {name: value} if is_whole else {f"{name}.{part}": one for part, one in value.items()}
        values |= {part: _text(one) for part, one in parts.items() if one is not None}
    return values


def _suite_entry(case: Case) -> dict[str, Any]:
    ranks = {"ranks": case.ranks} if case.ranks > 1 else {}
    return {"benchmark": case.benchmark} | _changed(case) | ranks


def _changed(case: Case) -> dict[str, Any]:
    """The parameters that differ from their defaults."""
    benchmark = BENCHMARKS.registry().entries.get(case.benchmark)
    given = current_names(case.benchmark, case.parameters)
    defaults = _defaults(benchmark.Parameters) if benchmark is not None else {}
    fields = benchmark.Parameters.model_fields if benchmark is not None else {}
    return _differing(given, defaults, fields)


def _differing(given: Values, defaults: Values, fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """What differs from its default, also among the parts of a parameter; a time has its unit."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        field, default = fields.get(name), defaults.get(name)
        if value is None or (name in defaults and value == default):
            continue
        if isinstance(value, dict):
            parts = parts_of(field.annotation, value) if field is not None else None
            found[name] = _differing(value, default if isinstance(default, dict) else {}, parts or {})
        else:
            is_time = isinstance(value, int | float) and field is not None and _is_time(field)
            found[name] = f"{value!r}s" if is_time else value
    return found


def _is_time(field: FieldInfo) -> bool:
    """Whether it reads text like 5ms."""
    inner = [one for part in get_args(field.annotation) for one in getattr(part, "__metadata__", ())]
    validators = [one for one in (*field.metadata, *inner) if isinstance(one, BeforeValidator)]
    return any(one.func in (parse_duration, read_latency) for one in validators)


def _defaults(parameters: type[BaseModel]) -> dict[str, Any]:
    return {
        name: to_jsonable_python(field.get_default(call_default_factory=True), fallback=str)
        for name, field in parameters.model_fields.items()
        if not field.is_required()
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list):
        return str(yaml.safe_dump(value, default_flow_style=True, width=10_000)).strip()
    return f"{value:.12g}" if isinstance(value, float) else str(value)
