"""Whole numbers that are drawn: lengths, sizes, pauses; written as people write them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator
from pydantic_core import core_schema

from paceline.core.quantity import parse_duration

_CALL = re.compile(r"^\s*(uniform|normal|lognormal)\s*\(\s*([0-9.]+)\s*,\s*([0-9.]+)\s*\)\s*$")
_EXAMPLES = "write 4, uniform(1, 8), normal(128, 32), lognormal(128, 0.5) or {1: 0.7, 4: 0.3}"
LARGEST = 10_000_000


@dataclass(frozen=True, repr=False)
class Distribution:
    """A rule for whole numbers; prints as it is written."""

    text: str
    kind: str = field(compare=False)
    numbers: tuple[float, ...] = field(compare=False)
    weights: tuple[float, ...] = field(default=(), compare=False)
    is_closed = True  # whatever it is written as, it is read as numbers

    def __post_init__(self) -> None:
        if max(self.numbers) > LARGEST or min(self.numbers) < 0:
            raise ValueError(f"{self.text}: numbers are from 0 to {LARGEST:,}")

    @classmethod
    def constant(cls, value: int) -> Distribution:
        """Always the same."""
        return cls(str(value), "choice", (float(value),), (1.0,))

    @classmethod
    def parse(cls, given: object) -> Distribution:
        """What a user wrote."""
        if isinstance(given, Distribution):
            return given
        if isinstance(given, dict):
            return cls._of_weights(given)
        if isinstance(given, int) and not isinstance(given, bool):
            return cls.constant(given)
        text = given.strip() if isinstance(given, str) else ""
        if text.isdecimal():
            return cls.constant(int(text))
        if text.startswith("{"):
            pairs = [part.partition(":") for part in text.strip("{}").split(",")]
            return cls._of_weights({key.strip(): value.strip() for key, _, value in pairs})
        match = _CALL.match(text)
        if not match:
            raise ValueError(f"{given!r} is not a distribution; {_EXAMPLES}")
        kind, first, second = match.group(1), float(match.group(2)), float(match.group(3))
        if kind == "uniform" and first > second:
            raise ValueError(f"'{text}': the first number is the smallest")
        if kind == "lognormal" and first <= 0:
            raise ValueError(f"'{text}': the median of a lognormal is positive")
        return cls(f"{kind}({first:g}, {second:g})", kind, (first, second))

    @classmethod
    def _of_weights(cls, given: dict[Any, Any]) -> Distribution:
        try:
            pairs = sorted((int(value), float(weight)) for value, weight in given.items())
        except (TypeError, ValueError):
            raise ValueError(f"{given!r}: whole numbers with their weights, like {{1: 0.7, 4: 0.3}}") from None
        total = sum(weight for _, weight in pairs)
        if any(weight < 0 for _, weight in pairs) or not 0 < total < math.inf:
            raise ValueError(f"{given!r}: weights are finite and not negative, and not all of them zero")
        text = "{" + ", ".join(f"{value}: {weight:g}" for value, weight in pairs) + "}"
        numbers = tuple(float(value) for value, _ in pairs)
        return cls(text, "choice", numbers, tuple(weight / total for _, weight in pairs))

    @property
    def lowest(self) -> int:
        """The smallest number that it gives; a normal one gives nothing below 1."""
        return 1 if self.kind in ("normal", "lognormal") else int(min(self.numbers))

    @property
    def highest(self) -> int | None:
        """The largest number that it gives, where there is one."""
        return None if self.kind in ("normal", "lognormal") else int(max(self.numbers))

    @property
    def mean(self) -> float:
        """The number that it gives on average."""
        if self.kind == "choice":
            return float(np.dot(self.numbers, self.weights))
        first, second = self.numbers
        if self.kind == "lognormal":
            return first * math.exp(second**2 / 2.0)
        return first if self.kind == "normal" else (first + second) / 2.0

    @property
    def mean_square(self) -> float:
        """The square of the number that it gives, on average."""
        if self.kind == "choice":
            return float(np.dot(np.square(self.numbers), self.weights))
        first, second = self.numbers
        if self.kind == "lognormal":
            return self.mean**2 * math.exp(second**2)
        variance = second**2 if self.kind == "normal" else ((int(second) - int(first) + 1) ** 2 - 1) / 12.0
        return self.mean**2 + variance

    def draw(self, count: int, random: np.random.Generator) -> NDArray[np.int64]:
        """So many numbers."""
        if self.kind == "choice":
            drawn = random.choice(np.array(self.numbers), size=count, p=np.array(self.weights))
        elif self.kind == "uniform":
            drawn = random.integers(int(self.numbers[0]), int(self.numbers[1]) + 1, size=count).astype(np.float64)
        elif self.kind == "normal":
            drawn = random.normal(self.numbers[0], self.numbers[1], size=count)
        else:
            drawn = random.lognormal(np.log(self.numbers[0]), self.numbers[1], size=count)
        return np.asarray(np.clip(np.rint(drawn), self.lowest, LARGEST), dtype=np.int64)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        def written(value: Distribution) -> int | str:
            return int(str(value)) if str(value).isdecimal() else str(value)

        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(written, when_used="always")
        )


_TIME = re.compile(r"[0-9.]+\s*(?:ms|s|min|h)\b")


def _in_milliseconds(given: object) -> object:
    if not isinstance(given, str):
        return given
    return _TIME.sub(lambda match: str(round(1000 * parse_duration(match[0]))), given)


Pause = Annotated[Distribution, BeforeValidator(_in_milliseconds)]  # of milliseconds; times with a unit are taken, too
