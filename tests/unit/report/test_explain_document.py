"""What was tried, in words: a gain is claimed only where an interval proves it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.analysis.explain import BudgetPart, Candidate, Traced
from paceline.core.environment import Environment, Gpu
from paceline.core.stats import Interval
from paceline.core.subject import StepTrace
from paceline.core.trace_signs import Sign, StepDetails
from paceline.report.explain import Trial, clock_of, document, explained, trial_data, tried
from paceline.report.render import markdown
from support.profiled import gpu_spent
from support.records import case, record

GRAPH = Candidate("replay the step as a CUDA graph", "launches leave gaps", 0.02, 0.1, "graph=on")
BATCH = Candidate("a batch of 64", "gaps", 0.05, 0.1, "batch_size=64")


def measured(gain: float, low: float | None) -> Trial:
    interval = Interval(low=low, high=gain + 0.1, confidence=0.95) if low is not None else None
    return Trial(gain, interval, 5 if interval else 1, "not compared")


def test_a_trace_much_longer_than_the_step_is_not_taken_for_its_parts() -> None:
    found = Traced(record(case(0, "train", "resnet50")), 1e-3, StepTrace(spent=gpu_spent()), gpu_spent(), {})
    short = [BudgetPart("memory", 8e-4, ""), BudgetPart("unexplained", 2e-4, "")]
    assert "of 1 ms a step, 80.0 % memory." in document(found, short, [], []).lead
    long = [BudgetPart("memory", 3e-3, ""), BudgetPart("other work", 1e-3, ""), BudgetPart("unexplained", -3e-3, "")]
    told = document(found, long, [], [])
    assert "75.0 % of the traced steps is memory, but they took 4.000 times as long" in told.lead
    shown = markdown.render(told)
    assert "300 %" not in shown
    assert "took longer than the measured ones" in shown


def test_one_round_proves_nothing() -> None:
    told = tried([(GRAPH, measured(1.2, 1.1)), (BATCH, measured(1.9, None))])
    assert told.lead == "Of 2 settings, graph=on gains most: 1.200 times as fast."
    assert tried([(BATCH, measured(1.9, None))]).lead.startswith("Of 1 setting, none is shown to be faster")
    assert "none is shown to be faster" in tried([(BATCH, measured(1.05, 0.9))]).lead


def test_a_setting_that_could_not_be_measured_has_no_figure() -> None:
    failed = Trial(None, None, 0, "not measured: it does not fit into memory")
    assert "none is shown to be faster" in tried([(GRAPH, failed)]).lead
    told = trial_data(GRAPH, failed)
    assert (told["predicted"], told["measured"], told["low"]) == (1.25, None, None)


def told(candidates: list[Candidate], *, details: StepDetails | None = None, **more: object) -> str:
    shares = {"compute": 0.3, "memory": 0.1, "communication": 0.3, "other": 0.0, "idle": 0.3}
    spent = gpu_spent().model_copy(update={"shares": shares})
    trace = StepTrace(spent=spent, details=details, **more)
    found = Traced(record(case(0, "train", "resnet50")), 1e-4, trace, spent, {})
    return markdown.render(document(found, [BudgetPart("memory", 1e-4, "")], [], candidates))


@pytest.mark.parametrize(("alternatives", "is_said"), [
    ((), False), (("channels_last=on",), False), (("graph=on", "channels_last=on"), True),
])  # fmt: skip
def test_that_no_setting_gains_is_said_only_where_one_was_predicted(
    alternatives: tuple[str, ...], is_said: bool
) -> None:
    shown = told([], alternatives=alternatives)
    assert "nothing in the trace stands out" in shown
    assert ("no setting is predicted to gain 1 %" in shown) is is_said


def test_waiting_that_no_candidate_names_is_advised_against() -> None:
    waits, talks = "the device waits for the host", "communication is waited for"
    shown = told([], switches=("--compile on",))
    assert f"{waits}: give it more at once with a larger batch or --compile on" in shown
    assert talks in shown
    by_a_setting = told([GRAPH])
    assert waits not in by_a_setting and talks in by_a_setting
    sign = Sign(kind="synchronisation", calls=1, seconds=1e-5)
    assert waits not in told([], details=StepDetails(signs=(sign,)))


def test_a_setting_that_is_part_of_a_word_is_told_as_the_word() -> None:
    trace = StepTrace(
        spent=gpu_spent(), alternatives=("precision=bf16",), given={"precision=bf16": "case=gpt2/nl2_bf16"}
    )
    answer = explained(Traced(record(case(0, "parallel", "x")), 1e-4, trace, gpu_spent(), {}))
    assert [one.setting for one in answer[-1]] == ["case=gpt2/nl2_bf16"]
    assert r"(--case gpt2/nl2\_bf16): predicted" in markdown.render(document(*answer))


@pytest.mark.parametrize(("saved", "shown"), [(0.0195, "1.24"), (0.05, "2.00"), (0.0997, "10"), (None, "none")])
def test_a_prediction_has_three_digits_at_most(saved: float | None, shown: str) -> None:
    one = replace(GRAPH, saved=saved)
    table = markdown.render(tried([(one, measured(1.2, 1.1))]))
    assert f"| graph=on | {shown} | 1.200 |" in table
    text = told([one])
    more = " or more" if shown == "10" else ""
    assert ("gain not known" if saved is None else f"predicted {shown} times as fast{more};") in text


def test_the_clock_is_that_of_readings_at_which_the_device_worked() -> None:
    environment = Environment(gpus=[Gpu(cuda_index=0, sm_clock_max_mhz=1000), Gpu(cuda_index=1, sm_clock_max_mhz=2000)])
    values = {"sm_clock": [2000.0, 300.0, 1500.0, None, 1600.0], "power": [100.0, 90.0, 690.0, 700.0, 650.0]}
    series = [
        {"of": of, "name": name, "figure": "mean", "value": 1.0, "values": [value and factor * value for value in read]}
        for of, factor in (("cuda:0", 0.1), ("cuda:1", 1.0))
        for name, read in values.items()
    ]
    watched = record(case(0, "train", "x", target="cuda:1"), conditions={"watched": [{"series": series}]})
    assert clock_of(environment, watched) == pytest.approx(1550.0 / 2000.0)
    assert clock_of(Environment(), watched) is None
    assert clock_of(environment, record(case(0, "train", "x", target="cuda:1"))) is None
