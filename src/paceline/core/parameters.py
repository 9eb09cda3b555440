"""How a parameter is shown to people: the values that it takes, and its default with its unit."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from paceline.core import quantity
from paceline.core.errors import InputError, nearest
from paceline.core.quantity import TYPED, Duration, Fraction

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

REQUIRED, UNSET = "required", "unset"
_QUANTITIES = {
    quantity.parse_duration: "duration",
    quantity.read_latency: "duration with its unit",
    quantity.parse_size: "size",
    quantity.parse_rate: "rate",
    quantity.parse_fraction: "fraction",
    quantity.parse_power: "power",
    quantity.parse_frequency: "clock",
}
_SHOWN_AS = {
    "duration": "s",
    "size": "B",
    "fraction": "%",
    "power": "W",
    "clock": "MHz",
}  # units of defaults and bounds
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


# For words like `on` and `off`, which YAML reads as booleans.
OnOff = BeforeValidator(lambda value: {True: "on", False: "off"}[value] if isinstance(value, bool) else value)


@dataclass(frozen=True)
class EachPart:
    """Marks a parameter that names a part of the machine: a suite may say `each` for one case with each part."""

    of: str  # which parts: numa_nodes, rdma_devices


class Parameters(BaseModel):
    """Base of every benchmark's parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
    shorthand: ClassVar[str] = ""  # the part that a single word stands for, as in `server: url`

    @model_validator(mode="before")
    @classmethod
    def _of_word(cls, given: object) -> object:
        return {cls.shorthand: given} if cls.shorthand and isinstance(given, str) else given

    @classmethod
    def read(cls, values: Mapping[str, Any], *, is_typed: bool = False) -> Self:
        """Validate values, of a record or as a user typed them; bad input raises InputError."""
        try:
            return cls.model_validate(dict(values), context={TYPED: is_typed})
        except ValidationError as error:
            raise refusal(error.errors(), cls) from None

    def whole(self) -> BaseModel:
        """With everything that it stands for; itself, unless it says otherwise."""
        return self

    @classmethod
    def choices(cls) -> Mapping[str, type[Parameters]]:
        """Classes whose fields it takes, too, by the value of its one field that calls for them; usually none."""
        return {}

    @classmethod
    def more_fields(cls, values: Mapping[str, Any]) -> Mapping[str, FieldInfo]:
        """Fields beyond its own that it takes when it has these values."""
        choices = cls.choices()
        if not choices:
            return {}
        (key,) = cls.model_fields
        named = values.get(key, cls.model_fields[key].default)
        chosen = [choices[str(one)] for one in (named if isinstance(named, list) else [named]) if str(one) in choices]
        return {name: field for one in chosen for name, field in one.model_fields.items() if name != key}


SPAN = 8.0  # seconds


class MeasuringParameters(Parameters):
    """How long and how exactly to measure; shared by everything that repeats a step."""

    budget: Duration = Field(default=10.0, gt=0)
    """Time to spend on measured steps, at most"""
    warm_up: Duration = 10.0
    """Time to spend on warming up, at most; it ends sooner when the step time is steady"""
    span: Duration = SPAN
    """Time to be under load, at least, of which a quarter is warm-up: what settles or changes later is not seen; 0 does
    not look for settling slower than what is measured"""
    interval: Fraction = Field(default=0.01, gt=0, lt=1)
    """Stop when the 95 % interval of the median is within this part of it"""
    steps: int | None = Field(default=None, ge=1)
    """Measure exactly this many steps instead"""
    min_steps: int = Field(default=10, ge=1)
    """Measure at least this many steps, however precise they are (the budget still ends it)"""
    max_steps: int = Field(default=100_000, ge=1)
    """Measure at most this many steps"""
    seed: int = Field(default=1234, ge=0, lt=2**63)
    """Seed of weights and data"""


_KINDS = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "string_type": "a text",
}


