"""The rows of a report, from literals."""

from __future__ import annotations

import math
from dataclasses import replace
from string import ascii_uppercase, digits
from typing import Any

import pytest

from paceline.analysis.summary import headline_of, sampled, summarize_run, unique_labels, warning_marks
from paceline.core.metric import Better, Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.core.run import RunRecords
from support.micro_records import SIZES, cannot, collective, copy, gemm, micro, micro_run, pairs
from support.records import FIRST_STEP, LOSS, STEP_TIME, case, literal_run, record, run_of, sample_run, throughput


def led_by(primary: str) -> RunRecords:
    return run_of([one.model_copy(update={"primary": primary}) for one in literal_run().records])


def test_a_row_leads_with_the_first_metric_that_has_a_direction() -> None:
    row = summarize_run(literal_run()).rows[0]
    assert row.headline is not None
    assert (row.headline.name, row.headline.value, row.headline.count) == ("throughput", pytest.approx(320.0), 20)
    assert [figure.name for figure in row.secondary] == ["step_time"]


def test_a_metric_without_direction_never_leads_unless_it_is_told() -> None:
    found = [Measurement.of_value(LOSS, 2.5)]
    assert headline_of(record(case(0, "odd", "a"), found)) is None
    told = headline_of(record(case(0, "odd", "a"), found, primary="loss"))
    assert told is not None and told.value == 2.5


def test_primary_chooses_the_headline() -> None:
    rows = summarize_run(led_by("step_time")).rows
    assert [row.headline.value for row in rows if row.headline] == [0.1, 0.2]
    rows = summarize_run(led_by("absent")).rows
    assert rows[0].headline is not None and rows[0].headline.name == "throughput"


def test_the_whole_case_goes_before_its_ranks() -> None:
    times = Measurement.of_samples(STEP_TIME, [0.1, 0.1], scope="rank 0")
    whole = Measurement.of_samples(STEP_TIME, [0.3, 0.3])
    assert headline_of(record(case(0, "train", "a"), [times, whole])) is whole
    assert headline_of(record(case(0, "train", "a"), [times])) is times


def test_the_relative_half_width_is_the_larger_one() -> None:
    figure = Measurement.of_samples(STEP_TIME, [1.0, 1.0, 1.0, 2.0, 2.5, 4.0])
    assert figure.value == 1.5
    assert figure.interval is not None
    assert figure.relative == pytest.approx(max(figure.interval.high - 1.5, 1.5 - figure.interval.low) / 1.5)


def test_a_single_value_and_a_zero_have_no_relative_half_width() -> None:
    assert Measurement.of_value(STEP_TIME, 3.0).relative is None
    assert Measurement.of_samples(STEP_TIME, [0.0, 0.0, 0.0]).relative is None


def test_percentiles_need_enough_samples() -> None:
    few = Measurement.of_samples(STEP_TIME, [float(value) for value in range(20)])
    assert few.percentile("50") == 9.5
    assert few.percentile("99") is None


def test_groups_compare_only_what_can_be_compared() -> None:
    groups = summarize_run(sample_run()).groups
    assert [(group.benchmark, group.metric.unit, len(group.rows)) for group in groups] == [
        ("train", "sequences/s", 2),
        ("train", "sequences/s", 1),
        ("train", "images/s", 2),
        ("inference", "images/s", 1),
        ("inference", "sequences/s", 1),
    ]
    assert groups[0].best.label == "train gpt2-small bf16 x2"


def test_layouts_of_different_models_are_not_compared() -> None:
    throughput = Metric(name="throughput", unit="sequences/s", better=Better.HIGHER)
    words = {
        "gpt2/nl24_bf16_1x1x1_mb6_gb6_1n1g": {},
        "gpt2/nl24_fp8_1x1x1_mb6_gb6_1n1g": {},
        "gpt2/nl8_bf16_1x1x1_mb6_gb6_1n1g": {},
        "gpt2/nl8_fp8_1x1x1_mb6_gb6_1n1g": {"hidden": 4096},
    }
    records = [
        record(case(index, "parallel", word, case=word, **more), [Measurement.of_value(throughput, index + 1.0)])
        for index, (word, more) in enumerate(words.items())
    ]
    groups = summarize_run(run_of(records)).groups
    assert [[row.case.index for row in group.rows] for group in groups] == [[1, 0], [2], [3]]


