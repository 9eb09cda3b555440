"""What GPT-2 and BERT share: attention, the feed-forward layer, and the projection onto the vocabulary."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALIGNMENT = 64
IMPOSSIBLE = -1e4  # finite in fp16 too
_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR


class Attention(nn.Module):
    """Multi-head self-attention with one product for queries, keys and values.

    The rows of the fused weight are ordered head by head, each head's query, key and value together. A split of the
    rows over devices at head borders is therefore an attention over fewer heads, and this code runs it unchanged.
    """

    def __init__(self, hidden: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        if hidden % heads:
            raise ValueError(f"hidden size {hidden} is not a multiple of {heads} heads")
        self.head_size = hidden // heads
        self.causal = causal
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        by_head = self.qkv(x).view(batch, length, -1, 3, self.head_size)
        query, key, value = (part.transpose(1, 2) for part in by_head.unbind(3))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two linear layers, four times as wide in between, with a GELU; GPT-2 takes the tanh form, BERT the exact one."""

    def __init__(self, hidden: int, *, gelu: Literal["tanh", "none"]) -> None:
        super().__init__()
        self.gelu = gelu
        self.expand = nn.Linear(hidden, 4 * hidden)
        self.contract = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(gelu(self.expand(x), self.gelu))  # type: ignore[no-any-return]


def gelu(x: Tensor, form: Literal["tanh", "none"]) -> Tensor:
    """`F.gelu`; compiled, its tanh form is written as the sigmoid that it is.

    (1 + tanh u) / 2 is the sigmoid of 2u. With the compiler's tanh, an H200 moved memory here at two thirds of its
    pace; the sigmoid is one exponential and a division.
    """
    if form != "tanh" or not torch.compiler.is_dynamo_compiling():
        return F.gelu(x, approximate=form)
    return _SigmoidGelu.apply(x) if torch.is_grad_enabled() else _sigmoid_gelu(x)  # type: ignore[no-untyped-call]


def _sigmoid_gelu(x: Tensor) -> Tensor:
    wide = _in(torch.float32, x)
    return _in(x.dtype, wide * torch.sigmoid(wide * (_LINEAR + _CUBIC * (wide * wide))))


def _in(dtype: torch.dtype, x: Tensor) -> Tensor:
    """`x.to(dtype)`, but no operation where there is nothing to do.

    Compiled by torch 2.11, an autograd function whose result is also a step on the way has a gradient of zero, and
    nothing says so (pytorch/pytorch#180642); a cast to the same format gives such a result.
    """
    return x if x.dtype == dtype else x.to(dtype)


class _SigmoidGelu(torch.autograd.Function):
    """x times the sigmoid of 2u = x (a + b x^2); its gradient is written out, as that takes fewer operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _sigmoid_gelu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        wide = _in(torch.float32, x)
        square = _CUBIC * (wide * wide)
        share = torch.sigmoid(wide * (_LINEAR + square))
        slope = share + share * (1.0 - share) * wide * (_LINEAR + 3.0 * square)
        return _in(x.dtype, _in(torch.float32, gradient) * slope)


def vocabulary_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None = None, *, training: bool) -> Tensor:
    """Logits over the vocabulary; GPUs compute a padded one, as matrix products of odd widths are far slower there.

    In training the padding stays on: cutting it off would copy the gradient of the logits. Its logits are so low that
    their probability is exactly zero, and so the loss and all gradients are those of the vocabulary alone.
    """
    vocabulary = weight.shape[0]
    padding = -vocabulary % ALIGNMENT
    if not padding or not weight.is_cuda:
        return F.linear(hidden, weight, bias)
    logits = padded_logits(hidden, weight, bias, padding)
    return logits if training else logits[..., :vocabulary]


def padded_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """Logits with so many impossible tokens after the last one."""
    bias = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return F.linear(hidden, F.pad(weight, (0, 0, 0, padding)), F.pad(bias, (0, padding), value=IMPOSSIBLE))


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of the likeliest token's probability, and which it is; of logits over the vocabulary."""
    scores, tokens = logits.float().max(-1)
    return scores - logits.float().logsumexp(-1), tokens


def initialise(module: nn.Module, deviation: float = 0.02) -> None:
    """Small normal weights and zero biases, as both families are trained from; meant for `Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=deviation)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=deviation)
