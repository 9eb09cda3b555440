"""The loss of connectionist temporal classification (CTC), computed without asking the device for anything.

torch's own `ctc_loss` copies the lengths between host and device, and so waits for all work before it. Here every
sequence of a batch is as long as the others, and cuDNN's loss takes the lengths from the device. Like it, this operator
finds the gradient together with the loss, so that the backward pass only scales it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
    costs, gradient = (_by_cudnn if _cudnn_can(probabilities, labels) else _by_torch)(probabilities, labels)
    possible = costs.isfinite()
    return torch.where(possible, costs, 0.0), torch.where(possible.view(1, -1, 1), gradient, 0.0)


def _cudnn_can(probabilities: Tensor, labels: Tensor) -> bool:
    if not (probabilities.is_cuda and _has_cudnn()):
        return False
    return labels.shape[1] <= min(probabilities.shape[0], LONGEST_FOR_CUDNN)


def _has_cudnn() -> bool:
    return torch.version.hip is None and torch.backends.cudnn.version() is not None  # type: ignore[no-untyped-call]


def _by_cudnn(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    frames, batch, _ = probabilities.shape
    lengths = [torch.full((batch,), n, dtype=torch.int32, device=labels.device) for n in (frames, labels.shape[1])]
    deterministic, zero_infinity = True, True
    costs, gradient = torch.ops.aten._cudnn_ctc_loss.Tensor(
        probabilities, labels.flatten().int(), *lengths, BLANK, deterministic, zero_infinity
    )
    return costs, gradient


def _by_torch(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    frames, batch, _ = probabilities.shape
    lengths = [frames] * batch, [labels.shape[1]] * batch
    costs, paths = torch.ops.aten._ctc_loss(probabilities, labels, *lengths, BLANK)
    gradient = torch.ops.aten._ctc_loss_backward(
        torch.ones_like(costs), probabilities, labels, *lengths, costs, paths, BLANK
    )
    return costs, gradient


@costs_and_gradient.register_fake
def _shapes(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return probabilities.new_empty(probabilities.shape[1]), torch.empty_like(probabilities)


def _keep_gradient(ctx: Any, inputs: object, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _scale_gradient(ctx: Any, by_cost: Tensor, _: Tensor) -> tuple[Tensor, None]:
    (gradient,) = ctx.saved_tensors
    return gradient * by_cost.view(1, -1, 1), None


costs_and_gradient.register_autograd(_scale_gradient, setup_context=_keep_gradient)