def refusal(complaints: Sequence[ErrorDetails], model: type[BaseModel]) -> InputError:
    """The first complaint of pydantic, in words for the person who typed the value."""
    first, *others = complaints
    path, _ = _place(model, first["loc"])
    if first["type"] == "extra_forbidden":
        _, inner = _place(model, first["loc"][:-1])
        fields = (inner if isinstance(inner, type) and issubclass(inner, BaseModel) else model).model_fields
        guess = nearest(str(first["loc"][-1]), fields)
        hint = f"did you mean '{guess}'?" if guess else f"known are {', '.join(sorted(fields))}"
        return InputError("unknown-key", f"unknown key '{path}': {hint}", key=path, suggestion=guess)
    if first["type"] == "missing":
        return InputError("missing-key", f"'{path}' is missing", key=path)
    # For programs to repeat: no parts of a parameter, which may hold secrets, and no address with one.
    value = first["input"] if isinstance(first["input"], int | float | str) else None
    if isinstance(value, str) and "@" in value:
        value = None
    if first["type"] == "value_error":
        message = f"'{path}': {in_words(first)}" if path else in_words(first)
        return InputError("invalid-value", message, key=path or None, value=value)
    # Where several types are allowed, pydantic complains once for each.
    alternatives = [one for one in others if _place(model, one["loc"])[0] == path]
    words = list(dict.fromkeys(in_words(one) for one in (first, *alternatives)))
    guess = next((name for one in (first, *alternatives) if (name := _meant(one))), None)
    guessed = next((word for word in words if "did you mean" in word), None)
    where = f"'{path}' = " if path else ""
    message = f"{where}{first['input']!r}: {guessed or '; or '.join(words)}"
    return InputError("invalid-value", message, key=path or None, value=value, suggestion=guess)


def in_words(complaint: ErrorDetails) -> str:
    """One complaint of pydantic, as a person would say it."""
    if complaint["type"] in _KINDS:
        return f"must be {_KINDS[complaint['type']]}"
    if complaint["type"] != "literal_error":
        message = complaint["msg"].removeprefix("Value error, ")
        return f"must{message.removeprefix('Input should')}" if message.startswith("Input should") else message
    choices = str(complaint.get("ctx", {}).get("expected", ""))
    guess = _meant(complaint)
    several = "one of " if len(_choices(complaint)) > 1 else ""
    return f"must be {several}{choices}" + (f"; did you mean '{guess}'?" if guess else "")


def _meant(complaint: ErrorDetails) -> str | None:
    """Of the listed words, the one that was most likely meant."""
    return nearest(str(complaint["input"]), _choices(complaint)) if complaint["type"] == "literal_error" else None


def _choices(complaint: ErrorDetails) -> list[str]:
    listed = str(complaint.get("ctx", {}).get("expected", ""))
    return [choice.strip(" '") for choice in listed.replace(" or ", ", ").split(",")]


def _place(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[str, Any]:
    """The path that a user would write for pydantic's location, and the type expected there."""
    parts: list[str] = []
    expected: Any = model
    for part in location:
        if isinstance(expected, type) and issubclass(expected, BaseModel):
            field = expected.model_fields.get(str(part))
            expected = _without_none(field.annotation) if field else None
        elif get_origin(expected) in (Union, UnionType):  # the part names the alternative, which nobody wrote
            expected = next((one for one in get_args(expected) if getattr(one, "__name__", "") == part), None)
            continue
        elif get_origin(expected) in (list, tuple, set):
            expected = _without_none(get_args(expected)[0])
        elif str(part).startswith("function-"):
            continue
        parts.append(str(part))
    return ".".join(parts), expected


def _without_none(annotation: Any) -> Any:
    members = [one for one in get_args(annotation) if one is not type(None)]
    is_optional = get_origin(annotation) in (Union, UnionType) and len(members) == 1
    return members[0] if is_optional else annotation
