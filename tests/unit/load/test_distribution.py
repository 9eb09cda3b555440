"""Pauses are distributions of milliseconds, written with or without units."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from paceline.load.distribution import Distribution, Pause

PAUSE = TypeAdapter(Pause)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("2s", "2000"),
        ("500ms", "500"),
        (250, "250"),
        ("1.5 s", "1500"),
        ("lognormal(2s, 0.5)", "lognormal(2000, 0.5)"),
        ("uniform(100ms, 1min)", "uniform(100, 60000)"),
    ],
)
def test_times_are_read_as_milliseconds(given: object, text: str) -> None:
    read = PAUSE.validate_python(given)
    assert str(read) == text
    assert PAUSE.validate_python(PAUSE.dump_python(read)) == read, "what a record has is read as the same"


@pytest.mark.parametrize("given", ["soon", "2d", None, "lognormal(0s, 1)"])
def test_what_is_not_a_time_is_refused(given: object) -> None:
    with pytest.raises(ValidationError):
        PAUSE.validate_python(given)


@pytest.mark.parametrize("text", ["7", "uniform(1, 8)", "normal(50, 9)", "lognormal(40, 0.5)", "{1: 0.7, 4: 0.3}"])
def test_means_are_those_of_what_is_drawn(text: str) -> None:
    rule = Distribution.parse(text)
    drawn = rule.draw(100_000, np.random.default_rng(1)).astype(np.float64)
    assert rule.mean == pytest.approx(drawn.mean(), rel=0.02)
    assert rule.mean_square == pytest.approx(np.square(drawn).mean(), rel=0.03)
