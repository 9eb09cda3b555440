"""The most a device can do, for percent of peak and MFU; an unknown device has none rather than a wrong one."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.machine.datasheet import datasheet


@dataclass(frozen=True)
class Peak:
    """The most a device can do of something, and where that figure is from."""

    rate: float  # per second
    source: str

    @property
    def flops(self) -> float:
        """The rate of a compute peak."""
        return self.rate


def peak_flops(device_name: str, precision: str, *, tensor_cores: bool = True) -> Peak | None:
    """The datasheet peak of this device in this precision, if it is known."""
    sheet = datasheet(device_name)
    rate = sheet.rate(precision, tensor_cores=tensor_cores) if sheet else None
    units = "" if tensor_cores else " without Tensor Cores"
    return Peak(rate, f"datasheet, dense {precision}{units}, {device_name}") if rate else None


def peak_memory_bandwidth(device_name: str) -> Peak | None:
    """The datasheet bandwidth of this device's memory, if it is known."""
    sheet = datasheet(device_name)
    return Peak(sheet.memory_bandwidth, f"datasheet, memory bandwidth, {device_name}") if sheet else None