def test_lower_is_better_where_the_metric_says_so() -> None:
    group = summarize_run(led_by("step_time")).groups[0]
    assert [row.label for row in group.rows] == ["train resnet50 fp16", "train resnet50 fp32"]
    assert group.rows[0].headline and group.rows[1].headline
    assert group.rows[0].headline.value < group.rows[1].headline.value


def test_what_is_no_number_leads_no_group() -> None:
    metric = Metric(name="score", unit="", better=Better.HIGHER)
    records = [record(case(0, "odd", "a"), [Measurement.of_value(metric, math.nan)])]
    assert summarize_run(run_of(records)).groups == ()


def test_counts_of_a_whole_run() -> None:
    summary = summarize_run(sample_run())
    assert (summary.total, len(summary.measured), len(summary.failed), len(summary.with_warnings)) == (9, 7, 2, 2)


def test_cases_without_a_record_are_told() -> None:
    waiting = case(2, "train", "vgg11 fp16")
    summary = summarize_run(run_of(literal_run().records, not_run=[waiting]))
    assert summary.not_run == (waiting,)
    assert summary.total == 3


def test_a_failed_case_has_a_remedy_and_an_ok_one_has_none() -> None:
    cause = Cause(kind=CauseKind.DEVICE_MEMORY, message="full")
    bad = record(case(0, "train", "a"), outcome=Outcome.OUT_OF_MEMORY, cause=cause)
    rows = summarize_run(run_of([bad, record(case(1, "train", "b"))])).rows
    assert "batch_size" in rows[0].remedy()
    assert rows[1].remedy() == ""


@pytest.mark.parametrize("kind", list(CauseKind))
def test_every_kind_of_cause_has_a_remedy(kind: CauseKind) -> None:
    bad = record(case(0, "train", "a"), outcome=Outcome.FAILED, cause=Cause(kind=kind, message="m", detail="d"))
    assert summarize_run(run_of([bad])).rows[0].remedy()


def test_nobody_is_sent_to_a_traceback_that_is_not_there() -> None:
    foreseen = Cause(kind=CauseKind.ERROR, message="node2:22 cannot be reached: check its name")
    bad = record(case(0, "tcp", "a"), outcome=Outcome.FAILED, cause=foreseen)
    assert summarize_run(run_of([bad])).rows[0].remedy() == ""


def test_marks_are_letters_of_their_kind_and_never_shared() -> None:
    warnings = [
        RecordWarning(kind=kind, message="m", remedy=f"fix {kind}") for kind in ("drifting", "dim", "drab", "idid")
    ]
    summary = summarize_run(run_of([record(case(0, "train", "a"), warnings=warnings)]))
    assert [kind.mark for kind in summary.warnings] == ["D", "I", "R", "A"]
    assert summary.marks(summary.rows[0]) == "DIRA"


def test_a_remedy_is_told_once() -> None:
    warning = RecordWarning(kind="short", message="m", remedy="measure longer")
    records = [record(case(index, "train", str(index)), warnings=[warning]) for index in range(3)]
    (kind,) = summarize_run(run_of(records)).warnings
    assert kind.remedies == ("measure longer",)
    assert kind.labels == ("train 0", "train 1", "train 2")


