"""A run beside published figures: what is compared, what stays empty, and how scaling is told."""

from __future__ import annotations

import pytest

from paceline.analysis.published import PublishedTable, published_records, published_rows, published_tables, shown_rate
from paceline.core.case import Category
from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import RunRecords
from paceline.core.stats import Interval, summarize
from paceline.core.subject import Subject
from support.records import MEMORY, STEP_TIME, case, record, run_of, throughput
from support.refused import refused


def trained(
    model: str, precision: str, rate: float, *, ranks: int = 1, batch: int = 64, index: int = 0, **more: object
) -> Record:
    parameters = {"model": model, "precision": precision, "scale": more.pop("scale", "full")}
    where = {"target": str(more.pop("target", "cuda:0")), "ranks": ranks, "category": "training"}
    made = case(index, "train", f"{model} {precision}", **where, **parameters)
    times = Measurement.of_samples(STEP_TIME, [batch / rate] * 20)
    found = [Measurement.of_rate(throughput("images/s"), batch, times), times, Measurement.of_value(MEMORY, 5e9)]
    facts = {"batch_size": batch, "global_batch_size": batch * ranks, "compiled": True, "device": "NVIDIA H200"}
    return record(made, found, facts=facts, **more)


def table_of(*records: Record) -> PublishedTable:
    (table,) = published_tables(run_of(list(records), name="flashlight"))
    return table


def cell(table: PublishedTable, line: int, header: str) -> str:
    return table.lines[line][table.headers.index(header)]


def test_the_published_file_has_twelve_rows_and_says_where_it_is_from() -> None:
    rows = published_rows("flashlight_v100")
    assert len(rows) == 12
    assert rows[1]["gpus_1"] == "263.42"
    assert "V100" in table_of(trained("vit-base", "bf16", 2900.0)).source


def test_ours_stands_above_theirs_with_the_ratio() -> None:
    table = table_of(trained("vit-base", "bf16", 2634.2))
    assert [line[0] for line in table.lines] == ["ViT-Base, H200", "ViT-Base, V100", "ViT-Base, V100"]
    assert table.lines[0][1:4] == ("224x224x3x64", "AMP bf16, compiled", "5.00")
    assert cell(table, 0, "1 GPU") == "2,634 ± <0.1 % (10x)"
    assert cell(table, 2, "1 GPU") == "263.4"


def test_what_was_not_measured_stays_empty() -> None:
    table = table_of(trained("vit-base", "fp32", 900.0))
    assert [cell(table, 0, f"{count} GPUs") for count in (8, 16, 32)] == ["", "", ""]
    assert cell(table, 1, "32 GPUs") == "2,963"


@pytest.mark.parametrize(
    "incomparable",
    [{"target": "cpu"}, {"batch": 32}, {"scale": "tiny"}],
    ids=["another kind of device", "another batch", "another model"],
)
def test_no_ratio_for_work_that_is_not_theirs(incomparable: dict[str, object]) -> None:
    table = table_of(trained("vit-base", "fp32", 900.0, **incomparable))  # type: ignore[arg-type]
    assert "x)" not in cell(table, 0, "1 rank" if incomparable.get("target") == "cpu" else "1 GPU")


def test_scaling_is_told_against_one_rank_of_the_same_run() -> None:
    table = table_of(
        trained("vit-base", "bf16", 1000.0), trained("vit-base", "bf16", 7200.0, ranks=8, target="cuda:*", index=1)
    )
    assert cell(table, 0, "8 GPUs") == "7,200 ± <0.1 % (3.56x, 90% of linear)"


def test_a_number_of_ranks_that_they_have_not_gets_its_own_column() -> None:
    table = table_of(trained("vit-base", "bf16", 1000.0), trained("vit-base", "bf16", 1900.0, ranks=2, index=1))
    assert cell(table, 0, "2 GPUs") == "1,900 ± <0.1 % (95% of linear)"
    assert cell(table, 1, "2 GPUs") == ""


def test_failed_cases_and_other_suites_have_no_line() -> None:
    failed = trained("vit-base", "bf16", 1000.0, outcome=Outcome.FAILED)
    assert published_tables(run_of([failed], name="flashlight")) == ()
    other: RunRecords = run_of([trained("vit-base", "bf16", 1000.0)], name="quick")
    assert published_tables(other) == ()


