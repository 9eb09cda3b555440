"""Two settings measured in turns: paired turn by turn, drift cancels."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.analysis.compare.sides import compare, compare_paired, is_interleaved
from paceline.analysis.compare.verdicts import ComparisonVerdict, Side
from paceline.core.record import Outcome
from paceline.core.run import RunRecords
from support.compare_records import noisy, renamed, trained
from support.records import run_of
from support.refused import refused

SPEEDUP = 1.02


def in_turns(*, rounds: int = 6, drift: float = 0.02, speedup: float = SPEEDUP) -> RunRecords:
    """Each measurement is slower than the one before; B is faster by a little."""
    rng = np.random.default_rng(4)
    records = []
    for number in range(rounds):
        for name in "AB" if number % 2 == 0 else "BA":
            index = len(records)
            middle = 0.1 * (1 + drift * index) / (speedup if name == "B" else 1.0)
            one = trained(index, "resnet50", noisy(rng, middle, 20, 0.002), precision={"A": "fp32", "B": "bf16"}[name])
            found = one.case.model_copy(update={"title": f"{one.case.title} [{name}]", "repeat": number + 1})
            records.append(one.model_copy(update={"case": found}))
    return run_of(records)


def test_the_paired_ratio_is_right_where_one_after_the_other_is_wrong() -> None:
    run = in_turns()
    (row,) = compare_paired(run).rows
    assert row.ratio.value == pytest.approx(SPEEDUP, abs=0.005)
    assert row.ratio.interval is not None
    assert row.ratio.interval.low <= SPEEDUP <= row.ratio.interval.high
    rng = np.random.default_rng(4)

    def runs(level: float, name: str) -> tuple[RunRecords, ...]:
        times = [noisy(rng, 0.1 * (level + 0.02 * n), 20, 0.002) for n in range(6)]
        return tuple(renamed(run_of([trained(0, "resnet50", one)]), f"{name}{n}") for n, one in enumerate(times))

    (sequential,) = compare([Side("a", runs(1.0, "a")), Side("b", runs(1.12 / SPEEDUP, "b"))]).rows
    assert sequential.verdict is ComparisonVerdict.WORSE  # the drift, taken for a change


def test_without_drift_a_small_change_is_called() -> None:
    (row,) = compare_paired(in_turns(drift=0.0)).rows
    assert row.verdict is ComparisonVerdict.BETTER
    assert row.label == "train resnet50"
    assert row.parts == (6, 6)


def test_the_sides_are_named_by_what_they_set() -> None:
    (pairing,) = compare_paired(in_turns()).pairings
    assert (pairing.reference.name, pairing.new.name) == ("A (precision=fp32)", "B (precision=bf16)")


def test_a_round_that_failed_on_one_side_is_left_out_and_told() -> None:
    run = in_turns()
    run.records[3] = run.records[3].model_copy(update={"outcome": Outcome.FAILED, "measurements": []})
    comparison = compare_paired(run)
    (row,) = comparison.rows
    assert row.parts == (5, 5)
    assert comparison.pairings[0].uncompared == ("resnet50 fp32 [A], round 2: failed",)


def test_a_run_without_a_whole_round_has_no_answer() -> None:
    run = in_turns()
    run.records[:] = [record for record in run.records if record.case.title.endswith("[A]")]
    with refused("no-complete-round", value=run.run.id):
        compare_paired(run)


def test_only_a_run_of_sides_is_interleaved() -> None:
    assert is_interleaved(in_turns())
    assert not is_interleaved(run_of([trained(0, "resnet50", [0.1] * 3)]))
    assert not is_interleaved(run_of([]))


def test_metrics_of_turns_are_chosen_like_those_of_runs() -> None:
    run = in_turns()
    comparison = compare_paired(run, every=True)
    assert comparison.is_paired
    assert [row.metric.name for row in comparison.rows] == ["throughput", "step_time"]
    assert [row.metric.name for row in compare_paired(run, metrics=["step_time"]).rows] == ["step_time"]
    assert [row.metric.name for row in compare_paired(run, also=["step_time"]).rows] == ["throughput", "step_time"]
    assert [row.metric.name for row in compare_paired(run).rows] == ["throughput"]


def test_a_round_that_lacks_a_metric_on_one_side_is_left_out_of_it() -> None:
    run = in_turns()
    for place in (2, 7):  # of rounds two and four
        run.records[place].measurements = run.records[place].measurements[:1]
    rows = {row.metric.name: row for row in compare_paired(run, every=True).rows}
    assert rows["throughput"].parts == (6, 6)
    assert rows["step_time"].parts == (4, 4)


def test_a_round_without_records_was_not_run() -> None:
    run = in_turns()
    del run.records[2]
    comparison = compare_paired(run)
    assert comparison.pairings[0].uncompared == ("not run",)
    assert next(comparison.rows).parts == (5, 5)


def test_a_run_that_ends_with_half_a_round_is_compared_without_it() -> None:
    run = in_turns()
    whole = run_of(run.records[:-1])
    assert next(compare_paired(whole).rows).parts == (5, 5)


def test_each_side_has_its_own_records_and_the_matched_case_says_what_differs() -> None:
    (pairing,) = compare_paired(in_turns()).pairings
    for side, mark in ((pairing.reference, "[A]"), (pairing.new, "[B]")):
        titles = [record.case.title for record in side.records]
        assert len(titles) == 6
        assert all(title.endswith(mark) for title in titles)
    (matched,) = pairing.matched.matches
    assert not matched.is_alike
    assert [(one.name, one.reference, one.new) for one in matched.differences] == [("precision", "fp32", "bf16")]


@pytest.mark.parametrize(
    ("titles", "names"),
    [
        (("train resnet50 [A]", "train resnet50 [B]"), ("A", "B")),
        (("train resnet50 main@1234 [A]", "train resnet50 HEAD@5678 [B]"), ("A (main@1234)", "B (HEAD@5678)")),
    ],
)
def test_sides_that_set_no_parameter_are_named_by_their_titles(titles: tuple[str, ...], names: tuple[str, ...]) -> None:
    run = in_turns(rounds=1)
    for one, title in zip(run.records, titles, strict=True):
        one.case = one.case.model_copy(update={"parameters": {"model": "resnet50"}, "title": title})
    run.run.cases[:] = [one.case for one in run.records]
    comparison = compare_paired(run)
    (row,) = comparison.rows
    assert (row.parts, row.verdict, row.label) == ((1, 1), ComparisonVerdict.UNDECIDED, "train resnet50")
    (pairing,) = comparison.pairings
    assert (pairing.reference.name, pairing.new.name) == names


def test_titles_that_share_no_word_are_named_by_the_benchmark() -> None:
    run = in_turns(rounds=1)
    for one, title in zip(run.records, ("one [A]", "other [B]"), strict=True):
        one.case = one.case.model_copy(update={"title": title})
    run.run.cases[:] = [one.case for one in run.records]
    (row,) = compare_paired(run).rows
    assert row.label == "train"


def test_a_run_of_which_some_cases_belong_to_no_side_is_not_interleaved() -> None:
    run = in_turns(rounds=1)
    assert not is_interleaved(run_of([*run.records, trained(2, "resnet50", [0.1] * 3)]))
