"""The page of one machine's figures: every figure with its interval, its share of the peak and its warnings."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.benchmarks._model.measuring import PHASES
from paceline.core.metric import Better, Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.core.run import RunRecords
from paceline.store import open_store
from support.docs_markdown import ROOT
from support.micro_records import SIZES, cannot, copy, gemm, latency, micro, micro_run, rate, times
from support.records import STEP_TIME, case, literal_run, record, run_of, throughput

WITHOUT_INTERVAL = {"", "case", "at", "of peak", "warnings", "meaning", "size", "function", "pass", "from", "to"}


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("hardware")


def page(hardware: ModuleType, *runs: RunRecords) -> str:
    text: str = hardware.page(runs, title="A machine", commits=["abc1234"] * len(runs))
    return text


def page_of(hardware: ModuleType, *records: Record) -> str:
    return page(hardware, run_of(list(records)))


def tables(text: str) -> list[list[dict[str, str]]]:
    """The tables of a page, each a list of lines by header."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text + "\n", re.MULTILINE):
        header, _, *lines = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines())
        found.append([dict(zip(header, line, strict=True)) for line in lines])
    return found


def section(text: str, title: str) -> str:
    """From a heading to the next one."""
    return re.split(r"^#{1,3} ", text.partition(f"# {title}\n")[2], flags=re.MULTILINE)[0]


def test_categories_are_sections_in_a_fixed_order(hardware: ModuleType) -> None:
    text = page_of(hardware, *reversed(micro_run().records))
    assert re.findall(r"^## (\w+)", text, re.MULTILINE)[:3] == ["Compute", "Memory", "Communication"]


def test_every_figure_has_its_interval_or_says_why_not(hardware: ModuleType) -> None:
    text = page(hardware, micro_run())
    figures = [
        cell
        for table in tables(text)[1:]  # the first one is of the machine
        for line in table
        for header, cell in line.items()
        if header not in WITHOUT_INTERVAL and cell
    ]
    assert len(figures) > 100
    assert not [cell for cell in figures if not re.search(r" ± [<\d.]+ %$| \*single\*$", cell)]


def test_a_product_stands_beside_the_peak_that_it_is_a_part_of(hardware: ModuleType) -> None:
    fast = gemm(0, "bf16", 789.4e12, 79.8)
    fast.facts["peak"] = 989.4e12
    (table,) = tables(section(page_of(hardware, fast, gemm(1, "fp32", 51.0e12, None)), "gemm"))
    by_case = {line["case"]: line for line in table}
    assert re.fullmatch(r"78\d\.\d TFLOP/s ± 0\.\d %", by_case["bf16"]["compute rate"])  # its noise is of one percent
    assert re.fullmatch(r"(79|80)\.\d % of 989\.4 TFLOP/s", by_case["bf16"]["of peak"])
    assert by_case["fp32"]["of peak"] == ""


def test_copies_have_a_table_of_sizes_with_a_column_for_each_direction(hardware: ModuleType) -> None:
    there, back = copy(0, "h2d", 55.2e9), copy(1, "d2h", 54.7e9)
    titled = there.model_copy(update={"case": there.case.model_copy(update={"title": "h2d 1 KiB 4 KiB 256 MiB"})})
    cases, sizes = tables(section(page_of(hardware, titled, back), "copy"))
    assert [(line["case"], line["at"]) for line in cases] == [("h2d", "256 MiB"), ("d2h", "256 MiB")]
    assert [line["size"] for line in sizes][::9] == ["1 KiB", "256 MiB"]
    assert len(sizes) == len(SIZES)
    assert sizes[-1]["h2d"] == cases[0]["bandwidth"]
    assert sizes[-1]["d2h"] == cases[1]["bandwidth"]
    assert sizes[0]["h2d"] != sizes[0]["d2h"]


def test_sizes_stay_in_a_name_that_needs_them(hardware: ModuleType) -> None:
    records = [copy(0, "h2d", 55.2e9), copy(1, "h2d", 55.2e9)]
    for one, title in zip(records, ("h2d 1 KiB to 1 MiB", "h2d 1 MiB to 1 GiB"), strict=True):
        one.case = one.case.model_copy(update={"title": title})
    cases, sizes = tables(section(page_of(hardware, *records), "copy"))
    assert [line["case"] for line in cases] == ["h2d 1 KiB to 1 MiB", "h2d 1 MiB to 1 GiB"]
    assert len(sizes[0]) == 3


