"""What a comparison must not cross: `throughput<0.97`, as a gate for continuous integration."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from paceline.core.errors import InputError

EVERY = "*"
_EXPRESSION = re.compile(r"\s*(?P<metric>\*|[A-Za-z_][\w.-]*)\s*(?P<sign>[<>])\s*(?P<bound>[0-9.eE+-]+)\s*")


@dataclass(frozen=True)
class Limit:
    """A bound on the ratio new / reference of one metric, or of every one that is compared."""

    metric: str
    sign: str  # < or >
    bound: float

    @classmethod
    def parse(cls, text: str, *, strict: bool = False) -> Limit:
        """Read one; what would fail without any change is refused unless significance is not asked for."""
        found = _EXPRESSION.fullmatch(text)
        if found is None:
            raise _refused("not-a-limit", text, "write it as METRIC<RATIO or METRIC>RATIO, like 'throughput<0.97'")
        try:
            bound = float(found["bound"])
        except ValueError:
            raise _refused("not-a-number", text, f"'{found['bound']}' is not a number; write one like 0.97") from None
        if not 0 < bound < math.inf:
            raise _refused("out-of-range", text, f"a ratio is above 0, so that {bound:g} is not a bound for it")
        if not strict and (bound > 1 if found["sign"] == "<" else bound < 1):
            message = (
                "it would fail without any change, which is never significant: "
                f"write a bound {'below' if found['sign'] == '<' else 'above'} 1, or add --strict"
            )
            raise _refused("fails-without-change", text, message)
        return cls(found["metric"], found["sign"], bound)

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.bound:g}"

    def covers(self, metric: str) -> bool:
        """Whether it is about this metric."""
        return self.metric in (EVERY, metric)

    def is_crossed(self, ratio: float) -> bool:
        """Whether this ratio lies beyond the bound."""
        return ratio < self.bound if self.sign == "<" else ratio > self.bound


def _refused(code: str, text: str, message: str) -> InputError:
    return InputError(code, message, where=f"--fail-on '{text}'", key="--fail-on", value=text)
