"""The passes of a convolution compute what autograd does, and one wrong element is found."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from paceline.benchmarks.compute.dnn_functions import Convolution, ConvolutionFunction, Pass
from paceline.core.errors import SilentCorruption
from paceline.devices.cpu import CpuDevice

PASSES = get_args(Pass)
PLAIN = ConvolutionFunction(batch=2, in_channels=8, out_channels=6, image=(9, 11), kernel=(3, 3), padding=(1, 1))
STRIDED = ConvolutionFunction(
    batch=2, in_channels=8, out_channels=12, image=(11, 9), kernel=(3, 1), stride=(2, 1), dilation=(2, 1), groups=4
)
DEPTHWISE = ConvolutionFunction(batch=1, in_channels=5, out_channels=5, image=(7, 7), kernel=(3, 3), groups=5)


def convolution(function: ConvolutionFunction, way: Any, precision: str = "fp32") -> Convolution:
    return Convolution(function, way, precision, 1234, CpuDevice())


@pytest.mark.parametrize("function", [PLAIN, STRIDED, DEPTHWISE], ids=["plain", "strided", "depthwise"])
@pytest.mark.parametrize("way", PASSES)
def test_a_pass_computes_what_autograd_does(function: ConvolutionFunction, way: Any) -> None:
    made = convolution(function, way)
    images, weight, gradient = (operand.double() for operand in made._operands)
    images.requires_grad_()
    weight.requires_grad_()
    output = torch.nn.functional.conv2d(
        images,
        weight,
        stride=function.stride,
        padding=function.padding,
        dilation=function.dilation,
        groups=function.groups,
    )
    output.backward(gradient)
    expected = {"forward": output, "backward-data": images.grad, "backward-weight": weight.grad}[way]
    assert torch.allclose(made.call().double(), expected, atol=1e-3)


@pytest.mark.parametrize("function", [PLAIN, STRIDED, DEPTHWISE], ids=["plain", "strided", "depthwise"])
@pytest.mark.parametrize("way", PASSES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_right_result_passes(function: ConvolutionFunction, way: Any, precision: str) -> None:
    made = convolution(function, way, precision)
    made.check()
    assert made.worst <= 1


@pytest.mark.parametrize("function", [PLAIN, STRIDED, DEPTHWISE], ids=["plain", "strided", "depthwise"])
@pytest.mark.parametrize("way", PASSES)
@pytest.mark.parametrize("wrong", [0.1, float("nan")])
def test_one_wrong_element_of_the_last_channel_is_silent_corruption(
    function: ConvolutionFunction, way: Any, wrong: float
) -> None:
    made = convolution(function, way)
    right = made.call

    def corrupted() -> torch.Tensor:
        result = right().clone()
        result[-1, -1, -1, 0] += wrong
        return result

    made.call = corrupted
    with pytest.raises(SilentCorruption, match=f"the {way} convolution .* in fp32 is wrong in group"):
        made.check()
