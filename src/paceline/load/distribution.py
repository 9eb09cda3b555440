"""Whole numbers drawn by a rule that fits into a few letters: 4, uniform(1, 8), normal(128, 32), {1: 0.7, 4: 0.3}."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import core_schema

_CALL = re.compile(r"^\s*(uniform|normal|lognormal)\s*\(\s*([0-9.]+)\s*,\s*([0-9.]+)\s*\)\s*$")
_EXAMPLES = "write 4, uniform(1, 8), normal(128, 32), lognormal(128, 0.5) or {1: 0.7, 4: 0.3}"
LARGEST = 10_000_000


class Distribution:
    """A rule for whole numbers; prints as it is written."""

    is_closed = True  # whatever it is written as, it is read as numbers

    def __init__(self, text: str, kind: str, numbers: tuple[float, ...], weights: tuple[float, ...] = ()) -> None:
        self._text = text
        self._kind = kind
        self._numbers = numbers
        self._weights = weights

    @classmethod
    def constant(cls, value: int) -> Distribution:
        """Always the same."""
        return cls(str(value), "choice", (float(value),), (1.0,))

    @classmethod
    def parse(cls, given: object) -> Distribution:
        """What a user wrote."""
        if isinstance(given, Distribution):
            return given
        if isinstance(given, int) and not isinstance(given, bool):
            return cls._checked(cls.constant(given), given)
        if isinstance(given, dict):
            return cls._of_weights(given)
        if isinstance(given, str):
            return cls._of_text(given)
        raise ValueError(f"{given!r} is not a distribution; {_EXAMPLES}")

    @classmethod
    def _of_text(cls, text: str) -> Distribution:
        if text.strip().isdecimal():
            return cls._checked(cls.constant(int(text)), text)
        if text.strip().startswith("{"):
            pairs = [part.partition(":") for part in text.strip().strip("{}").split(",")]
            return cls._of_weights({key.strip(): value.strip() for key, _, value in pairs})
        found = _CALL.match(text)
        if not found:
            raise ValueError(f"'{text}' is not a distribution; {_EXAMPLES}")
        kind, first, second = found.group(1), float(found.group(2)), float(found.group(3))
        if kind == "uniform" and first > second:
            raise ValueError(f"'{text}': the first number is the smallest")
        if kind == "lognormal" and first <= 0:
            raise ValueError(f"'{text}': the median of a lognormal is positive")
        return cls._checked(cls(f"{kind}({first:g}, {second:g})", kind, (first, second)), text)

    @classmethod
    def _of_weights(cls, given: dict[Any, Any]) -> Distribution:
        try:
            pairs = sorted((int(value), float(weight)) for value, weight in given.items())
        except (TypeError, ValueError):
            raise ValueError(f"{given!r}: whole numbers with their weights, like {{1: 0.7, 4: 0.3}}") from None
        total = sum(weight for _, weight in pairs)
        if not pairs or any(weight < 0 for _, weight in pairs) or not 0 < total < math.inf:
            raise ValueError(f"{given!r}: weights are finite and not negative, and not all of them zero")
        text = "{" + ", ".join(f"{value}: {weight:g}" for value, weight in pairs) + "}"
        numbers = tuple(float(value) for value, _ in pairs)
        return cls._checked(cls(text, "choice", numbers, tuple(weight / total for _, weight in pairs)), given)

    @staticmethod
    def _checked(made: Distribution, given: object) -> Distribution:
        if max(made._numbers) > LARGEST or min(made._numbers) < 0:
            raise ValueError(f"{given!r}: numbers are from 0 to {LARGEST:,}")
        return made

    @property
    def lowest(self) -> int:
        """The smallest number that it gives; a normal one gives nothing below 1."""
        return 1 if self._kind in ("normal", "lognormal") else int(min(self._numbers))

    @property
    def highest(self) -> int | None:
        """The largest number that it gives, where there is one."""
        return None if self._kind in ("normal", "lognormal") else int(max(self._numbers))

    @property
    def is_constant(self) -> bool:
        """Whether it always gives the same."""
        return self._kind == "choice" and len(self._numbers) == 1

    def draw(self, count: int, random: np.random.Generator) -> NDArray[np.int64]:
        """So many numbers."""
        first, second = (*self._numbers, 0.0)[:2]
        if self._kind == "choice":
            drawn = random.choice(np.array(self._numbers), size=count, p=np.array(self._weights))
        elif self._kind == "uniform":
            drawn = random.integers(int(first), int(second) + 1, size=count).astype(np.float64)
        elif self._kind == "normal":
            drawn = random.normal(first, second, size=count)
        else:
            drawn = random.lognormal(np.log(first), second, size=count)
        return np.asarray(np.clip(np.rint(drawn), self.lowest, LARGEST), dtype=np.int64)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Distribution) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(self._text)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(_written, when_used="always")
        )


def _written(value: Distribution) -> int | str:
    return int(str(value)) if str(value).isdecimal() else str(value)
