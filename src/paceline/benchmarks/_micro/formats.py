"""Number formats of single operators: how operands are made in each, and how exact a result must be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.core.errors import SilentCorruption, Unsupported

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from paceline.devices import Device

# Relative steps: of rounding the operands inside the unit, of accumulating, of the result's own format.
# Tensor Cores keep fewer bits while they accumulate than fp32 has, fewest (about 14) in fp8; the plain units sum fp16
# in fp16.
_STEPS = {
    "fp64": (0.0, 2.0**-52, 2.0**-52),
    "fp32": (0.0, 2.0**-23, 2.0**-23),
    "tf32": (2.0**-10, 2.0**-20, 2.0**-23),
    "fp16": (0.0, 2.0**-20, 2.0**-10),
    "fp16, plain units": (0.0, 2.0**-10, 2.0**-10),
    "bf16": (0.0, 2.0**-20, 2.0**-7),
    "fp8": (0.0, 2.0**-12, 2.0**-7),
    "int8": (0.0, 0.0, 0.0),
    "fp4": (0.0, 2.0**-12, 2.0**-7),
    "int4": (0.0, 2.0**-20, 2.0**-7),
}

# How far an element of several products in a row may lie from fp64, as a part of its size and the typical one: what is
# between them is rounded too.
_CHAINED = {"fp32": 1e-4, "tf32": 3e-2, "fp16": 3e-2, "bf16": 0.15}


def check_device(precision: str, device: Device) -> None:
    """Raise Unsupported, with the reason, for a format that the device does not compute in."""
    support = device.format(precision)
    if support.how == "none":
        raise Unsupported(support.reason)


_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # the magnitudes of e2m1


def dtype_of(precision: str) -> torch.dtype:
    """The format in which operands lie in memory."""
    import torch

    return {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "tf32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8": torch.float8_e4m3fn,
        "int8": torch.int8,
    }[precision]


def random_operand(precision: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random numbers: normal, or every integer of int8 alike; zeros would draw less power and run faster."""
    import torch

    device = generator.device
    if precision == "int8":
        return torch.randint(-127, 128, shape, dtype=torch.int8, device=device, generator=generator)
    if precision == "int4":
        return torch.randint(-8, 8, shape, dtype=torch.int8, device=device, generator=generator)
    if precision == "fp4":  # exact in bf16, until they are packed
        signed = torch.tensor([*_FP4, *(-one for one in _FP4)], dtype=torch.bfloat16, device=device)
        return signed[torch.randint(0, 16, shape, device=device, generator=generator)]
    wide = torch.float64 if precision == "fp64" else torch.float32
    return torch.randn(shape, dtype=wide, device=device, generator=generator).to(dtype_of(precision))


def largest_error(wrong: str, precision: str, result: Tensor, exact: Tensor, magnitude: Tensor, depth: int) -> float:
    """How far a product of random operands lies from the exact one, as a part of what its format allows.

    More is silent corruption, and `wrong` says of what. `magnitude` is the product of the operands' absolute values,
    `depth` how many terms each element sums. A sum of terms with random signs is as large as their magnitude over the
    root of the depth; each addition rounds a sum of that size, and the errors of many roundings grow with the root of
    their number. The factor leaves room for the order of the additions, for split sums and for the tail of the
    distribution.
    """
    import torch

    inside, accumulating, last = _STEPS[precision]
    typical = magnitude / math.sqrt(depth)
    allowed = 8.0 * ((inside + accumulating * math.sqrt(depth)) * typical + last * (exact.abs() + typical))
    error = (result.double() - exact).abs()
    share = torch.where(error == 0, 0.0, error / allowed)
    largest = float(share.max())
    if not largest <= 1.0:  # also where it is not a number
        where = [int(i) for i in (~(share <= 1.0)).nonzero()[0]]
        distance = f"{largest:.3g} times as far from the fp64 result as the format allows"
        raise SilentCorruption(f"{wrong} at {where}: {distance}")
    return largest


def chained_error(wrong: str, precision: str, result: Tensor, exact: Tensor) -> float:
    """Like `largest_error`, for several products in a row; each row of the last axis is a result by itself.

    Typical is what the row and the whole are made of: a row may be exactly zero, as the gradient of a causal mask's
    first query is.
    """
    typical = exact.square().mean(-1, keepdim=True).sqrt() + exact.square().mean().sqrt()
    allowed = _CHAINED[precision] * (exact.abs() + typical)
    largest = float(((result.double() - exact).abs() / allowed).max())
    if not largest <= 1.0:  # also where it is not a number
        raise SilentCorruption(f"{wrong}: {largest:.3g} times as far from the fp64 result as the format allows")
    return largest


def packed_fp4(values: Tensor) -> Tensor:
    """Numbers of fp4 as the units read them: two in a byte, the first in its lower half."""
    import torch

    magnitudes = torch.tensor(_FP4, dtype=values.dtype, device=values.device)
    codes = torch.searchsorted(magnitudes, values.abs().contiguous()) + 8 * (values < 0)
    return (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)


def packed_int4(values: Tensor) -> Tensor:
    """Weights by columns (k x n) as torch's product with int4 weights reads them on their device."""
    import torch

    codes = (values.mT.int() + 8).contiguous()
    if values.device.type == "cpu":
        return torch._convert_weight_to_int4pack_for_cpu(codes, 8)
    return torch._convert_weight_to_int4pack((codes[:, ::2] * 16 + codes[:, 1::2]).to(torch.uint8), 8)
