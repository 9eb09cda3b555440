"""How many floating-point operations a model's forward pass takes: the one formula behind every FLOP/s and MFU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.transformer import TRAINING_FACTOR
from paceline.models.base import ModelSpec, Scale

if TYPE_CHECKING:
    from torch import Tensor, nn


def forward_flops(spec: ModelSpec, scale: Scale = "full") -> float:
    """Forward FLOPs of one sample: what the spec says of the full scale, otherwise counted."""
    return float(spec.flops) if scale == "full" and spec.flops is not None else count_flops(spec, scale)


def training_flops(spec: ModelSpec, scale: Scale = "full", *, partly_frozen: bool = False) -> float:
    """FLOPs of training on one sample: three times the forward, or counted where a part of the model is frozen."""
    return count_flops(spec, scale, backward=True) if partly_frozen else TRAINING_FACTOR * forward_flops(spec, scale)


def count_flops(spec: ModelSpec, scale: Scale = "full", *, backward: bool = False) -> float:
    """FLOPs of one sample, forward unless both, counted on the meta device: nothing is computed, no memory is taken.

    A multiply-add is two FLOPs. Counted are matrix products, convolutions and attention, by torch's operator counter at
    batch 1, or the only one that the model takes, in evaluation mode (so heads that exist only in training do not
    count), the gates of recurrent layers, which run as one kernel that the counter does not see, and the workload's
    `extra_flops`. Attention counts as the full square of the sequence length, also where a causal mask lets a kernel
    skip half.

    Training a sample takes `TRAINING_FACTOR` = 3 times this (the backward pass takes two products for each forward
    one). Recomputed activations are not counted: they are a cost, not work.
    """
    import torch
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        workload = spec.build(scale)
    module = workload.module.train(backward)
    rows = spec.traits.batch_size or 1
    batch = workload.make_batch(rows, torch.Generator()).to(torch.device("meta"))
    recurrent: list[float] = []
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase):
            if backward:
                raise NotImplementedError("recurrent layers in a partly frozen model")
            _skip_recurrence(layer, recurrent)
    counter = FlopCounterMode(display=False)
    with counter:
        if backward:
            workload.loss(module(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]
        else:
            with torch.no_grad():
                module(*batch.inputs)
    return (float(counter.get_total_flops()) + sum(recurrent)) / rows + workload.extra_flops


def _skip_recurrence(layer: nn.RNNBase, counted: list[float]) -> None:
    """Let a recurrent layer return shapes and count its gates: on the meta device it would unroll, slowly."""
    from torch import nn

    directions = 2 if layer.bidirectional else 1
    width = layer.proj_size or layer.hidden_size
    gates = {"LSTM": 4, "GRU": 3}.get(layer.mode, 1)

    def shapes(features: Tensor, state: object = None) -> tuple[Tensor, object]:
        rows = [] if features.dim() == 2 else [features.shape[0 if layer.batch_first else 1]]
        length = features.shape[0 if features.dim() == 2 or not layer.batch_first else 1]
        for depth in range(layer.num_layers):
            inputs = layer.input_size if depth == 0 else directions * width
            step = 2.0 * gates * layer.hidden_size * (inputs + width)
            step += 2.0 * layer.proj_size * layer.hidden_size
            counted.append(step * directions * length * (rows[0] if rows else 1))
        outputs = features.new_empty(*features.shape[:-1], directions * width)
        last = features.new_empty(directions * layer.num_layers, *rows, width)
        if not isinstance(layer, nn.LSTM):
            return outputs, last
        return outputs, (last, features.new_empty(directions * layer.num_layers, *rows, layer.hidden_size))

    layer.forward = shapes
