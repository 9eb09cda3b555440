"""Typed parameters of a benchmark; an unknown key is refused with the nearest known key named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline.core.errors import InputError, nearest
from paceline.core.quantity import Duration, Fraction


class Parameters(BaseModel):
    """Base of every benchmark's parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @classmethod
    def read(cls, values: Mapping[str, Any], where: str) -> Self:
        """Validate what a user wrote; `where` tells them which place in their input is meant."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise InputError(f"{where}: {explain(error, cls)}") from None


class MeasuringParameters(Parameters):
    """How long and how exactly to measure; shared by everything that repeats a step."""

    budget: Duration = Field(default=10.0, gt=0)
    """Time to spend on measured steps, at most"""
    warm_up: Duration = 10.0
    """Time to spend on warming up, at most; it ends sooner when the step time is steady"""
    interval: Fraction = Field(default=0.01, gt=0, lt=1)
    """Stop when the 95 % interval of the median is within this part of it"""
    steps: int | None = Field(default=None, ge=1)
    """Measure exactly this many steps instead"""
    min_steps: int = Field(default=10, ge=1)
    """Measure at least this many steps, however precise they are (the budget still ends it)"""
    max_steps: int = Field(default=10_000, ge=1)
    """Measure at most this many steps"""
    seed: int = 1234
    """Seed of weights and data"""


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first complaint of pydantic, in words for the person who typed the value."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
    if first["type"] == "extra_forbidden":
        known = _keys_at(model, first["loc"][:-1])
        key = str(first["loc"][-1])
        guess = nearest(key, known)
        hint = f"did you mean '{guess}'?" if guess else f"known are {', '.join(sorted(known))}"
        return f"unknown key '{path}': {hint}"
    if first["type"] == "missing":
        return f"'{path}' is missing"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "literal_error":
        choices = str(first.get("ctx", {}).get("expected", ""))
        guess = nearest(
            str(first["input"]), [choice.strip(" '") for choice in choices.replace(" or ", ", ").split(",")]
        )
        message = f"must be one of {choices}" + (f"; did you mean '{guess}'?" if guess else "")
    where = f"'{path}' = " if path else ""
    return f"{where}{first['input']!r}: {message}" if first["type"] != "value_error" else f"'{path}': {message}"


def _keys_at(model: type[BaseModel], path: tuple[int | str, ...]) -> set[str]:
    for part in path:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        model = inner
    return set(model.model_fields)
