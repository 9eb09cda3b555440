"""What an operator of a trace has to compute and to move, by the sizes of its inputs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from paceline.core.trace_events import TraceEvent, group_of

Sizes = tuple[int, ...]
FORMATS = {
    "float": ("fp32", 4), "double": ("fp64", 8), "c10::BFloat16": ("bf16", 2), "c10::Half": ("fp16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1), "c10::Float8_e5m2": ("fp8", 1), "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1), "int": ("int32", 4), "long int": ("int64", 8), "bool": ("bool", 1),
}  # fmt: skip
# Where the operands of a product stand among its inputs.
PRODUCTS = {
    "aten::mm": 0, "aten::bmm": 0, "aten::_scaled_mm": 0, "aten::_int_mm": 0, "aten::addmm": 1, "aten::baddbmm": 1,
}  # fmt: skip
# Fused attention of [batch, length, heads, size], where others take [batch, heads, length, size].
_LENGTH_FIRST = ("aten::_flash_attention_", "aten::_efficient_attention_")
# Of a convolution's lists of numbers, which is the padding and which the stride.
_CONVOLUTIONS = {
    "aten::cudnn_convolution": (0, 1), "aten::mkldnn_convolution": (0, 1), "aten::miopen_convolution": (0, 1),
    "aten::convolution": (1, 0), "aten::_convolution": (1, 0), "aten::cudnn_convolution_relu": (1, 0),
    "aten::cudnn_convolution_add_relu": (1, 0), "aten::thnn_conv2d": (2, 1),
}  # fmt: skip
_COMPILED = "triton_"  # its inputs are all that the kernel reads and writes


@dataclass(frozen=True)
class Inputs:
    """The inputs of one operator as a trace has them."""

    event: TraceEvent

    @property
    def sizes(self) -> list[Sizes]:
        """Of the tensors that are not single numbers."""
        return self._whole("Input Dims")

    @property
    def strides(self) -> list[Sizes]:
        return self._whole("Input Strides")

    @property
    def formats(self) -> list[str]:
        return [FORMATS[one][0] for one in self.event.arguments.get("Input type", ()) if one in FORMATS]

    @property
    def product(self) -> tuple[int, int, int, int] | None:
        """How many products, of how many rows and columns, over which inner size."""
        first, sizes = PRODUCTS.get(self.event.name), self.sizes
        if first is None or len(sizes) < first + 2 or len(sizes[first]) < 2 or len(sizes[first + 1]) < 2:
            return None
        (*_, rows, inner), (*_, columns) = sizes[first], sizes[first + 1]
        return math.prod(sizes[first][:-2]), rows, columns, inner

    @property
    def format(self) -> str:
        """Of its numbers; a product has its inputs last."""
        return (self.formats or [""])[-1 if self.product else 0]

    @property
    def flops(self) -> float | None:
        """None where the inputs do not tell."""
        if self.product:
            return 2.0 * math.prod(self.product)
        if (convolved := self._convolution) is not None:
            return convolved[0]
        return self._attention_flops

    @property
    def bytes(self) -> float | None:
        """Read and written at least: each input once, and a result as large as the largest of them."""
        width = next((width for one, width in FORMATS.values() if one == self.format), 4)
        if self.product:
            count, rows, columns, inner = self.product
            return float(count * width * (rows * inner + inner * columns + rows * columns))
        if (convolved := self._convolution) is not None:
            return convolved[1] * width
        if not self.sizes:
            return None
        if self.event.name.startswith(_COMPILED):
            return sum(self.bytes_of(place) for place in range(len(self.event.arguments.get("Input Dims", ()))))
        return float(width * (sum(map(math.prod, self.sizes)) + max(map(math.prod, self.sizes))))

    def bytes_of(self, place: int) -> float:
        """Of one input; none of one without a size."""
        sizes, formats = (self.event.arguments.get(name, ()) for name in ("Input Dims", "Input type"))
        size = sizes[place]
        if not size or not all(isinstance(one, int) for one in size):
            return 0.0
        return float(math.prod(size) * (FORMATS.get(formats[place], ("", 4))[1] if place < len(formats) else 4))

    def _whole(self, name: str) -> list[Sizes]:
        given = self.event.arguments.get(name, ())
        return [tuple(one) for one in given if one and all(isinstance(size, int) for size in one)]

    @property
    def _convolution(self) -> tuple[float, float] | None:
        """FLOPs, and numbers read and written, of a convolution of images."""
        name, images = self.event.name, [one for one in self.sizes if len(one) == 4]
        if name == "aten::convolution_backward" and len(images) >= 3:
            result, image, weight = images[:3]
            passes = 2.0  # by the images and by the weights
        elif name in _CONVOLUTIONS and len(images) >= 2:
            image, weight = images[:2]
            lists = [one for one in self._given if isinstance(one, list) and len(one) == 2]
            places = _CONVOLUTIONS[name]
            if len(lists) <= max(places) or "True" in self._given[2:7] or any(one != [1, 1] for one in lists[2:3]):
                return None  # a transposed one, or one with holes
            padding, stride = (lists[place] for place in places)
            across = (
                (size + 2 * pad - kernel) // step + 1
                for size, pad, kernel, step in zip(image[2:], padding, weight[2:], stride, strict=True)
            )
            result, passes = (image[0], weight[0], *across), 1.0
        else:
            return None
        added = math.prod(result) if "_add_" in name else 0
        moved = math.prod(image) + math.prod(weight) + math.prod(result) + added
        return 2.0 * passes * math.prod(result) * math.prod(weight[1:]), passes * moved

    @property
    def _given(self) -> list[object]:
        """Inputs that are not tensors, as far as they can be read."""
        found: list[object] = []
        for one in self.event.arguments.get("Concrete Inputs", ()):
            try:
                found.append(json.loads(str(one)))
            except ValueError:
                found.append(str(one))
        return found

    @property
    def _attention_flops(self) -> float | None:
        """Of fused attention: two products forward and five backward, of half the pairs where it is causal."""
        name, large = self.event.name, [one for one in self.sizes if len(one) == 4]
        is_backward = name.endswith("_backward")
        if group_of(name, on_device=False) != "attention" or len(large) < 3 + is_backward:
            return None
        query, key, value = large[is_backward : 3 + is_backward]  # behind the gradient of the result
        given = [str(one) for one in self.event.arguments.get("Concrete Inputs", ())]
        behind = given[given.index("0.") :] if "0." in given else []  # the part that is dropped, then whether causal
        is_causal = next((one == "True" for one in behind if one in ("True", "False")), False)
        products = 2.5 if is_backward else 1.0
        length = key[1 if name.startswith(_LENGTH_FIRST) else 2]
        pairs = math.prod(query[:-1]) * length * (0.5 if is_causal else 1.0)
        return 2.0 * products * pairs * (query[-1] + value[-1])
