"""A layer of experts: every way of multiplying gives the same, the parts are apart, and a wrong token is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.benchmarks.compute import moe
from paceline.benchmarks.compute.moe import Layer, Moe, MoeParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.devices.cpu import CpuDevice
from support.refused import refused

CASE = Case(index=0, benchmark="moe", parameters={}, title="", target="cpu")
SMALL = {"tokens": 40, "hidden": 32, "width": 48, "experts": 4, "top_k": 2}


def layer(**parameters: Any) -> Layer:
    made = Layer(MoeParameters(**(SMALL | parameters)), CpuDevice())
    made.choose_products()
    return made


@pytest.mark.parametrize("products", ["auto", "loop", "padded"])
@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (4, 4), (8, 1), (1, 1), (64, 2)])
def test_every_way_of_multiplying_passes_its_check(products: str, experts: int, top_k: int) -> None:
    made = layer(products=products, experts=experts, top_k=top_k)
    made.check()
    assert 0 < made.worst <= 1
    assert made.library_call


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_every_format_passes_its_check(precision: str) -> None:
    layer(precision=precision).check()


def test_tokens_lie_in_the_order_of_their_experts() -> None:
    made = layer()
    order, rows, ends, weights = made.route()
    assert sorted(order.tolist()) == list(range(80))
    assert torch.equal(rows, made.tokens[order // 2])
    assert ends.tolist() == sorted(ends.tolist())
    assert ends[-1] == 80
    assert torch.allclose(weights.sum(-1), torch.ones(40))


def test_without_products_a_token_comes_back_as_it_was() -> None:
    made = layer()
    assert torch.allclose(made.dispatch(), made.tokens, atol=1e-5)


def test_what_cannot_be_grouped_is_a_loop_unless_grouped_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Layer, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("only bf16 on this device.\nmore")

    monkeypatch.setattr(Layer, "_grouped", refuse)
    made = layer()
    assert (made.how, made.not_grouped_because) == ("loop", "only bf16 on this device")
    with pytest.raises(Unsupported, match="only bf16 on this device; use --products auto"):
        layer(products="grouped")


def test_one_wrong_token_is_silent_corruption() -> None:
    made = layer(products="loop")
    right = made._products

    def corrupted(rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        results = right(rows, ends)
        results[0, 3] += 10.0
        return results

    made._products = corrupted
    token = int(made.route()[0][0]) // 2
    made.tokens[[0, token]] = made.tokens[[token, 0]]  # the first token is always checked
    _, made._rows, made._ends, _ = made.route()
    with pytest.raises(SilentCorruption, match="of the checked tokens"):
        made.check()


def test_more_choices_than_experts_are_refused() -> None:
    with refused("out-of-range", key="top_k"):
        Moe.check(MoeParameters(experts=2, top_k=3), CASE)


def test_parts_and_whole_are_measured_and_the_record_says_what_multiplied() -> None:
    result = Moe().measure(MoeParameters(**SMALL, steps=2, warm_up=0.001), Context(case=CASE))
    found = {one.metric.name: one for one in result.measurements}
    assert set(found) == {metric.name for metric in Moe.metrics}
    assert found["compute_rate"].work == 6 * 40 * 2 * 32 * 48
    share = 100 * found["product_rate"].value / result.facts["product"]
    assert found["product_share"].value == pytest.approx(share)
    assert result.facts["engine"] in ("torch's grouped_mm", "torch.mm, one after the other")
    assert moe.Moe.primary == "compute_rate"
