"""What a sample costs: from a price that is known, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from paceline.analysis.cost import Budget, HourlyPrice, Prices, co2_of, energy_of, read_carbon, read_price, thousand
from paceline.analysis.figures import Reading
from paceline.core.record import Measurement, Record
from paceline.core.run import RunRecords
from support.records import ENERGY, ENVIRONMENT, STEP_TIME, case, record, run_of, throughput
from support.refused import refused
from support.serving_records import rates_run


@dataclass(frozen=True)
class Row:
    instance: str
    device: str
    per_device: float
    basis: str = "list, 2026-01"


TABLE = {
    row.instance: row
    for row in (
        Row("h200.one", "NVIDIA H200", 4.0),
        Row("h100.big", "NVIDIA H100", 10.0),
        Row("h100.small", "NVIDIA H100", 3.0),
        Row("l4.one", "NVIDIA L4", 0.8),
    )
}


def trained(device: str = "NVIDIA H200", *, ranks: int = 1, energy: float | None = None, **more: Any) -> RunRecords:
    """32 images in 0.1 s."""
    times = Measurement.of_samples(STEP_TIME, [0.1, 0.11, 0.09, 0.1])
    found = [Measurement.of_rate(throughput("images/s"), 32, times), times]
    found += [Measurement.of_value(ENERGY, energy)] if energy else []
    target = "cuda:*" if ranks > 1 else "cuda:0"
    about = case(0, "train", "resnet50", model="resnet50", target=target, ranks=ranks, **more)
    environment = ENVIRONMENT | {"gpus": [{"name": device}] * max(1, ranks)}
    return run_of([record(about, found, facts={"device": device})], environment=environment)


def only(source: RunRecords) -> Record:
    return source.records[0]


def test_a_thousand_images_cost_the_price_of_the_time_they_take() -> None:
    source = trained()
    rate = only(source).measurement("throughput")
    assert rate is not None and rate.interval is not None
    cost = thousand(Reading.of(rate), HourlyPrice(3.6, "stated"))
    assert cost.value == pytest.approx(0.001 * 1000 / 320)
    assert cost.low == pytest.approx(1 / rate.interval.high)
    assert cost.high == pytest.approx(1 / rate.interval.low)


def test_energy_and_co2_name_what_they_come_from() -> None:
    measured = only(trained(energy=3.6))
    energy = energy_of(measured)
    assert energy is not None
    assert co2_of(energy, None) is None
    assert (energy.reading.value, energy.unit) == (3.6, "J")
    found = co2_of(energy, 400.0)
    assert found is not None
    assert found.reading.value == pytest.approx(400e-6)
    assert found.inputs == ("energy_per_sample", "carbon intensity 400 g/kWh, as you said")


def test_a_device_that_one_row_rents_has_its_price() -> None:
    source = trained("NVIDIA H200")
    assert Prices(TABLE).of(only(source), source.run) == HourlyPrice(4.0, "h200.one: list, 2026-01")


def test_gpus_are_paid_for_each() -> None:
    source = trained("NVIDIA H200", ranks=8)
    price = Prices(TABLE).of(only(source), source.run)
    assert price == HourlyPrice(32.0, "h200.one: list, 2026-01, 8 of them")


def test_of_several_prices_none_is_guessed() -> None:
    source = trained("NVIDIA H100 80GB HBM3")
    prices = Prices(TABLE)
    assert prices.of(only(source), source.run) is None
    why = prices.why_unknown(only(source), source.run)
    assert "h100.big 10 USD/h" in why and "--price 'H100=h100.big'" in why
    chosen = Prices(TABLE, (read_price("H100=h100.small", TABLE),))
    assert chosen.of(only(source), source.run) == HourlyPrice(3.0, "h100.small: list, 2026-01")


def test_a_name_that_only_begins_alike_is_another_device() -> None:
    source = trained("NVIDIA L40S")
    assert Prices(TABLE).of(only(source), source.run) is None


def test_the_price_of_a_served_case_is_found_in_its_own_figures() -> None:
    source = rates_run()
    for measured in source.records:
        price = Prices({}).of(measured, source.run)
        assert price is not None
        assert price.usd == pytest.approx(0.53)


def test_what_the_user_says_counts_more_than_what_the_record_does() -> None:
    source = rates_run()
    prices = Prices(TABLE, (read_price("2.5 USD/h", TABLE),))
    assert prices.of(source.records[0], source.run) == HourlyPrice(2.5, "as you said")


def test_a_price_for_a_machine_that_nobody_measured_is_refused() -> None:
    prices = Prices(TABLE, (read_price("H1OO=3 USD/h", TABLE),))
    with refused("unknown-machine", key="--price", value="H1OO"):
        prices.refuse_unused(["NVIDIA H100"])


@pytest.mark.parametrize(("text", "usd"), [("2.5 USD/h", 2.5), ("$3/h", 3.0), ("0.08", 0.08), ("4 USD per hour", 4.0)])
def test_prices_as_people_write_them(text: str, usd: float) -> None:
    assert read_price(text, TABLE).usd == usd


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("h300", "unknown-instance-or-price"),
        ("0 USD/h", "unknown-instance-or-price"),
        ("-1", "unknown-instance-or-price"),
        ("1 EUR/h", "unknown-instance-or-price"),
        ("=3", "missing-machine"),
        ("3 USD/1k", "not-per-hour"),
    ],
)
def test_what_is_no_price_is_refused(text: str, code: str) -> None:
    with refused(code, key="--price", value=text):
        read_price(text, TABLE)


def test_budgets_as_people_write_them() -> None:
    assert Budget.read("5 USD/h") == Budget(5.0, "hour")
    assert Budget.read("0.02 USD/1k") == Budget(0.02, "thousand")
    assert Budget.read("0.02 USD per 1000 requests") == Budget(0.02, "thousand")
    for text in ("5", "5 USD/week", "much"):
        with refused("not-a-budget", key="--budget", value=text):
            Budget.read(text)


def test_carbon_as_people_write_it() -> None:
    assert read_carbon("400 g/kWh") == 400.0
    assert read_carbon("0.38kg/kWh") == pytest.approx(380.0)
    for text in ("0", "clean", "400 g/J"):
        with refused("not-a-carbon-intensity", key="--carbon", value=text):
            read_carbon(text)