@pytest.mark.parametrize(
    ("cases", "labels"),
    [
        ([case(0, "train", "a"), case(1, "inference", "a")], ["train a", "inference a"]),
        ([case(0, "overhead", ""), case(1, "train", "train a")], ["overhead", "train a"]),
        ([case(0, "t", "a", target="cpu"), case(1, "t", "a")], ["t a on cpu", "t a on cuda:0"]),
        ([case(0, "t", "a"), case(1, "t", "a", repeat=2), case(2, "t", "b")], ["t a #1", "t a #2", "t b"]),
        ([case(0, "t", "a"), case(1, "t", "a")], ["t a [0]", "t a [1]"]),
        (
            [case(0, "t", "a", steps=None), case(1, "t", "a", steps=12), case(2, "t", "a", steps=12)],
            ["t a steps=unset", "t a steps=12 [1]", "t a steps=12 [2]"],
        ),
        (
            [case(0, "t", "a", v=1, w=1, x=1, y=1), case(1, "t", "a", v=2, w=2, x=2, y=2)],
            ["t a [0]", "t a [1]"],  # more than a glance takes in
        ),
    ],
)
def test_labels_say_no_more_than_they_must(cases: list[object], labels: list[str]) -> None:
    assert unique_labels(cases) == labels  # type: ignore[arg-type]


def test_samples_behind_a_rate_are_its_times() -> None:
    times = Measurement.of_samples(STEP_TIME, [0.1, 0.2])
    rate = Measurement.of_rate(throughput("images/s"), 8, times)
    one = record(case(0, "train", "a"), [rate, times])
    assert sampled(one, rate) is times
    assert sampled(record(case(0, "train", "a"), [Measurement.of_value(LOSS, 1.0)]), None) is None


def test_rows_are_in_the_order_of_the_run() -> None:
    run = literal_run()
    run.records.reverse()
    assert [row.case.index for row in summarize_run(run).rows] == [0, 1]


def test_points_make_sweeps_and_are_no_figures_of_the_case() -> None:
    row = summarize_run(run_of([copy(0, "h2d", 55e9)])).rows[0]
    (sweep,) = row.sweeps
    assert (sweep.axes, len(sweep.points), sweep.is_line, sweep.is_matrix) == (("size",), len(SIZES), True, False)
    assert [metric.name for metric in sweep.metrics] == ["time", "bandwidth"]
    assert [figure.name for figure in row.figures] == ["bandwidth", "time"]
    assert row.point is sweep.points[-1]


def test_points_of_single_ranks_make_no_sweep() -> None:
    row = summarize_run(run_of([collective(0, "all-reduce", 400e9, ranks=4)])).rows[0]
    assert [len(sweep.points) for sweep in row.sweeps] == [len(SIZES)]
    assert all(not figure.scope for sweep in row.sweeps for point in sweep.points for figure in point.figures)


def test_pairs_are_a_matrix_and_names_are_no_line() -> None:
    (sweep,) = summarize_run(run_of([pairs(0, 3)])).rows[0].sweeps
    assert sweep.is_matrix and not sweep.is_line and len(sweep.points) == 6
    named = [Measurement.of_value(STEP_TIME, 1.0, at={"function": name}) for name in ("a", "b")]
    (sweep,) = summarize_run(run_of([record(case(0, "odd", ""), named)])).rows[0].sweeps
    assert not sweep.is_line


def test_categories_have_an_order_and_unknown_ones_come_last() -> None:
    names = ("odd", "storage", "training", "compute")
    records = [record(micro(index, name, "b", str(index))) for index, name in enumerate(names)]
    summary = summarize_run(run_of(records))
    assert summary.categories == ("training", "compute", "storage", "odd")
    assert summary.is_micro
    assert not summarize_run(literal_run()).is_micro


def test_a_highlight_is_the_highest_rate_of_its_category() -> None:
    found = summarize_run(micro_run()).highlights
    assert [(one.category, one.row.label, one.of) for one in found] == [
        ("compute", "gemm bf16", 3),
        ("memory", "copy d2d", 3),
        ("communication", "collective all-reduce nccl x8", 7),
    ]