def rated(value: float, half: float | None) -> Measurement:
    interval = Interval(low=value - half, high=value + half, confidence=0.95) if half is not None else None
    summary = summarize([value]).model_copy(update={"mean_interval": interval, "median_interval": interval})
    return Measurement(metric=throughput("images/s"), statistic="mean", summary=summary)


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [
        (512.0, None, "512"),
        (512.0, 0.2, "512 ± <0.1 %"),
        (512.0, 0.512, "512 ± 0.1 %"),
        (512.0, 25.6, "512 ± 5.0 %"),
        (512.0, 64.0, "512 ± 12 %"),
        (512.0, 532.48, "512 ± 104 %"),
        (1000.4, None, "1,000"),
        (1000.0, None, "1,000"),
        (999.96, None, "1000"),
    ],
)
def test_a_rate_is_shown_with_the_half_of_its_interval(value: float, half: float | None, text: str) -> None:
    assert shown_rate(rated(value, half)) == text


def test_columns_that_say_nothing_are_left_out_but_not_those_that_name_a_line() -> None:
    table = PublishedTable("t", "", ("a", "b", "c", "d"), 1, (("", "", "1", ""), ("", "", "", "")))
    assert (table.filled().headers, table.filled().lines) == (("a", "c"), (("", "1"), ("", "")))


def test_published_trainings_say_on_how_many_gpus_they_ran() -> None:
    cases = [record.case for record in published_records("flashlight").records[:2]]
    assert [(one.ranks, one.target, one.title.rpartition(" x")[2] == "8") for one in cases] == [
        (1, "cuda:0", False),
        (8, "cuda:*", True),
    ]
    assert not cases[0].title.endswith(" x1")
    assert {one.case.target for one in published_records("libai").records if one.case.ranks == 2} <= {"cuda:*"}


def reworked(one: Record, **subject: object) -> Record:
    """The record of another subject."""
    return one.model_copy(update={"subject": one.subject.model_copy(update=subject)})


@pytest.mark.parametrize(
    "other",
    [
        trained("vit-base", "bf16", 9.0, index=1).model_copy(
            update={"case": case(1, "inference", "vit-base bf16", category=Category.INFERENCE)}
        ),
        reworked(trained("vit-base", "bf16", 9.0, index=1), layout="gpt2/nl24_fp16_1x1x1_mb6_gb6_1n1g"),
        trained("vit-base", "bf16", 9.0, index=1, outcome=Outcome.TIMEOUT),
        reworked(trained("vit-base", "bf16", 9.0, index=1), model="gpt2-small"),
    ],
    ids=["no training", "a layout", "not ok", "another model"],
)
def test_what_is_not_of_the_published_table_is_not_in_it(other: Record) -> None:
    assert published_tables(run_of([other], name="flashlight")) == ()
    alone = table_of(trained("vit-base", "bf16", 2634.2))
    assert table_of(trained("vit-base", "bf16", 2634.2), other) == alone


def test_each_model_has_its_own_lines_and_those_that_were_not_measured_have_none() -> None:
    table = table_of(trained("detr", "fp32", 216.4, batch=12), trained("vit-base", "fp16", 526.84, index=1))
    assert [line[0] for line in table.lines] == [
        "ViT-Base, H200", "ViT-Base, V100", "ViT-Base, V100", "DETR, H200", "DETR, V100", "DETR, V100",
    ]  # fmt: skip
    assert [line[2] for line in table.lines] == ["AMP fp16, compiled", "FP32", "AMP", "FP32, compiled", "FP32", "AMP"]
    assert cell(table, 0, "1 GPU") == "526.8 ± <0.1 % (2x)"
    assert cell(table, 3, "1 GPU") == "216.4 ± <0.1 % (10x)"
    assert table.lines[1][1:4] == ("224x224x3x64", "FP32", "10.83")
    assert table.named == 3


def test_one_gpu_among_processors_makes_the_columns_of_gpus() -> None:
    both = table_of(trained("vit-base", "fp32", 9.0, target="cpu"), trained("vit-base", "bf16", 9.0, index=1))
    assert both.headers[4:6] == ("1 GPU", "8 GPUs")
    assert table_of(trained("vit-base", "fp32", 9.0, target="cpu")).headers[4:6] == ("1 rank", "8 ranks")


