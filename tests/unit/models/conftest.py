"""Torch in tests: one thread, a fixed seed, and a torchvision that imports before anything else asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

# A torchvision that cannot load its operators would also break every model of transformers.
import paceline.models._modules.torchvision_import  # noqa: F401

DRAWN = 1_000_003  # numbers drawn for a large tensor; a prime, so that no two rows of weights are the same


@pytest.fixture(autouse=True)
def fixed_torch() -> None:
    torch.set_num_threads(1)  # files of tests run beside each other: more threads would wait for each other
    torch.manual_seed(0)


@pytest.fixture
def quick_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights repeat a million numbers of their distribution: drawing every one takes longer than a step."""

    def repeating(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def fill(tensor: Tensor, *arguments: Any, **more: Any) -> Tensor:
            if tensor.numel() <= DRAWN or tensor.is_meta:
                return draw(tensor, *arguments, **more)
            flat, drawn = tensor.view(-1), draw(tensor.new_empty(DRAWN), *arguments, **more)
            for start in range(0, len(flat), DRAWN):
                part = flat[start : start + DRAWN]
                part.copy_(drawn[: len(part)])
            return tensor

        return fill

    for name in ("normal_", "uniform_"):
        monkeypatch.setattr(Tensor, name, repeating(getattr(Tensor, name)))
