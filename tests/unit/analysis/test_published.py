"""A run beside published figures: what is compared, what stays empty, and how scaling is told."""

from __future__ import annotations

import pytest

from paceline.analysis.published import published_tables
from paceline.analysis.published.table import PublishedTable, published_rows
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import RunRecords
from support.records import MEMORY, STEP_TIME, case, record, run_of, throughput


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
