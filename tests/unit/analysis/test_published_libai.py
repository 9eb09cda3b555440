"""LiBai's tables with a run in them: what is compared with what, what stays empty, and what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.configuration import configuration_of
from paceline.analysis.published import (
    CONTRADICTION,
    PublishedRow,
    PublishedTable,
    Training,
    libai_rows,
    published_records,
    published_tables,
)
from paceline.core.layout import Layout
from paceline.core.record import Measurement, Outcome, Record, RecordWarning
from paceline.core.subject import Subject
from paceline.report.run.document import to_html, to_markdown
from support.records import STEP_TIME, case, record, run_of, throughput

GPT2 = "gpt2/nl24_fp16_1x1x1_mb6_gb6_1n1g"
FRAMEWORK = "megatron-core 0.16.1: its own layers, without Transformer Engine and apex"


def trained(title: str, rate: float, *, benchmark: str = "parallel", index: int = 0, **more: Any) -> Record:
    made = case(index, benchmark, title, ranks=more.pop("ranks", 1), repeat=more.pop("repeat", 1))
    times = Measurement.of_samples(STEP_TIME, [8 / rate] * 20)
    facts = {"device": "NVIDIA H200"} | ({"framework": FRAMEWORK} if benchmark != "parallel" else {})
    found = [Measurement.of_rate(throughput("sequences/s"), 8, times), times]
    return record(made, found if more.get("outcome", Outcome.OK) is Outcome.OK else [], facts=facts, **more)


def tables_of(*records: Record) -> dict[str, PublishedTable]:
    tables = published_tables(run_of(list(records), name="libai"))
    return {table.title.partition(": ")[2]: table for table in tables}


def line(table: PublishedTable, case: str) -> dict[str, str]:
    (found,) = [one for one in table.lines if one[1] == case]
    return dict(zip(table.headers, found, strict=True))


def test_every_published_row_is_shown_in_its_section_as_published() -> None:
    tables = tables_of(trained(GPT2, 100.0))
    shown = [
        (name, line[0], line[1].removesuffix(" *"), *line[-3:-1]) for name, t in tables.items() for line in t.lines
    ]
    assert shown == [(row.section, row.model, row.word, row.libai, row.megatron) for row in sorted_rows()]
    assert len(shown) == 44
    assert line(tables["Data Parallel"], "nl24_fp16_32x1x1_mb16_gb512_4n8g")["LiBai"] == "1207.65"


def sorted_rows() -> list[Any]:
    rows = libai_rows()
    sections = list(dict.fromkeys(row.section for row in rows))
    return sorted(rows, key=lambda row: (sections.index(row.section), row.model))


def test_ours_stands_beside_the_peers_with_the_ratio_and_theirs_with_theirs() -> None:
    table = tables_of(trained(GPT2, 120.0), trained(GPT2, 80.0, benchmark="megatron-core", index=1))["Data Parallel"]
    found = line(table, "nl24_fp16_1x1x1_mb6_gb6_1n1g")
    assert found["Paceline"] == "120 ± <0.1 %"
    assert found["megatron-core"] == "80 ± <0.1 %"
    assert found["Paceline / megatron-core"] == "1.50"
    assert found["LiBai / Megatron-LM"] == "1.13"
    assert line(table, "nl24_fp16_4x1x1_mb4_gb16_1n4g")["Paceline"] == ""


def test_a_ratio_of_figures_that_are_warned_is_marked() -> None:
    warnings = [RecordWarning(kind="contended", message="others ran", remedy="stop them")]
    peer = trained(GPT2, 80.0, benchmark="megatron-core", index=1, warnings=warnings)
    table = tables_of(trained(GPT2, 120.0), peer)["Data Parallel"]
    assert line(table, "nl24_fp16_1x1x1_mb6_gb6_1n1g")["Paceline / megatron-core"] == "1.50 ?"
    assert "? where one of them has warnings" in tables_of(peer)["3-D Parallel"].source


def test_a_row_that_stands_in_two_tables_is_filled_in_both() -> None:
    tables = tables_of(trained(GPT2, 120.0))
    filled = [name for name, table in tables.items() for line in table.lines if line[2]]
    assert filled == ["Data Parallel", "Tensor Model Parallel"]


def test_the_row_that_contradicts_itself_is_marked_and_filled_by_what_was_run() -> None:
    tables = tables_of(trained("bert/nl24_fp16_4x1x1_mb16_gb64_1n4g x4", 500.0, ranks=4))
    found = line(tables["Data Parallel"], "nl24_fp16_8x1x1_mb16_gb64_1n4g *")
    assert found["Paceline"].startswith("500")
    assert found["LiBai"] == "176.88"
    assert [row.word for row in libai_rows() if row.is_contradictory] == ["nl24_fp16_8x1x1_mb16_gb64_1n4g"]
    assert CONTRADICTION in tables["3-D Parallel"].source


def test_another_precision_or_size_is_a_line_of_its_own_without_published_figures() -> None:
    tiny = "gpt2/nl2_fp32_1x2x1_mb8_gb8_1n2g hidden=64 x2"
    tables = tables_of(
        trained(GPT2.replace("fp16", "bf16"), 130.0),
        trained(tiny, 9.0, ranks=2, index=1),
        trained(GPT2, 120.0, index=2),
    )
    lines = [one for one in tables["Data Parallel"].lines if one[0] == "GPT-2"]
    assert [one[1] for one in lines[:2]] == ["nl24_fp16_1x1x1_mb6_gb6_1n1g", "nl24_bf16_1x1x1_mb6_gb6_1n1g"]
    assert lines[1][2:] == ("130 ± <0.1 %", "", "", "")
    assert tables["Tensor Model Parallel"].lines[-1] == (
        "GPT-2", "nl2_fp32_1x2x1_mb8_gb8_1n2g hidden=64", "9 ± <0.1 %", "", "", ""
    )  # fmt: skip


def test_a_small_model_never_fills_a_published_row() -> None:
    tables = tables_of(trained(f"{GPT2} hidden=64", 9000.0))
    assert line(tables["Data Parallel"], "nl24_fp16_1x1x1_mb6_gb6_1n1g")["Paceline"] == ""


def test_what_ran_out_of_memory_says_so_and_what_is_not_possible_stays_empty() -> None:
    table = tables_of(
        trained(GPT2, 120.0),
        trained(GPT2, 1.0, benchmark="megatron-core", index=1, outcome=Outcome.OUT_OF_MEMORY),
        trained("gpt2/nl24_fp16_4x1x1_mb4_gb16_1n4g x4", 1.0, ranks=4, index=2, outcome=Outcome.UNSUPPORTED),
    )["Data Parallel"]
    found = line(table, "nl24_fp16_1x1x1_mb6_gb6_1n1g")
    assert (found["megatron-core"], found["Paceline / megatron-core"]) == ("out-of-memory", "")
    assert line(table, "nl24_fp16_4x1x1_mb4_gb16_1n4g")["Paceline"] == ""


def test_of_repetitions_the_middle_one_is_shown() -> None:
    repeats = [trained(GPT2, rate, index=place, repeat=place + 1) for place, rate in enumerate((10.0, 30.0, 20.0))]
    assert line(tables_of(*repeats)["Data Parallel"], "nl24_fp16_1x1x1_mb6_gb6_1n1g")["Paceline"].startswith("20 ")


def test_the_note_says_what_the_peer_ran_without_and_where() -> None:
    tables = tables_of(trained(GPT2, 120.0), trained(GPT2, 80.0, benchmark="megatron-core", index=1))
    notes = [table.source for table in tables.values()]
    assert notes[:-1] == [""] * 5
    assert f"{FRAMEWORK}." in notes[-1]
    assert "Measured on NVIDIA H200." in notes[-1]


def test_without_a_peer_there_is_no_column_for_one() -> None:
    table = tables_of(trained(GPT2, 120.0))["Data Parallel"]
    assert table.headers == ("Model", "Case", "Paceline", "LiBai", "Megatron-LM", "LiBai / Megatron-LM")


def test_a_run_that_measured_nothing_and_other_suites_have_no_tables() -> None:
    assert tables_of(trained(GPT2, 1.0, outcome=Outcome.FAILED)) == {}
    assert published_tables(run_of([trained(GPT2, 120.0)], name="quick")) == ()


def test_reports_print_all_tables_and_the_note_once() -> None:
    run = run_of([trained(GPT2, 120.0), trained(GPT2, 80.0, benchmark="megatron-core", index=1)], name="libai")
    for text in (to_markdown(run), to_html(run)):
        assert text.count("figures: Data Parallel") == 3
        assert text.count("without Transformer Engine and apex.") == 1


def test_a_published_layout_is_a_way_to_do_the_work_that_ours_does() -> None:
    source = published_records("libai")
    one = source.records[0]
    ours = record(case(0, "parallel", one.case.title, case=one.case.title))
    theirs, mine = (configuration_of(found, source.run) for found in (one, ours))
    assert one.case.title not in theirs.work
    assert theirs.work.split()[:3] == mine.work.split()[:3]
    assert {name: theirs.choices[name] for name in ("data", "tensor", "pipeline", "precision")} == {
        name: mine.choices[name] for name in ("data", "tensor", "pipeline", "precision")
    }


@pytest.mark.parametrize(
    ("mesh", "section"),
    [
        ("1x1x1", "Data Parallel"),
        ("2x1x1", "Data Parallel"),
        ("1x2x1", "Tensor Model Parallel"),
        ("1x1x2", "Pipeline Model Parallel"),
        ("2x2x1", "Data Parallel + Tensor Model Parallel"),
        ("2x1x2", "Data Parallel + Pipeline Model Parallel"),
        ("1x2x2", "3-D Parallel"),
        ("2x2x2", "3-D Parallel"),
    ],
)
def test_a_mesh_belongs_to_the_section_of_what_has_several_ranks(mesh: str, section: str) -> None:
    assert Training(Layout.parse(f"gpt2/nl2_fp16_{mesh}_mb1_gb8_1n8g")).section == section


def test_a_row_that_contradicts_itself_was_run_on_the_gpus_that_it_names() -> None:
    row = PublishedRow("parallel", "3-D Parallel", "GPT-2", "nl24_fp16_8x2x2_mb4_gb64_2n8g", "30", "20")
    assert row.is_contradictory
    assert str(row.layout) == "gpt2/nl24_fp16_4x2x2_mb4_gb64_2n8g"
    assert row.cells == ("30", "20", "1.50")
    agreeing = PublishedRow("parallel", "3-D Parallel", "GPT-2", "nl24_fp16_4x2x2_mb4_gb64_2n8g", "30", "20")
    assert not agreeing.is_contradictory and agreeing.layout == row.layout


def test_a_training_is_what_its_title_says() -> None:
    more = Training.of(trained(f"{GPT2} hidden=64 heads=2 x2", 1.0, ranks=2))
    assert more is not None
    assert (str(more.layout), more.more) == (GPT2, "hidden=64 heads=2")
    assert more.label == "nl24_fp16_1x1x1_mb6_gb6_1n1g hidden=64 heads=2"
    assert Training.of(trained("resnet50 bf16", 1.0)) is None
    assert more.is_like(Layout.parse(GPT2.replace("fp16", "bf16")))
    assert not more.is_like(Layout.parse(GPT2.replace("nl24", "nl12")))


def test_what_trains_no_layout_is_in_no_table() -> None:
    other = trained("resnet50 bf16", 9.0, benchmark="train", index=1)
    assert tables_of(other) == {}
    assert tables_of(trained(GPT2, 120.0), other) == tables_of(trained(GPT2, 120.0))


@pytest.mark.parametrize(
    ("rates", "middle"), [((30.0, 10.0), "10"), ((40.0, 10.0, 30.0, 20.0), "20"), ((5.0, 1.0, 4.0, 2.0, 3.0), "3")]
)
def test_of_an_even_number_of_repetitions_the_lower_middle_one_is_shown(rates: tuple[float, ...], middle: str) -> None:
    repeats = [trained(GPT2, rate, index=place, repeat=place + 1) for place, rate in enumerate(rates)]
    shown = line(tables_of(*repeats)["Data Parallel"], "nl24_fp16_1x1x1_mb6_gb6_1n1g")["Paceline"]
    assert shown == f"{middle} ± <0.1 %"


def test_a_rate_of_what_did_not_succeed_does_not_count() -> None:
    cut = trained(GPT2, 900.0, index=1, repeat=2).model_copy(update={"outcome": Outcome.TIMEOUT})
    silent = trained(GPT2, 900.0, index=2, repeat=3).model_copy(update={"measurements": []})
    table = tables_of(trained(GPT2, 120.0), cut, silent)["Data Parallel"]
    assert line(table, "nl24_fp16_1x1x1_mb6_gb6_1n1g")["Paceline"] == "120 ± <0.1 %"
    quiet = tables_of(silent)["Data Parallel"]
    assert line(quiet, "nl24_fp16_1x1x1_mb6_gb6_1n1g")["Paceline"] == ""


@pytest.mark.parametrize(
    ("ends", "shown"),
    [
        ((Outcome.FAILED,), "failed"),
        ((Outcome.FAILED, Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY), "out-of-memory"),
        ((Outcome.OUT_OF_MEMORY, Outcome.UNSUPPORTED), "out-of-memory"),
        ((Outcome.UNSUPPORTED,), ""),
    ],
)
def test_of_several_failures_the_last_one_is_shown(ends: tuple[Outcome, ...], shown: str) -> None:
    peers = [
        trained(GPT2, 1.0, benchmark="megatron-core", index=place, repeat=place, outcome=end)
        for place, end in enumerate(ends, start=1)
    ]
    table = tables_of(trained(GPT2, 120.0), *peers)["Data Parallel"]
    assert line(table, "nl24_fp16_1x1x1_mb6_gb6_1n1g")["megatron-core"] == shown


def test_peers_have_columns_in_the_order_in_which_they_come_and_marks_of_either_side() -> None:
    warnings = [RecordWarning(kind="contended", message="others ran", remedy="stop them")]
    table = tables_of(
        trained(GPT2, 120.0, warnings=warnings),
        trained(GPT2, 80.0, benchmark="megatron-core", index=1),
        trained(GPT2.replace("fp16", "bf16"), 80.0, benchmark="megatron-core", index=2),
        trained(GPT2, 60.0, benchmark="other", index=3),
    )["Data Parallel"]
    assert table.headers[2:7] == ("Paceline", "megatron-core", "Paceline / megatron-core", "other", "Paceline / other")
    shown = line(table, "nl24_fp16_1x1x1_mb6_gb6_1n1g")
    assert (shown["Paceline / megatron-core"], shown["Paceline / other"]) == ("1.50 ?", "2.00 ?")
    peer = line(table, "nl24_bf16_1x1x1_mb6_gb6_1n1g")
    assert (peer["Paceline"], peer["megatron-core"], peer["Paceline / megatron-core"]) == ("", "80 ± <0.1 %", "")
    assert table.named == 2


def test_the_note_says_nothing_of_a_device_or_software_that_has_no_name() -> None:
    bare = trained(GPT2, 120.0).model_copy(update={"subject": Subject()})
    assert tables_of(bare)["3-D Parallel"].source.endswith(CONTRADICTION)
