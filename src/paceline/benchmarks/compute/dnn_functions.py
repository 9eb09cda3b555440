"""The convolutions that models are made of, forward and both ways backward, each by itself and all together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro import formats
from paceline.benchmarks.compute._function_lists import Function, FunctionListBenchmark, FunctionListParameters, Names
from paceline.benchmarks.compute.gemm import wipe
from paceline.core.environment import Environment
from paceline.core.record import At, Record
from paceline.core.subject import Description, key_word
from paceline.devices import Device
from paceline.models.base import set_fp32_mode
from paceline.models.sources import MODEL_NAME

if TYPE_CHECKING:
    from torch import Tensor

Pass = Literal["forward", "backward-data", "backward-weight"]
Operands = tuple["Tensor", "Tensor", "Tensor"]  # images, weight, gradient of the result


class DnnFunctionsParameters(FunctionListParameters):
    """Whose convolutions, and the number format."""

    models: Annotated[Names, MODEL_NAME] = ["resnet50", "vgg16", "resnext50_32x4d"]
    """Models whose convolutions to measure: of the zoo (paceline list models), or your own as module:factory"""


def _both_ways(value: object) -> object:
    """A single number stands for both axes."""
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


Edge = Annotated[int, Field(ge=1)]
Edges = Annotated[tuple[Edge, Edge], BeforeValidator(_both_ways)]
Margins = Annotated[tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]], BeforeValidator(_both_ways)]


class ConvolutionFunction(Function):
    """A convolution of images in two dimensions; pairs are height and width."""

    EXAMPLE: ClassVar[str] = "{batch: 1, in_channels: 64, out_channels: 64, image: 56, kernel: 3, padding: 1}"

    batch: Edge = 1
    in_channels: Edge
    out_channels: Edge
    image: Edges
    kernel: Edges
    stride: Edges = (1, 1)
    padding: Margins = (0, 0)
    dilation: Edges = (1, 1)
    groups: Edge = 1

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the result."""
        height, width = (
            (image + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for image, padding, dilation, kernel, stride in zip(
                self.image, self.padding, self.dilation, self.kernel, self.stride, strict=True
            )
        )
        return height, width

    @property
    def label(self) -> str:
        words = [
            f"{self.batch} of " if self.batch > 1 else "",
            f"{self.in_channels}x{_pair(self.image)} to {self.out_channels}, {_pair(self.kernel)}",
            f" stride {_pair(self.stride)}" if self.stride != (1, 1) else "",
            f" padding {_pair(self.padding)}" if self.padding != (0, 0) else "",
            f" dilation {_pair(self.dilation)}" if self.dilation != (1, 1) else "",
            f" groups {self.groups}" if self.groups > 1 else "",
        ]
        return self.name or "".join(words)

    @property
    def work(self) -> float:
        height, width = self.output
        terms = self.in_channels // self.groups * self.kernel[0] * self.kernel[1]
        return 2.0 * self.batch * self.out_channels * height * width * terms

    def complaint(self) -> str:
        for name in ("in_channels", "out_channels"):
            if getattr(self, name) % self.groups:
                return f"{name} = {getattr(self, name)} is not a multiple of groups = {self.groups}; change one of them"
        if min(self.output) < 1:
            return f"kernel = {_pair(self.kernel)} does not fit into image = {_pair(self.image)}; add padding"
        return ""


class DnnFunctions(FunctionListBenchmark[DnnFunctionsParameters]):
    """Convolutions of models or of a user's list, checked against a higher precision."""

    name = "dnn-functions"
    summary = "the convolutions of models, or of your own list, forward and backward: time and FLOP/s"
    kind = ConvolutionFunction
    what = "convolutions"
    how = {
        "library_call": "aten::convolution and aten::convolution_backward for one of the two gradients, no bias",
        "layout": "channels last",
        "autotune": "cuDNN tries its algorithms for every shape before it is timed (on a GPU)",
    }

    @classmethod
    def describe(cls, record: Record, parameters: DnnFunctionsParameters, environment: Environment) -> Description:
        passes = {"forward": "forward", "backward-data": "backwarddata", "backward-weight": "backwardfilter"}
        values = {}
        for point in _superbench.points(record, "time", ("function", "pass")):
            way = passes.get(str(point.at["pass"]), key_word(point.at["pass"]))
            name = f"name_cudnnconvolution{way}_{key_word(point.at['function'])}_time"
            values[name] = point.summary.mean / _superbench.US
        aliases = _superbench.alias(record, "cudnn-function", values, gpu=True)
        return Description(aliases=aliases)

    def recognise(self, operator: str, arguments: Sequence[Any]) -> ConvolutionFunction | None:
        if operator != "convolution":
            return None
        images, weight, _, stride, padding, dilation, transposed, _, groups = arguments
        if images.dim() != 4 or transposed:
            return None
        return ConvolutionFunction(
            batch=images.shape[0],
            in_channels=images.shape[1],
            out_channels=weight.shape[0],
            image=tuple(images.shape[2:]),
            kernel=tuple(weight.shape[2:]),
            stride=tuple(stride),
            padding=tuple(padding),
            dilation=tuple(dilation),
            groups=groups,
        )

    def calls(
        self, parameters: DnnFunctionsParameters, device: Device, function: ConvolutionFunction
    ) -> Iterator[tuple[At, Callable[[], Convolution]]]:
        for way in get_args(Pass):
            prepare = partial(Convolution, function, way, parameters.precision, parameters.seed, device)
            yield {"function": function.label, "pass": way}, prepare


class Convolution:
    """The operands of one pass of a convolution, the call that computes it, and the check of its result."""

    def __init__(self, function: ConvolutionFunction, way: Pass, precision: str, seed: int, device: Device) -> None:
        import torch

        self._function = function
        self._way = way
        self._precision = precision
        self.worst = 0.0
        torch.backends.cudnn.benchmark = True
        set_fp32_mode(precision)
        generator = torch.Generator(device.torch()).manual_seed(seed)

        def operand(*shape: int) -> Tensor:
            return formats.random_operand(precision, shape, generator).to(memory_format=torch.channels_last)

        self._operands = (
            operand(function.batch, function.in_channels, *function.image),
            operand(function.out_channels, function.in_channels // function.groups, *function.kernel),
            operand(function.batch, function.out_channels, *function.output),
        )
        self.call: Callable[[], Tensor] = partial(_convolve, way, function, self._operands, function.groups)

    def check(self) -> None:
        """Compare whole planes of the first and the last group with fp64; a difference is silent corruption.

        Libraries may compute a convolution in tiles of transformed numbers, where an error belongs to a whole plane:
        what is allowed there follows from the plane's largest element.
        """
        import torch

        function = self._function
        area = function.kernel[0] * function.kernel[1]
        depth = {  # how many terms each element of the result sums
            "forward": function.in_channels // function.groups * area,
            "backward-data": function.out_channels // function.groups * area,
            "backward-weight": function.batch * function.output[0] * function.output[1],
        }[self._way]
        wipe(self.call())
        result = self.call()
        for group in sorted({0, function.groups - 1}):
            for parts, where in self._parts(group):
                images, weight, gradient = (part.double() for part in parts)
                # Not by cuDNN: it would take seconds to plan each of these small shapes, and is what is being checked.
                with torch.backends.cudnn.flags(enabled=False):
                    exact = _convolve(self._way, function, (images, weight, gradient), 1)
                    sizes = images.abs(), weight.abs(), gradient.abs()
                    magnitude = _convolve(self._way, function, sizes, 1).amax((-2, -1), keepdim=True)
                name = f"the {self._way} convolution {function.label} in {self._precision}"
                wrong = f"{name} is wrong in group {group}"
                error = formats.largest_error(wrong, self._precision, result[where], exact, magnitude, depth)
                self.worst = max(self.worst, error)

    def _parts(self, group: int) -> Iterator[tuple[Operands, tuple[slice, slice]]]:
        """A few channels of a group's result: the operands that each depends on, and where in the result it is."""
        function = self._function

        def channels_of_group(channels: int) -> slice:
            each = channels // function.groups
            return slice(group * each, (group + 1) * each)

        inputs, outputs = channels_of_group(function.in_channels), channels_of_group(function.out_channels)
        last = slice(function.batch - 1, None)
        images, weight, gradient = self._operands
        if self._way == "forward":
            for channel in _some(outputs):
                yield (images[last, inputs], weight[channel], gradient[last, channel]), (last, channel)
        elif self._way == "backward-data":
            for channel in _some(inputs):
                in_weight = slice(channel.start - inputs.start, channel.stop - inputs.start)
                yield (images[last, channel], weight[outputs, in_weight], gradient[last, outputs]), (last, channel)
        else:
            in_images, in_weight = slice(inputs.stop - 1, inputs.stop), slice(inputs.stop - inputs.start - 1, None)
            for channel in _some(outputs):
                yield (images[:, in_images], weight[channel, in_weight], gradient[:, channel]), (channel, in_weight)


def _convolve(way: Pass, function: ConvolutionFunction, operands: Operands, groups: int) -> Tensor:
    import torch

    images, weight, gradient = operands
    shape = (function.stride, function.padding, function.dilation, False, (0, 0), groups)
    if way == "forward":
        return torch.convolution(images, weight, None, *shape)
    gradients = [way == "backward-data", way == "backward-weight", False]
    results = torch.ops.aten.convolution_backward(gradient, images, weight, None, *shape, gradients)
    result: Tensor = results[0 if way == "backward-data" else 1]
    return result


def _some(channels: slice) -> list[slice]:
    """The first two channels and the last, each by itself."""
    numbers = sorted({*range(channels.start, min(channels.start + 2, channels.stop)), channels.stop - 1})
    return [slice(number, number + 1) for number in numbers]


def _pair(pair: tuple[int, int]) -> str:
    return f"{pair[0]}x{pair[1]}"
