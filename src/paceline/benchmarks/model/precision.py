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
from paceline.models.building import low_dtype

if TYPE_CHECKING:
    from torch import nn

    from paceline.devices import Device

Fp8Recipe = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"]


def check(precision: str, device: Device, *, fp8_model: bool, model: str) -> None:
    """Raise Unsupported, with the reason, for what this device or model cannot do; `fp8` is emulated on a host."""
    if precision.startswith("fp8") and not fp8_model:
        raise Unsupported(f"{precision} is for models made of linear layers (BERT, GPT-2); {model} is not: use bf16")
    support = device.format(precision)
    if support.how == "none" and (device.kind.is_accelerator or precision != "fp8"):
        raise Unsupported(support.reason)


def autocast(precision: str, device: Device) -> AbstractContextManager[object]:
    """The context in which a training step computes its forward."""
    import torch

    dtype = low_dtype(precision)
    return nullcontext() if dtype is None else torch.autocast(device.torch().type, dtype=dtype)


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
