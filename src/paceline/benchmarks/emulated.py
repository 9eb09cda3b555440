"""A CPU computes in formats that it has no instructions for, slowly: whether, and the doubt that this means."""

from __future__ import annotations

from paceline.core.record import Doubt
from paceline.machine.cpu import instruction_flags
from paceline.measure.device import Device

# Any of these flags of the kernel means that products in the format have instructions of their own.
_INSTRUCTIONS = {
    "bf16": {"bf16", "avx512_bf16", "amx_bf16"},
    "fp16": {"fphp", "asimdhp", "avx512_fp16"},
    "fp8": set(),  # no CPU has them
    "int8": {"asimddp", "i8mm", "avx512_vnni", "avx_vnni", "amx_int8"},
}


def emulated(precision: str, device: Device) -> list[Doubt]:
    """The doubt that a figure tells nothing about hardware; none where it does."""
    needed = _INSTRUCTIONS.get(precision)
    if device.kind != "cpu" or needed is None or instruction_flags() & needed:
        return []
    return [
        Doubt(
            kind="emulated",
            message=f"this CPU has no {precision} instructions, so the time says nothing about hardware that has",
            remedy="use fp32 on this machine",
        )
    ]
