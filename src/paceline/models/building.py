"""What a model needs before it computes: its seed, its number format, and batch norms that have seen data."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

SETTLING_ROWS = 8


def seed_everything(seed: int) -> None:
    """A user's model may draw its weights from any of these."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def low_dtype(precision: str) -> torch.dtype | None:
    """The 16-bit format that goes with a precision, if any."""
    import torch

    if precision in ("fp32", "tf32"):
        return None
    return torch.float16 if precision == "fp16" else torch.bfloat16


def set_fp32_mode(precision: str) -> None:
    """Let fp32 products and convolutions run in TF32 for the precision `tf32`; true fp32 for every other.

    TF32 computes with fewer bits: allowed where it is asked for, and nowhere else.
    """
    import torch

    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


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
