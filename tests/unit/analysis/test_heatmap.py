"""Maps are found where cases form a grid, and nowhere else; a place without a figure says why."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest

from paceline.analysis.heatmap import NO_CASE, NOT_RUN, PRECISIONS, HeatMap, heat_maps, pair_maps
from paceline.analysis.summary import summarize_run
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import RunRecords
from support.insight_records import cell, grid_run
from support.records import case, record, run_of

RATE = Metric(name="rate", unit="B/s", better=Better.HIGHER)
TIME = Metric(name="time", unit="s", better=Better.LOWER)


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


def measured(index: int, parameters: dict[str, Any], *measurements: Measurement, **more: Any) -> Record:
    return record(case(index, "bench", f"case {index}", **parameters), list(measurements), **more)


def rates(parameters: list[dict[str, Any]]) -> list[Record]:
    return cases(parameters).records


def test_a_setting_that_all_cases_share_does_not_name_a_map() -> None:
    (drawn,) = maps(grid_run())
    assert drawn.same == ()


def test_the_cells_are_in_rows_from_the_least_to_the_most() -> None:
    (drawn,) = maps(cases(grid(a=[3, 1, 2], b=[20, 10])))
    assert [(one.x, one.y) for one in drawn.cells] == [(1, 10), (2, 10), (3, 10), (1, 20), (2, 20), (3, 20)]
    assert drawn.benchmark == "bench"
    assert [one.figure.value for one in drawn.measured if one.figure] == [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    assert drawn.missing == []


def test_five_cases_are_no_map_even_where_they_fill_most_of_a_grid() -> None:
    assert len(maps(cases(grid(a=[1, 2, 3], b=[1, 2])))) == 1
    assert maps(cases(grid(a=[1, 2, 3], b=[1, 2])[:-1])) == []


@pytest.mark.parametrize(
    ("holes", "count"), [([(2, 3), (3, 3), (4, 3)], 1), ([(2, 3), (3, 3), (4, 3), (4, 2)], 0)], ids=["75 %", "67 %"]
)
def test_three_quarters_of_a_grid_are_enough(holes: list[tuple[int, int]], count: int) -> None:
    some = [one for one in grid(a=[1, 2, 3, 4], b=[1, 2, 3]) if (one["a"], one["b"]) not in holes]
    drawn = maps(cases(some))
    assert len(drawn) == count
    assert [(one.x, one.y) for one_map in drawn for one in one_map.missing] == holes * count


def test_targets_ranks_and_benchmarks_have_maps_of_their_own() -> None:
    wanted = grid(a=[1, 2, 3], b=[1, 2])
    about = [("bench", "cuda:0", 1), ("bench", "cpu", 1), ("bench", "cuda:0", 2), ("other", "cuda:0", 1)]
    records = [
        record(
            case(6 * place + index, name, f"case {index}", target=target, ranks=ranks, **one),
            [Measurement.of_value(RATE, 1.0)],
        )
        for place, (name, target, ranks) in enumerate(about)
        for index, one in enumerate(wanted)
    ]
    drawn = maps(run_of(records))
    assert [one.benchmark for one in drawn] == ["bench", "bench", "bench", "other"]
    places = [one.cells[0].row.case for one in drawn if one.cells[0].row]
    assert [(one.benchmark, one.target, one.ranks) for one in places] == about


def test_a_setting_that_only_some_cases_have_divides_the_maps() -> None:
    plain = grid(a=[1, 2, 3], b=[1, 2])
    drawn = maps(cases([*plain, *(one | {"extra": "yes"} for one in plain)]))
    assert [one.same for one in drawn] == [(), (("extra", "yes"),)]
    assert [one.figure.value for one in drawn[1].cells if one.figure] == [7.0, 9.0, 11.0, 8.0, 10.0, 12.0]


def test_cases_without_one_of_the_axes_are_not_in_the_map() -> None:
    others = [{"a": one["a"], "c": one["b"]} for one in grid(a=[1, 2, 3], b=[1, 2])]
    (drawn,) = maps(cases([*grid(a=[1, 2, 3], b=[1, 2]), *others]))
    assert (drawn.x, drawn.y, drawn.same) == ("a", "b", ())
    assert [one.figure.value for one in drawn.cells if one.figure] == [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]


def test_a_single_line_of_cells_is_no_map() -> None:
    line = [1, 2, 3, 4, 5, 6]
    places = [("m", 1), ("n", 2), ("o", 2)]
    assert maps(cases([{"model": name, "a": a, "b": b} for name, b in places for a in line])) == []


@pytest.mark.parametrize(("names", "count"), [(6, 6), (7, 0)])
def test_a_run_that_varies_eight_settings_is_a_grid_and_with_nine_a_search(names: int, count: int) -> None:
    settings = [{f"n{place}": "x" if place == chosen else "y" for place in range(names)} for chosen in range(names)]
    drawn = maps(cases([one | few for one in settings for few in grid(a=[1, 2, 3], b=[1, 2])]))
    assert len(drawn) == count


@pytest.mark.parametrize("name", ["timeout", "budget", "seed"])
def test_how_long_and_how_exactly_was_measured_is_no_axis(name: str) -> None:
    assert maps(cases(grid(**{name: [1, 2, 3], "b": [1, 2]}))) == []
    drawn = maps(
        cases([{name: one["a"], "b": one["b"], "c": one["c"]} for one in grid(a=[1, 2], b=[1, 2, 3], c=[1, 2])])
    )
    assert [(one.x, one.y, one.same) for one in drawn] == [("b", "c", ((name, "1"),)), ("b", "c", ((name, "2"),))]


@pytest.mark.parametrize("values", [[False, True], [1, 2, "auto"], ["bf16", 16, 32], ["bf16", "fp32", "any"]])
def test_only_numbers_alone_or_precisions_alone_are_an_axis(values: list[Any]) -> None:
    assert maps(cases(grid(a=values, b=[1, 2, 3]))) == []


def test_all_precisions_that_there_are_are_an_axis() -> None:
    (drawn,) = maps(cases(grid(precision=list(reversed(PRECISIONS)), size=[1, 2])))
    assert (drawn.x, drawn.xs, drawn.ys) == ("precision", PRECISIONS, (1, 2))


def test_of_maps_of_one_size_those_over_numbers_are_drawn() -> None:
    drawn = maps(cases(grid(precision=["bf16", "fp32", "fp64"], a=[1, 2, 3], b=[1, 2, 3])))
    assert [(one.x, one.y, one.same) for one in drawn] == [
        ("a", "b", (("precision", "bf16"),)),
        ("a", "b", (("precision", "fp32"),)),
        ("a", "b", (("precision", "fp64"),)),
    ]


def test_of_axes_of_one_length_the_first_lies() -> None:
    (drawn,) = maps(cases(grid(a=[1, 2, 3], b=[4, 5, 6])))
    assert (drawn.x, drawn.y) == ("a", "b")


@pytest.mark.parametrize(("values", "count"), [(4, 1), (3, 0)])
def test_a_map_has_four_figures_at_least(values: int, count: int) -> None:
    records = rates(grid(a=[1, 2, 3], b=[1, 2]))
    lost = [one.model_copy(update={"outcome": Outcome.FAILED, "measurements": []}) for one in records[values:]]
    drawn = maps(run_of([*records[:values], *lost]))
    assert len(drawn) == count
    assert [len(one.measured) for one in drawn] == [4] * count


def test_four_figures_of_which_one_is_another_metric_are_no_map() -> None:
    records = rates(grid(a=[1, 2, 3], b=[1, 2]))
    other = measured(3, records[3].case.parameters, Measurement.of_value(TIME, 1.0))
    lost = [one.model_copy(update={"outcome": Outcome.FAILED, "measurements": []}) for one in records[4:]]
    assert maps(run_of([*records[:3], other, *lost])) == []


def test_a_map_without_figures_does_not_hide_its_neighbour() -> None:
    records = rates(grid(model=["m", "n"], a=[1, 2, 3], b=[1, 2]))
    lost = [one.model_copy(update={"outcome": Outcome.FAILED}) for one in records[:6]]
    assert [one.same for one in maps(run_of([*lost, *records[6:]]))] == [(("model", "n"),)]


def test_a_map_is_of_the_metric_that_most_cases_have() -> None:
    places = grid(a=[1, 2, 3, 4], b=[1, 2])
    first = [
        measured(0, places[0], Measurement.of_value(TIME, 0.5)),
        measured(1, places[1], Measurement.of_value(RATE.model_copy(update={"unit": "MB/s"}), 0.5)),
    ]
    (drawn,) = maps(run_of([*first, *rates(places)[2:]]))
    assert (drawn.metric, len(drawn.measured)) == (RATE, 6)
    assert [(one.missing, one.cause, one.row.record if one.row else None) for one in drawn.missing] == [
        ("no rate", "", first[0]),
        ("no rate", "", first[1]),
    ]


def test_what_is_no_number_is_no_figure() -> None:
    places = grid(a=[1, 2, 3], b=[1, 2])
    odd = measured(0, places[0], Measurement.of_value(RATE, math.nan))
    (drawn,) = maps(run_of([odd, *rates(places)[1:]]))
    assert [(one.x, one.y, one.missing) for one in drawn.missing] == [(1, 1, "no rate")]


def test_a_case_that_measured_nothing_says_so() -> None:
    places = grid(a=[1, 2, 3], b=[1, 2])
    (drawn,) = maps(run_of([measured(0, places[0]), *rates(places)[1:]]))
    assert [(one.missing, one.row is not None) for one in drawn.missing] == [("no rate", True)]


def test_a_case_that_failed_has_no_figure_whatever_it_measured() -> None:
    records = rates(grid(a=[1, 2, 3], b=[1, 2]))
    failed = records[0].model_copy(update={"outcome": Outcome.TIMEOUT})
    (drawn,) = maps(run_of([failed, *records[1:]]))
    assert [(one.missing, one.cause) for one in drawn.missing] == [("timeout", "")]


def test_of_repetitions_without_a_figure_the_one_that_failed_says_why() -> None:
    places = grid(a=[1, 2, 3], b=[1, 2])
    empty, failed = measured(6, places[0]), measured(7, places[0], outcome=Outcome.FAILED)
    (drawn,) = maps(run_of([*rates(places)[1:], empty, failed]))
    (lost,) = drawn.missing
    assert (lost.missing, lost.row.record if lost.row else None) == ("failed", failed)


def test_of_repetitions_those_with_a_figure_count() -> None:
    records = rates(grid(a=[1, 2, 3], b=[1, 2]))
    failed = measured(6, records[0].case.parameters, outcome=Outcome.FAILED)
    waiting = case(7, "bench", "case 7", **records[0].case.parameters)
    (drawn,) = maps(run_of([*records, failed], not_run=[waiting]))
    assert drawn.missing == []
    assert drawn.cells[0].row is not None and drawn.cells[0].row.record == records[0]


@pytest.mark.parametrize(
    ("values", "middle"), [([4.0, 2.0], 4.0), ([1.0, 5.0, 3.0, 2.0, 4.0], 3.0), ([4.0, 3.0, 1.0, 2.0], 3.0)]
)
def test_the_middle_of_repetitions_is_the_upper_one_of_an_even_number(values: list[float], middle: float) -> None:
    repeated = [one | {"seed": 1} for one in grid(a=[1, 2, 3], b=[1, 2]) for _ in values]
    records = [
        measured(index, one, Measurement.of_value(RATE, values[index % len(values)]))
        for index, one in enumerate(repeated)
    ]
    (drawn,) = maps(run_of(records))
    assert [one.figure.value for one in drawn.cells if one.figure] == [middle] * 6


def test_rows_of_two_runs_that_measured_the_same_share_a_map() -> None:
    places = grid(a=[1, 2, 3], b=[1, 2])
    rows = [
        row
        for samples in ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0])
        for row in summarize_run(
            run_of([measured(at, one, Measurement.of_samples(RATE, samples)) for at, one in enumerate(places)])
        ).rows
    ]
    (drawn,) = heat_maps(rows)
    assert [one.figure.value for one in drawn.cells if one.figure] == [2.0] * 6


def test_lists_tell_maps_apart() -> None:
    drawn = maps(cases(grid(shape=[[1, 2], [3, 4]], a=[1, 2, 3], b=[1, 2])))
    assert [one.same for one in drawn] == [(("shape", "[1, 2]"),), (("shape", "[3, 4]"),)]


def test_knobs_that_are_no_numbers_are_no_axis() -> None:
    names = [f"generated/fc:kind=relu,layers={depth}, width={width}" for depth in (2, 4) for width in (64, 128, 256)]
    (drawn,) = maps(cases([{"server": {"model": name}} for name in names]))
    assert (drawn.x, drawn.xs, drawn.y, drawn.ys, drawn.same) == ("width", (64, 128, 256), "layers", (2, 4), ())


def test_only_a_model_has_knobs() -> None:
    named = [
        {"a": one["a"], "b": one["b"], "model": None, "note": "generated/fc:layers=2"}
        for one in grid(a=[1, 2, 3], b=[1, 2])
    ]
    other = [one | {"note": "generated/fc:layers=4"} for one in named]
    assert [one.same for one in maps(cases([*named, *other]))] == [
        (("note", "generated/fc:layers=2"),),
        (("note", "generated/fc:layers=4"),),
    ]


def test_a_case_that_measured_pairs_of_ends_is_a_map_of_its_own() -> None:
    ends = ["a", "b", "c", "d"]
    speeds = {(one, other): 10.0 * ends.index(one) + ends.index(other) for one in ends for other in ends if one < other}
    figures = [Measurement.of_value(RATE, value, at={"one": a, "other": b}) for (a, b), value in speeds.items()]
    run = run_of([record(case(0, "bench", "pairs"), [Measurement.of_value(RATE, 1.0), *figures])])
    (found,) = pair_maps(summarize_run(run).rows)
    assert found.xs == found.ys == tuple(ends)
    shown = {(one.x, one.y): one.figure.value if one.figure else one.missing for one in found.cells}
    assert shown == {(a, b): speeds.get((min(a, b), max(a, b)), NO_CASE) for a in ends for b in ends}
