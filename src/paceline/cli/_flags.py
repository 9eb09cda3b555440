"""Flags generated from the parameters of benchmarks, and how their values are read."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from paceline.core.errors import InputError
from paceline.core.suite import CaseKeys, parts_of

PREFIX = "parameter__"
DOT = "__part__"  # click takes only identifiers
# Between values; the one in generated/fc:layers=2,width=64 is within a value, as the next word is a setting, too, and
# so is the one in uniform(1, 8).
_COMMA = re.compile(r",(?!\s*\w+=)(?![^()]*\))")


def flags_of(fields: Mapping[str, FieldInfo], *, required: bool = True) -> list[click.Option]:
    """One option per field; given twice or with commas it expands to a matrix.

    What a benchmark requires is marked so, unless the cases of a suite have it already.
    """
    flags = []
    for name, field in fields.items():
        flags.append(_flag(name, field, required=required))
        parts = parts_of(field.annotation, {}) or {}  # `--load` and `--load.rate`
        flags += [_flag(f"{name}.{part}", one, required=False) for part, one in parts.items()]
    return flags


def case_flags() -> list[click.Option]:
    """Flags for the keys that every case has."""
    return flags_of({name: f for name, f in CaseKeys.model_fields.items() if name not in ("benchmark", "only_on")})


def read_flags(values: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, as overrides of a suite."""
    given: dict[str, Any] = {}
    for name, value in values.items():
        if not name.startswith(PREFIX) or value in (None, ()):
            continue
        given[name.removeprefix(PREFIX).replace(DOT, ".")] = value if isinstance(value, bool) else read_value(value)
    return given


def read_settings(settings: Iterable[str]) -> dict[str, Any]:
    """`--set key=value`, as overrides of a suite."""
    given: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            message = "write it as key=value or benchmark.key=value"
            raise InputError("not-a-setting", message, where=f"--set {text}", key="--set", value=text)
        given[key.strip().replace("-", "_")] = read_value([value])
    return given


def read_value(texts: Iterable[str]) -> Any:
    """One value, or a list where there are several."""
    values: list[Any] = []
    for text in texts:
        if text.lstrip().startswith(("[", "{")):
            from paceline.core.yaml_text import read_yaml

            value = read_yaml(text, f"the value {text}")
            values.extend(value if isinstance(value, list) else [value])
        else:
            values.extend(part.strip() for part in _COMMA.split(text))
    return values[0] if len(values) == 1 else values


def _flag(name: str, field: FieldInfo, *, required: bool) -> click.Option:
    option, key = name.replace("_", "-"), PREFIX + name.replace(".", DOT)
    text = (field.description or "").replace("\n", " ")
    if field.annotation is bool:
        text += f"  [default: {field.default}]"
        return click.Option([f"--{option}/--no-{option}", key], default=None, help=text)
    if not field.is_required() and field.default is not None:
        default = f"{field.default:g}" if isinstance(field.default, float) else field.default
        text += f"  [default: {default}]"
    elif field.is_required() and required:
        text += "  [required]"
    metavar = "|".join(_choices(field.annotation)) or "VALUE"
    return click.Option([f"--{option}", key], multiple=True, type=str, metavar=metavar, help=text)


def _choices(annotation: Any) -> list[str]:
    origin = get_origin(annotation)
    if origin is Literal:
        return [str(choice) for choice in get_args(annotation)]
    if origin is Annotated:
        return _choices(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        choices: list[str] = []
        for part in parts if len(parts) > 1 else ():
            while get_origin(part) is Annotated:
                part = get_args(part)[0]
            choices += _choices(part) or [{int: "N", float: "NUMBER", str: "NAME"}.get(part, "VALUE")]
        return choices
    return []
