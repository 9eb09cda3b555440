"""Scaling in every report: what each rank keeps, by which rule, and what the lost time went to."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from paceline.analysis.scaling import scaling
from paceline.analysis.summary import summarize_run
from paceline.core.record import Record, RecordWarning
from paceline.report import charts, vega
from paceline.report.run.document import show, to_html, to_markdown
from paceline.report.run.sections import SectionAnswer
from paceline.report.run.sections.scaling import scaling_parts
from support.insight_records import EXPOSED, data_parallel, of_ranks, scaling_run
from support.records import literal_run, run_of


def parts(*records: Record) -> list[SectionAnswer]:
    return scaling_parts(scaling(summarize_run(run_of(list(records))).rows))


def test_the_answer_names_the_rule_and_the_losses() -> None:
    waits = of_ranks(EXPOSED, [0.02, 0.02])
    (part,) = parts(data_parallel(0, 1, 0.1), data_parallel(1, 2, 0.125, found=waits))
    assert part.sentence == (
        "From 1 rank to 2, train resnet50 bf16 b32 keeps 80 % of its speed per rank (weak scaling: a batch of 32 for "
        "each rank); lost of its step: 16 % exposed communication, 4.0 % not attributed."
    )
    assert part.todo[0].startswith("hide more of the communication")


def test_good_scaling_asks_for_nothing() -> None:
    (part,) = parts(data_parallel(0, 1, 0.1), data_parallel(1, 2, 0.101))
    assert part.sentence.endswith("(weak scaling: a batch of 32 for each rank).")
    assert part.todo == ()


def test_layouts_are_named_and_told_apart() -> None:
    _, part = parts(*scaling_run().records)
    assert part.sentence.startswith("From 1 rank to 4 as 4x1x1, parallel gpt2/nl24_bf16 keeps 83 %")
    assert part.table is not None
    assert part.table.headers[:5] == ("Ranks", "Mesh", "Throughput", "Efficiency", "Step")
    assert [line[1] for line in part.table.lines] == ["1x1x1", "2x1x1", "4x1x1", "1x2x2"]
    assert "Pipeline bubble" in part.table.headers


def test_shared_cores_are_explained() -> None:
    one = data_parallel(0, 1, 0.1, target="cpu", facts={"threads": 2})
    two = data_parallel(1, 2, 0.25, target="cpu", facts={"threads": 1})
    (part,) = parts(one, two)
    assert "keeps 80 % of its speed (weak" in part.sentence
    assert part.notes[0].startswith("All ranks share the same 2 cores")


def test_warnings_of_the_cases_are_told() -> None:
    warning = RecordWarning(kind="contended", message="others computed", remedy="stop them")
    (part,) = parts(data_parallel(0, 1, 0.3, warnings=[warning]), data_parallel(1, 2, 0.1))
    assert part.source == "The cases have warnings: contended."


def test_every_report_has_it() -> None:
    run = scaling_run()
    file = io.StringIO()
    show(run, Console(file=file, width=100))
    assert "2 ranks: 96 %" in file.getvalue()
    assert max(map(len, file.getvalue().splitlines())) <= 100
    assert "## Scaling over ranks" in to_markdown(run)
    assert 'id="scaling">Scaling over ranks' in to_html(run)
    assert 'id="scaling"' not in to_html(literal_run())


@pytest.mark.skipif(not vega.is_installed(), reason="needs vl-convert: pip install '.[charts]'")
def test_the_chart_has_the_ideal_and_the_lost_time() -> None:
    part, _ = parts(*scaling_run().records)
    assert part.chart is not None
    drawn = charts.draw_svg(part.chart, "scaling")
    for word in ("ideal", "efficiency, %", "lost of a step, ms", "exposed communication", "slower ranks"):
        assert word in drawn
    assert "8 ranks: 70 %" in part.chart.description