def test_the_memory_of_a_line_is_that_of_one_rank_where_it_was_measured() -> None:
    eight = trained("vit-base", "bf16", 7200.0, ranks=8, target="cuda:*")
    eight.measurements[-1] = Measurement.of_value(MEMORY, 7e9)
    one = trained("vit-base", "bf16", 1000.0, index=1)
    assert cell(table_of(eight, one), 0, "Memory, GB") == "5.00"
    assert cell(table_of(eight), 0, "Memory, GB") == "7.00"
    assert cell(table_of(eight), 0, "8 GPUs") == "7,200 ± <0.1 % (3.56x)"
    assert cell(table_of(eight), 0, "1 GPU") == ""
    bare = one.model_copy(update={"measurements": one.measurements[:-1]})
    assert cell(table_of(bare), 0, "Memory, GB") == ""


def test_what_a_record_does_not_say_is_left_open() -> None:
    one = reworked(trained("vit-base", "bf16", 263.42), precision=None, compiled=False, device=None, batch=None)
    table = table_of(one)
    assert table.lines[0][:3] == ("ViT-Base, ours", "224x224x3x?", "")
    assert cell(table, 0, "1 GPU") == "263.4 ± <0.1 %"
    tiny = table_of(trained("vit-base", "bf16", 263.42, ranks=2, scale="tiny"))
    assert tiny.lines[0][1] == "tiny, batch 64"


def test_a_rate_in_another_unit_than_theirs_is_not_shown() -> None:
    tokens = Metric(name="token_throughput", unit="tokens/s", better=Better.HIGHER, merge=Merge.SUM)
    one = trained("lm-transformer", "fp32", 10.0, batch=1)
    assert cell(table_of(one), 0, "1 GPU") == ""
    rated_too = one.model_copy(update={"measurements": [*one.measurements, Measurement.of_value(tokens, 10957.12)]})
    assert cell(table_of(rated_too), 0, "1 GPU") == "10,957 (2x)"
    assert cell(table_of(rated_too), 0, "Unit") == "tokens/s"


def test_columns_that_name_a_line_and_those_of_any_line_stay() -> None:
    table = PublishedTable("t", "s", ("a", "b", "c", "d"), 2, (("", "", "", "1"), ("", "", "2", ""), ("", "", "", "")))
    assert table.filled() == table
    assert PublishedTable("t", "", ("a", "b"), 1, (("x", ""), ("y", ""))).filled().headers == ("a",)


def test_published_trainings_are_records_of_the_same_work() -> None:
    source = published_records("flashlight")
    assert (source.run.id, source.run.name, source.run.status) == ("published-flashlight", "flashlight", "finished")
    assert source.run.cases == [one.case for one in source.records]
    assert [one.case.index for one in source.records] == list(range(48))
    first, amp, speech = source.records[0], source.records[5], source.records[-1]
    assert first.subject == Subject(model="vit-base", precision="fp32", scale="full")
    assert first.case.parameters == {"model": "vit-base", "precision": "fp32", "scale": "full", "batch_size": 64}
    assert (first.case.title, first.case.category, first.seconds) == ("vit-base fp32", "training", 0.0)
    assert (amp.case.title, amp.case.ranks, amp.case.target) == ("vit-base fp16 x8", 8, "cuda:*")
    rates = [(one.primary, one.measurements[0].metric.unit, one.measurements[0].value) for one in (first, amp, speech)]
    assert rates == [
        ("throughput", "images/s", 93.95),
        ("throughput", "images/s", 2020.85),
        ("audio_throughput", "s/s", 13327.17),
    ]


def test_published_layouts_are_records_of_one_of_both_frameworks() -> None:
    ours, theirs = published_records("libai").records, published_records("megatron").records
    assert len({one.case.title for one in ours}) == len(ours) == len(theirs)
    assert (ours[0].measurements[0].value, theirs[0].measurements[0].value) == (46.91, 42.6)
    assert ours[0].case.parameters == {"case": ours[0].case.title} and ours[0].subject.layout == ours[0].case.title
    assert {(one.case.ranks > 1, one.case.target) for one in ours} == {(False, "cuda:0"), (True, "cuda:*")}
    assert {one.measurements[0].metric.unit for one in ours} == {"sequences/s"}
    assert {one.run_id for one in theirs} == {"published-megatron"}


def test_figures_that_nobody_published_are_refused() -> None:
    with refused("unknown-published-figures", suggestion="libai"):
        published_records("libay")
