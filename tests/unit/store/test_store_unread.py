"""A measurement that is read when it is looked at is like any other, whichever way one looks."""

from __future__ import annotations

import copy
import math
import operator
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from pydantic import TypeAdapter

from paceline.core.metric import Metric
from paceline.core.record import Measurement, PackedSamples
from paceline.core.stats import Summary
from paceline.store import codec

PLAIN = Measurement.of_samples(Metric(name="step_time", unit="s"), [0.25, 0.5, -0.0, 1e22, 3.0], at={"size": 4})
SCHEMA = TypeAdapter(Measurement)


def dumped(measured: Measurement) -> dict[str, Any]:
    return cast(dict[str, Any], SCHEMA.dump_python(measured))


def unread(measured: Measurement = PLAIN) -> Measurement:
    """The same with its summary and samples as the store leaves them: packed, until somebody looks."""
    summary = partial(codec.read, Summary, codec.dumps(measured.summary.model_dump()))
    lazy: dict[str, Any] = {"summary": summary, "samples": PackedSamples(codec.pack(measured.samples))}
    return replace(measured, **lazy)


def test_every_field_is_there() -> None:
    one = unread()
    assert [getattr(one, field.name) for field in fields(Measurement)] == [
        getattr(PLAIN, field.name) for field in fields(Measurement)
    ]
    assert (one.value, one.interval) == (PLAIN.value, PLAIN.interval)


def test_it_is_equal_both_ways() -> None:
    assert unread() == PLAIN
    assert operator.eq(PLAIN, unread())
    assert unread() == unread()
    assert unread() != replace(PLAIN, scope="rank 0")


def test_it_is_written_and_copied_whole() -> None:
    assert dumped(unread()) == dumped(PLAIN)
    assert SCHEMA.dump_json(unread()) == SCHEMA.dump_json(PLAIN)
    assert list(dumped(unread())) == list(dumped(PLAIN))
    assert repr(unread()) == repr(PLAIN)
    for made in (copy.copy(unread()), copy.deepcopy(unread()), pickle.loads(pickle.dumps(unread()))):
        assert type(made) is Measurement
        assert made == PLAIN
    assert replace(unread(), scope="rank 0").samples == PLAIN.samples


def test_it_is_written_whole_after_it_was_looked_at_in_part() -> None:
    one = unread()
    assert one.summary == PLAIN.summary
    assert SCHEMA.dump_json(one) == SCHEMA.dump_json(PLAIN)


def test_a_change_stays() -> None:
    one = unread()
    one.samples.append(7.0)
    assert one.sample_array().tolist() == [*PLAIN.samples, 7.0]
    assert dumped(one)["samples"] == [*PLAIN.samples, 7.0]
    other = unread()
    other.samples = [1.0]
    assert (other.samples, other.summary) == ([1.0], PLAIN.summary)


def test_samples_for_arithmetic_are_the_same_bits() -> None:
    odd = replace(PLAIN, samples=[math.nan, math.inf, -0.0, 5e-324])
    assert unread(odd).sample_array().tobytes() == np.array(odd.samples).tobytes()
    assert unread(replace(PLAIN, samples=[])).sample_array().size == 0
    assert unread(replace(PLAIN, samples=[])).samples == []


def test_infinities_of_a_summary_are_read() -> None:
    summary = PLAIN.summary.model_copy(update={"mean": math.inf})
    assert unread(replace(PLAIN, summary=summary)).summary.mean == math.inf


def test_what_it_does_not_have_is_an_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = unread().nonsense  # type: ignore[attr-defined]


def test_threads_may_look_together() -> None:
    many = [unread() for _ in range(200)]
    looks: list[Callable[[Measurement], object]] = [lambda one: one.summary.mean, lambda one: one == PLAIN, repr]
    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(list, map(look, many)) for look in looks * 4]
        found = list(pool.map(lambda one: (one.summary, one.samples, dumped(one)), many))
    for one in done:
        one.result()
    assert found == [(PLAIN.summary, PLAIN.samples, dumped(PLAIN))] * len(many)
