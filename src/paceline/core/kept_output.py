"""A few numbers of a model's output, by which two records tell whether they computed the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError

FACT = "first_output"
MOST_NUMBERS = 64


class Deviation(NamedTuple):
    """How far two outputs are apart, as parts of the larger norm."""

    apart: float  # the norm of the difference
    longer: float  # the difference of the norms

    @classmethod
    def of(cls, between: float, here: float, there: float) -> Self:
        """From the norm of a difference, and those of both; outputs of nothing but zeros are the same."""
        size = max(here, there)
        return cls(between / size, abs(here - there) / size) if size else cls(0.0, 0.0)


class KeptOutput(BaseModel):
    """An output's norm, and evenly spaced numbers of it."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    count: int  # numbers of the whole output
    norm: float
    numbers: tuple[float, ...]

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Self | None:
        """What a record kept; None where it kept nothing."""
        try:
            return cls.model_validate(facts[FACT]) if FACT in facts else None
        except ValidationError:  # another version's, or a plug-in's fact of the same name
            return None

    def compared(self, other: Self) -> str:
        """How far the other is from this one, or why that cannot be told."""
        if (self.count, len(self.numbers)) != (other.count, len(other.numbers)):
            return f"not compared: outputs of {self.count:,} and {other.count:,} numbers"
        here, there = math.hypot(*self.numbers), math.hypot(*other.numbers)
        apart = Deviation.of(math.dist(self.numbers, other.numbers), here, there).apart
        longer = Deviation.of(0.0, self.norm, other.norm).longer
        some = "" if len(self.numbers) == self.count else f" in {len(self.numbers)} of its numbers"
        return f"the output differs by {apart:.2%} of its norm{some}, the norm by {longer:.2%}"
