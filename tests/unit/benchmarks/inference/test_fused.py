"""Convolutions that add and rectify as well: the same function, and the original is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.benchmarks.inference._fused import fuse_convolutions
from paceline.models.base import settle_batch_norm
from paceline.models.sources import find_model


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's calls, as its documentation defines them, for a machine without it."""

    def rectified(x: Tensor, weight: Tensor, bias: Tensor, *shape: Any) -> Tensor:
        return F.conv2d(x, weight, bias, *shape).relu()

    def added(x: Tensor, weight: Tensor, z: Tensor, alpha: float, bias: Tensor, *shape: Any) -> Tensor:
        return (F.conv2d(x, weight, bias, *shape) + alpha * z).relu()

    monkeypatch.setattr(torch, "cudnn_convolution_relu", rectified)
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", added)


def fused(module: nn.Module, *inputs: Tensor) -> int:
    """How many were fused; the output and the original must be as before."""
    module.eval()
    before = {name: one.clone() for name, one in module.state_dict().items()}
    with torch.inference_mode():
        expected = module(*inputs)
        made, count = fuse_convolutions(module, inputs)
        assert float((made(*inputs) - expected).norm() / expected.norm()) < 1e-4
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())
    return count


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet18", 9), ("resnet50", 13), ("vgg11_bn", 8), ("mobilenet_v2", 0)],
)
def test_a_model_of_the_zoo_computes_the_same(name: str, count: int) -> None:
    torch.manual_seed(1)
    workload = find_model(name, allow_import=False).build("tiny")
    inputs = workload.make_batch(2, torch.Generator().manual_seed(1)).inputs
    settle_batch_norm(workload.module.eval(), inputs)
    assert fused(workload.module, *inputs) == count


class Summed(nn.Module):
    """Two convolutions that are added, and one of them is looked at again."""

    def __init__(self, *, again: bool, channels: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, channels, 1)
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.first(x), self.second(x)
        made = torch.relu(one + other)
        return made + one + other if self.again else made


def test_two_biases_are_added_by_one_of_two_convolutions() -> None:
    assert fused(Summed(again=False), torch.randn(2, 4, 5, 5)) == 1


def test_what_is_needed_again_stays_as_it_is() -> None:
    assert fused(Summed(again=True), torch.randn(2, 4, 5, 5)) == 0


def test_a_sum_of_two_shapes_stays_as_it_is() -> None:
    assert fused(Summed(again=False, channels=1), torch.randn(2, 4, 5, 5)) == 0


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.relu(self.first(x) + self.second(x)) + self.second(2 * x)
        return made


def test_a_convolution_that_is_called_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="called twice"):
        fused(Shared(), torch.randn(2, 4, 5, 5))


class Changed(nn.Module):
    """The input of a convolution is changed before its result is rectified."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.change = nn.Conv2d(4, 4, 1), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x - 0.5
        y = self.convolution(x)
        z = self.change(x)
        return torch.relu(y + z)


class Aliased(nn.Module):
    """A sum that is written where something else reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = x * 1.0
        summed = kept
        summed += self.convolution(x)
        return torch.relu(summed) + kept


def test_an_input_that_is_changed_in_place_stays_with_its_convolution() -> None:
    assert fused(Changed(), torch.randn(2, 4, 5, 5)) == 0


def test_what_a_trace_does_not_show_is_refused() -> None:
    with pytest.raises(ValueError, match="computes something else"):
        fused(Aliased(), torch.randn(2, 4, 5, 5))


def test_padding_by_other_than_zeros_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), nn.ReLU())
    assert fused(model, torch.randn(2, 4, 5, 5)) == 0
