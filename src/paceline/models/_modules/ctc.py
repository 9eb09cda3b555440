"""The loss of connectionist temporal classification (CTC), computed without asking the device for anything.

torch's own `ctc_loss` copies the lengths between host and device, and so waits for all work before it. Here every
sequence of a batch is as long as the others, and cuDNN's loss takes the lengths from the device. Like it, this operator
finds the gradient together with the loss, so that the backward pass only scales it.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLANK = 0
LONGEST_FOR_CUDNN = 255


def ctc_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The cost of labels [batch, count] under logits [batch, frames, symbols]: mean over the batch, for each label.

    In fp32, whatever the format of the logits. Labels that the frames are too few for cost nothing and have no
    gradient: infinity would spoil all weights.
    """
    with torch.autocast(logits.device.type, enabled=False):
        probabilities = torch.log_softmax(logits.float(), dim=2)
        costs, _ = costs_and_gradient(probabilities.transpose(0, 1).contiguous(), labels)
        return costs.mean() / labels.shape[1]


@torch.library.custom_op("paceline::ctc", mutates_args=())
def costs_and_gradient(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Costs [batch], and their gradient by the logits of the log-probabilities [frames, batch, symbols]."""
    frames, batch, _ = probabilities.shape
    lengths = [frames] * batch, [labels.shape[1]] * batch
    costs, paths = torch.ops.aten._ctc_loss(probabilities, labels, *lengths, BLANK, True)
    gradient = torch.ops.aten._ctc_loss_backward(
        torch.ones_like(costs), probabilities, labels, *lengths, costs, paths, BLANK, True
    )
    return _without_infinity(costs, gradient)


@costs_and_gradient.register_kernel("cuda")
def _on_gpu(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    frames, batch, _ = probabilities.shape
    count = labels.shape[1]
    if torch.version.hip or not torch.backends.cudnn.is_available() or not count <= min(frames, LONGEST_FOR_CUDNN):
        return costs_and_gradient._init_fn(probabilities, labels)  # type: ignore[no-any-return]
    every_frame = torch.full((batch,), frames, dtype=torch.int32, device=labels.device)
    every_label = torch.full_like(every_frame, count)
    costs, gradient = torch.ops.aten._cudnn_ctc_loss.Tensor(
        probabilities, labels.flatten().int(), every_frame, every_label, BLANK, True, True
    )
    return _without_infinity(costs, gradient)


def _without_infinity(costs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    possible = costs.isfinite()
    return torch.where(possible, costs, 0.0), torch.where(possible.view(1, -1, 1), gradient, 0.0)


@costs_and_gradient.register_fake
def _shapes(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return probabilities.new_empty(probabilities.shape[1]), torch.empty_like(probabilities)


def _keep_gradient(context: torch.autograd.function.FunctionCtx, inputs: object, output: tuple[Tensor, Tensor]) -> None:
    context.save_for_backward(output[1])


def _scale_gradient(context: torch.autograd.function.FunctionCtx, by_cost: Tensor, _: Tensor) -> tuple[Tensor, None]:
    (gradient,) = context.saved_tensors  # type: ignore[attr-defined]
    return gradient * by_cost.view(1, -1, 1), None


costs_and_gradient.register_autograd(_scale_gradient, setup_context=_keep_gradient)
