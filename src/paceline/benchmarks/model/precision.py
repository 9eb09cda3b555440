"""Number formats: what each means, what a device can do, and how a module is made to compute in it.

fp32 is true fp32: no TF32 anywhere. fp16 and bf16 are mixed precision: weights stay fp32 and autocast chooses
the format of each operator; fp16 training scales the loss. In inference the weights themselves are cast once,
as servers do. fp8 computes linear layers in 8 bits with dynamic tensor-wise scales (torchao), the rest in bf16;
`fp8_hybrid` takes e4m3 forward and e5m2 for gradients, `fp8_e4m3` takes e4m3 for both.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from paceline.core.errors import MissingDependency, Unsupported

if TYPE_CHECKING:
    import torch
    from torch import nn

    from paceline.measure.device import Device

Fp8Recipe = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"]

_FP8_CAPABILITY = (8, 9)
_TF32_CAPABILITY = (8, 0)
_BF16_CAPABILITY = (8, 0)


def check(precision: str, device: Device, *, fp8_model: bool, model: str) -> None:
    """Raise Unsupported, with the reason, for what this device or model cannot do."""
    if precision.startswith("fp8") and not fp8_model:
        raise Unsupported(f"{precision} is for models made of linear layers (BERT, GPT-2); {model} is not: use bf16")
    if device.kind == "cpu":
        if precision in ("tf32", "fp8_hybrid", "fp8_e4m3"):
            raise Unsupported(f"{precision} needs a GPU's tensor cores; on a CPU use fp32 or bf16")
        return
    needed = {
        "tf32": _TF32_CAPABILITY,
        "bf16": _BF16_CAPABILITY,
        "fp8_hybrid": _FP8_CAPABILITY,
        "fp8_e4m3": _FP8_CAPABILITY,
        "fp8": _FP8_CAPABILITY,
    }.get(precision)
    if needed and device.capability < needed:
        have, want = ".".join(map(str, device.capability)), ".".join(map(str, needed))
        raise Unsupported(f"{precision} needs compute capability {want}; {device.name} has {have}: use fp32 or fp16")


def autocast(precision: str, device: Device) -> AbstractContextManager[object]:
    """The context in which a training step computes its forward."""
    import torch

    dtype = low_dtype(precision)
    return nullcontext() if dtype is None else torch.autocast(device.kind, dtype=dtype)


def low_dtype(precision: str) -> torch.dtype | None:
    """The 16-bit format that goes with a precision, if any."""
    import torch

    if precision in ("fp32", "tf32"):
        return None
    return torch.float16 if precision == "fp16" else torch.bfloat16


def convert_to_fp8(
    module: nn.Module, precision: str, *, recipe: Fp8Recipe = "tensorwise", least_size: int = 16, emulate: bool = False
) -> int:
    """Swap every linear layer whose sizes fit for an fp8 one; returns how many were swapped.

    `recipe` says how values are scaled into 8 bits, `least_size` which layers are too small to gain. `emulate` computes
    the products in fp32 with values rounded to 8 bits, for devices without them.
    """
    from torch import nn

    try:
        from torchao.float8 import CastConfig, Float8LinearConfig, convert_to_float8_training
        from torchao.float8.config import e4m3_dtype
    except ImportError as error:
        raise MissingDependency("torchao (for fp8)", f"pip install 'paceline[fp8]' ({error})") from None

    config = Float8LinearConfig.from_recipe_name(recipe)  # tensorwise is hybrid: e4m3 forward, e5m2 gradients
    if precision == "fp8_e4m3" and recipe == "tensorwise":
        config = Float8LinearConfig(cast_config_grad_output=CastConfig(target_dtype=e4m3_dtype))
    config = replace(config, emulate=emulate)
    swapped = 0

    def fits(layer: nn.Module, name: str) -> bool:
        nonlocal swapped
        # The tensor cores' 8-bit product wants multiples of 16; the head over the vocabulary has none.
        if not isinstance(layer, nn.Linear):
            return False
        sizes = (layer.in_features, layer.out_features)
        ok = all(size % 16 == 0 for size in sizes) and max(sizes) >= least_size
        swapped += ok
        return ok

    convert_to_float8_training(module, config=config, module_filter_fn=fits)
    return swapped