def test_different_operations_are_not_compared() -> None:
    records = [collective(0, "all-reduce", 400e9), collective(1, "broadcast", 300e9), gemm(2, "fp32", 5e13, None)]
    groups = summarize_run(run_of([*records, gemm(3, "bf16", 7e14, None)])).groups
    assert sorted(len(group.rows) for group in groups) == [1, 1, 2]


@pytest.mark.parametrize("require", [True, False])
def test_what_a_machine_cannot_do_fails_only_where_it_is_required(require: bool) -> None:
    summary = summarize_run(run_of([cannot(0, require=require)]))
    assert (len(summary.failed), len(summary.impossible)) == (int(require), int(not require))
    assert summary.rows[0].remedy()


def test_of_very_many_cases_those_come_first_that_a_reader_would_look_at() -> None:
    times = Measurement.of_samples(STEP_TIME, [0.1, 0.1, 0.1])
    warning = RecordWarning(kind="noisy", message="noisy", remedy="wait")
    cause = Cause(kind=CauseKind.ERROR, message="no")
    records = [record(case(index, "train", f"case {index}", model=f"m{index}"), [times]) for index in range(50)]
    records[30] = record(case(30, "train", "case 30", model="m30"), [times], warnings=[warning])
    records[40] = record(case(40, "train", "case 40", model="m40"), outcome=Outcome.FAILED, cause=cause)
    summary = summarize_run(run_of(records))
    assert summary.notable(50) == summary.rows
    assert [row.case.index for row in summary.notable(2)] == [30, 40]
    assert len(summary.notable(10)) == 10


def test_marks_are_plain_letters_and_digits_after_them_and_a_star_after_all() -> None:
    assert warning_marks(["2-énorme", "1st", "2nd"]) == {"2-énorme": "N", "1st": "S", "2nd": "D"}
    many = warning_marks([str(number) for number in range(38)])
    assert list(many.values()) == [*ascii_uppercase, *digits, "*", "*"]


def warned(index: int, *kinds: str, **more: Any) -> Record:
    warnings = [RecordWarning(kind=kind, message="m", remedy=f"fix {kind}") for kind in kinds]
    return record(case(index, "train", str(index)), warnings=warnings, **more)


def test_a_row_has_the_marks_of_its_own_warnings() -> None:
    summary = summarize_run(run_of([warned(0, "noisy", "noisy"), warned(1, "short", "noisy"), warned(2)]))
    assert [summary.marks(row) for row in summary.rows] == ["N", "NS", ""]
    assert [(kind.kind, kind.labels) for kind in summary.warnings] == [
        ("noisy", ("train 0", "train 1")),
        ("short", ("train 1",)),
    ]


def test_only_what_succeeded_counts_as_measured_with_warnings() -> None:
    failed = warned(1, "noisy", outcome=Outcome.FAILED, cause=Cause(kind=CauseKind.TIMEOUT, message="m"))
    summary = summarize_run(run_of([warned(0), failed, warned(2, "noisy")]))
    assert [row.case.index for row in summary.with_warnings] == [2]
    assert [row.case.index for row in summary.measured] == [0, 2]
    assert [row.case.index for row in summary.failed] == [1]
    assert summary.impossible == ()


@pytest.mark.parametrize(
    ("outcome", "kind", "detail", "has_remedy"),
    [
        (Outcome.OK, CauseKind.ERROR, "d", False),
        (Outcome.FAILED, CauseKind.ERROR, "d", True),
        (Outcome.FAILED, CauseKind.ERROR, "", False),
        (Outcome.FAILED, CauseKind.CRASHED, "", True),
        (Outcome.FAILED, CauseKind.CRASHED, "d", True),
    ],
)
def test_a_remedy_is_for_what_failed_and_does_not_say_it_itself(
    outcome: Outcome, kind: CauseKind, detail: str, has_remedy: bool
) -> None:
    cause = Cause(kind=kind, message="m", detail=detail)
    row = summarize_run(run_of([record(case(0, "train", "a"), outcome=outcome, cause=cause)])).rows[0]
    assert bool(row.remedy()) is has_remedy


