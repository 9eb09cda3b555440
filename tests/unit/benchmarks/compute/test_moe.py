"""A layer of experts: its parts and the whole, what multiplied, and a check that finds one wrong number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.benchmarks.compute.moe import Layer, Moe, MoeParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption
from paceline.devices.cpu import CpuDevice
from support.refused import refused

CASE = Case(index=0, benchmark="moe", parameters={}, title="", target="cpu")
SMALL = {"tokens": 40, "hidden": 32, "width": 48, "experts": 4, "top_k": 2}


def layer(**parameters: Any) -> Layer:
    return Layer(MoeParameters(**(SMALL | parameters)), CpuDevice())


@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (4, 4), (8, 1), (1, 1), (64, 2)])
def test_a_layer_passes_its_check_however_many_experts_it_has(experts: int, top_k: int) -> None:
    made = layer(experts=experts, top_k=top_k)
    made.check()
    assert 0 < made.worst <= 1
    assert int(made._counts.sum()) == 40 * top_k
    assert not made.is_grouped  # which is for GPUs


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_every_format_passes_its_check(precision: str) -> None:
    layer(precision=precision).check()


def test_products_alone_are_those_of_the_rows_in_order() -> None:
    made = layer()
    assert torch.equal(made.multiply(), made.module.experts(made._rows, made._counts))
    assert made._rows.shape == (80, 32)


def test_without_products_a_token_comes_back_as_it_was_and_with_them_again_it_does_not() -> None:
    made = layer()
    assert torch.allclose(made.dispatch(), made.tokens, atol=1e-5)
    assert not torch.allclose(made.call(), made.tokens, atol=1e-5)


def test_a_grouped_product_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def grouped(x: torch.Tensor, weights: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        ends = counts.cumsum(0).to(torch.int32)
        return torch.nn.functional.grouped_mm(x, weights.transpose(-2, -1), offs=ends)

    if not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("needs torch 2.10")
    monkeypatch.setattr("paceline.models._modules.experts.grouped_linear", grouped)
    made = layer(precision="bf16")
    assert made.is_grouped
    made.check()


@pytest.mark.parametrize("token", [0, -1])
def test_one_wrong_number_is_silent_corruption(token: int) -> None:
    made = layer()
    right = made.module.mix

    def corrupted(x: torch.Tensor, probabilities: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = right(x, probabilities, chosen).clone()
        result[token, 3] += 10.0
        return result

    made.module.mix = corrupted
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
    assert result.facts["engine"] == "one product after the other"
