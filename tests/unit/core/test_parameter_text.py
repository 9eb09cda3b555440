"""How parameters are shown: with units and allowed values, never as Python writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from paceline.core.parameters import Parameters, placeholder, show_bounds, show_default, show_values
from paceline.core.quantity import Duration, Fraction, Latency, Rate, Size


class Inner(Parameters):
    delay: Duration = 0.5
    host: str | None = None


class Example(Parameters):
    budget: Duration = Field(default=10.0, gt=0)
    patience: Duration = 600.0
    share: Fraction = Field(default=0.01, lt=0.5)
    size: Size = Field(default=256 * 1024**2, ge=8)
    sizes: list[Size] = Field(default=[8, 4096])
    precision: Literal["fp32", "bf16"] | None = None
    batch: Literal["auto"] | int = "auto"
    seed: int = Field(default=1234, ge=0, lt=2**63)
    graph: bool = False
    in_place: bool | None = None
    file: Path | None = None
    rate: Rate | None = None
    limit: Latency | None = None
    inner: Inner = Inner()
    model: str


@pytest.mark.parametrize(
    ("name", "default", "word", "bounds", "values"),
    [
        ("budget", "10 s", "DURATION", "more than 0", "duration, more than 0"),
        ("patience", "10 min", "DURATION", "", "duration"),
        ("share", "1 %", "FRACTION", "less than 50 %", "fraction, less than 50 %"),
        ("size", "256 MiB", "SIZE", "at least 8 B", "size, at least 8 B"),
        ("sizes", "8 B, 4 KiB", "SIZE,...", "", "list of: size"),
        ("precision", "unset", "fp32|bf16", "", "one of fp32, bf16"),
        ("batch", "auto", "auto|N", "", "auto or whole number"),
        ("seed", "1234", "N", "at least 0", "whole number, at least 0"),
        ("graph", "false", "true|false", "", "true or false"),
        ("in_place", "unset", "true|false", "", "true or false"),
        ("file", "unset", "PATH", "", "path"),
        ("rate", "unset", "RATE", "", "rate"),
        ("limit", "unset", "DURATION", "", "duration with its unit"),
        ("inner", "{delay: 500 ms}", "MAPPING", "", "mapping"),
        ("model", "required", "TEXT", "", "text"),
    ],
)
def test_a_parameter_is_shown_as_a_person_writes_it(
    name: str, default: str, word: str, bounds: str, values: str
) -> None:
    field = Example.model_fields[name]
    assert (show_default(field), placeholder(field), show_bounds(field), show_values(field)) == (
        *(default, word, bounds, values),
    )