def at_size(size: int, samples: list[float], **more: Any) -> Measurement:
    return Measurement.of_samples(STEP_TIME, samples, at={"size": size}, **more)


def test_the_whole_case_leads_before_its_points_and_its_ranks() -> None:
    point, rank = at_size(1, [0.1, 0.1]), Measurement.of_samples(STEP_TIME, [0.2, 0.2], scope="rank 0")
    both, whole = at_size(1, [0.1, 0.1], scope="rank 0"), Measurement.of_samples(STEP_TIME, [0.3, 0.3])
    silent = Measurement.of_value(LOSS, 1.0)
    assert headline_of(record(case(0, "train", "a"), [point, rank, both, silent, whole])) is whole
    assert headline_of(record(case(0, "train", "a"), [point, rank])) is point
    assert headline_of(record(case(0, "train", "a"), [rank, point])) is rank
    other = Measurement.of_value(FIRST_STEP, 2.0)
    assert headline_of(record(case(0, "x", "a"), [whole, other], primary="first_step_time")) is other
    assert headline_of(record(case(0, "x", "a"), [other, whole])) is other


def test_a_figure_by_name_is_one_of_the_whole_case() -> None:
    rank, whole = Measurement.of_value(FIRST_STEP, 9.0, scope="rank 0"), Measurement.of_value(FIRST_STEP, 2.0)
    lead = Measurement.of_value(STEP_TIME, 1.0)
    row = summarize_run(run_of([record(case(0, "odd", "a"), [lead, rank, whole])])).rows[0]
    figure = row.figure("first_step_time")
    assert figure is not None
    assert (figure.scope, figure.value) == ("", 2.0)
    assert row.figure("absent") is None
    for partial in (rank, Measurement.of_value(FIRST_STEP, 9.0, at={"size": 1})):
        row = summarize_run(run_of([record(case(0, "odd", "a"), [partial])])).rows[0]
        assert row.headline is not None
        assert row.figure("first_step_time") is None


def test_the_headline_was_measured_at_the_last_of_the_points_that_are_like_it() -> None:
    points = [at_size(size, samples) for size, samples in enumerate([[1.0, 2.0]] * 4 + [[3.0, 4.0]])]
    lead = Measurement.of_samples(STEP_TIME, [1.0, 2.0])
    row = summarize_run(run_of([record(case(0, "odd", "a"), [lead, *points])])).rows[0]
    assert row.point is not None
    assert row.point.at == {"size": 3}
    lone = summarize_run(run_of([record(case(0, "odd", "a"), [Measurement.of_value(STEP_TIME, 7.0), *points])])).rows[0]
    assert lone.point is None
    silent = [Measurement.of_value(LOSS, 1.0, at={"size": size}) for size in (1, 2)]
    bare = summarize_run(run_of([record(case(0, "odd", "a"), silent)])).rows[0]
    assert (bare.headline, bare.point, bare.figures) == (None, None, ())


def test_samples_behind_a_headline_are_those_of_its_point() -> None:
    rate = throughput("images/s")
    large, small, of_rank = at_size(2, [3.0, 4.0]), at_size(1, [1.0, 2.0]), at_size(2, [3.0, 4.0], scope="rank 0")
    at_large, at_small = Measurement.of_rate(rate, 8, large), Measurement.of_rate(rate, 8, small)
    ranked = Measurement.of_rate(rate, 8, of_rank, scope="rank 0")
    lead = replace(at_large, at={})
    one = record(case(0, "odd", "a"), [small, lead, at_large, large, at_small, ranked, of_rank])
    assert sampled(one, lead) is large
    assert sampled(one, None) is small


def test_a_single_value_has_no_samples_to_show() -> None:
    lead, other = Measurement.of_value(FIRST_STEP, 1.0), Measurement.of_samples(STEP_TIME, [1.0, 2.0])
    assert sampled(record(case(0, "odd", "a"), [lead, other]), lead) is other
    assert sampled(record(case(0, "odd", "a"), [lead]), lead) is None


