"""The activation of GPT-2 and BERT, compiled and not."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models._modules.transformer import FeedForward, gelu


def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A result, and its gradient."""
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), gradient


@pytest.mark.parametrize("form", ["tanh", "none"])
def test_compiled_it_is_the_same_function(form: Literal["tanh", "none"]) -> None:
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, -0.0, 1e4, -1e4])]).requires_grad_()
    value, gradient = both(x, torch.compile(gelu, backend="aot_eager", fullgraph=True)(x, form))
    wanted, wanted_gradient = both(x, F.gelu(x, approximate=form))
    torch.testing.assert_close(value, wanted, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-5, atol=2e-6)


def test_in_16_bits_it_is_rounded_once() -> None:
    x = torch.linspace(-6, 6, 1001).bfloat16()
    found = torch.compile(gelu, backend="aot_eager", fullgraph=True)(x, "tanh")
    torch.testing.assert_close(found, F.gelu(x.float(), approximate="tanh").bfloat16(), rtol=0.01, atol=1e-6)


def test_an_exported_model_has_a_gelu() -> None:
    exported = torch.export.export(FeedForward(8, gelu="tanh").eval(), (torch.zeros(2, 8),))
    assert any("gelu" in str(node.target) for node in exported.graph.nodes)
