"""What holds for any case under any roof, for any loss over ranks, and for any grid."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.analysis.heatmap import heat_maps
from paceline.analysis.roofline import BEYOND, Bound, KnownCeilings, rooflines
from paceline.analysis.scaling import scaling
from paceline.analysis.summary import summarize_run
from paceline.report.run.sections.roofline import roofline_parts
from support.insight_records import EXPOSED, ceiling, cell, data_parallel, inference, of_ranks
from support.records import run_of

sizes = st.floats(1e3, 1e12)
seconds = st.floats(1e-6, 1e3)


@given(weights=sizes, flops=sizes, took=seconds, peak=sizes, bandwidth=sizes)
def test_a_case_is_held_against_the_lower_ceiling(
    weights: float, flops: float, took: float, peak: float, bandwidth: float
) -> None:
    known = KnownCeilings((ceiling("compute", "bf16", peak), ceiling("memory", "device memory", bandwidth)), "here")
    summary = summarize_run(run_of([inference(0, weights, flops, took)]))
    found = rooflines(summary.source, summary.rows, known)
    (placed,) = found.rooflines[0].placed
    roof = min(peak, placed.work.intensity * bandwidth)
    if not placed.is_cached:
        assert placed.share == pytest.approx(placed.work.rate / roof)
    else:
        assert placed.work.traffic > BEYOND * bandwidth
        assert placed.bound is not Bound.MEMORY
    (part,) = roofline_parts(found)
    assert part.chart is not None and part.sentence.endswith(".")


@given(alone=seconds, together=seconds, waits=st.lists(st.floats(0, 10), min_size=2, max_size=5))
def test_the_parts_of_the_lost_time_add_up_to_it(alone: float, together: float, waits: list[float]) -> None:
    ranks = len(waits)
    records = [data_parallel(0, 1, alone), data_parallel(1, ranks, together, found=of_ranks(EXPOSED, waits))]
    (found,) = scaling(summarize_run(run_of(records)).rows)
    last = found.largest
    assert last.efficiency == pytest.approx(alone / together)
    assert all(seconds > 0 for seconds in last.losses.values())
    assert last.lost == pytest.approx(max(0.0, together - alone), rel=1e-6, abs=1e-9 * together)


axes = st.sets(st.integers(1, 4096), min_size=2, max_size=5)


@given(batches=axes, sequences=axes)
def test_a_full_grid_is_one_map_with_every_case_in_its_place(batches: set[int], sequences: set[int]) -> None:
    places = list(product(sorted(batches), sorted(sequences)))
    summary = summarize_run(run_of([cell(index, *place, 1.0 + index) for index, place in enumerate(places)]))
    maps = heat_maps(summary.rows)
    assert len(maps) == (len(places) >= 6)
    for one in maps:
        names = {one.x: 0, one.y: 1}
        order = ("batch_size", "sequence")
        told = {tuple((each.x, each.y)[names[name]] for name in order): each.row for each in one.cells}
        assert {place: row.case.index for place, row in told.items() if row} == {
            place: index for index, place in enumerate(places)
        }
