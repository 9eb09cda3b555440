"""Numbers, names and sentences."""

from __future__ import annotations

import math

import pytest

from paceline.analysis.summary import summarize_run
from paceline.report.run.lead import answer
from paceline.report.text import axis_scale, clean, half_width, heading, humanize, show_value
from support.records import case, literal_run, record, run_of, sample_run


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.00231, "s", "2.31 ms"),
        (26.1 * 1024**3, "B", "26.1 GiB"),
        (281.4e12, "FLOP/s", "281.4 TFLOP/s"),
        (0.0312, "J", "31.2 mJ"),
        (0.0, "J", "0 J"),
        (26.0, "%", "26.0 %"),
        (0.001, "%", "0.001 %"),
        (2535.4, "images/s", "2,535 images/s"),
        (6.93, "", "6.93"),
        (math.nan, "s", "not a number"),
        (-math.inf, "B", "-infinite"),
    ],
)
def test_values_read_well(value: float, unit: str, shown: str) -> None:
    assert show_value(value, unit) == shown


@pytest.mark.parametrize(
    ("relative", "shown"),
    [(None, ""), (0.0, "± <0.1 %"), (0.004, "± 0.4 %"), (0.0994, "± 9.9 %"), (0.0999, "± 10 %"), (1.5, "± 150 %")],
)
def test_half_widths_read_well(relative: float | None, shown: str) -> None:
    assert half_width(relative) == shown


def test_axes_are_scaled_to_their_values() -> None:
    assert axis_scale("s", 0.07) == (1e-3, "ms")
    assert axis_scale("s", 0.0) == (1e-9, "ns")
    assert axis_scale("images/s", 5e6) == (1.0, "images/s")


def test_names_become_words() -> None:
    assert heading(humanize("mfu")) == "MFU"
    assert heading(humanize("peak_device_memory")) == "Peak device memory"
    assert humanize("OMP_NUM_THREADS") == "OMP_NUM_THREADS"


def test_a_terminal_cannot_be_driven_by_text() -> None:
    assert clean("a\x1b[31mb\x9bc\nd\te") == "a\\x1b[31mb\\x9bc\nd\te"


def test_the_answer_of_a_mixed_run() -> None:
    assert answer(summarize_run(sample_run())) == ("7 of 9 cases measured; 2 with warnings; 2 did not succeed.")


def test_the_answer_of_a_good_run() -> None:
    told = answer(summarize_run(literal_run()))
    assert told == "All 2 cases measured; fastest train in images/s: resnet50 fp16, 320 ± <0.1 %."
    run = literal_run()
    by_time = [one.model_copy(update={"primary": "step_time"}) for one in run.records]
    told = answer(summarize_run(run.model_copy(update={"records": by_time})))
    assert told == "All 2 cases measured; fastest: train resnet50 fp16, 100 ms ± <0.1 %."


def test_the_answer_of_one_case_and_of_none() -> None:
    run = literal_run()
    one = run_of(run.records[:1])
    assert answer(summarize_run(one)) == "1 of 1 case measured; train resnet50 fp16: 320 images/s ± <0.1 %."
    assert answer(summarize_run(run_of([]))) == "This run has no cases."
    unmeasured = run_of([record(case(0, "odd", "a"))], not_run=[case(1, "odd", "b")])
    assert answer(summarize_run(unmeasured)) == "1 of 2 cases measured; 1 not run."
