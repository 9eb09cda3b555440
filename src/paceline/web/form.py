"""The fields of a form from the typed parameters of a benchmark, and what people typed into them."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from paceline.core.errors import InputError
from paceline.core.parameters import MeasuringParameters, refusal
from paceline.core.quantity import show_count
from paceline.core.suite import CaseKeys, parts_of
from paceline.report.text import humanize, one_line
from paceline.runner.suite_file import read_yaml

PREFIX = "p."  # before the name of a parameter, so that it cannot be taken for a field of the form itself
LONGEST_TEXT = 100_000
DEEPEST = 30
MOST_NODES = 20_000  # of a document in YAML, each as often as it is used
# Between values: not within brackets, nor where a setting of the same value follows, as in fc:layers=2,width=64.
_COMMA = re.compile(r",(?!\s*\w+=)(?![^()\[\]{}]*[)\]}])")
_CASE_KEYS = ("target", "ranks", "repeat", "timeout")


class Entry(BaseModel):
    """One field of the form."""

    name: str  # of the parameter; a part of one is `load.rate`
    title: str
    help: str
    default: str
    choices: list[str]
    is_switch: bool = False
    is_required: bool = False
    value: str = ""
    error: str = ""


class Group(BaseModel):
    """Fields that belong together; those of a parameter with parts have its name."""

    title: str
    entries: list[Entry]
    is_folded: bool = False


def groups_of(parameters: type[BaseModel]) -> list[Group]:
    """The fields of a benchmark: its own, those of its parameters that have parts, and how it is measured."""
    own, nested, measuring = [], [], []
    for name, field in parameters.model_fields.items():
        parts = parts_of(field.annotation, {})
        if parts is not None:
            nested.append(
                Group(title=humanize(name), entries=[_entry(f"{name}.{part}", one) for part, one in parts.items()])
            )
        elif name in MeasuringParameters.model_fields:
            measuring.append(_entry(name, field))
        else:
            own.append(_entry(name, field))
    where = [_entry(name, CaseKeys.model_fields[name]) for name in _CASE_KEYS]
    found = [Group(title="", entries=own), *nested]
    if measuring:
        found.append(Group(title="How long and how exactly", entries=measuring, is_folded=True))
    found.append(Group(title="Where and how often", entries=where, is_folded=True))
    return [group for group in found if group.entries]


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
        errors |= _wrong(name, value, CaseKeys if name in _CASE_KEYS else parameters)
        whole, _, part = name.partition(".")
        if part:
            values.setdefault(whole, {})[part] = value
        else:
            values[name] = value
    return values, errors


def read_value(text: str) -> Any:
    """One value, or a list where there are several; brackets and braces are YAML."""
    if text.lstrip().startswith(("[", "{")):
        return read_text(text, "the value")
    parts = [part.strip() for part in _COMMA.split(text) if part.strip()]
    return parts[0] if len(parts) == 1 else parts


def read_settings(text: str) -> dict[str, Any]:
    """Lines of `key=value`, as overrides of a suite."""
    found = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        key, equals, value = line.partition("=")
        if not equals or not key.strip() or not value.strip():
            message = f"'{one_line(line)[:60]}': write it as key=value or benchmark.key=value"
            raise InputError("not-a-setting", message, key="set", value=line)
        found[key.strip().replace("-", "_")] = read_value(value.strip())
    return found


def read_text(text: str, where: str) -> Any:
    """A document in YAML; one that grows beyond measure when it is read is refused before."""
    if len(text) > LONGEST_TEXT:
        message = f"{where} has {len(text):,} characters, and at most {LONGEST_TEXT:,} are taken"
        raise InputError("too-many-characters", message)
    with suppress(yaml.YAMLError):  # read_yaml says what is wrong, and in which line
        node = yaml.compose(text, Loader=_Shallow)
        if node is not None and next(islice(_nodes(node), MOST_NODES, None), None) is not None:
            raise InputError("too-many-values", f"{where} has more than {MOST_NODES:,} values")
    return read_yaml(text, where)


class _Shallow(yaml.SafeLoader):
    """Refuses what is nested so deeply that reading it would never end."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise InputError("too-deep", f"the text is nested more than {DEEPEST} deep")
        made = super().compose_node(parent, index)
        self._depth -= 1
        return made


def _nodes(node: yaml.Node) -> Iterator[yaml.Node]:
    """Every node, as often as it is referred to."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        if isinstance(found, yaml.SequenceNode):
            waiting += found.value
        elif isinstance(found, yaml.MappingNode):
            waiting += [part for pair in found.value for part in pair]


class _Complaints:
    """Some complaints of a validation, for whoever explains one."""

    def __init__(self, found: list[Any]) -> None:
        self._found = found

    def errors(self) -> list[Any]:
        return self._found


def _wrong(name: str, value: Any, model: type[BaseModel]) -> dict[str, str]:
    """What is wrong with a field by itself; each value of a list is looked at."""
    whole, _, part = name.partition(".")
    if whole not in model.model_fields:
        return {}  # the suite as a whole is checked, too, and knows the nearest name
    candidates = value if isinstance(value, list) and not _takes_list(model, whole, part) else [value]
    for one in candidates:
        try:
            model.model_validate({whole: {part: one} if part else one})
        except ValidationError as error:
            mine = [
                complaint
                for complaint in error.errors()
                if complaint["loc"][:1] == (whole,) and (not part or part in complaint["loc"])
            ]
            if mine:
                return {name: refusal(cast(ValidationError, _Complaints(mine)), model).message}
    return {}


def _takes_list(model: type[BaseModel], name: str, part: str) -> bool:
    field = model.model_fields[name]
    if part:
        found = (parts_of(field.annotation, {}) or {}).get(part)
        if found is None:
            return True  # a part that only some alternatives have: the whole suite tells
        field = found
    return _is_list(field.annotation)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) in (list, tuple, set) or any(_is_list(part) for part in get_args(annotation))


def _entry(name: str, field: FieldInfo) -> Entry:
    is_switch = field.annotation is bool
    default = "" if field.is_required() or field.default is None else field.default
    return Entry(
        name=name,
        title=humanize(name.rpartition(".")[2]),
        help=one_line(field.description or ""),
        default=_shown(default),
        choices=["yes", "no"] if is_switch else _choices(field.annotation),
        is_switch=is_switch,
        is_required=field.is_required(),
    )


def _shown(default: Any) -> str:
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
