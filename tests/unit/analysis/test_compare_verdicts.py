"""What ratios come to: words, means, gates, and what only one side has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from paceline.analysis.compare.sides import compare
from paceline.analysis.compare.verdicts import Comparison, ComparisonVerdict, Limit, Mean, Side, undecided, violations
from paceline.core.errors import InputError
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.stats import Interval
from paceline.core.uncertainty import Level
from support.compare_records import MODELS, again, before_and_after, renamed, side, trained
from support.records import ENVIRONMENT, LOSS, MEMORY, STEP_TIME, case, literal_run, record, run_of, throughput
from support.refused import refused


def compared(one: RunRecords, other: RunRecords, times: int = 3, **more: object) -> Comparison:
    """Each of them so many times."""
    sides = [Side("before", again(one, times)), Side("after", again(other, times))]
    return compare(sides, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def planted() -> Comparison:
    before, after = before_and_after()
    return compare([Side("before", before), Side("after", after)])


def test_planted_changes_are_called_and_the_others_not(planted: Comparison) -> None:
    (pairing,) = planted.pairings
    verdicts = {row.label: row.verdict for row in pairing.rows}
    assert verdicts == {
        "train resnet50 bf16": ComparisonVerdict.SAME,
        "train bert-large bf16": ComparisonVerdict.WORSE,
        "train gpt2-small bf16": ComparisonVerdict.SAME,
        "train vit-base bf16": ComparisonVerdict.BETTER,
        "train lstm bf16": ComparisonVerdict.SAME,
    }


def test_the_ratio_is_new_over_reference_and_the_gain_points_up(planted: Comparison) -> None:
    before, after = before_and_after()
    slower = compare([Side("a", before), Side("b", after)], metrics=["step_time"]).pairings[0].rows[1]
    assert slower.ratio.value == pytest.approx(1 / 0.95, abs=0.005)
    assert slower.gain == pytest.approx(0.95, abs=0.005)
    assert slower.verdict is ComparisonVerdict.WORSE
    rate = planted.pairings[0].rows[1]
    assert rate.ratio.value == rate.gain


def test_a_case_that_succeeds_no_more_is_told(planted: Comparison) -> None:
    (broken,) = planted.pairings[0].broken
    assert broken.label == "train detr bf16"
    assert broken.is_new
    assert broken.reason == "out-of-memory: 2.0 GiB more were asked for"


def test_environments_and_warnings_are_carried(planted: Comparison) -> None:
    pairing = planted.pairings[0]
    assert {difference.name for difference in pairing.environment} == {"driver", "torch"}
    assert pairing.rows[1].warnings == ((), ("throttled",))
    assert planted.warnings == {"throttled": "T"}


def test_the_geometric_mean_is_that_of_the_gains() -> None:
    faster = compared(side(1, run_id="a"), side(2, [1.1] * 6, run_id="b"))
    (mean,) = faster.pairings[0].means
    assert mean.count == len(MODELS)
    assert mean.value == pytest.approx(1.1, abs=0.003)
    assert mean.interval is not None
    assert mean.interval.low <= 1.1 <= mean.interval.high
    assert mean.is_change
    backwards = compared(side(2, [1.1] * 6, run_id="b"), side(1, run_id="a")).pairings[0].means[0]
    assert backwards.value == pytest.approx(1 / mean.value)


def test_kinds_of_cases_have_means_of_their_own() -> None:
    before, after = side(1, run_id="a"), side(2, run_id="b")
    for run in (before, after):
        for place in (0, 1):
            one = run.records[place]
            run.records[place] = one.model_copy(update={"case": one.case.model_copy(update={"category": "compute"})})
    means = compared(before, after).pairings[0].means
    assert [(mean.category, mean.count) for mean in means] == [("", 6), ("compute", 2), ("training", 4)]


def test_several_runs_of_a_side_pool() -> None:
    before = Side("tag", tuple(side(seed, run_id=str(seed)) for seed in (1, 2, 3)))
    comparison = compare([before, Side("b", (side(4, run_id="4"),))])
    assert all((row.parts, row.ratio.runs) == ((3, 1), (3, 1)) for row in comparison.rows)


def test_every_other_side_is_compared_with_the_first() -> None:
    sides = [Side(str(seed), (side(seed, run_id=str(seed)),)) for seed in (1, 2, 3)]
    found = compare(sides)
    assert [(pairing.reference.name, pairing.new.name) for pairing in found.pairings] == [("1", "2"), ("1", "3")]


def test_one_value_is_never_significant() -> None:
    def published(value: float) -> RunRecords:
        rate = throughput("images/s")
        return run_of([record(case(0, "train", "x", model="x"), [Measurement.of_value(rate, value)])])

    (row,) = compared(published(1.0), published(100.0), times=1).rows
    assert row.verdict is ComparisonVerdict.UNDECIDED
    assert row.ratio.interval is None
    (mean,) = compared(literal_run(), literal_run()).pairings[0].means
    assert mean.interval is not None


def test_all_metrics_and_named_ones() -> None:
    before, after = side(1, run_id="a"), side(2, run_id="b")
    for run in (before, after):
        run.records[0].measurements.append(Measurement.of_value(MEMORY, 2e9))
    names = {row.metric.name for row in compared(before, after, every=True).rows}
    assert names == {"throughput", "step_time", "peak_device_memory"}
    assert [row.metric.name for row in compared(before, after, metrics=["peak_device_memory"]).rows] == [
        "peak_device_memory"
    ]
    with refused("unknown-metric", value="throughputs", suggestion="throughput"):
        compared(before, after, metrics=["throughputs"])


def test_nothing_in_common_is_refused_with_what_there_is() -> None:
    with pytest.raises(InputError, match="no case in common: the one has train resnet50 bf16") as caught:
        compared(run_of([trained(0, "resnet50", [0.1] * 5)]), run_of([trained(0, "bert", [0.1] * 5)]))
    assert caught.value.code == "no-case-in-common"


def test_another_unit_is_not_compared() -> None:
    before, after = run_of([trained(0, "resnet50", [0.1] * 5)]), run_of([trained(0, "resnet50", [0.1] * 5)])
    metric = after.records[0].measurements[0].metric.model_copy(update={"unit": "sequences/s"})
    after.records[0].measurements[0] = replace(after.records[0].measurements[0], metric=metric)
    (pairing,) = compared(before, after).pairings
    assert not pairing.rows
    assert pairing.uncompared == ("train resnet50 bf16: 'throughput' is in images/s and in sequences/s",)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("throughput<0.97", ["train bert-large bf16", "train detr bf16"]),
        ("throughput < 0.9", ["train detr bf16"]),
        ("*>1.03", ["train vit-base bf16", "train detr bf16"]),
    ],
)
def test_a_gate_lets_through_what_is_not_significantly_beyond(
    planted: Comparison, text: str, labels: list[str]
) -> None:
    assert [one.label for one in violations(planted, [Limit.parse(text)])] == labels


def test_a_gate_needs_significance_unless_it_is_strict(planted: Comparison) -> None:
    limit = Limit.parse("throughput<0.9999")
    loose = {one.label for one in violations(planted, [limit])}
    strict = {one.label for one in violations(planted, [limit], strict=True)}
    assert loose == {"train bert-large bf16", "train detr bf16"}
    assert "train resnet50 bf16" in strict


def test_a_gate_on_what_nobody_measured_is_refused() -> None:
    good = compared(side(1, run_id="a"), side(2, run_id="b"))
    with refused("unknown-metric", key="--fail-on", value="troughput", suggestion="throughput"):
        violations(good, [Limit.parse("troughput<0.9")])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("throughput", "not-a-limit"),
        ("throughput<=0.9", "not-a-limit"),
        ("throughput<1.2.3", "not-a-number"),
        ("throughput<-1", "out-of-range"),
        ("throughput<0", "out-of-range"),
        ("throughput<1e999", "out-of-range"),
        ("throughput<1.1", "fails-without-change"),
        ("throughput>0.9", "fails-without-change"),
        ("__import__('os')<1", "not-a-limit"),
    ],
)
def test_bad_limits_are_refused(text: str, code: str) -> None:
    with refused(code, where=f"--fail-on '{text}'", key="--fail-on", value=text):
        Limit.parse(text)


def test_published_figures_stand_beside_a_run() -> None:
    from paceline.analysis.published import published_records

    word = "gpt2/nl24_fp16_1x1x1_mb6_gb6_1n1g"
    rate = throughput("sequences/s")
    ours = case(0, "parallel", word, case=word, hidden=1024, target="cuda:0")
    run = renamed(run_of([record(ours, [Measurement.of_value(rate, 30.0)])]), "ours")
    (pairing,) = compare([Side("published:libai", (published_records("libai"),)), Side("ours", (run,))]).pairings
    (row,) = pairing.rows
    assert row.ratio.reference == pytest.approx(17.52, abs=0.01)
    assert row.verdict is ComparisonVerdict.UNDECIDED
    assert pairing.environment == ()
    assert len(pairing.matched.only_reference) == 41
    assert len(published_records("megatron").records) == 42
    assert len(published_records("flashlight").records) == 48


def test_what_only_ranks_have_is_compared_by_rank() -> None:
    def ranked(value: float) -> RunRecords:
        rate = throughput("images/s")
        found = [Measurement.of_value(rate, value + rank, scope=f"rank {rank}") for rank in (0, 1)]
        return run_of([record(case(0, "train", "x", model="x"), found)])

    assert [row.scope for row in compared(ranked(1.0), ranked(2.0), every=True).rows] == ["rank 0", "rank 1"]
    assert [row.scope for row in compared(ranked(1.0), ranked(2.0)).rows] == ["rank 0"]


RATE = throughput("images/s")


def measured(*answer: Measurement, index: int = 0, title: str = "x", target: str = "cuda:0", repeat: int = 1) -> Record:
    return record(case(index, "train", title, model=title, target=target, repeat=repeat), list(answer))


def failed(index: int = 0, title: str = "x", cause: str = "", outcome: Outcome = Outcome.FAILED) -> Record:
    why = Cause(kind=CauseKind.ERROR, message=cause) if cause else None
    return record(case(index, "train", title, model=title), outcome=outcome, cause=why)


def rate(value: float, **more: object) -> Measurement:
    return Measurement.of_value(RATE, value, **more)  # type: ignore[arg-type]


def runs_with(*values: Sequence[float]) -> tuple[RunRecords, ...]:
    """A run for each, with a case for each of its values."""
    return tuple(
        renamed(run_of([measured(rate(one), index=n, title=f"m{n}") for n, one in enumerate(each)]), f"r{number}")
        for number, each in enumerate(values)
    )


def test_a_mean_is_as_sure_as_the_means_of_runs_over_their_cases() -> None:
    """What shifts a run shifts all its cases: as many cases as there are do not make up for few runs."""
    before = runs_with((1.0, 2.0), (1.1, 2.2), (1.05, 2.1))
    after = runs_with((1.2, 2.1), (1.3, 2.4), (1.25, 2.2))
    (pairing,) = compare([Side("a", before), Side("b", after)]).pairings
    logs = [np.log([[1.0, 2.0], [1.1, 2.2], [1.05, 2.1]]), np.log([[1.2, 2.1], [1.3, 2.4], [1.25, 2.2]])]
    welch = stats.ttest_ind(logs[1].mean(axis=1), logs[0].mean(axis=1), equal_var=False).confidence_interval()
    (mean,) = pairing.means
    assert mean.interval is not None
    assert (mean.interval.low, mean.interval.high) == pytest.approx(tuple(np.exp(welch)), rel=1e-6)
    assert mean.value == pytest.approx(math.exp(logs[1].mean() - logs[0].mean()))


def test_a_mean_of_cases_that_some_runs_lack_has_no_interval() -> None:
    before = runs_with((1.0, 2.0), (1.1, 2.2), (1.05,))
    (mean,) = compare([Side("a", before), Side("b", before)]).pairings[0].means
    assert (mean.count, mean.value, mean.interval, mean.is_change) == (2, pytest.approx(1.0), None, False)


def test_a_mean_of_one_run_each_has_no_interval() -> None:
    single = runs_with((1.0, 2.0))
    (pairing,) = compare([Side("a", single), Side("b", single)]).pairings
    assert pairing.means[0].interval is None
    assert pairing.count(ComparisonVerdict.UNDECIDED) == 2


def test_sides_in_one_session_each_are_undecided_without_history() -> None:
    """A difference between two sessions may be the sessions."""
    before, after = ([replaced(run, session) for run in again(side(seed, run_id=session))]
                     for seed, session in ((1, "monday"), (2, "tuesday")))  # fmt: skip
    sides = [Side("a", tuple(before)), Side("b", tuple(after))]
    assert all(row.verdict is ComparisonVerdict.UNDECIDED for row in compare(sides).rows)
    past = [replaced(side(seed, run_id=f"past {seed}"), f"past {seed}") for seed in range(10, 14)]
    asked: list[tuple[list[str], Sequence[str]]] = []

    def earlier(runs: Sequence[Run], metrics: Sequence[str]) -> list[RunRecords]:
        asked.append(([run.id for run in runs], metrics))
        return past

    known = compare(sides, earlier=earlier)
    assert all(row.ratio.interval is not None for row in known.rows)
    assert all((row.ratio.level, row.ratio.history) == (Level.SESSION, 3) for row in known.rows)
    assert asked == [([run.run.id for one in sides for run in one.runs], ["throughput"])]


def test_the_history_of_another_machine_says_nothing_of_this_one() -> None:
    one, other = side(1, run_id="a"), side(2, run_id="b")
    gpus = [gpu | {"uuid": f"other-{n}"} for n, gpu in enumerate(ENVIRONMENT["gpus"])]
    past = [replaced(side(n, run_id=f"p{n}", environment=ENVIRONMENT | {"gpus": gpus}), f"p{n}") for n in range(5)]
    found = compare([Side("a", (one,)), Side("b", (other,))], earlier=lambda runs, metrics: past)
    assert all(row.ratio.interval is None for row in found.rows)


def replaced(run: RunRecords, session: str) -> RunRecords:
    """The same in this session."""
    return RunRecords(run=run.run.model_copy(update={"session": session}), records=run.records)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("throughput<0.97", []),
        ("throughput<0.9999", ["train resnet50 bf16", "train gpt2-small bf16", "train lstm bf16"]),
    ],
)
def test_a_gate_is_open_where_an_interval_reaches_beyond_it(planted: Comparison, text: str, labels: list[str]) -> None:
    assert [one.row.label for one in undecided(planted, [Limit.parse(text)])] == labels


def test_a_gate_on_one_run_each_is_open() -> None:
    (before, *_), (after, *_) = before_and_after()
    once = compare([Side("a", (before,)), Side("b", (after,))])
    open_rows = undecided(once, [Limit.parse("throughput<0.5"), Limit.parse("peak_device_memory>2")])
    assert len(open_rows) == len(list(once.rows)) == 5


@pytest.mark.parametrize(
    ("low", "high", "is_change"),
    [(0.9, 1.1, False), (1.0, 1.1, False), (0.9, 1.0, False), (1.01, 1.1, True), (0.9, 0.99, True), (1.5, 2.5, True)],
)
def test_a_mean_is_a_change_if_one_lies_outside(low: float, high: float, is_change: bool) -> None:
    mean = Mean("", 2, (low + high) / 2, Interval(low=low, high=high, confidence=0.95))
    assert mean.is_change is is_change


def test_means_are_of_whole_cases_with_a_direction_and_need_two() -> None:
    swept = [rate(1.0, at={"size": size}) for size in (1, 2)]
    ranked = [rate(1.0, scope=f"rank {rank}") for rank in (0, 1)]
    for lone in (measured(*swept, index=1, title="y"), measured(*ranked, index=1, title="y"),
                 measured(Measurement.of_value(LOSS, 1.0), index=1, title="y")):  # fmt: skip
        run = run_of([measured(rate(1.0)), lone])
        assert compared(run, run, every=True).pairings[0].means == ()
    run = run_of([measured(rate(1.0)), measured(rate(2.0), index=1, title="y")])
    (mean,) = compared(run, run).pairings[0].means
    assert (mean.category, mean.count) == ("", 2)


def test_the_first_metric_of_a_case_counts_in_the_mean() -> None:
    def run(speed: float, memory: float) -> RunRecords:
        parts = [[rate(speed), Measurement.of_value(MEMORY, memory)] for _ in range(2)]
        return run_of([measured(*both, index=place, title=str(place)) for place, both in enumerate(parts)])

    (mean,) = compared(run(1.0, 1.0), run(2.0, 5.0), every=True).pairings[0].means
    assert (mean.count, mean.value) == (2, pytest.approx(2.0))


def test_one_side_is_no_comparison_and_two_are() -> None:
    one = Side("a", (literal_run(),))
    with refused("too-few-sides"):
        compare([one])
    assert len(compare([one, one]).pairings) == 1


@pytest.mark.parametrize("text", ["throughput<1", "throughput>1", "throughput<0.5", "*>1.5"])
def test_a_limit_at_one_or_beyond_is_taken(text: str) -> None:
    limit = Limit.parse(text)
    assert str(limit) == text
    assert not limit.is_crossed(1.0)


@pytest.mark.parametrize("text", ["throughput<1.5", "throughput<3", "throughput>0.5"])
def test_what_fails_without_a_change_is_taken_where_significance_is_not_asked_for(text: str) -> None:
    assert Limit.parse(text, strict=True).is_crossed(1.0)
    with refused("fails-without-change"):
        Limit.parse(text)


def test_a_limit_is_crossed_beyond_its_bound_and_not_at_it() -> None:
    below, above = Limit.parse("throughput<0.9"), Limit.parse("throughput>1.1")
    assert [below.is_crossed(ratio) for ratio in (0.89, 0.9, 0.91)] == [True, False, False]
    assert [above.is_crossed(ratio) for ratio in (1.09, 1.1, 1.11)] == [False, False, True]
    assert [below.covers(name) for name in ("throughput", "loss")] == [True, False]
    assert Limit.parse("*<0.9").covers("loss")


def test_a_case_that_recovered_crosses_no_limit_and_hides_no_unknown_metric() -> None:
    good = measured(rate(1.0))
    bad, both = run_of([good, failed(1, "y")]), run_of([good, measured(rate(1.0), index=1, title="y")])
    recovered = compared(bad, both)
    (broken,) = recovered.pairings[0].broken
    assert (broken.side, broken.is_new, broken.reason) == ("before", False, "failed")
    assert violations(recovered, [Limit.parse("*<0.9")], strict=True) == []
    with refused("unknown-metric"):
        violations(recovered, [Limit.parse("latency<0.9")])
    lost = compared(both, bad)
    (violation,) = violations(lost, [Limit.parse("latency<0.9")])
    assert (violation.label, violation.row, violation.reason) == ("train y", None, "failed")


def test_a_strict_limit_is_about_its_own_metric_and_passes_over_what_has_no_ratio() -> None:
    before = run_of([measured(rate(1.0), Measurement.of_value(MEMORY, 1.0))])
    after = run_of([measured(rate(0.0), Measurement.of_value(MEMORY, 0.5))])
    comparison = compared(before, after, times=1, every=True)
    assert [row.verdict for row in comparison.rows] == [ComparisonVerdict.NONE, ComparisonVerdict.UNDECIDED]
    assert violations(comparison, [Limit.parse("throughput<0.9")], strict=True) == []
    (violation,) = violations(comparison, [Limit.parse("*<0.9")], strict=True)
    assert violation.row is not None and violation.row.metric.name == "peak_device_memory"
    assert violations(comparison, [Limit.parse("*<0.9")]) == []


def test_the_last_attempt_says_why_a_case_broke_and_what_neither_side_can_is_no_news() -> None:
    good = measured(rate(1.0))
    twice = [failed(1, "y", "first"), failed(2, "y", "middle"), failed(3, "y", "last", Outcome.TIMEOUT)]
    comparison = compared(run_of([good, measured(rate(1.0), index=1, title="y")]), run_of([good, *twice]))
    (broken,) = comparison.pairings[0].broken
    assert (broken.label, broken.side, broken.reason) == ("train y", "after", "timeout: last")
    neither = run_of([good, failed(1, "y", "no")])
    assert compared(neither, neither).pairings[0].broken == ()


def test_repetitions_that_failed_or_lack_the_metric_do_not_count() -> None:
    memory = Measurement.of_value(MEMORY, 1.0)
    before = run_of([measured(rate(1.0), memory), measured(memory, repeat=2), measured(rate(1.2), memory, repeat=3)])
    after = run_of([failed(), measured(rate(2.0), memory), measured(rate(2.1), memory, repeat=2)])
    row, other = compared(before, after, times=1, every=True).rows
    assert (row.metric.name, row.parts, row.samples) == ("throughput", (2, 2), (2, 2))
    assert (other.metric.name, other.parts) == ("peak_device_memory", (3, 2))


def test_a_change_of_a_metric_without_direction_is_a_change_and_neither_better_nor_worse() -> None:
    def run(middle: float) -> RunRecords:
        values = [middle * (1 + 0.001 * place) for place in (3, 1, 4, 1, 5, 9, 2, 6)]
        return run_of([measured(Measurement.of_samples(LOSS, values))])

    (row,) = compared(run(1.0), run(2.0), metrics=["loss"]).rows
    assert (row.verdict, row.gain, row.is_change) == (ComparisonVerdict.CHANGED, None, True)
    (pairing,) = compared(run(1.0), run(2.0)).pairings
    assert pairing.rows == ()
    assert pairing.uncompared == ("train x: no metric that both sides have",)


def test_the_headline_of_either_side_leads_if_the_other_has_it() -> None:
    times, memory = Measurement.of_value(STEP_TIME, 1.0), Measurement.of_value(MEMORY, 1.0)
    loss = Measurement.of_value(LOSS, 1.0)

    def led(primary: str, *answer: Measurement) -> RunRecords:
        return run_of([measured(*answer).model_copy(update={"primary": primary})])

    def names(before: RunRecords, after: RunRecords, **more: object) -> list[str]:
        return [row.metric.name for row in compared(before, after, **more).rows]

    assert names(led("step_time", memory, times), led("", memory, times)) == ["step_time"]
    # The reference leads with what the new side lacks; the new side's headline is on both.
    assert names(led("throughput", rate(1.0), memory, times), led("step_time", memory, times)) == ["step_time"]
    # Neither headline is on both: the first with a direction that is.
    assert names(led("throughput", rate(1.0), loss, memory), led("step_time", times, loss, memory)) == [
        "peak_device_memory"
    ]
    assert names(led("", rate(1.0), memory, loss), led("", rate(1.0), memory, loss)) == ["throughput"]
    both = led("", rate(1.0), memory, loss)
    assert names(both, both, also=["loss"]) == ["throughput", "loss"]
    assert names(both, both, metrics=["loss"]) == ["loss"]
    assert names(both, led("", rate(1.0), memory), every=True) == ["throughput", "peak_device_memory"]


def test_a_named_metric_is_of_the_whole_case_or_else_of_every_point() -> None:
    points = [rate(1.0, at={"size": size}) for size in (1, 2)]
    memory = Measurement.of_value(MEMORY, 1.0)
    swept = run_of([measured(memory, *points)])
    assert [row.at for row in compared(swept, swept, metrics=["throughput"]).rows] == [{"size": 1}, {"size": 2}]
    whole = run_of([measured(memory, *points, rate(3.0))])
    assert [row.at for row in compared(whole, whole, metrics=["throughput"]).rows] == [{}]
    assert [row.at for row in compared(whole, swept, metrics=["peak_device_memory"]).rows] == [{}]


def test_a_metric_that_only_one_side_has_is_refused_where_it_is_named() -> None:
    one, other = run_of([measured(rate(1.0), Measurement.of_value(MEMORY, 1.0))]), run_of([measured(rate(1.0))])
    with refused("metric-not-in-common", value="peak_device_memory"):
        compared(one, other, metrics=["peak_device_memory"])
    with refused("unknown-metric", value="nothing"):
        compared(one, other, also=["nothing"])
    several = compared(one, one, metrics=["throughput", "peak_device_memory"])
    assert [row.metric.name for row in several.rows] == ["throughput", "peak_device_memory"]


def test_ranks_are_left_out_where_the_whole_case_has_the_metric() -> None:
    run = run_of([measured(rate(2.0), rate(1.0, scope="rank 0"), Measurement.of_value(MEMORY, 1.0, scope="rank 0"))])
    rows = [(row.metric.name, row.scope) for row in compared(run, run, every=True).rows]
    assert rows == [("throughput", ""), ("peak_device_memory", "rank 0")]


def test_gpus_differ_where_one_case_of_many_ran_on_one() -> None:
    def run(driver: str) -> RunRecords:
        records = [measured(rate(1.0), target="cpu"), measured(rate(1.0), index=1, title="y")]
        return run_of(records, environment=ENVIRONMENT | {"driver": {"version": driver}})

    assert [one.name for one in compared(run("1"), run("2")).pairings[0].environment] == ["driver"]


def test_a_ratio_just_above_one_is_better_where_more_is() -> None:
    def run(middle: float) -> RunRecords:
        values = [middle * (1 + 0.0001 * place) for place in (3, 1, 4, 1, 5, 9, 2, 6) * 10]
        return run_of([measured(Measurement.of_samples(RATE, values))])

    (row,) = compared(run(1.0), run(1.1)).rows
    assert (row.verdict, row.gain) == (ComparisonVerdict.BETTER, pytest.approx(1.1))
    (row,) = compared(run(1.1), run(1.0)).rows
    assert row.verdict is ComparisonVerdict.WORSE
