"""What a served case says of its load and of what was promised."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.benchmarks.serving import trace_metrics
from paceline.core.record import Measurement, Record
from paceline.core.subject import ServedLoad
from support.records import case, record
from support.serving_records import parameters


def served(facts: dict[str, Any] | None = None, **changes: Any) -> Record:
    return record(case(0, "serve", "resnet18", target="cpu", **parameters("torch", 8) | changes), facts=facts or {})


def load_of(facts: dict[str, Any] | None = None, **changes: Any) -> ServedLoad:
    load = served(facts, **changes).load
    assert load is not None
    return load


def test_a_search_sends_as_users_come_and_is_of_its_slo() -> None:
    load = load_of()
    assert (load.loop, load.kind, load.rate) == ("open", {"arrival": "poisson"}, None)
    assert load.traffic["search"] and load.traffic["slo"]["p99"] == 0.05
    assert (load.slo, load.slo_errors) == ({"p99": 0.05}, 0.01)


def test_how_much_load_there_was_is_no_part_of_its_kind_and_how_long_none_of_its_traffic() -> None:
    few, many = (load_of(load={"arrival": "poisson", "rate": rate, "duration": 5.0}) for rate in (50.0, 90.0))
    assert few.kind == many.kind == {"arrival": "poisson"}
    assert few.traffic == {"arrival": "poisson", "rate": 50.0}
    assert (few.rate, many.rate) == (50.0, 90.0)
    assert few.setting == many.setting == load_of().setting
    assert few.setting != load_of(load={"arrival": "closed", "users": 8}).setting


@pytest.mark.parametrize(
    ("fact", "met", "reason"),
    [("held", True, ""), ("missed: p99 is 90 ms, above 50 ms", False, "p99 is 90 ms, above 50 ms"), (None, None, "")],
)
def test_whether_the_slo_was_met_is_known_from_a_case_that_judged_it(
    fact: str | None, met: bool | None, reason: str
) -> None:
    load = load_of({"slo": fact} if fact else {})
    assert (load.slo_met, load.slo_missed_because) == (met, reason)


def test_an_slo_that_is_open_is_neither_met_nor_missed() -> None:
    load = load_of({"slo": "not decidable yet: 380 more requests"})
    assert (load.slo_met, load.slo_missed_because) == (None, "")
    assert load.slo_undecided == "not decidable yet: 380 more requests"


def test_usual_requests_go_without_saying() -> None:
    assert load_of().requests == {}
    assert load_of(requests={"samples": 4, "form": "image"}).requests == {"samples": 4, "form": "image"}
    assert load_of(requests={"samples": 4}).samples == 4


def test_where_the_server_is_and_how_requests_get_there() -> None:
    server = {"kind": "url", "url": "http://gpu7:8000", "model": "resnet18"}
    assert load_of(server=server).server == "http://gpu7:8000"
    assert load_of().server == ""
    assert load_of(wire="kserve-shm").is_shared_memory and not load_of().is_shared_memory


@pytest.mark.parametrize(
    ("loop", "leads"), [({"arrival": "closed", "users": 8}, ""), ({"arrival": "poisson", "rate": 9.0}, "latency_p95")]
)
def test_the_highest_measured_percentile_leads_where_the_rate_was_chosen(loop: dict[str, Any], leads: str) -> None:
    found = [Measurement.of_value(trace_metrics.PERCENTILES[name], 0.1) for name in ("p50", "p95")]
    where = case(0, "serve", "resnet18", target="cpu", **parameters("torch", 8, load=loop))
    assert record(where, found).primary == leads


@pytest.mark.parametrize(
    "facts",
    [
        {"price": "0.53 USD per hour (g4dn: list, 2026-01)", "price_basis": "g4dn: list, 2026-01"},
        {"price": "0.53 USD per hour (g4dn: list, 2026-01)"},  # of an earlier version
    ],
)
def test_what_a_price_is_based_on(facts: dict[str, Any]) -> None:
    assert served(facts).economy.price_basis == "g4dn: list, 2026-01"
    assert served().economy.price_basis == ""
