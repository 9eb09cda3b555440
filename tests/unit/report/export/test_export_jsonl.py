"""Records as JSON lines come back as they were, and what is none of them is refused with its place."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from paceline.core.errors import InputError
from paceline.core.record import Measurement
from paceline.report.export import jsonl
from support.records import LOSS, STEP_TIME, case, literal_run, record, run_of, sample_run

LINE = jsonl.render(literal_run()).splitlines()[0]


def without(*names: str) -> str:
    return json.dumps({name: value for name, value in json.loads(LINE).items() if name not in names})


def test_a_run_comes_back_with_its_cases() -> None:
    run = sample_run()
    (again,) = jsonl.parse(jsonl.render(run).splitlines(), "x")
    assert again == run


def test_records_are_written_in_the_order_of_the_run_one_on_a_line() -> None:
    run = literal_run()
    run.records.reverse()
    text = jsonl.render(run)
    assert text == jsonl.render(literal_run())
    assert [json.loads(line)["case"]["index"] for line in text.split("\n")[:-1]] == [0, 1]
    assert text.endswith("\n")
    assert jsonl.render(run_of([])) == ""


def test_several_runs_in_one_file_stay_apart_and_empty_lines_are_passed_over() -> None:
    first, second = literal_run(), literal_run()
    second.run = second.run.model_copy(update={"id": "other"})
    for again in second.records:
        again.run_id = "other"
    one, other = (jsonl.render(run).splitlines() for run in (first, second))
    runs = jsonl.parse(["", one[0], other[0], "  ", one[1], other[1]], "x")
    assert runs == [first, second]
    assert jsonl.parse(["", " \t"], "x") == []


def test_numbers_that_json_does_not_have_come_back_as_nan() -> None:
    measured = [
        Measurement.of_value(LOSS, math.nan),
        Measurement.of_samples(STEP_TIME, [1.0, math.nan, 2.0]),
        Measurement.of_samples(STEP_TIME, [1.0, 2.0, 3.0]),
    ]
    run = run_of([record(case(0, "train", "a"), measured)])
    (again,) = jsonl.parse(jsonl.render(run).splitlines(), "x")
    lone, mixed, plain = again.records[0].measurements
    assert math.isnan(lone.value)
    assert [math.isnan(sample) for sample in mixed.samples] == [False, True, False]
    assert mixed.samples[::2] == [1.0, 2.0]
    summary = mixed.summary.model_dump()
    figures = [summary[name] for name in ("mean", "median", "minimum", "maximum", "deviation")]
    expected = [getattr(measured[1].summary, name) for name in ("mean", "median", "minimum", "maximum", "deviation")]
    assert repr(figures) == repr(expected)
    assert repr(mixed.summary.percentiles) == repr(measured[1].summary.percentiles)
    assert repr(mixed.interval) == repr(measured[1].interval)
    assert plain == measured[2]


@pytest.mark.parametrize(
    ("line", "is_ours"),
    [
        (LINE, True),
        (LINE[:300], True),
        (without("run"), False),
        (without("case"), False),
        (without("measurements"), False),
        (without("facts"), True),
        ('{"run": {}, "case": {}, "measurements": []}', True),
        ("[]", False),
        ('["run", "case", "measurements"]', False),
        ('{"node": "n1"', False),
        ("run,case,measurements", False),
        ("", False),
    ],
)
def test_a_file_is_known_by_its_first_line(line: str, is_ours: bool) -> None:
    assert jsonl.is_ours(line) is is_ours


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (LINE[: LINE.index("benchmark") + 3], "Unterminated string"),
        ("[]", "'list' object has no attribute 'get'"),
        (without("run"), "'run'"),
        (without("case"), "1 validation error for Record"),
        (without("measurements").replace('"run":', '"measurements": [{}], "run":'), "'samples'"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_number_and_a_reason_of_one_line(line: str, reason: str) -> None:
    with pytest.raises(InputError) as refused:
        jsonl.parse([LINE, "", line], "there.jsonl")
    text = str(refused.value)
    assert "line 3 of 'there.jsonl'" in text
    assert f"it is not a record of `paceline report --jsonl`: {reason}" in text
    assert "\n" not in text


def test_an_error_without_words_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: Any) -> Any:
        raise ValueError

    monkeypatch.setattr(json, "loads", silent)
    with pytest.raises(InputError, match="--jsonl`: ValueError"):
        jsonl.parse(["{}"], "x")
