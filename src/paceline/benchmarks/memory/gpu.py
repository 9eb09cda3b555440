"""What a GPU promises of its memory traffic beside its datasheet: the link to the host, and the cache before memory."""

from __future__ import annotations

from paceline.machine.nvml import Nvml, kept
from paceline.measure.device import Device
from paceline.measure.peak import Peak

BEYOND_CACHE = 4

# Bits per second and lane that are left for data after the line code.
_LANE = {1: 2.5e9 * 8 / 10, 2: 5e9 * 8 / 10, 3: 8e9 * 128 / 130, 4: 16e9 * 128 / 130, 5: 32e9 * 128 / 130}
_LANE[6] = 64e9 * 242 / 256


def pcie_rate(generation: int, width: int) -> float | None:
    """Bytes per second in one direction, before the headers of packets; None for a generation not known here."""
    lane = _LANE.get(generation)
    return lane * width / 8 if lane else None


def pcie_peak(target: str, *, ways: int, nvml: Nvml | None = None) -> Peak | None:
    """The PCIe link of a GPU at its best, in so many directions; an idle link slows down, so not as it is just now."""
    nvml = nvml or kept()
    handles = nvml.handles(target) if nvml else []
    if nvml is None or len(handles) != 1:
        return None
    generation = nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", handles[0])
    width = nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", handles[0])
    rate = pcie_rate(generation, width) if generation and width else None
    if rate is None:
        return None
    both = ", both directions" if ways == 2 else ""
    return Peak(ways * rate, f"PCIe generation {generation} x{width}{both}, before packet headers, as the driver tells")


def cache_of(device: Device) -> int:
    """Bytes of the cache before the GPU's memory."""
    import torch

    return int(torch.cuda.get_device_properties(device.torch()).L2_cache_size)


def is_beyond_cache(device: Device, size: int) -> bool:
    """Whether data of this size is too large for the GPU's cache to matter."""
    return size >= BEYOND_CACHE * cache_of(device)
