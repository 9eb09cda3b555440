"""A suite expands to the product of its lists; the largest batch is found for every threshold."""

from __future__ import annotations

import itertools
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from paceline.benchmarks._model.session import LARGEST_BATCH, largest
from paceline.core.benchmark import Benchmark, Context
from paceline.core.parameters import Parameters
from paceline.core.record import Result
from paceline.core.suite import Here, Suite, expand


class Inner(BaseModel):
    x: int = 0
    y: str = ""


class GridParameters(Parameters):
    a: int = 0
    b: str = ""
    c: bool = False
    shape: list[int] = []
    inner: Inner = Inner()


class Grid(Benchmark[GridParameters]):
    name = "grid"
    summary = ""
    Parameters = GridParameters
    metrics = ()
    primary = ""

    def measure(self, parameters: GridParameters, context: Context) -> Result:
        return Result()


integers = st.lists(st.integers(-9, 9), min_size=1, max_size=4)
words = st.lists(st.text("abc", max_size=3), min_size=1, max_size=4)
entries = st.fixed_dictionaries(
    {},
    optional={
        "a": integers | st.integers(),
        "b": words | st.text(max_size=3),
        "c": st.lists(st.booleans(), min_size=1, max_size=3),
        "shape": st.lists(st.integers(), max_size=5),
        "inner": st.fixed_dictionaries({}, optional={"x": integers, "y": words}),
        "repeat": st.integers(1, 3),
        "target": st.lists(st.sampled_from(["cpu", "cuda:0"]), min_size=1, max_size=2),
    },
)


def expected_count(entry: dict[str, Any]) -> int:
    lists = [value for key, value in entry.items() if isinstance(value, list) and key != "shape"]
    lists += entry.get("inner", {}).values()
    return math.prod(map(len, lists)) * entry.get("repeat", 1)


@given(st.lists(entries, min_size=1, max_size=3))
def test_the_number_of_cases_is_the_product_of_the_lists_lengths(suite: list[dict[str, Any]]) -> None:
    document = {"name": "s", "cases": [{"benchmark": "grid", **entry} for entry in suite]}
    found = expand(Suite.read(document, "s"), lambda _name: Grid, Here(devices={"cuda": 1}))
    assert len(found) == sum(map(expected_count, suite))
    assert [case.index for case in found] == list(range(len(found)))


@given(integers, words, st.permutations(["a", "b"]))
def test_cases_come_in_the_order_of_nested_loops(a: list[int], b: list[str], order: list[str]) -> None:
    axes: dict[str, list[Any]] = {"a": a, "b": b}
    document = {"name": "s", "cases": [{"benchmark": "grid"} | {key: axes[key] for key in order}]}
    found = expand(Suite.read(document, "s"), lambda _name: Grid, Here())
    assert [tuple(case.parameters[key] for key in order) for case in found] == list(
        itertools.product(*(axes[key] for key in order))
    )


@given(st.integers(0, LARGEST_BATCH + 1000) | st.integers(0, 40))
def test_the_largest_batch_is_found_to_a_sixteenth_in_logarithmically_many_trials(most: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= most

    found = largest(fits)
    reachable = min(most, LARGEST_BATCH)
    assert found <= reachable
    assert reachable - found <= found / 16
    assert found == 0 or found in tried
    assert len(tried) == len(set(tried)) <= math.log2(max(1, reachable)) + 6
    # A trial far beyond what fits may take the whole machine down.
    assert max(tried) <= max(1, 2 * most)