def test_cases_that_failed_or_have_no_headline_are_in_no_group() -> None:
    times = Measurement.of_samples(STEP_TIME, [0.1, 0.1])
    failed = record(case(0, "train", "a"), [times], outcome=Outcome.FAILED)
    silent = record(case(1, "train", "b"), [Measurement.of_value(LOSS, 1.0)])
    (group,) = summarize_run(run_of([failed, silent, record(case(2, "train", "c"), [times])])).groups
    assert [row.case.index for row in group.rows] == [2]


@pytest.mark.parametrize(
    ("better", "order"), [(Better.HIGHER, [1, 2, 0]), (Better.LOWER, [0, 2, 1]), (Better.NEITHER, [1, 2, 0])]
)
def test_the_best_of_a_group_comes_first(better: Better, order: list[int]) -> None:
    metric = Metric(name="score", unit="", better=better)
    records = [
        record(case(index, "odd", str(index)), [Measurement.of_value(metric, value)], primary="score")
        for index, value in enumerate((1.0, 3.0, 2.0))
    ]
    (group,) = summarize_run(run_of(records)).groups
    assert [row.case.index for row in group.rows] == order
    assert group.best is group.rows[0]


def test_a_highlight_needs_a_rate_that_is_a_number() -> None:
    def measured(index: int, category: str, name: str, unit: str, value: float) -> Record:
        metric = Metric(name=name, unit=unit, better=Better.HIGHER)
        return record(micro(index, category, "odd", str(index)), [Measurement.of_value(metric, value)])

    records = [
        measured(0, "compute", "rate", "FLOP/s", 2.0),
        measured(1, "compute", "rate", "FLOP/s", math.nan),
        measured(2, "compute", "speed", "steps/s", 9.0),
        record(micro(3, "compute", "odd", "3"), [Measurement.of_value(LOSS, 9.0)]),
        measured(4, "memory", "speed", "steps/s", 9.0),
        measured(5, "training", "rate", "FLOP/s", 9.0),
        measured(6, "compute", "rate", "FLOP/s", 1.0),
    ]
    (highlight,) = summarize_run(run_of(records)).highlights
    assert (highlight.category, highlight.row.case.index, highlight.of) == ("compute", 0, 2)


@pytest.mark.parametrize(
    ("categories", "is_sectioned"),
    [(["serving"], True), (["compute"], True), (["training"], False), (["training", "serving"], True), ([], False)],
)
def test_single_operations_and_servers_have_tables_of_their_own(categories: list[str], is_sectioned: bool) -> None:
    records = [record(micro(index, name, "b", str(index))) for index, name in enumerate(categories)]
    assert summarize_run(run_of(records)).is_sectioned is is_sectioned


def test_what_failed_is_looked_at_before_what_is_uncertain_and_that_before_what_leads() -> None:
    records = [
        record(case(index, "train", str(index)), [Measurement.of_samples(STEP_TIME, [0.1 + value] * 3)])
        for index, value in enumerate((0.5, 0.4, 0.1, 0.3, 0.2))
    ]
    records[3] = records[3].model_copy(update={"warnings": warned(3, "noisy").warnings})
    records[4] = records[4].model_copy(update={"outcome": Outcome.FAILED})
    summary = summarize_run(run_of(records))
    chosen = [[row.case.index for row in summary.notable(limit)] for limit in range(6)]
    assert chosen == [[], [4], [3, 4], [2, 3, 4], [0, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_attempts_at_one_case_stay_in_their_order_where_all_are_shown() -> None:
    again = record(case(0, "train", "a"), attempt=2, outcome=Outcome.FAILED)
    summary = summarize_run(run_of([record(case(0, "train", "a")), again]))
    assert [row.record.attempt for row in summary.notable(2)] == [1, 2]
