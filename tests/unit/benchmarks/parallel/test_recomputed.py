"""What a checkpointed layer computes again in the backward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.benchmarks.parallel._stage import LastNorm, Mesh
from paceline.benchmarks.parallel._trainer import ParallelTrainer
from paceline.devices.cpu import CpuDevice
from support.layouts import TINY

FORWARD = 24  # products of a layer, in hidden x hidden x tokens: qkv 6, output 2, expand 8, contract 8
CONTRACT = 8


def layers_of(model: Any, *, checkpointing: bool) -> torch.nn.ModuleList:
    chosen = ParallelParameters(**TINY | {"model": model, "checkpointing": checkpointing})
    trainer = ParallelTrainer(chosen, CpuDevice(), Mesh.of(chosen.layout, 0, "cpu"), compiled=False)
    layers = trainer.stages[0].model.blocks
    assert isinstance(layers, torch.nn.ModuleList)
    return layers


def products(layers: torch.nn.ModuleList) -> int:
    """FLOPs of forward and backward in products with weights; compiled, but not for this machine."""
    hidden = TINY["hidden"]
    torch._dynamo.reset()
    for layer in layers:
        layer.compile(backend="aot_eager_decomp_partition")
    x = torch.randn(2, 8, hidden, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        y = x
        for layer in layers:
            y = layer(y)
        torch.autograd.backward(y.sum())
    return sum(flops for name, flops in counter.get_flop_counts()["Global"].items() if "mm" in str(name))


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_the_last_product_of_a_layer_is_not_computed_again(model: str) -> None:
    plain, recomputed = (products(layers_of(model, checkpointing=each)) for each in (False, True))
    assert recomputed / plain == pytest.approx(1 + (FORWARD - CONTRACT) / (3 * FORWARD))


def test_a_norm_at_the_end_of_a_layer_is_left_to_the_next() -> None:
    layers = layers_of("bert", checkpointing=True)
    assert isinstance(layers[-1], LastNorm)
    count = sum(one.numel() for one in layers.parameters())
    assert count == sum(one.numel() for one in layers_of("bert", checkpointing=False).parameters())
