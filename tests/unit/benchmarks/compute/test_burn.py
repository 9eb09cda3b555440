"""Burn-in: a right device passes, one flipped bit fails it, and what was measured is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from paceline.benchmarks.compute.burn import Burn, BurnParameters, CheckedProduct
from paceline.core.benchmark import BENCHMARKS, Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.core.record import Result
from paceline.core.suite import Here, Suite, expand
from paceline.devices.cpu import CpuDevice
from paceline.measure.digest import bits

CASE = Case(index=0, benchmark="burn", parameters={}, title="", target="cpu")
SMALL = {"duration": 0.05, "size": 32}


def flipping(call: Callable[[], Tensor], at: int, place: int, bit: int) -> Callable[[], Tensor]:
    """The call, one of whose results has one bit flipped."""
    calls = 0

    def flipped() -> Tensor:
        nonlocal calls
        calls += 1
        result = call()
        if calls == at:
            bits(result).view(-1)[place] ^= 1 << bit
        return result

    return flipped


def plant(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    made = CheckedProduct.__post_init__

    def with_flip(self: CheckedProduct) -> None:
        made(self)
        self.product.call = flipping(self.product.call, at, place=37, bit=3)

    monkeypatch.setattr(CheckedProduct, "__post_init__", with_flip)


@pytest.mark.parametrize("formats", [["fp32"], ["fp64", "bf16"]])
def test_a_right_device_passes_with_a_rate_for_each_round(formats: list[str]) -> None:
    result = Burn().measure(BurnParameters.read({**SMALL, "formats": formats}), Context(CASE))
    rate, wrong, *each = result.measurements
    assert (rate.name, wrong.name, wrong.value) == ("compute_rate", "wrong_elements", 0.0)
    assert len(rate.samples) >= 1 and min(rate.samples) > 0
    assert {one.at["format"] for one in each} == (set(formats) if len(formats) > 1 else set())
    assert result.facts["errors"] == [] and set(result.facts["products"]) == set(formats)


def test_one_flipped_bit_fails_the_device_and_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, at=2)  # the first one of a round is not looked at
    kept: list[Result] = []
    with pytest.raises(SilentCorruption) as caught:
        Burn().measure(BurnParameters.read(SMALL), Context(CASE, keep=kept.append))
    assert "cpu" in str(caught.value) and "1 in fp32" in str(caught.value)
    assert "right when it was computed again" in str(caught.value)
    rate, wrong = kept[0].measurements
    assert wrong.value == 1.0 and len(rate.samples) >= 1


def test_an_error_that_stays_is_located() -> None:
    product = CheckedProduct("fp32", BurnParameters.read(SMALL), CpuDevice(), lasts=0.001)
    right = product.product.call

    def wrong() -> Tensor:
        result = right()
        bits(result)[1, 5] ^= 1 << 30
        return result

    product.product.call = wrong
    assert product.run() >= 1
    assert "again in 1 elements: at [1, 5]" in product.locate()


def test_a_product_that_writes_nothing_is_wrong() -> None:
    product = CheckedProduct("fp32", BurnParameters.read(SMALL), CpuDevice(), lasts=0.001)
    last = product.product.call()
    product.product.call = lambda: last
    assert product.run() >= 32 * 32


def test_a_format_that_the_device_lacks_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="fp8"):
        Burn().measure(BurnParameters.read({**SMALL, "formats": "fp8"}), Context(CASE))


def test_hours_have_the_time_that_they_take() -> None:
    def timeout(**keys: object) -> float:
        suite = Suite(name="s", cases=[{"benchmark": "burn", **keys}])
        return expand(suite, BENCHMARKS.registry().get, Here())[0].timeout

    assert timeout(duration="8h") > 8 * 3600
    assert timeout(duration="1m") == 600
    assert timeout(duration="8h", timeout="1h") == 3600


def test_operations_of_floats_and_of_whole_numbers_are_not_added_up() -> None:
    result = Burn().measure(BurnParameters.read({**SMALL, "formats": ["fp32", "int8"]}), Context(CASE))
    rates = {one.at.get("format"): one.metric.unit for one in result.measurements if one.metric.name == "compute_rate"}
    assert rates == {"fp32": "FLOP/s", "int8": "OP/s"}
