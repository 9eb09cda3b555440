"""JSON that loses nothing, and says nothing twice."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paceline.core.record import Record
from paceline.store import codec
from support.store_samples import a_failed_record, a_record


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": []},
        [1.5, None, True, "x"],
        {"a": math.inf, "b": {"c": 1}},
        {"a": -math.inf, "b": {"$float": 1}},
        {"$float": "inf", "other": 1},
        {"a": math.inf, "b": {"$float": "much"}},
    ],
)
def test_a_value_comes_back_from_text_and_from_bytes(value: Any) -> None:
    text = codec.dumps(value)
    assert codec.loads(text) == codec.loads(text.encode()) == value


def test_what_is_not_a_number_comes_back_as_that() -> None:
    text = codec.dumps({"a": math.nan})
    assert text == '{"a": {"$float": "nan"}}'
    assert math.isnan(codec.loads(text)["a"])
    assert codec.dumps([np.float64(0.5), np.int64(3), np.array([math.inf])]) == '[0.5, 3, [{"$float": "inf"}]]'


@pytest.mark.parametrize("record", [a_record(), a_failed_record(), a_record(facts={"rate": math.inf})])
def test_a_record_is_one_line_and_comes_back_from_it(record: Record) -> None:
    line = codec.to_line(record)
    assert "\n" not in line
    assert codec.from_line(line) == codec.from_line(line.encode()) == record


def test_a_description_leaves_out_what_it_does_not_say() -> None:
    assert codec.description_of(a_record()) == {"primary": "step_time"}
