"""How many floating-point operations a model's forward pass takes: the one formula behind every FLOP/s and MFU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.models.base import ModelSpec, Scale

if TYPE_CHECKING:
    from torch import Tensor, nn

TRAINING_FACTOR = 3


def forward_flops(spec: ModelSpec, scale: Scale = "full") -> float:
    """Forward FLOPs of one sample: what the spec says of the full scale, or else counted."""
    return float(spec.flops) if scale == "full" and spec.flops is not None else count_flops(spec, scale)


def count_flops(spec: ModelSpec, scale: Scale = "full") -> float:
    """Forward FLOPs of one sample, counted on the meta device: nothing is computed and no memory is taken.

    A multiply-add is two FLOPs. Counted are matrix products, convolutions and attention, by torch's operator counter at
    batch 1 in evaluation mode (so heads that exist only in training do not count), plus the workload's `extra_flops`.
    Attention counts as the full square of the sequence length, also where a causal mask lets a kernel skip half.
    Recurrent layers run as one fused kernel that the counter does not see, so they count by `extra_flops` alone.

    Training a sample takes `TRAINING_FACTOR` = 3 times this (the backward pass takes two products for each forward
    one). Recomputed activations are not counted: they are a cost, not work.
    """
    import torch
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        workload = spec.build(scale)
    batch = workload.make_batch(1, torch.Generator()).to(torch.device("meta"))
    module = workload.module.eval()
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase):
            _skip_recurrence(layer)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        module(*batch.inputs)
    return float(counter.get_total_flops()) + workload.extra_flops


def _skip_recurrence(layer: nn.RNNBase) -> None:
    """Let a recurrent layer return shapes only: on the meta device it would unroll, slowly, and be counted twice."""
    from torch import nn

    directions = 2 if layer.bidirectional else 1
    width = layer.proj_size or layer.hidden_size

    def shapes(features: Tensor, state: object = None) -> tuple[Tensor, object]:
        rows = [] if features.dim() == 2 else [features.shape[0 if layer.batch_first else 1]]
        outputs = features.new_empty(*features.shape[:-1], directions * width)
        last = features.new_empty(directions * layer.num_layers, *rows, width)
        if not isinstance(layer, nn.LSTM):
            return outputs, last
        return outputs, (last, features.new_empty(directions * layer.num_layers, *rows, layer.hidden_size))

    layer.forward = shapes