def test_launches_state_what_the_loop_itself_costs(hardware: ModuleType) -> None:
    wall, loop = (times(t, metric=latency(n), noise=0) for t, n in ((4e-6, "wall_time"), (2e-9, "loop_cost")))
    facts = {"loop_share": "0.05 % of wall_time is the loop itself"}
    text = page_of(hardware, record(micro(0, "compute", "kernel-launch", "1000 launches"), [wall, loop], facts=facts))
    (table,) = tables(section(text, "kernel-launch"))
    assert [line[""] for line in table] == ["Wall time", "Loop cost"]
    assert table[1]["result"] == "2 ns ± <0.1 %"
    assert "0.05 % of wall_time is the loop itself" in text


def test_the_sum_over_a_list_of_functions_is_a_single_value(hardware: ModuleType) -> None:
    records = []
    for index, precision in enumerate(("fp32", "bf16")):
        points = [times(1e-3 * (1 + place), at={"function": name}) for place, name in enumerate(("first", "second"))]
        rates = [Measurement.of_rate(rate("compute_rate", "FLOP/s"), 1e9, point) for point in points]
        total = Measurement.of_value(Metric(name="total_time", unit="s", better=Better.LOWER), 3e-3)
        whole = Measurement.of_rate(rate("compute_rate", "FLOP/s"), 2e9, total)
        where = micro(index, "compute", "blas-functions", f"{precision} resnet50, gpt2-small")
        records.append(record(where, [whole, total, *rates, *points]))
    cases, functions = tables(section(page_of(hardware, *records), "blas-functions"))
    assert {line["compute rate"] for line in cases} == {"666.7 GFLOP/s *single*"}
    assert [line["function"] for line in functions] == ["first", "second"]
    assert all("±" in line["fp32"] and "±" in line["bf16"] for line in functions)  # all end in the same models


def test_samples_that_tell_no_interval_are_not_passed_off_as_a_single_value(hardware: ModuleType) -> None:
    took = Measurement.of_samples(latency("time"), [1.0, 1.0, 2.0, 2.0])
    took = replace(took, summary=took.summary.model_copy(update={"mean_interval": None}))
    found = [Measurement.of_rate(rate("bandwidth"), 1e9, took), took]
    text = page_of(hardware, record(micro(0, "communication", "tcp", "loopback"), found))
    assert "± unknown |" in section(text, "tcp")


def test_warnings_are_letters_that_the_legend_explains(hardware: ModuleType) -> None:
    kinds = ("power-capped", "imprecise", "of tomorrow")
    warnings = [RecordWarning(kind=kind, message="why", remedy="what") for kind in kinds]
    uncertain = gemm(0, "bf16", 700e12, None).model_copy(update={"warnings": warnings})
    text = page_of(hardware, uncertain, gemm(1, "fp16", 700e12, None))
    (table,) = tables(section(text, "gemm"))
    assert [line["warnings"] for line in table] == ["PI?", ""]
    assert "**I** imprecise, **P** power-capped (the GPU ran at its power limit), **?** of tomorrow." in text
    assert "noisy" not in text


def test_what_a_machine_cannot_do_is_told_once_for_each_reason_and_apart_from_failures(hardware: ModuleType) -> None:
    wrong = record(
        micro(4, "compute", "gemm", "fp8"),
        outcome=Outcome.FAILED,
        cause=Cause(kind=CauseKind.CORRUPTION, message="the product is wrong"),
    )
    text = page_of(hardware, gemm(0, "bf16", 7e14, None), cannot(1), cannot(2), cannot(3, require=True), wrong)
    impossible, failed = section(text, "Not possible on this machine"), section(text, "What did not succeed")
    assert len(re.findall("^- ib-loopback write, ib-loopback write: ib_write_bw", impossible, re.MULTILINE)) == 1
    assert "gemm fp8: failed: the product is wrong" in failed
    assert "ib-loopback write: unsupported: " in failed
    assert len(tables(section(text, "gemm"))) == 1


def test_cases_of_several_runs_have_names_of_their_own(hardware: ModuleType) -> None:
    text = page(hardware, run_of([gemm(0, "bf16", 7e14, None)]), run_of([gemm(0, "bf16", 6e14, None)]))
    (table,) = tables(section(text, "gemm"))
    assert len({line["case"] for line in table}) == 2


