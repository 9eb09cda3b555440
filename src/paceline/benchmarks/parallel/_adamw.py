"""AdamW as every layout takes it: its settings, and PyTorch's fused form."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

BETAS = (0.9, 0.999)
EPSILON = 1e-8
WEIGHT_DECAY = 0.01  # of matrices; norms and biases have none


def fused_adamw(parameters: Iterable[nn.Parameter], rate: float, *, capturable: bool) -> torch.optim.AdamW:
    """PyTorch's own, in one kernel for many parameters; capturable is by a CUDA graph."""
    parameters = list(parameters)
    groups = [
        {"params": [one for one in parameters if one.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [one for one in parameters if one.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=rate,
        betas=BETAS,
        eps=EPSILON,
        fused=True,
        capturable=capturable,
    )


def take_step(adamw: torch.optim.AdamW, divisor: Tensor, overflowed: Tensor | None) -> None:
    """A step with gradients divided by so much; none where they have overflowed."""
    adamw.grad_scale = divisor  # type: ignore[attr-defined]
    if overflowed is not None:
        adamw.found_inf = overflowed.float()  # type: ignore[attr-defined]
    adamw.step()


def state_of(adamw: torch.optim.AdamW | None) -> list[Tensor]:
    """The moments and step counts that it holds; none before the first step."""
    states = () if adamw is None else adamw.state.values()
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]
