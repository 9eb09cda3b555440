"""How a parameter is shown to people: the values that it takes, and its default with its unit."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from paceline.core import quantity

REQUIRED, UNSET = "required", "unset"
_QUANTITIES = {
    quantity.parse_duration: "duration",
    quantity.read_latency: "duration with its unit",
    quantity.parse_size: "size",
    quantity.parse_rate: "rate",
    quantity.parse_fraction: "fraction",
}
_SHOWN_AS = {"duration": "s", "size": "B", "fraction": "%"}  # units of defaults and bounds
_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}
_PLACEHOLDERS = {"whole number": "N", "true or false": "true|false", "duration with its unit": "DURATION"}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_LARGEST_BOUND = 2**40  # what lies beyond is a limit of computers, which helps nobody to choose a value


@dataclass(frozen=True)
class _Kind:
    """One of the kinds of value that a parameter takes."""

    name: str = ""  # of a type; none where there are choices
    choices: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()
    is_list: bool = False

    def show(self, choice: str) -> str:
        words = [choice.format(one) for one in self.choices] or [self.name]
        words[0] = f"one of {words[0]}" if len(words) > 1 else words[0]
        return ("list of: " if self.is_list else "") + ", ".join([*words, *self.bounds])

    @property
    def placeholder(self) -> str:
        word = "|".join(self.choices) or _PLACEHOLDERS.get(self.name) or self.name.upper()
        return f"{word},..." if self.is_list else word


def show_values(field: FieldInfo, *, choice: str = "{}") -> str:
    """What the parameter takes: `fp32, fp16, bf16`, `duration, more than 0`; `choice` is how a choice is written."""
    return " or ".join(dict.fromkeys(kind.show(choice) for kind in _kinds(field)))


def placeholder(field: FieldInfo) -> str:
    """The value of its flag in a help text: `fp32|fp16|bf16`, `DURATION`, `auto|N`, `SIZE,...`."""
    return "|".join(dict.fromkeys(kind.placeholder for kind in _kinds(field)))


def show_bounds(field: FieldInfo) -> str:
    """Between which limits its values are: `at least 1, at most 256`; nothing where there are none."""
    return ", ".join(dict.fromkeys(bound for kind in _kinds(field) for bound in kind.bounds))


def show_default(field: FieldInfo) -> str:
    """Its default as a person would write it, `required` where there is none, `unset` where that has a meaning."""
    if field.is_required():
        return REQUIRED
    return _show_value(field.get_default(call_default_factory=True, validated_data={}), _unit(field))


def is_size(field: FieldInfo) -> bool:
    """Whether its values are bytes, not just a count that is called a size."""
    return _unit(field) == "B"


def _unit(field: FieldInfo) -> str:
    return next((unit for kind in _kinds(field) if (unit := _SHOWN_AS.get(kind.name))), "")


def _show_value(value: Any, unit: str) -> str:
    if isinstance(value, BaseModel):
        parts = {name: _show_value(getattr(value, name), _unit(one)) for name, one in type(value).model_fields.items()}
        given = {name: shown for name, shown in parts.items() if shown != UNSET}
        return f"{{{', '.join(f'{name}: {shown}' for name, shown in given.items())}}}" if given else UNSET
    if isinstance(value, list | tuple):
        return ", ".join(_show_value(one, unit) for one in value) or UNSET
    if value is None:
        return UNSET
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and unit:
        return _show_quantity(value, unit)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _show_quantity(value: float, unit: str) -> str:
    """As it can be typed: a duration with one unit."""
    if unit == "s" and value >= 60 and value % 60 == 0:
        return f"{value / 60:g} min"
    return quantity.show(100 * value if unit == "%" else value, unit)


def _kinds(field: FieldInfo) -> list[_Kind]:
    return list(_kinds_of(field.annotation, field.metadata))


def _kinds_of(annotation: Any, metadata: Sequence[Any] = ()) -> Iterator[_Kind]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _kinds_of(arguments[0], [*_flat(arguments[1:]), *metadata])
    elif origin in (Union, types.UnionType):
        for member in arguments:
            if member is not type(None):
                yield from _kinds_of(member, metadata)
    elif origin in (list, tuple):
        yield from (replace(kind, is_list=True) for kind in _kinds_of(arguments[0]))
    elif origin is Literal:
        yield _Kind(choices=tuple(str(choice) for choice in arguments))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield _Kind("mapping")
    else:
        readers = (_QUANTITIES.get(one.func) for one in metadata if isinstance(one, BeforeValidator))
        name = next((reader for reader in readers if reader), _TYPES.get(annotation, annotation.__name__.lower()))
        yield _Kind(name, bounds=tuple(_bounds(metadata, name)))


def _bounds(metadata: Iterable[Any], name: str) -> Iterator[str]:
    for one in metadata:
        for key, words in _BOUNDS.items():
            limit = getattr(one, key, None)
            if limit is None or limit >= _LARGEST_BOUND:
                continue
            unit = _SHOWN_AS.get(name) if limit else None
            yield f"{words} {_show_quantity(limit, unit) if unit else f'{limit:,}'}"


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    for one in metadata:
        yield from one.metadata if isinstance(one, FieldInfo) else (one,)
