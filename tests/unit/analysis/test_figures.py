"""Names of cases that no other has, and sweeps that are lines."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.analysis.summary import (
    Reading,
    Sweep,
    SweepPoint,
    plain_label,
    shortened,
    show_parameter,
    sweeps_of,
    unique_labels,
)
from paceline.core.record import Measurement
from paceline.core.stats import Interval, summarize
from support.records import MEMORY, STEP_TIME, case, record


def test_settings_that_differ_tell_cases_apart_and_others_are_not_said() -> None:
    cases = [case(place, "train", "m", budget=budget, seed=1) for place, budget in enumerate((5, 9))]
    assert unique_labels(cases) == ["train m budget=5", "train m budget=9"]


def test_three_settings_are_a_name_and_four_are_none() -> None:
    three = [case(place, "train", "m", a=place, b=place, c=place) for place in range(2)]
    assert unique_labels(three) == ["train m a=0 b=0 c=0", "train m a=1 b=1 c=1"]
    four = [case(place, "train", "m", a=place, b=place, c=place, d=place) for place in range(2)]
    assert unique_labels(four) == ["train m [0]", "train m [1]"]


def test_of_many_names_three_are_listed() -> None:
    assert shortened([]) == "none"
    assert shortened(["a", "b", "c"]) == "a, b, c"
    assert shortened(["a", "b", "c", "d"]) == "a, b, c and 1 more"


@pytest.mark.parametrize(
    ("axes", "values", "is_line"),
    [
        (("size",), [1, 2.5, 3], True),
        (("size",), [1, 2], False),
        (("size",), [1, "many", 3], False),
        (("from", "to"), [1, 2, 3], False),
    ],
)
def test_a_line_has_three_numbers_on_one_axis(axes: tuple[str, ...], values: list[int | str], is_line: bool) -> None:
    points = tuple(SweepPoint(dict.fromkeys(axes, value), ()) for value in values)
    assert Sweep(axes, points).is_line is is_line
    assert Sweep(axes, points).is_matrix is (axes == ("from", "to"))


def test_readings_that_touch_may_be_the_same() -> None:
    assert Reading(2.0, 1.0, 3.0).overlaps(Reading(4.0, 3.0, 5.0))
    assert not Reading(2.0, 1.0, 3.0).overlaps(Reading(4.0, 3.5, 5.0))
    assert not Reading(4.0, 3.5, 5.0).overlaps(Reading(2.0, 1.0, 3.0))
    assert Reading(2.0, 1.0, None).overlaps(Reading(4.0, 3.0, 5.0)) is None
    assert Reading(2.0, 1.0, 4.0).over(8.0) == Reading(4.0, 2.0, 8.0)
    assert Reading(2.0, 1.0, 4.0).times(3.0) == Reading(6.0, 3.0, 12.0)


def with_interval(value: float, low: float, high: float, count: int = 1) -> Measurement:
    """A figure that many observations gave together, with its interval."""
    interval = Interval(low=low, high=high, confidence=0.95)
    summary = summarize([value]).model_copy(update={"mean_interval": interval, "count": count})
    return Measurement(metric=STEP_TIME, statistic="mean", summary=summary)


@pytest.mark.parametrize(
    ("title", "label"),
    [
        ("", "train"),
        ("  ", "train"),
        ("train", "train"),
        ("train m", "train m"),
        ("trained m", "train trained m"),
        (" m ", "train m"),
    ],
)
def test_a_label_does_not_say_the_benchmark_twice(title: str, label: str) -> None:
    assert plain_label(case(0, "train", title)) == label


def test_labels_say_what_sets_cases_apart_and_no_more() -> None:
    targets = [case(0, "train", "m"), case(1, "train", "m", target="cuda:1"), case(2, "train", "other")]
    assert unique_labels(targets) == ["train m on cuda:0", "train m on cuda:1", "train other"]
    repeats = [case(place, "train", "m", repeat=place + 1) for place in range(2)]
    assert unique_labels(repeats) == ["train m #1", "train m #2"]
    mixed = [case(0, "train", "m", a=1), case(1, "train", "m", a=2), case(2, "train", "m", a=2)]
    assert unique_labels(mixed) == ["train m a=1", "train m a=2 [1]", "train m a=2 [2]"]
    assert unique_labels([case(0, "train", "m", a=1)]) == ["train m"]
    assert unique_labels([]) == []


def test_a_setting_that_is_not_set_in_all_does_not_tell_them_apart() -> None:
    some = [case(0, "train", "m", a=1, b=[1]), case(1, "train", "m", b=None)]
    assert unique_labels(some) == ["train m b=[1]", "train m b=unset"]


@pytest.mark.parametrize(
    ("value", "word"), [(None, "unset"), ("x", "x"), (3, "3"), (True, "true"), ({"b": 1, "a": 2}, '{"a": 2, "b": 1}')]
)
def test_a_parameter_in_a_word(value: Any, word: str) -> None:
    assert show_parameter(value) == word


def test_a_list_may_be_shortened_to_another_length() -> None:
    assert shortened(["a", "b", "c"], most=2) == "a, b and 1 more"
    assert shortened(["a", "b"], most=2) == "a, b"


def test_a_reading_has_the_ends_that_its_measurement_has() -> None:
    assert Reading.of(with_interval(2.0, 1.0, 4.0)) == Reading(2.0, 1.0, 4.0, is_limit=False)
    assert Reading.of(Measurement.of_value(STEP_TIME, 2.0)) == Reading(2.0, None, None)


def test_ends_that_are_not_known_stay_so() -> None:
    assert Reading(2.0, 1.0).over(8.0) == Reading(4.0, None, 8.0)
    assert Reading(2.0, None, 4.0).over(8.0) == Reading(4.0, 2.0, None)
    assert Reading(2.0, 1.0).times(3.0) == Reading(6.0, 3.0, None)
    assert Reading(2.0, None, 4.0).times(0.5) == Reading(1.0, None, 2.0)
    assert Reading(0.5, 0.0, 4.0).over(8.0) == Reading(16.0, 2.0, math.inf)
    assert Reading(0.0).over(8.0).value == math.inf


@pytest.mark.parametrize("lacking", range(4))
def test_nothing_overlaps_what_has_no_end(lacking: int) -> None:
    ends = [None if place == lacking else value for place, value in enumerate((1.0, 3.0, 2.0, 4.0))]
    assert Reading(2.0, ends[0], ends[1]).overlaps(Reading(3.0, ends[2], ends[3])) is None
    assert Reading(4.0, 3.0, 5.0).overlaps(Reading(2.0, 1.0, 3.0)) is True
    assert Reading(2.0, 1.0, 3.0).overlaps(Reading(4.0, 3.0, 5.0)) is True


def test_a_half_width_is_a_part_of_the_value() -> None:
    figure = with_interval(2.0, 1.5, 2.2)
    assert (figure.name, figure.unit, figure.count, figure.value) == ("step_time", "s", 1, 2.0)
    assert figure.relative == pytest.approx(0.25)
    assert Measurement.of_value(STEP_TIME, 2.0).relative is None
    assert with_interval(0.0, -1.0, 1.0).relative is None


@pytest.mark.parametrize(
    ("measurement", "is_estimate"),
    [
        (with_interval(2.0, 1.0, 3.0, count=10), True),
        (with_interval(2.0, 2.0, 2.0, count=10), False),
        (with_interval(2.0, 1.0, 3.0, count=2), True),
        (with_interval(2.0, 1.0, 3.0, count=1), False),
        (Measurement.of_samples(STEP_TIME, [0.1] * 20), False),
        (Measurement.of_samples(STEP_TIME, [0.1, 0.2] * 10), False),
        (Measurement.of_samples(STEP_TIME, [0.1] * 20, statistic="single"), True),
    ],
)
def test_an_estimate_is_one_value_of_many_observations(measurement: Measurement, is_estimate: bool) -> None:
    assert measurement.is_estimate is is_estimate


def test_a_percentile_needs_samples_beyond_it() -> None:
    few, many = (Measurement.of_samples(STEP_TIME, list(range(1, count))) for count in (20, 21))
    assert few.percentile("95") is None
    assert many.percentile("95") == many.summary.percentiles["95"]
    assert many.percentile("99") is None


def test_a_sweep_is_what_the_whole_case_measured_at_points() -> None:
    sized = [
        Measurement.of_value(metric, 10.0 * size, at={"size": size})
        for size in (4, 2)
        for metric in (STEP_TIME, MEMORY)
    ]
    paired = [Measurement.of_value(STEP_TIME, 1.0, at={"from": 0, "to": 1})]
    rest = [
        Measurement.of_value(STEP_TIME, 1.0),
        Measurement.of_value(STEP_TIME, 1.0, scope="rank 0"),
        Measurement.of_value(STEP_TIME, 1.0, scope="rank 0", at={"size": 8}),
    ]
    sizes, pairs = sweeps_of(record(case(0, "other", "m"), [*rest, *sized, *paired]))
    assert (sizes.axes, pairs.axes) == (("size",), ("from", "to"))
    assert [point.at for point in sizes.points] == [{"size": 4}, {"size": 2}]
    assert [metric.name for metric in sizes.metrics] == ["step_time", "peak_device_memory"]
    memory = sizes.points[1].figure("peak_device_memory")
    assert memory is not None and memory.value == 20.0
    assert pairs.points[0].figure("peak_device_memory") is None
    assert (sizes.is_matrix, pairs.is_matrix) == (False, True)
