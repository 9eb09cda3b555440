"""The diffusion transformer against its definition written out operator by operator, and its published sizes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models import MODELS
from paceline.models._modules.dit import Dit, DitBlock, grid_positions
from paceline.models.dit import TINY, build_dit


@pytest.mark.parametrize(
    ("name", "published"),
    [("dit-s-2", 32_963_360), ("dit-b-2", 130_512_416), ("dit-l-2", 458_102_816), ("dit-xl-2", 675_129_632)],
)
def test_weights_and_positions_are_as_many_as_published(name: str, published: int) -> None:
    with torch.device("meta"):
        module = MODELS.registry().get(name).build("full").module
    assert sum(one.numel() for one in (*module.parameters(), *module.buffers())) == published


def test_positions_are_sines_of_the_column_then_of_the_row() -> None:
    positions = grid_positions(4, 16)[0]
    for patch in range(16):
        row, column = divmod(patch, 4)
        frequencies = [10_000 ** (-index / 4) for index in range(4)]
        expected = [
            function(place * one) for place in (column, row) for function in (math.sin, math.cos) for one in frequencies
        ]
        torch.testing.assert_close(positions[patch], torch.tensor(expected))


def block_by_hand(block: DitBlock, x: Tensor, condition: Tensor, heads: int) -> Tensor:
    """One sample through one block, head by head."""
    parts = (F.silu(condition) @ block.modulation.weight.T + block.modulation.bias).chunk(6)

    def normed(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
        return (x - mean) / (variance + 1e-6).sqrt() * (1 + scale) + shift

    qkv = block.attention.qkv(normed(x, parts[0], parts[1])).unflatten(-1, (heads, 3, -1))
    mixed = []
    for head in range(heads):
        query, key, value = qkv[:, head].unbind(1)
        mixed.append((query @ key.T / math.sqrt(query.shape[-1])).softmax(-1) @ value)
    x = x + parts[2] * block.attention.output(torch.cat(mixed, -1))
    inside = F.gelu(block.feed_forward.expand(normed(x, parts[3], parts[4])), approximate="tanh")
    return x + parts[5] * block.feed_forward.contract(inside)


def test_the_model_is_its_definition() -> None:
    workload = build_dit(TINY)
    model = workload.module.eval()
    assert isinstance(model, Dit)
    batch = workload.make_batch(2, torch.Generator().manual_seed(1))
    latents, times, classes = batch.inputs
    with torch.no_grad():
        output = model(*batch.inputs)
        for sample in range(2):
            angles = float(times[sample]) * 10_000 ** (-torch.arange(128) / 128)
            time = torch.cat((angles.cos(), angles.sin()))
            condition = model.time_out(F.silu(model.time_in(time))) + model.class_embedding.weight[classes[sample]]
            patches = F.unfold(latents[sample : sample + 1], 2, stride=2)[0].T  # channel, then row, then column
            x = model.patch_embedding(patches) + model.positions[0]
            for block in model.blocks:
                assert isinstance(block, DitBlock)
                x = block_by_hand(block, x, condition, TINY.heads)
            shift, scale = model.final_modulation(F.silu(condition)).chunk(2)
            x = model.final(F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift)
            # A patch's numbers are row, column, channel; fold wants the channel first.
            folded = F.fold(x.unflatten(1, (4, 8)).transpose(1, 2).flatten(1).T[None], (8, 8), 2, stride=2)
            torch.testing.assert_close(output[sample], folded[0], rtol=1e-4, atol=1e-5)


def test_the_loss_is_that_of_the_noise_alone() -> None:
    workload = build_dit(TINY)
    batch = workload.make_batch(2, torch.Generator().manual_seed(1))
    noise = batch.targets[0]
    assert workload.loss(torch.cat((noise, torch.randn_like(noise)), 1), batch) == 0
    assert workload.loss(torch.cat((noise + 2, noise), 1), batch) == pytest.approx(4.0, rel=1e-5)
