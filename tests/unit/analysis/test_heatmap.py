"""Maps are found where cases form a grid, and nowhere else; a place without a figure says why."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from paceline.analysis.heatmap import NO_CASE, NOT_RUN, HeatMap, heat_maps
from paceline.analysis.summary import summarize_run
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import RunRecords
from support.insight_records import cell, grid_run
from support.records import case, record, run_of

RATE = Metric(name="rate", unit="B/s", better=Better.HIGHER)


def maps(run: RunRecords) -> list[HeatMap]:
    summary = summarize_run(run)
    return heat_maps(summary.rows, summary.not_run)


def cases(parameters: list[dict[str, Any]], metric: Metric = RATE) -> RunRecords:
    return run_of([
        record(case(index, "bench", f"case {index}", **one), [Measurement.of_value(metric, 1.0 + index)])
        for index, one in enumerate(parameters)
    ])  # fmt: skip


def grid(**axes: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def test_a_grid_over_two_numbers_is_a_map() -> None:
    (found,) = maps(grid_run())
    assert (found.x, found.xs, found.y, found.ys) == ("batch_size", (8, 16, 32, 64), "sequence", (256, 512, 1024))
    assert len(found.cells) == 12
    best = found.measured[0]
    assert (best.x, best.y) == (64, 256)
    assert best.figure is not None and best.figure.value == pytest.approx(40_000 * 64 / 76 / 256)


def test_a_place_without_a_figure_says_why() -> None:
    (found,) = maps(grid_run())
    told = {(one.x, one.y): (one.missing, one.cause) for one in found.missing}
    assert set(told) == {(32, 1024), (64, 1024)}
    assert told[32, 1024] == (NOT_RUN, "")
    assert told[64, 1024][0] == Outcome.OUT_OF_MEMORY.value
    assert "a batch of 64 with 1024 tokens" in told[64, 1024][1]


def test_a_grid_with_a_few_holes_is_one_and_with_many_is_none() -> None:
    full = grid(a=[1, 2, 3, 4], b=[1, 2, 3])
    (found,) = maps(cases(full[:-2]))
    assert [one.missing for one in found.missing] == [NO_CASE, NO_CASE]
    diagonal = [one for one in full if one["a"] <= one["b"]]
    assert maps(cases(diagonal)) == []


def test_few_cases_are_no_map() -> None:
    assert maps(cases(grid(a=[1, 2], b=[1, 2]))) == []
    assert maps(cases(grid(a=[1, 2, 3, 4, 5, 6, 7]))) == []


def test_precisions_are_an_axis_from_narrow_to_wide() -> None:
    (found,) = maps(cases(grid(size=[128, 256, 512], precision=["fp32", "bf16", "fp64"])))
    assert found.ys == ("bf16", "fp32", "fp64")


def test_names_tell_maps_apart_and_are_no_axis() -> None:
    found = maps(cases(grid(model=["m", "n"], a=[1, 2, 3], b=[1, 2])))
    assert [one.same for one in found] == [(("model", "m"),), (("model", "n"),)]
    assert all(len(one.cells) == 6 for one in found)


def test_of_three_axes_the_two_longest_span_the_maps() -> None:
    found = maps(cases(grid(a=[1, 2], b=[1, 2, 3, 4], c=[1, 2, 3])))
    assert [(one.x, one.y, one.same) for one in found] == [("b", "c", (("a", "1"),)), ("b", "c", (("a", "2"),))]


def test_parameters_that_change_together_are_one() -> None:
    square = [one | {"n": one["m"], "k": one["m"]} for one in grid(m=[128, 256, 512], precision=["bf16", "fp32"])]
    (found,) = maps(cases(square))
    assert {found.x, found.y} == {"m", "precision"}


def test_the_knobs_of_a_generated_model_are_parameters() -> None:
    names = [f"generated/fc:layers={depth},width={width}" for depth in (2, 4) for width in (64, 128, 256)]
    (found,) = maps(cases([{"model": name} for name in names]))
    assert (found.x, found.xs, found.y, found.ys) == ("width", (64, 128, 256), "layers", (2, 4))


def test_settings_within_settings_are_parameters() -> None:
    nested = [{"load": {"rate": one["r"]}, "server": {"max_batch": one["b"]}} for one in grid(r=[1, 2, 3], b=[1, 2])]
    (found,) = maps(cases(nested))
    assert {found.x, found.y} == {"load.rate", "server.max_batch"}


def test_lower_may_be_better() -> None:
    (found,) = maps(cases(grid(a=[1, 2, 3], b=[1, 2]), Metric(name="time", unit="s", better=Better.LOWER)))
    assert found.measured[0].figure is not None
    assert found.measured[0].figure.value == 1.0


def test_of_repetitions_the_middle_one_is_shown() -> None:
    records: list[Record] = []
    for batch, sequence in product((8, 16, 32), (256, 512)):
        for value in (9.0, 5.0, 7.0):
            records.append(cell(len(records), batch, sequence, value))
    (found,) = maps(run_of(records))
    assert [one.figure.value for one in found.cells if one.figure] == [pytest.approx(7.0)] * 6


def test_a_search_over_many_parameters_is_no_grid() -> None:
    many = [{f"p{place}": (index + place) % 5 for place in range(12)} | {"x": index} for index in range(60)]
    assert maps(cases(many)) == []