def test_models_have_their_tables_and_no_words_of_micro_benchmarks(hardware: ModuleType) -> None:
    run = literal_run()
    for one in run.records:
        one.facts["batch_size"] = 32
    text = page(hardware, run)
    (table,) = tables(section(text, "train, eager"))
    assert (table[0]["fp16"], table[0]["fp32"]) == ("320 ± 0.0%", "160 ± 0.0%")
    assert "Micro benchmarks" not in text


def test_a_run_beside_published_figures_has_its_own_part_with_phases_and_gains(hardware: ModuleType) -> None:
    run = run_of([trained("fp32", 100.0, 0), trained("bf16", 250.0, 1)], name="flashlight")
    text = page(hardware, run)
    figures = section(text, "The suite flashlight")
    (line,) = [line for line in figures.splitlines() if "bf16" in line and line.startswith("|")]
    assert "250" in line
    assert "± " in line
    assert "80.0%" in line
    assert "Over fp32: vit-base 2.50 (bf16)." in figures
    assert "### Compared with Flashlight's published figures" in text
    assert "## train" not in text


def test_fp8_stands_beside_bf16_of_the_same_layout(hardware: ModuleType) -> None:
    records = [
        in_parallel("gpt2/nl8_bf16_1x1x1_mb4_gb4_1n1g", 100.0, 0),
        in_parallel("gpt2/nl8_fp8_1x1x1_mb4_gb4_1n1g", 125.0, 1),
        in_parallel("gpt2/nl8_fp8_1x1x1_mb4_gb4_1n1g", 80.0, 2, fp8_recipe="rowwise", fp8_least=4096),
        in_parallel("gpt2/nl24_bf16_1x1x1_mb4_gb4_1n1g", 10.0, 3),  # neither: fp8 did not train it
        in_parallel("gpt2/nl8_fp8_1x1x1_mb8_gb8_1n1g", 99.0, 4),  # nor did bf16 train this
    ]
    text = page(hardware, run_of(records, name="fp8"))
    (told,) = [table for table in tables(section(text, "The suite fp8")) if "fp8 / bf16" in table[0]]
    assert [(line["recipe"], line["fp8 / bf16"].removesuffix(" |")) for line in told] == [
        ("fp8 tensorwise", "1.250"),
        ("fp8 rowwise, layers from 4096", "0.800"),
    ]


def in_parallel(layout: str, rate: float, index: int, **more: Any) -> Record:
    parameters = {"hidden": 4096, "fp8_recipe": "tensorwise", "fp8_least": 16} | more
    about = case(index, "parallel", layout, target="cuda:0", case=layout, **parameters)
    times = Measurement.of_samples(STEP_TIME, [4 / rate] * 20)
    precision = layout.split("_")[1]
    found = [Measurement.of_rate(throughput("sequences/s"), 4, times), times]
    return record(about, found, facts={"layout": layout, "precision": precision, "device": "NVIDIA H200"})


def trained(precision: str, rate: float, index: int) -> Record:
    """A step of which the forward pass takes a fifth."""
    own = {"model": "vit-base", "precision": precision}
    about = case(index, "train", f"vit-base {precision}", target="cuda:0", category="training", **own)
    times = Measurement.of_samples(STEP_TIME, [64 / rate] * 20)
    phases = [of_phase("forward", 0.2 * 64 / rate), of_phase("backward", 0.8 * 64 / rate)]
    found = [Measurement.of_rate(throughput("images/s"), 64, times), times, *phases]
    return record(about, found, facts={"batch_size": 64, "device": "NVIDIA H200"})


def of_phase(name: str, seconds: float) -> Measurement:
    return Measurement.of_value(PHASES[name], seconds)


@pytest.mark.slow
def test_a_page_is_made_from_a_store(tmp_path: Path) -> None:
    run = micro_run()
    with open_store(str(tmp_path / "results.db")) as store:
        store.begin(run.run)
        for one in run.records:
            store.add(one)
        store.finish(run.run.id, "finished")
    made = tmp_path / "page.md"
    told: list[Any] = ["--title", "A machine", "--note", "First words.", "-o", made]
    command = [sys.executable, ROOT / "docs" / "hardware.py", f"{tmp_path / 'results.db'}@abc1234:last", *told]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    text = made.read_text(encoding="utf-8")
    assert text.startswith("# A machine\n\nFirst words.\n")
    assert "### collective" in text
    assert "commit `abc1234`" in text
    assert f"{len(run.records)} of {len(run.records)} cases" in text
