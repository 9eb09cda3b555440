"""What micro benchmarks declare alike: their parameters, their titles, and that torch is imported for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from paceline.core.benchmark import Benchmark
from paceline.core.parameters import MeasuringParameters, Parameters
from paceline.core.quantity import Duration, Size, show_size

P = TypeVar("P", bound=Parameters)


# For a parameter that is a list: a single value means a list of one.
OneOrMore = BeforeValidator(lambda value: value if value is None or isinstance(value, list | tuple) else [value])

# A sweep goes upwards, each size once.
Upwards = AfterValidator(lambda sizes: sorted(set(sizes)))
Sizes = Annotated[list[Annotated[Size, Field(ge=1)]], OneOrMore, Field(min_length=1), Upwards]


def show_sizes(sizes: Sequence[int] | None) -> str:
    """A sweep in a title: where it begins and ends."""
    if not sizes:
        return ""
    return show_size(sizes[0]) if len(sizes) == 1 else f"{show_size(sizes[0])} to {show_size(sizes[-1])}"


class MicroParameters(MeasuringParameters):
    """How long to measure one point; a sweep of sizes has many of them."""

    budget: Duration = Field(default=1.0, gt=0)
    """Time to spend on measuring each point, at most"""
    warm_up: Duration = 0.5
    """Time to spend on warming up each point, at most; it ends sooner when the time is steady"""
    span: Duration = 0.0
    """Time to be under load at each point, at least, of which a quarter is warm-up; 0 does not look for settling slower
    than what is measured"""
    max_steps: int = Field(default=2_000, ge=1)
    """Take at most this many samples of each point"""
    seed: int = Field(default=1234, ge=0, lt=2**63)
    """Seed of the data"""


class TorchBenchmark(Benchmark[P]):
    """Base of benchmarks that run in torch, which is imported once, before the cases are forked."""

    without_torch: ClassVar[tuple[str, str]] = ("", "")  # a parameter, and its value with which torch is not needed

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        name, value = cls.without_torch
        return () if parameters.get(name) == value else ("torch",)


def join_words(*words: str | None) -> str:
    """The words of a title, without the empty ones."""
    return " ".join(word for word in words if word)
