"""Places, ties, machines and what a dollar or a watt buys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paceline.analysis.cost import Prices, read_price
from paceline.analysis.leaderboard import Board, boards, is_rate, software_of
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Outcome, RecordWarning
from paceline.core.run import RunRecords
from support.compare_records import renamed
from support.records import (
    ENERGY,
    ENVIRONMENT,
    LOSS,
    STEP_TIME,
    case,
    literal_run,
    record,
    run_of,
    sample_run,
    throughput,
)
from support.refused import refused
from support.serving_records import rates_run

FREE = Prices({})


def on(
    device: str, seconds: list[float], *, torch: str = "2.9.1", energy: float = 0.0, run_id: str = "", **more: Any
) -> RunRecords:
    """32 images a step on one device."""
    times = Measurement.of_samples(STEP_TIME, seconds)
    found = [Measurement.of_rate(throughput("images/s"), 32, times), times]
    found += [Measurement.of_value(ENERGY, energy)] if energy else []
    about = case(0, "train", "resnet50 bf16", model="resnet50", precision="bf16", batch_size=32)
    software = ENVIRONMENT["software"] | {"packages": {"torch": torch}}
    environment = ENVIRONMENT | {"gpus": [{"name": device}], "software": software}
    run = run_of([record(about, found, facts={"device": device}, **more)], environment=environment)
    return renamed(run, run_id) if run_id else run


def several(device: str, seconds: float, spread: float = 0.001, **more: Any) -> list[RunRecords]:
    """Three runs of one device that differ by so much."""
    factors = (1.0, 1.0 + spread, 1.0 - spread)
    return [on(device, steady(seconds * one), run_id=f"{device} {n}", **more) for n, one in enumerate(factors)]


def steady(seconds: float) -> list[float]:
    return [seconds * (1 + 0.001 * (place % 3)) for place in range(20)]


def only(*sources: RunRecords, **more: Any) -> Board:
    (board,) = boards(sources, more.pop("prices", FREE), **more)
    return board


def test_machines_are_ranked_best_first() -> None:
    board = only(*several("NVIDIA H100", 0.2), *several("NVIDIA H200", 0.1))
    assert [(entry.place, entry.machine) for entry in board.entries] == [(1, "NVIDIA H200"), (2, "NVIDIA H100")]
    assert board.work == "train resnet50"
    assert board.entries[0].software == {"torch": "2.9.1", "driver": "570.86.15", "Paceline": "0.1.0"}


def test_what_cannot_be_told_apart_shares_a_place() -> None:
    board = only(*several("A", 0.1), *several("B", 0.101, 0.02), *several("C", 0.5), *several("D", 0.7))
    assert [(entry.place, entry.machine) for entry in board.entries] == [(1, "A"), (1, "B"), (3, "C"), (4, "D")]
    assert [entry.machine for entry in board.leaders] == ["A", "B"]


def test_software_is_a_row_of_its_own() -> None:
    board = only(on("A", steady(0.1), torch="2.9.1"), on("A", steady(0.12), torch="2.8.0"))
    assert [entry.software["torch"] for entry in board.entries] == ["2.9.1", "2.8.0"]


def test_one_run_each_decides_nothing() -> None:
    board = only(on("A", steady(0.1), run_id="a"), on("B", steady(0.2), run_id="b"))
    assert [(entry.place, entry.machine) for entry in board.entries] == [(1, "A"), (1, "B")]


def test_one_run_is_placed_by_how_far_the_runs_of_the_other_scatter() -> None:
    board = only(*several("A", 0.1), on("B", steady(0.2), run_id="b"))
    assert [(entry.place, entry.machine) for entry in board.entries] == [(1, "A"), (2, "B")]


def test_measurements_of_the_same_are_one_row_with_the_interval_of_their_scatter() -> None:
    (entry,) = only(*several("A", 0.1, 0.01)).entries
    assert entry.count == 3
    logs = np.log([one.records[0].measurements[0].value for one in several("A", 0.1, 0.01)])
    reach = stats.t.ppf(0.975, 2) * logs.std(ddof=1) / math.sqrt(3)
    ends = (entry.reading.low, entry.reading.value, entry.reading.high)
    assert ends == pytest.approx(tuple(np.exp(logs.mean() + way * reach) for way in (-1, 0, 1)))


def test_more_runs_never_make_a_difference_less_decidable() -> None:
    """Runs with the scatter of two machines that are 2 % apart: once decided, more runs keep it decided."""
    rng = np.random.default_rng(4)
    noise = 1 + 0.005 * rng.standard_normal((2, 12))
    decided = []
    for count in range(1, 13):
        runs = [
            on(name, steady(0.1 * level * noise[side, n]), run_id=f"{name} {n}")
            for side, (name, level) in enumerate((("A", 1.0), ("B", 1.02)))
            for n in range(count)
        ]
        decided.append([entry.place for entry in only(*runs).entries] == [1, 2])
    assert decided == sorted(decided)
    assert decided[-1] and not decided[0]


def test_a_watt_and_a_dollar_buy_what_is_known() -> None:
    prices = Prices({}, (read_price("A=3.6 USD/h", {}),))
    board = only(on("A", steady(0.1), energy=0.5), on("B", steady(0.2)), prices=prices)
    first, second = board.entries
    assert first.per_joule is not None and first.per_joule.value == pytest.approx(2.0)
    assert first.per_usd is not None and first.per_usd.value == pytest.approx(first.reading.value * 1000)
    assert (second.per_joule, second.per_usd) == (None, None)


def test_warnings_come_along() -> None:
    warning = RecordWarning(kind="contended", message="others ran", remedy="stop them")
    assert only(on("A", steady(0.1), warnings=[warning])).entries[0].warnings == ("contended",)


def test_a_metric_may_be_chosen_and_its_direction_counts() -> None:
    board = only(literal_run(), metric="step_time")
    assert [entry.label for entry in board.entries] == ["fp16", "fp32"]
    assert board.entries[0].per_usd is None
    with refused("unknown-metric", suggestion="step_time"):
        boards([literal_run()], FREE, metric="steptime")


def test_each_work_has_its_board_and_names_narrow_it_down() -> None:
    found = boards([sample_run()], FREE)
    assert len(found) == 5
    assert len(found[0].entries) == 2
    (bert,) = boards([sample_run()], FREE, text="train bert")
    assert bert.work == "train bert-large"


def test_served_loads_are_compared_at_the_same_load() -> None:
    found = boards([rates_run()], FREE)
    assert len(found) == 3
    for board in found:
        assert board.metric.name == "latency_p99"
        assert [entry.label for entry in board.entries] == ["onnxruntime", "torch"]


SCORE = Metric(name="score", unit="points", better=Better.HIGHER)
COST = Metric(name="cost_per_thousand", unit="USD", better=Better.LOWER)


def scored(device: str, *measurements: Measurement, work: str = "resnet50", **more: Any) -> RunRecords:
    """What one device came to, seen once."""
    about = case(0, "train", work, model=work, **more.pop("parameters", {}))
    environment = ENVIRONMENT | {"gpus": [{"name": device}]} | more.pop("environment", {})
    return run_of([record(about, list(measurements), facts={"device": device}, **more)], environment=environment)


def points(value: float) -> Measurement:
    return Measurement.of_value(SCORE, value)


@pytest.mark.parametrize(
    ("unit", "better", "expected"),
    [
        ("images/s", Better.HIGHER, True),
        ("errors/s", Better.LOWER, False),
        ("steps/s", Better.NEITHER, False),
        ("%", Better.HIGHER, False),
        ("s", Better.LOWER, False),
    ],
)
def test_a_rate_is_work_over_time_of_which_more_is_better(unit: str, better: Better, expected: bool) -> None:
    metric = Metric(name="x", unit=unit, better=better)
    assert is_rate(metric) is expected
    assert Board("work", metric, ()).work_unit == (unit.removesuffix("/s") if expected else "")


def test_versions_that_are_not_there_are_left_out() -> None:
    bare = scored("A", points(1.0), environment={"driver": None, "software": {"packages": {}}})
    assert software_of(bare.run) == {"Paceline": "0.1.0"}
    empty = scored(
        "A", points(1.0), environment={"driver": {"version": None}, "software": {"packages": {"torch": "2"}}}
    )
    assert software_of(empty.run) == {"torch": "2", "Paceline": "0.1.0"}


@pytest.mark.parametrize(
    ("values", "places"), [([5.0, 5.0, 4.0], [1, 1, 3]), ([5.0, 4.0, 4.0], [1, 2, 2]), ([3.0, 2.0, 1.0], [1, 2, 3])]
)
def test_equal_values_share_a_place(values: list[float], places: list[int]) -> None:
    runs = [
        renamed(scored(name, points(value * factor)), f"{name} {factor}")
        for name, value in zip("ABC", values, strict=True)
        for factor in (0.999, 1.0, 1.001)
    ]
    board = only(*runs)
    assert [(entry.place, entry.machine) for entry in board.entries] == list(zip(places, "ABC", strict=True))
    assert [entry.place for entry in board.leaders] == [1] * places.count(1)


@pytest.mark.parametrize("better", [Better.HIGHER, Better.LOWER])
@pytest.mark.parametrize("values", [{"A": 1.6e308, "B": 1.7e308}, {"A": 1.7e308, "B": 1.6e308}])
def test_the_largest_numbers_that_there_are_have_an_order(better: Better, values: dict[str, float]) -> None:
    metric = Metric(name="score", unit="points", better=better)
    board = only(*(scored(name, Measurement.of_value(metric, value)) for name, value in values.items()))
    best_first = sorted(values, key=lambda name: values[name], reverse=better is Better.HIGHER)
    assert [entry.machine for entry in board.entries] == best_first


def test_the_machine_is_no_part_of_a_label() -> None:
    board = only(on("NVIDIA H100", steady(0.2)), on("NVIDIA H200", steady(0.1)))
    assert [entry.label for entry in board.entries] == ["bf16 batch_size=32"] * 2
    placed = [("A", "cuda:0", 1, 3.0), ("A", "cpu", 1, 2.0), ("A", "cpu", 4, 1.0)]
    sources = [
        scored(name, points(value), parameters={"target": target, "ranks": ranks, "precision": "bf16"})
        for name, target, ranks, value in placed
    ]
    assert [entry.label for entry in only(*sources).entries] == ["bf16"] * 3


def test_measurements_of_one_row_name_each_warning_and_run_once() -> None:
    kinds = [["contended", "throttled"], ["drifting", "contended"]]
    sources = [
        scored("A", points(1.0), warnings=[RecordWarning(kind=kind, message="so", remedy="do") for kind in each])
        for each in kinds
    ]
    (entry,) = only(*sources).entries
    assert entry.warnings == ("contended", "throttled", "drifting")
    assert entry.runs == (sources[0].run.id,)
    assert (entry.place, entry.count) == (1, 2)


@pytest.mark.parametrize("order", [1, -1])
def test_energy_is_that_of_the_measurements_that_have_it(order: int) -> None:
    sources = [on("A", steady(0.1), energy=0.5), on("A", steady(0.1))][::order]
    (entry,) = only(*sources).entries
    assert entry.per_joule is not None
    assert entry.per_joule.value == 2.0
    assert entry.energy_basis == ("energy_per_sample",)


def test_what_is_no_rate_has_no_work_for_a_joule_or_a_dollar() -> None:
    prices = Prices({}, (read_price("3.6 USD/h", {}),))
    (entry,) = only(on("A", steady(0.1), energy=0.5), prices=prices, metric="step_time").entries
    assert (entry.per_joule, entry.per_usd) == (None, None)
    assert entry.price is not None and entry.price.usd == 3.6
    assert entry.energy_basis == ("energy_per_sample",)


def rented(cost: float) -> RunRecords:
    """500 requests a second, a thousand of them for so much."""
    return scored("A", Measurement.of_value(throughput("requests/s"), 500.0), Measurement.of_value(COST, cost))


def test_a_row_has_a_price_where_all_its_measurements_have_the_same() -> None:
    (entry,) = only(rented(0.001), rented(0.001), metric="throughput").entries
    assert entry.price is not None and entry.price.usd == pytest.approx(1.8)
    assert entry.per_usd is not None and entry.per_usd.value == pytest.approx(1e6)
    (entry,) = only(rented(0.001), rented(0.002), metric="throughput").entries
    assert (entry.count, entry.price, entry.per_usd) == (2, None, None)
    unpriced = scored("A", Measurement.of_value(throughput("requests/s"), 500.0))
    (entry,) = only(unpriced, rented(0.001), metric="throughput").entries
    assert entry.price is not None and entry.price.usd == pytest.approx(1.8)


def test_measurements_without_a_direction_are_no_contest() -> None:
    lost = scored("A", Measurement.of_value(LOSS, 6.9))
    assert boards([lost], FREE) == []
    assert boards([lost], FREE, metric="loss") == []
    with refused("unknown-metric", says="known are score$", value="loss"):
        boards([scored("A", Measurement.of_value(LOSS, 6.9), points(1.0))], FREE, metric="loss")


def test_records_that_lack_the_metric_or_a_number_for_it_are_left_out() -> None:
    sources = [
        scored("A", points(1.0)),
        scored("B", Measurement.of_value(STEP_TIME, 1.0)),
        scored("C", points(math.nan)),
        scored("D", points(2.0), outcome=Outcome.FAILED),
    ]
    assert [entry.machine for entry in only(*sources, metric="score").entries] == ["A"]
    assert boards(sources[2:], FREE) == []


def test_boards_are_sorted_by_size_and_then_by_name() -> None:
    sources = [scored("A", points(1.0), work=work) for work in ("vgg16", "bert", "lstm")]
    sources += [scored("B", points(1.0), work="lstm")]
    assert [board.work for board in boards(sources, FREE)] == ["train lstm", "train bert", "train vgg16"]
    assert [board.work for board in boards(sources, FREE, text="BERT")] == ["train bert"]
    assert boards(sources, FREE, text="gpt") == []


def test_the_same_metric_in_another_unit_is_another_board() -> None:
    other = SCORE.model_copy(update={"unit": "marks"})
    made = boards([scored("A", points(1.0)), scored("A", Measurement.of_value(other, 2.0))], FREE)
    assert [(board.metric.unit, len(board.entries)) for board in made] == [("points", 1), ("marks", 1)]
