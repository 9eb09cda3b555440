"""Batch norms that no training has settled yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

SETTLING_ROWS = 8


def has_batch_norm(module: nn.Module) -> bool:
    """Whether a module has statistics that depend on the data it has seen."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


def settle_batch_norm(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Give untrained batch norms the statistics of the data, as training would have; the module is then in eval mode.

    Without them activations shrink to zero or overflow fp16 with depth, and zeros are faster than numbers.
    """
    from torch.nn.modules.batchnorm import _BatchNorm

    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.momentum = None  # the plain average over the batches seen: of one batch, its own statistics
    module.train()
    module(*inputs)
    module.eval()
