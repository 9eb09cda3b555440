"""A feed-forward layer whose GELU, its gradient and that of its bias are computed where matrix products end.

On NVIDIA GPUs that is cuBLASLt's work, by the algorithm that is fastest the first time; elsewhere torch computes the
same, so that the layer can be tested. The GELU is the tanh form: cuBLASLt has no other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.devices import Device, open_device
from paceline.devices._cublaslt import (
    BGRADA,
    BGRADB,
    DGELU,
    DGELU_BGRAD,
    GELU_AUX_BIAS,
    PLAIN,
    Epilogue,
    Product,
    Proposal,
)
from paceline.models._modules.transformer import _CUBIC, _LINEAR, FeedForward

# Who computes the gradients of the GELU and of its bias: the compiler, the product the first alone, the product both.
WAYS = ("forward", "dgelu", "dgelu_bgrad")

_tuned: dict[tuple[object, ...], tuple[Product, Proposal]] = {}


def gelu_slope(x: Tensor) -> Tensor:
    """The derivative of the GELU's tanh form, x times the sigmoid of x (a + b x^2); at least in fp32."""
    wide = x.float() if x.dtype.itemsize < 4 else x
    square = _CUBIC * (wide * wide)
    share = torch.sigmoid(wide * (_LINEAR + square))
    return share + share * (1.0 - share) * wide * (_LINEAR + 3.0 * square)


def by_torch(a: Tensor, b: Tensor, out: Tensor, epilogue: Epilogue) -> Tensor:
    """What a product with an epilogue gives, in one operation after the other."""
    kind, vector, matrix = epilogue.kind, epilogue.vector, epilogue.matrix
    made = a @ b
    if kind == GELU_AUX_BIAS:
        assert vector is not None
        assert matrix is not None
        made = F.gelu(matrix.copy_(made + vector), approximate="tanh")
    elif kind in (DGELU, DGELU_BGRAD):
        assert matrix is not None
        made = (made * gelu_slope(matrix)).to(made.dtype)
    if vector is not None and kind in (DGELU_BGRAD, BGRADA, BGRADB):
        vector.copy_({DGELU_BGRAD: made, BGRADA: b, BGRADB: a.t()}[kind].sum(0))
    return out.copy_(made)


def first_and_fastest(
    device: Device, a: Tensor, b: Tensor, out: Tensor, epilogue: Epilogue = PLAIN
) -> dict[str, Callable[[], Tensor]]:
    """A product by the algorithm that is proposed first, as torch takes it, and by the fastest."""
    if not device.kind.is_accelerator:
        return {"by torch": lambda: by_torch(a, b, out, epilogue)}
    product, tried = _tried(device, a, b, out, epilogue)
    chosen = {"first": tried[0], f"fastest of {len(tried)}": min(tried, key=lambda one: one[0])}
    return {name: product.bound(proposal, a, b, out, epilogue) for name, (_, proposal) in chosen.items()}


def _tried(
    device: Device, a: Tensor, b: Tensor, out: Tensor, epilogue: Epilogue
) -> tuple[Product, list[tuple[float, Proposal]]]:
    product = Product(a, b, out, lambda: int(device.current_stream().cuda_stream), epilogue, tf32=False)
    return product, product.tried(a, b, out, device.seconds_of, epilogue)


_device = cache(open_device)


def _computed(a: Tensor, b: Tensor, epilogue: Epilogue) -> Tensor:
    out = a.new_empty(a.shape[0], b.shape[1])
    if not a.is_cuda:
        return by_torch(a, b, out, epilogue)
    key = (epilogue.kind, a.device.index, a.dtype, a.shape, a.stride(), b.shape, b.stride())
    if key not in _tuned:
        product, tried = _tried(_device(f"cuda:{a.device.index}"), a, b, out, epilogue)
        _tuned[key] = product, min(tried, key=lambda one: one[0])[1]
    product, proposal = _tuned[key]
    return product.bound(proposal, a, b, out, epilogue)()


@torch.library.custom_op("paceline_bench::feed_forward", mutates_args=())
def feed_forward(
    x: Tensor, expand: Tensor, bias: Tensor, contract: Tensor, last_bias: Tensor, way: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The layer's result for rows, what enters its GELU and what leaves it."""
    before = x.new_empty(x.shape[0], expand.shape[0])
    after = _computed(x.contiguous(), expand.t(), Epilogue(GELU_AUX_BIAS, bias, before))
    return torch.addmm(last_bias, after, contract.t()), before, after


@torch.library.custom_op("paceline_bench::gelu_gradient", mutates_args=())
def gelu_gradient(gradient: Tensor, contract: Tensor, before: Tensor, sums: bool) -> tuple[Tensor, Tensor]:
    """The gradient of what enters the GELU, and the sum over its rows if it is wanted."""
    vector = before.new_empty(before.shape[1] if sums else 0)
    epilogue = Epilogue(DGELU_BGRAD, vector, before) if sums else Epilogue(DGELU, None, before)
    return _computed(gradient.contiguous(), contract, epilogue), vector


@feed_forward.register_fake
def _(
    x: Tensor, expand: Tensor, bias: Tensor, contract: Tensor, last_bias: Tensor, way: str
) -> tuple[Tensor, Tensor, Tensor]:
    wide = (x.shape[0], expand.shape[0])
    return x.new_empty(x.shape[0], contract.shape[0]), x.new_empty(wide), x.new_empty(wide)


@gelu_gradient.register_fake
def _(gradient: Tensor, contract: Tensor, before: Tensor, sums: bool) -> tuple[Tensor, Tensor]:
    return before.new_empty(before.shape), before.new_empty(before.shape[1] if sums else 0)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, expand, _, contract, _, ctx.way = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, expand, contract, *output[1:])


def _backward(ctx: Any, gradient: Tensor, *_: object) -> tuple[Tensor | None, ...]:
    x, expand, contract, before, after = ctx.saved_tensors
    if ctx.way == "forward":
        inner = (torch.mm(gradient, contract) * gelu_slope(before)).to(before.dtype)
    else:
        inner, bias = gelu_gradient(gradient, contract, before, ctx.way == "dgelu_bgrad")
    if ctx.way != "dgelu_bgrad":
        bias = inner.sum(0).to(before.dtype)
    last_bias = gradient.sum(0).to(before.dtype)
    return inner @ expand, inner.t() @ x, bias, gradient.t() @ after, last_bias, None


feed_forward.register_autograd(_backward, setup_context=_keep)


class FusedFeedForward(FeedForward):
    """The layer with its weights as they are; `fuse` makes one."""

    way: str

    def forward(self, x: Tensor) -> Tensor:
        expand, contract = self.expand, self.contract
        rows = x.flatten(0, -2).to(expand.weight.dtype)
        made: Tensor = feed_forward(rows, expand.weight, expand.bias, contract.weight, contract.bias, self.way)[0]
        return made.view(*x.shape[:-1], -1)


def fuse(module: nn.Module, way: str) -> int:
    """Let every feed-forward layer in it compute so; returns how many there are."""
    layers = [layer for layer in module.modules() if type(layer) is FeedForward]
    for layer in layers:
        layer.__class__ = FusedFeedForward
        layer.way = way  # type: ignore[assignment]
    return len(layers)
