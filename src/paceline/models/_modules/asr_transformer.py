"""A transformer that hears letters: a strided convolution over frames of audio, then post-norm layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models._modules.adaptive import PostNormLayer, ScalarLayerNorm, sinusoidal_positions
from paceline.models.asr_transformer import AsrShape

BLANK = 0
LONGEST_FOR_CUDNN = 255


def ctc_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The cost of labels [batch, count] under logits [batch, frames, symbols]: mean over the batch, for each label.

    In fp32, whatever the format of the logits. Labels that the frames are too few for cost nothing and have no
    gradient: infinity would spoil all weights.
    """
    probabilities = torch.log_softmax(logits.float(), dim=2)
    costs, _ = costs_and_gradient(probabilities.transpose(0, 1).contiguous(), labels)
    return costs.mean() / labels.shape[1]  # type: ignore[no-any-return]


@torch.library.custom_op("paceline::ctc", mutates_args=())
def costs_and_gradient(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Costs [batch], and their gradient by the log-probabilities [frames, batch, symbols]."""
    frames, batch, _ = probabilities.shape
    label_count = labels.shape[1]
    has_cudnn = probabilities.is_cuda and torch.version.hip is None and torch.backends.cudnn.version() is not None  # type: ignore[no-untyped-call]
    if has_cudnn and label_count <= min(frames, LONGEST_FOR_CUDNN):
        lengths = [torch.full((batch,), n, dtype=torch.int32, device=labels.device) for n in (frames, label_count)]
        deterministic, zero_infinity = True, True
        costs, gradient = torch.ops.aten._cudnn_ctc_loss.Tensor(
            probabilities, labels.flatten().int(), *lengths, BLANK, deterministic, zero_infinity
        )
    else:
        sizes = [frames] * batch, [label_count] * batch
        costs, paths = torch.ops.aten._ctc_loss(probabilities, labels, *sizes, BLANK)
        gradient = torch.ops.aten._ctc_loss_backward(
            torch.ones_like(costs), probabilities, labels, *sizes, costs, paths, BLANK
        )
    possible = costs.isfinite()
    return torch.where(possible, costs, 0.0), torch.where(possible.view(1, -1, 1), gradient, 0.0)


@costs_and_gradient.register_fake
def _shapes(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return probabilities.new_empty(probabilities.shape[1]), torch.empty_like(probabilities)


def _keep_gradient(ctx: Any, inputs: object, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _scale_gradient(ctx: Any, by_cost: Tensor, _: Tensor) -> tuple[Tensor, None]:
    (gradient,) = ctx.saved_tensors
    return gradient * by_cost.view(1, -1, 1), None


costs_and_gradient.register_autograd(_scale_gradient, setup_context=_keep_gradient)


KERNEL = 7
STRIDE = 3
PADDING = 2  # so that a third of the frames remain, where they are a multiple of three


class AsrTransformer(nn.Module):
    """Frames [batch, frames, features] to logits [batch, frames / 3, symbols].

    In training a layer is dropped with the probability `layer_drop`. Its work is done all the same and multiplied by
    zero: the draw stays on the device, and every weight has a gradient in every step, as data parallelism expects.
    """

    positions: Tensor

    def __init__(self, shape: AsrShape) -> None:
        super().__init__()
        hidden = shape.hidden
        self.layer_drop = shape.layer_drop
        self.input_norm = ScalarLayerNorm(shape.frames, shape.features)
        self.convolution = nn.Conv1d(shape.features, 2 * hidden, KERNEL, STRIDE, PADDING)
        self.input_dropout = nn.Dropout(shape.input_dropout)
        self.register_buffer("positions", sinusoidal_positions(shape.frames // STRIDE, hidden), persistent=False)
        self.layers = nn.ModuleList(
            PostNormLayer(hidden, shape.heads, shape.feed_forward, causal=False, dropout=shape.dropout)
            for _ in range(shape.layers)
        )
        self.symbols = nn.Linear(hidden, shape.symbols)

    def embed(self, frames: Tensor) -> Tensor:
        """What enters the first layer."""
        x = self.convolution(self.input_norm(frames).transpose(1, 2))
        x = F.glu(x.transpose(1, 2).contiguous(), dim=2)
        return self.input_dropout(x) + self.positions  # type: ignore[no-any-return]

    def forward(self, frames: Tensor) -> Tensor:
        x = self.embed(frames)
        if self.training and self.layer_drop:
            gates = (torch.rand(len(self.layers), device=x.device) >= self.layer_drop).to(x.dtype)
            for layer, gate in zip(self.layers, gates.unbind(), strict=True):
                x = layer(x, gate)
        else:
            for layer in self.layers:
                x = layer(x)
        return self.symbols(x)  # type: ignore[no-any-return]
