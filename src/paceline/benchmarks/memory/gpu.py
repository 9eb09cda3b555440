"""What a GPU promises of its memory traffic beside its datasheet: the link to the host, and the cache before memory."""

from __future__ import annotations

from paceline.devices import Device, kind_of
from paceline.devices.datasheet import pcie_bandwidth
from paceline.measure.peak import Peak

BEYOND_CACHE = 4


def pcie_peak(target: str, *, ways: int) -> Peak | None:
    """The PCIe link of a GPU at its best, in so many directions; an idle link slows down, so not as it is just now."""
    link = kind_of(target).link(target)
    rate = pcie_bandwidth(*link) if link else None
    if link is None or rate is None:
        return None
    generation, width = link
    both = ", both directions" if ways == 2 else ""
    return Peak(ways * rate, f"PCIe generation {generation} x{width}{both}, before packet headers, as the driver tells")


def is_beyond_cache(device: Device, size: int) -> bool:
    """Whether data of this size is too large for the GPU's cache to matter."""
    return size >= BEYOND_CACHE * device.cache_size()
