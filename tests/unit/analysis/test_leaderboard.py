"""Places, ties, machines and what a dollar or a watt buys."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.cost import Prices, read_price
from paceline.analysis.leaderboard import Board, boards
from paceline.core.record import Measurement, RecordWarning
from paceline.core.run import RunRecords
from support.records import ENERGY, ENVIRONMENT, STEP_TIME, case, literal_run, record, run_of, sample_run, throughput
from support.refused import refused
from support.serving_records import rates_run

FREE = Prices({})


def on(device: str, seconds: list[float], *, torch: str = "2.9.1", energy: float = 0.0, **more: Any) -> RunRecords:
    """32 images a step on one device."""
    times = Measurement.of_samples(STEP_TIME, seconds)
    found = [Measurement.of_rate(throughput("images/s"), 32, times), times]
    found += [Measurement.of_value(ENERGY, energy)] if energy else []
    about = case(0, "train", "resnet50 bf16", model="resnet50", precision="bf16", batch_size=32)
    software = ENVIRONMENT["software"] | {"packages": {"torch": torch}}
    environment = ENVIRONMENT | {"gpus": [{"name": device}], "software": software}
    return run_of([record(about, found, facts={"device": device}, **more)], environment=environment)


def steady(seconds: float) -> list[float]:
    return [seconds * (1 + 0.001 * (place % 3)) for place in range(20)]


def only(*sources: RunRecords, **more: Any) -> Board:
    (board,) = boards(sources, more.pop("prices", FREE), **more)
    return board


def test_machines_are_ranked_best_first() -> None:
    board = only(on("NVIDIA H100", steady(0.2)), on("NVIDIA H200", steady(0.1)))
    assert [(entry.place, entry.machine) for entry in board.entries] == [(1, "NVIDIA H200"), (2, "NVIDIA H100")]
    assert board.work == "train resnet50"
    assert board.entries[0].software == {"torch": "2.9.1", "driver": "570.86.15", "Paceline": "0.1.0"}


def test_what_cannot_be_told_apart_shares_a_place() -> None:
    noisy = [0.1, 0.12, 0.09, 0.11, 0.1, 0.13]
    board = only(on("A", steady(0.101)), on("B", noisy), on("C", steady(0.5)), on("D", steady(0.7)))
    assert [(entry.place, entry.machine) for entry in board.entries] == [(1, "A"), (1, "B"), (3, "C"), (4, "D")]
    assert [entry.machine for entry in board.leaders] == ["A", "B"]


def test_software_is_a_row_of_its_own() -> None:
    board = only(on("A", steady(0.1), torch="2.9.1"), on("A", steady(0.12), torch="2.8.0"))
    assert [entry.software["torch"] for entry in board.entries] == ["2.9.1", "2.8.0"]


def test_measurements_of_the_same_are_one_row_that_allows_for_all() -> None:
    board = only(on("A", steady(0.1)), on("A", steady(0.2)))
    (entry,) = board.entries
    assert entry.count == 2
    assert entry.reading.low is not None and entry.reading.high is not None
    assert entry.reading.low < 165 and entry.reading.high > 315


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
