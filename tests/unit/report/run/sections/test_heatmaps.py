"""Maps in every report: the figure in each cell, never the colour alone, and why a cell has none."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from paceline.analysis.heatmap import heat_maps
from paceline.analysis.summary import summarize_run
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from paceline.report import charts, vega
from paceline.report.run.document import show, to_html, to_markdown
from paceline.report.run.sections import SectionAnswer
from paceline.report.run.sections.heatmaps import MOST_MAPS, heat_map_parts
from support.insight_records import grid_run
from support.micro_records import rate
from support.records import case, literal_run, record, run_of


def parts(run: RunRecords) -> list[SectionAnswer]:
    summary = summarize_run(run)
    return heat_map_parts(heat_maps(summary.rows, summary.not_run))


def flat_run(columns: int, rows: int, *, third: int = 1) -> RunRecords:
    """A grid of single figures."""
    places = [(a, b, c) for c in range(third) for b in range(rows) for a in range(columns)]
    return run_of([
        record(case(index, "bench", f"{a} {b} {c}", a=a, b=b, name=f"n{c}"),
               [Measurement.of_value(rate("bandwidth"), 1e9 * (1 + a + b))])
        for index, (a, b, c) in enumerate(places)
    ])  # fmt: skip


def test_the_answer_is_the_best_place() -> None:
    (part,) = parts(grid_run())
    assert part.sentence == (
        "Throughput of train gpt2 is best at batch size 64, sequence 256: 131.6 sequences/s, 8.42 times as good as at "
        "batch size 8, sequence 1024; 2 of 12 places did not succeed."
    )


def test_a_case_without_the_figure_did_succeed() -> None:
    run = flat_run(3, 2)
    run.records[0] = run.records[0].model_copy(update={"measurements": [Measurement.of_value(rate("other"), 1e9)]})
    (part,) = parts(run)
    assert part.sentence.endswith("; 1 of 6 has no bandwidth.")


def test_every_place_has_its_figure_or_its_cause() -> None:
    (part,) = parts(grid_run())
    assert part.table is not None
    assert part.table.headers == ("sequence \\ batch size", "8", "16", "32", "64")
    assert part.table.lines[2] == ("1024", "15.62 sequences/s", "22.32 sequences/s", "not run", "out-of-memory")
    assert any("Batch size 64, sequence 1024: out-of-memory: the device has" in note for note in part.notes)


@pytest.mark.skipif(not vega.is_installed(), reason="needs vl-convert: pip install '.[charts]'")
def test_the_figures_stand_in_the_cells() -> None:
    (part,) = parts(grid_run())
    assert part.chart is not None
    drawn = charts.draw_svg(part.chart, "map")
    for text in ("131.6", "15.62", "not run", "no memory"):
        assert f">{text}</text>" in drawn
    assert "batch size 64, sequence 1024: out-of-memory" in part.chart.description


@pytest.mark.skipif(not vega.is_installed(), reason="needs vl-convert: pip install '.[charts]'")
def test_a_large_map_has_its_figures_in_the_table() -> None:
    (part,) = parts(flat_run(30, 20))
    assert part.chart is not None
    assert part.chart.notes == ("The figures of so many places are in the table below.",)
    assert part.table is not None and len(part.table.lines) == 20
    assert charts.draw_svg(part.chart, "map")


def test_more_maps_than_a_page_bears_are_counted() -> None:
    found = parts(flat_run(3, 2, third=MOST_MAPS + 2))
    assert len(found) == MOST_MAPS
    assert found[-1].notes[-1] == "2 more maps of this kind are left out."


def test_every_report_has_it() -> None:
    run = grid_run()
    file = io.StringIO()
    show(run, Console(file=file, width=100))
    assert "Over two parameters" in file.getvalue()
    assert max(map(len, file.getvalue().splitlines())) <= 100
    assert "| sequence \\\\ batch size | 8 | 16 | 32 | 64 |" in to_markdown(run)
    assert 'id="heatmap">Over two parameters' in to_html(run)
    assert 'id="heatmap"' not in to_html(literal_run())
