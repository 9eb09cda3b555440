"""A device may compute in formats that it has no instructions for, slowly: whether it does, and the doubt of that."""

from __future__ import annotations

from paceline.core.record import Doubt
from paceline.devices import Device


def emulated(precision: str, device: Device) -> list[Doubt]:
    """The doubt that a figure tells nothing about hardware; none where it does."""
    if device.format(precision).how == "native":
        return []
    of = f"this {device.kind.noun} has no {precision} instructions"
    return [
        Doubt(
            kind="emulated",
            message=f"{of}, so the time says nothing about hardware that has",
            remedy="use fp32 on this machine",
        )
    ]
