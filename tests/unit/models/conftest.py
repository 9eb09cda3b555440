"""Torch in tests: two threads, a fixed seed, and a torchvision that imports before anything else asks for it."""

from __future__ import annotations

import pytest
import torch

# A torchvision that cannot load its operators would also break every model of transformers.
import paceline.models._modules.torchvision_import  # noqa: F401


@pytest.fixture(autouse=True)
def fixed_torch() -> None:
    torch.set_num_threads(2)
    torch.manual_seed(0)
