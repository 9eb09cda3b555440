"""One list of step times becomes every rate of a model: work over the same time."""

from __future__ import annotations

import pytest

from paceline.benchmarks._model.measuring import COMMON, StepWork, step_measurements
from paceline.core.record import Measurement
from paceline.measure.memory import Peak

TIMES = [0.5, 0.25, 1.0, 0.25, 2.0]  # 4 s


def found(**work: object) -> dict[str, Measurement]:
    values = {"samples": 8, "sample_name": "image", "tokens": None, "flops": 0.0, "peak": None} | work
    return {m.metric.name: m for m in step_measurements(TIMES, StepWork(**values))}  # type: ignore[arg-type]


def test_throughput_is_all_samples_over_all_time_in_what_a_sample_is_called() -> None:
    throughput = found()["throughput"]
    assert throughput.value == pytest.approx(8 * 5 / 4.0)
    assert throughput.metric.unit == "images/s"
    assert throughput.value != pytest.approx(sum(8 / time for time in TIMES) / 5)


def test_step_time_keeps_its_samples_and_leads_with_the_median() -> None:
    step_time = found()["step_time"]
    assert step_time.samples == TIMES
    assert step_time.value == 0.5


def test_tokens_and_flops_are_over_the_same_time() -> None:
    measured = found(tokens=1024, flops=2e12)
    assert measured["token_throughput"].value == pytest.approx(1024 * 5 / 4.0)
    assert measured["achieved_flops"].value == pytest.approx(2e12 * 5 / 4.0)


def test_mfu_is_the_achieved_part_of_the_peak_in_percent() -> None:
    measured = found(flops=2e12, peak=Peak(10e12, "datasheet"))
    assert measured["mfu"].value == pytest.approx(25.0)
    assert measured["mfu"].value == pytest.approx(100 * measured["achieved_flops"].value / 10e12)


def test_an_unknown_device_has_no_mfu() -> None:
    assert "mfu" not in found(flops=2e12, peak=None)


def test_a_model_without_tokens_or_a_formula_has_neither_rate() -> None:
    assert set(found()) == {"throughput", "step_time"}


def test_every_metric_is_one_that_the_benchmarks_declare() -> None:
    assert set(found(tokens=1, flops=1.0, peak=Peak(1.0, ""))) <= {metric.name for metric in COMMON}


def test_throughput_leads() -> None:
    assert next(iter(found(tokens=1, flops=1.0))) == "throughput"
