"""What a sample costs: from a price that is known, or not at all."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.analysis.cost import (
    Budget,
    HourlyPrice,
    Prices,
    StatedPrice,
    co2_of,
    energy_of,
    read_carbon,
    read_per_second,
    read_price,
    thousand,
)
from paceline.analysis.summary import Reading
from paceline.core.metric import Better, Metric
from paceline.core.profile import Price
from paceline.core.record import Measurement, Record
from paceline.core.run import RunRecords
from paceline.core.subject import Economy
from support.records import ENERGY, ENVIRONMENT, STEP_TIME, case, record, run_of, throughput
from support.refused import refused
from support.serving_records import rates_run


def row_of(instance: str, device: str, per_device: float) -> Price:
    return Price(instance, 2 * per_device, 2, device, "list, 2026-01")


TABLE = {
    row.instance: row
    for row in (
        row_of("h200.one", "NVIDIA H200", 4.0),
        row_of("h100.big", "NVIDIA H100", 10.0),
        row_of("h100.small", "NVIDIA H100", 3.0),
        row_of("l4.one", "NVIDIA L4", 0.8),
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
    assert energy.reading.value == 3.6
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


COST = Metric(name="cost_per_thousand", unit="USD", better=Better.LOWER)
PER_REQUEST = Metric(name="energy_per_request", unit="J", better=Better.LOWER)


def with_cost(cost: float, rate: float | None, **economy: str) -> RunRecords:
    """On an H200, which the table rents for 4 USD/h."""
    measured = [Measurement.of_value(COST, cost)]
    measured += [Measurement.of_value(throughput("requests/s"), rate)] if rate is not None else []
    facts = {"device": "NVIDIA H200"}
    return run_of([record(case(0, "train", "x"), measured, facts=facts, economy=Economy(**economy))])


def using(*measurements: Measurement, source: str = "") -> Record:
    return record(case(0, "train", "x"), list(measurements), economy=Economy(energy_source=source))


@pytest.mark.parametrize(
    ("cost", "rate", "usd"),
    [
        (0.001, 500.0, 1.8),
        (0.5, 100.0, 180.0),
        (0.0, 500.0, 4.0),
        (0.5, 0.0, 4.0),
        (0.5, None, 4.0),
    ],
)
def test_a_record_has_a_price_where_its_cost_and_its_rate_say_one(cost: float, rate: float | None, usd: float) -> None:
    source = with_cost(cost, rate)
    price = Prices(TABLE).of(only(source), source.run)
    assert price is not None
    assert price.usd == pytest.approx(usd)


@pytest.mark.parametrize(
    ("said", "basis"), [("on demand, 2026-01", "on demand, 2026-01"), ("", "as the run was configured")]
)
def test_the_price_of_a_record_says_where_it_is_from(said: str, basis: str) -> None:
    source = with_cost(0.001, 500.0, price_basis=said)
    assert Prices(TABLE).of(only(source), source.run) == HourlyPrice(1.8, basis)


def test_a_rate_alone_is_no_price() -> None:
    source = trained("NVIDIA L40S")
    assert only(source).measurement("throughput") is not None
    assert Prices({}).of(only(source), source.run) is None


def test_a_price_that_the_user_states_is_of_each_gpu() -> None:
    source = trained("NVIDIA H200", ranks=8)
    prices = Prices(TABLE, (read_price("L4=9 USD/h", TABLE), read_price("H200=2.5 USD/h", TABLE)))
    assert prices.of(only(source), source.run) == HourlyPrice(20.0, "as you said, 8 of them")


@pytest.mark.parametrize(
    ("machine", "device", "fits"),
    [
        ("", "NVIDIA H100", True),
        ("NVIDIA H100", "NVIDIA H100", True),
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("H100 (80GB)", "NVIDIA H100-80GB", True),
        ("H100", "NVIDIA H100 (80GB)", True),
        ("H100 80GB", "NVIDIA H100", False),
        ("H10", "NVIDIA H100", False),
    ],
)
def test_a_stated_price_is_of_the_devices_that_have_all_its_words(machine: str, device: str, fits: bool) -> None:
    assert StatedPrice(machine, 1.0, "as you said").fits(device) is fits


def test_prices_to_choose_from_are_named_with_the_word_that_chooses() -> None:
    rows = [row_of("one.x", "NVIDIA RTX 4090", 0.5), row_of("two.x", "NVIDIA RTX 4090 24GB", 0.75)]
    source = trained("NVIDIA RTX 4090 24GB")
    prices = Prices({row.instance: row for row in rows})
    assert prices.fitting("NVIDIA RTX 4090") == rows[:1]
    assert prices.why_unknown(only(source), source.run) == (
        "NVIDIA RTX 4090 24GB is rented at several prices (one.x 0.5 USD/h, two.x 0.75 USD/h): "
        "choose with --price '4090=one.x'"
    )


def test_a_machine_that_nobody_rents_is_named_with_how_much_of_it() -> None:
    source = trained("NVIDIA L40S", ranks=4)
    why = Prices(TABLE).why_unknown(only(source), source.run)
    assert why == "the price of 4x NVIDIA L40S is not known: state it with --price '2.5 USD/h'"


def test_a_price_that_one_of_the_machines_has_is_not_refused() -> None:
    devices = ["NVIDIA H100", "NVIDIA H200"]
    Prices(TABLE, (read_price("H200=3 USD/h", TABLE), read_price("2 USD/h", TABLE))).refuse_unused(devices)
    Prices(TABLE, (read_price("2 USD/h", TABLE),)).refuse_unused([])
    with refused("unknown-machine", says="has that name: NVIDIA H100, NVIDIA H200$"):
        Prices(TABLE, (read_price("L4=3 USD/h", TABLE),)).refuse_unused([*reversed(devices), *devices])
    with refused("unknown-machine", says="has that name: none$"):
        Prices(TABLE, (read_price("L4=3 USD/h", TABLE),)).refuse_unused([])


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("H100=3 USD/h", StatedPrice("H100", 3.0, "as you said")),
        (" H100 = .5 ", StatedPrice("H100", 0.5, "as you said")),
        ("1_000 USD/hour", StatedPrice("", 1000.0, "as you said")),
        ("1 USD/h", StatedPrice("", 1.0, "as you said")),
        ("l4.one", StatedPrice("", 0.8, "l4.one: list, 2026-01")),
        (" A B = l4.one ", StatedPrice("A B", 0.8, "l4.one: list, 2026-01")),
    ],
)
def test_a_stated_price_says_whose_it_is_and_where_it_is_from(text: str, price: StatedPrice) -> None:
    assert read_price(text, TABLE) == price


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("1e999", "unknown-instance-or-price", "1e999"),
        ("H100=h300", "unknown-instance-or-price", "h300"),
        (" =3", "missing-machine", " =3"),
        ("H100=3 USD/day", "not-per-hour", "H100=3 USD/day"),
    ],
)
def test_what_is_no_price_of_a_machine_is_refused(text: str, code: str, value: str) -> None:
    with refused(code, key="--price", value=value):
        read_price(text, TABLE)


@pytest.mark.parametrize(
    ("text", "budget", "shown"),
    [
        ("5 USD/hour", Budget(5.0, "hour"), "5 USD per hour"),
        ("$0.5 per h", Budget(0.5, "hour"), "0.5 USD per hour"),
        ("0.02 USD/thousand", Budget(0.02, "thousand"), "0.02 USD per 1,000"),
        ("1 USD/1k samples", Budget(1.0, "thousand"), "1 USD per 1,000"),
    ],
)
def test_a_budget_is_shown_as_it_was_meant(text: str, budget: Budget, shown: str) -> None:
    assert Budget.read(text) == budget
    assert str(budget) == shown


@pytest.mark.parametrize("text", ["0 USD/h", "much/h", "/h"])
def test_a_budget_of_nothing_is_refused(text: str) -> None:
    with refused("not-a-budget", key="--budget", value=text):
        Budget.read(text)


@pytest.mark.parametrize(
    ("text", "grams"), [("1", 1.0), ("0.5 g/kWh", 0.5), ("0.0005 kg/kWh", 0.5), ("2kg", 2000.0), ("350 / kWh", 350.0)]
)
def test_carbon_is_in_grams_unless_it_says_kilograms(text: str, grams: float) -> None:
    assert read_carbon(text) == pytest.approx(grams)


@pytest.mark.parametrize(("text", "rate"), [("200/s", 200.0), ("1/s", 1.0), ("0.5/s", 0.5), ("30/min", 0.5)])
def test_rates_to_be_served_as_people_write_them(text: str, rate: float) -> None:
    assert read_per_second(text) == rate


@pytest.mark.parametrize(("text", "code"), [("0/s", "out-of-range"), ("fast", "not-a-rate"), ("5/week", "not-a-rate")])
def test_what_cannot_be_served_is_refused(text: str, code: str) -> None:
    with refused(code, key="--rate", value=text):
        read_per_second(text)


@pytest.mark.parametrize(
    ("request_energy", "sample_energy", "name", "joules"),
    [
        (0.5, 0.25, "energy_per_request", 0.5),
        (0.0, 0.25, "energy_per_sample", 0.25),
        (math.nan, 0.25, "energy_per_sample", 0.25),
        (None, 1.0, "energy_per_sample", 1.0),
        (1.0, None, "energy_per_request", 1.0),
    ],
)
def test_the_energy_is_that_of_a_request_or_otherwise_of_a_sample(
    request_energy: float | None, sample_energy: float | None, name: str, joules: float
) -> None:
    values = {PER_REQUEST: request_energy, ENERGY: sample_energy}
    measured = [Measurement.of_value(metric, value) for metric, value in values.items() if value is not None]
    energy = energy_of(using(*measured))
    assert energy is not None
    assert (energy.reading.value, energy.inputs) == (joules, (name,))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, None])
def test_energy_that_no_counter_reported_is_not_known(value: float | None) -> None:
    measured = [Measurement.of_value(ENERGY, value)] if value is not None else []
    energy = energy_of(using(*measured))
    assert energy is None
    assert co2_of(energy, 400.0) is None
    assert co2_of(energy, None) is None


def test_energy_names_the_counter_that_reported_it() -> None:
    energy = energy_of(using(Measurement.of_value(ENERGY, 7.2), source="NVML"))
    carbon = co2_of(energy, 500.0)
    assert energy is not None and carbon is not None
    assert energy.inputs == ("energy_per_sample", "NVML")
    assert carbon.inputs == ("energy_per_sample", "NVML", "carbon intensity 500 g/kWh, as you said")
    assert carbon.reading.value == pytest.approx(1e-3)
