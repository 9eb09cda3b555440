"""Rooflines in every report: the answer in a sentence, where the ceilings are from, and what to do."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from paceline.analysis.roofline import KnownCeilings, Rooflines, rooflines
from paceline.analysis.summary import summarize_run
from paceline.core.record import RecordWarning
from paceline.core.run import RunRecords
from paceline.report import charts, vega
from paceline.report.charts import WIDTH
from paceline.report.run.document import show, to_html, to_markdown, to_png
from paceline.report.run.sections import SectionAnswer
from paceline.report.run.sections.roofline import MOST_POINTS, roofline_parts
from support.insight_records import ceiling, gpu_ceilings, inference, product, roofline_run
from support.records import HOSTILE, run_of


def found_in(run: RunRecords, known: KnownCeilings | None = None) -> Rooflines:
    summary = summarize_run(run)
    return rooflines(summary.source, summary.rows, known)


def only_part(run: RunRecords, known: KnownCeilings | None = None) -> SectionAnswer:
    (part,) = roofline_parts(found_in(run, known))
    return part


def shown(run: RunRecords, known: KnownCeilings | None = None) -> str:
    file = io.StringIO()
    show(run, Console(file=file, width=100), ceilings=known)
    return file.getvalue()


def test_one_case_is_answered_in_one_sentence() -> None:
    part = only_part(run_of([inference(0, 7e9, 14e9, 14e9 / 3.12e12)]), gpu_ceilings())
    assert part.sentence == "inference model-0 bf16 is bound by memory at 78 % of 4 TB/s."


def test_uncounted_activations_are_said_beside_the_answer() -> None:
    part = only_part(run_of([inference(0, 3.3e8, 21e12, 61e-3)]), gpu_ceilings())
    assert part.sentence == (
        "inference model-0 bf16 is nearest to compute, at 43 % of 800 TFLOP/s (bf16); its activations are not counted, "
        "so that memory may bound it as well."
    )
    assert any("are a model and not a measurement" in note for note in part.notes)


def test_counted_activations_are_told_as_a_range_and_leave_nothing_open_that_they_settle() -> None:
    settled = only_part(run_of([inference(0, 3.3e8, 21e12, 61e-3, facts={"activation_bytes": 1e9})]), gpu_ceilings())
    assert settled.sentence == "inference model-0 bf16 is nearest to compute, at 43 % of 800 TFLOP/s (bf16)."
    assert settled.table is not None
    assert (settled.table.lines[0][3], settled.table.lines[0][-1]) == ("7,895 to 31,818", "10.82 GB/s to 43.61 GB/s")
    much = run_of([inference(0, 3.3e8, 21e12, 61e-3, facts={"activation_bytes": 100e9})])
    part = only_part(much, gpu_ceilings())
    assert "would move 3.29 TB/s, 82 % of what memory carries, so that memory may bound it as well" in part.sentence
    assert not any("no record tells" in note for note in part.notes)


def test_several_cases_are_counted_and_the_furthest_is_named() -> None:
    part = only_part(roofline_run(), gpu_ceilings())
    assert part.sentence.startswith("Of 8 cases on NVIDIA H200, 4 are nearest to the compute ceiling, 2 are nearest to")
    assert part.sentence.endswith("furthest below: gemm bf16 64x64x64, bound by neither, at 0.1 % of 4 TB/s.")
    assert part.table is not None
    assert [line[2] for line in part.table.lines] == [
        "compute", "memory", "neither", "compute", "memory", "compute or memory", "the host", "compute"
    ]  # fmt: skip
    assert part.source == (
        "Ceilings: device memory 4 TB/s, bf16 800 TFLOP/s, fp32 50 TFLOP/s: paceline machine --measure, 2026-03-14, "
        "run 20260314-080000-abcd."
    )


def test_a_datasheet_is_named_as_one() -> None:
    promised = (ceiling("compute", "bf16", 989e12), ceiling("memory", "device memory", 4.8e12))
    part = only_part(run_of([inference(0, 7e9, 14e9, 14e9 / 2.4e12)]), KnownCeilings(datasheet=promised))
    assert "50 % of 4.8 TB/s (datasheet)" in part.sentence


def test_without_ceilings_one_sentence_says_what_to_run() -> None:
    part = only_part(run_of([inference(0, 7e9, 14e9, 4.4e-3)]))
    assert part == SectionAnswer(
        "Not known: nothing tells what NVIDIA H200 can do at most; 'paceline machine --measure' measures that once."
    )


def test_products_alone_ask_for_nothing() -> None:
    assert roofline_parts(found_in(run_of([product(0, 64, 64, 64, 1e-5)]))) == []


def test_warnings_of_a_ceiling_are_told_with_it() -> None:
    warning = RecordWarning(kind="contended", message="others computed", remedy="stop them")
    known = [one.model_copy(update={"warnings": (warning,)}) for one in gpu_ceilings().measured]
    run = run_of([inference(0, 7e9, 14e9, 4.4e-3)])
    assert "device memory 4 TB/s (warnings: contended)" in shown(run, KnownCeilings(tuple(known), "yesterday"))


def test_words_that_all_cases_share_are_said_once() -> None:
    part = only_part(run_of([inference(0, 7e9, 14e9, 4.4e-3), inference(1, 7e9, 14e9, 4.0e-3)]), gpu_ceilings())
    assert part.sentence.startswith("Of 2 cases of inference bf16 on NVIDIA H200, 2 are nearest to the memory ceiling")
    assert part.lines[0] == "model-0: bound by memory at 80 % of 4 TB/s"


def test_cases_left_out_are_named() -> None:
    records = [inference(0, 7e9, 14e9, 4.4e-3), inference(1, 7e9, 14e9, 4.4e-3)]
    records[1] = records[1].model_copy(update={"work": None})
    part = only_part(run_of(records), gpu_ceilings())
    assert part.notes[-1].startswith("1 case is left out, as the record does not say how much it moves: inference mod")


def test_every_report_has_it() -> None:
    run, known = roofline_run(), gpu_ceilings()
    sentence = only_part(run, known).sentence
    text = shown(run, known)
    assert "gemm bf16 16x8192x8192: bound by memory at 80 % of 4 TB/s" in text
    assert max(map(len, text.splitlines())) <= 100
    assert sentence in to_markdown(run, ceilings=known).replace("\\", "")
    page = to_html(run, ceilings=known)
    assert '<h2 id="roofline">What bounds each case</h2>' in page
    assert "Under the roofline of NVIDIA H200" in page
    if vega.is_installed():
        assert to_png(run, ceilings=known).startswith(b"\x89PNG")


def test_the_chart_tells_everything_in_words() -> None:
    chart = only_part(roofline_run(), gpu_ceilings()).chart
    assert chart is not None
    assert "inference model-4 bf16: 1 FLOP/byte, 3.182 TFLOP/s, bound by memory at 80 % of 4 TB/s" in chart.description


@pytest.mark.parametrize("furthest", [2000.0, 6000.0, 50_000.0])
def test_the_name_of_a_short_slope_does_not_cover_the_axis(furthest: float) -> None:
    known = KnownCeilings(datasheet=(ceiling("compute", "bf16", 800e12), ceiling("memory", "device memory", 4e12)))
    run = run_of([inference(index, 1e9, 2e9 * at, 2e9 * at / 3e14) for index, at in enumerate((300.0, furthest))])
    chart = only_part(run, known).chart
    assert chart is not None
    (name,) = [layer for layer in chart.spec["layer"] if "device memory" in str(layer["data"])]
    low, high = name["encoding"]["x"]["scale"]["domain"]
    (place,) = name["data"]["values"]
    middle = WIDTH * math.log(place["intensity"] / low) / math.log(high / low)
    assert middle > 3 * len(place["text"]) * math.cos(math.radians(name["mark"]["angle"]))


@pytest.mark.skipif(not vega.is_installed(), reason="needs vl-convert: pip install '.[charts]'")
def test_crowds_of_cases_can_be_drawn() -> None:
    many = run_of([inference(index, 1e9, 2e9 * (1 + index % 7), 1e-3) for index in range(MOST_POINTS + 50)])
    chart = only_part(many, gpu_ceilings()).chart
    assert chart is not None
    assert chart.notes == (f"{MOST_POINTS} of {MOST_POINTS + 50} cases are drawn.",)
    drawn = charts.draw_svg(chart, "roof")
    assert drawn.count("<text") < 100


def test_hostile_names_stay_text() -> None:
    one = inference(0, 7e9, 14e9, 4.4e-3)
    bad = one.model_copy(update={"case": one.case.model_copy(update={"title": HOSTILE})})
    other = inference(1, 7e9, 14e9, 4.4e-3)
    page = to_html(run_of([bad, other]), ceilings=gpu_ceilings())
    assert "<script>alert" not in page
    assert "\x1b" not in shown(run_of([bad, other]), gpu_ceilings())
