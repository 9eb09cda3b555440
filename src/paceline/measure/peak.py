"""The most a device can do, for percent of peak and MFU; an unknown device has none rather than a wrong one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.profile import Profile


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
    from paceline.devices import datasheet  # what asks only for a benchmark's name need not know machines

    sheet = datasheet(device_name)
    rate = sheet.rate(precision, tensor_cores=tensor_cores) if sheet else None
    units = "" if tensor_cores else " without Tensor Cores"
    return Peak(rate, f"datasheet, dense {precision}{units}, {device_name}") if rate else None


def measured_peak_flops(
    device_name: str, precision: str, profile: Profile | None = None, *, sharing: int = 1
) -> Peak | None:
    """The fastest matrix product that this machine's profile has for the device in this precision.

    `sharing` processes that compute on one CPU at a time have a part of it each.
    """
    from paceline.devices.datasheet import computed_in

    profile = profile or _profile_of_this_machine()
    ceiling = profile.ceiling("compute", computed_in(precision), device_name=device_name) if profile else None
    if profile is None or ceiling is None:
        return None
    part = f", divided by the {sharing} ranks on this machine" if sharing > 1 else ""
    doubts = ", ".join(dict.fromkeys(doubt.kind for doubt in ceiling.doubts))
    return Peak(
        ceiling.value / sharing,
        f"measured by paceline machine --measure on {profile.measured_at:%Y-%m-%d}, run {profile.run_id}, "
        f"matrix product in {ceiling.name}{f' (doubts: {doubts})' if doubts else ''}{part}",
    )


def peak_memory_bandwidth(device_name: str) -> Peak | None:
    """The datasheet bandwidth of this device's memory, if it is known."""
    from paceline.devices import datasheet

    sheet = datasheet(device_name)
    return Peak(sheet.memory_bandwidth, f"datasheet, memory bandwidth, {device_name}") if sheet else None


def _profile_of_this_machine() -> Profile | None:
    from paceline.core.errors import PacelineError
    from paceline.machine.profile import load_profile

    try:
        return load_profile()
    except PacelineError:  # `paceline machine` says what is wrong with it; a number without MFU is still a number
        return None
