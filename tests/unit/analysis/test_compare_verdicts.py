"""What ratios come to: words, means, gates, and what only one side has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.analysis.compare.matching import Side
from paceline.analysis.compare.verdicts import Comparison, ComparisonVerdict, Limit, compare, violations
from paceline.core.errors import InputError
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from support.compare_records import MODELS, before_and_after, renamed, side, trained
from support.records import MEMORY, case, literal_run, record, run_of, throughput
from support.refused import refused


def compared(one: RunRecords, other: RunRecords, **more: object) -> Comparison:
    return compare([Side("before", (one,)), Side("after", (other,))], **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def planted() -> Comparison:
    return compared(*before_and_after())


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
    slower = compared(before, after, metrics=["step_time"]).pairings[0].rows[1]
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
    assert all(row.parts == (3, 1) for row in comparison.rows)
    assert not comparison.pairings[0].is_single


def test_every_other_side_is_compared_with_the_first() -> None:
    sides = [Side(str(seed), (side(seed, run_id=str(seed)),)) for seed in (1, 2, 3)]
    found = compare(sides)
    assert [(pairing.reference.name, pairing.new.name) for pairing in found.pairings] == [("1", "2"), ("1", "3")]


def test_one_value_is_never_significant() -> None:
    def published(value: float) -> RunRecords:
        rate = throughput("images/s")
        return run_of([record(case(0, "train", "x", model="x"), [Measurement.of_value(rate, value)])])

    (row,) = compared(published(1.0), published(100.0)).rows
    assert row.verdict is ComparisonVerdict.SINGLE
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
    from paceline.analysis.published.records import published_records

    word = "gpt2/nl24_fp16_1x1x1_mb6_gb6_1n1g"
    rate = throughput("sequences/s")
    ours = case(0, "parallel", word, case=word, hidden=1024, target="cuda:0")
    run = renamed(run_of([record(ours, [Measurement.of_value(rate, 30.0)])]), "ours")
    (pairing,) = compare([Side("published:libai", (published_records("libai"),)), Side("ours", (run,))]).pairings
    (row,) = pairing.rows
    assert row.ratio.reference == pytest.approx(17.52, abs=0.01)
    assert row.verdict is ComparisonVerdict.SINGLE
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
