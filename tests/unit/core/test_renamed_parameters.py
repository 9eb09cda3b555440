"""Parameters that got another name: suites, settings and records with the earlier one mean the same work."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import RENAMED, Case
from paceline.core.suite import Here, Suite, expand
from support.refused import refused


def cases(entry: dict[str, Any], overrides: dict[str, Any] | None = None) -> list[Case]:
    return expand(Suite(name="s", cases=[entry]), BENCHMARKS.get, Here(), overrides)


@pytest.mark.parametrize(("benchmark", "names"), RENAMED.items())
def test_the_new_names_are_parameters_and_the_earlier_ones_are_not(benchmark: str, names: dict[str, str]) -> None:
    fields = BENCHMARKS.get(benchmark).Parameters.model_fields
    assert not names.keys() & fields.keys()
    assert set(names.values()) <= fields.keys()


def test_a_suite_of_an_earlier_version_is_the_same_work() -> None:
    (old,) = cases({"benchmark": "tcp", "hosts": ["a:1"], "peer": "node2"})
    (new,) = cases({"benchmark": "tcp", "endpoints": ["a:1"], "remote_host": "node2"})
    assert old == new
    assert cases({"benchmark": "tcp"}, {"tcp.peer": "node2"}) == cases({"benchmark": "tcp", "remote_host": "node2"})
    assert cases({"benchmark": "rdma"}, {"peer": "node2"})[0].parameters["remote_host"] == "node2"


def test_a_record_of_an_earlier_version_is_comparable_with_a_new_one() -> None:
    (new,) = cases({"benchmark": "collective", "operation": "broadcast"})
    stored = new.model_dump(mode="json")
    stored["parameters"]["hosts"] = stored["parameters"].pop("hostfile")
    assert Case.model_validate(stored).key == new.key
    assert Case.model_validate(stored) == new


def test_both_names_at_once_are_refused() -> None:
    with refused("duplicate-key", key="hosts", suggestion="endpoints", case=1):
        cases({"benchmark": "tcp", "hosts": ["a:1"], "endpoints": ["a:1"]})
