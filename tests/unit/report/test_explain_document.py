"""What was tried, in words: a gain is claimed only where an interval proves it."""

from __future__ import annotations

from paceline.analysis.explain import Candidate
from paceline.core.stats import Interval
from paceline.report.explain import Trial, trial_data, tried

GRAPH = Candidate("replay the step as a CUDA graph", "launches leave gaps", 0.02, 0.1, "graph=on")
BATCH = Candidate("a batch of 64", "gaps", 0.05, 0.1, "batch_size=64")


def measured(gain: float, low: float | None) -> Trial:
    interval = Interval(low=low, high=gain + 0.1, confidence=0.95) if low is not None else None
    return Trial(gain, interval, 5 if interval else 1, "not compared")


def test_one_round_proves_nothing() -> None:
    document = tried([(GRAPH, measured(1.2, 1.1)), (BATCH, measured(1.9, None))])
    assert document.lead == "Of 2 settings, graph=on gains most: 1.200 times as fast."
    assert "none is shown to be faster" in tried([(BATCH, measured(1.9, None))]).lead
    assert "none is shown to be faster" in tried([(BATCH, measured(1.05, 0.9))]).lead


def test_a_setting_that_could_not_be_measured_has_no_figure() -> None:
    failed = Trial(None, None, 0, "not measured: it does not fit into memory")
    assert "none is shown to be faster" in tried([(GRAPH, failed)]).lead
    told = trial_data(GRAPH, failed)
    assert (told["predicted"], told["measured"], told["low"]) == (1.25, None, None)
