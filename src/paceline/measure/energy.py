"""Energy in joules from the hardware's own counters; without a counter there is no figure, never an estimate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from paceline.machine.nvml import Nvml, kept

POWERCAP = Path("/sys/class/powercap")
_MOST_MICROWATTS = 1_000_000_000  # a kilowatt: more than any package draws


class EnergyMeter(Protocol):
    """Something that counts energy; only the difference of two readings means anything."""

    @property
    def source(self) -> str:
        """What counts, for the record."""
        ...

    @property
    def late(self) -> bool:
        """Whether two readings lay so far apart that the counter may have gone round unseen: then drop the figure."""
        ...

    def read(self) -> float:
        """Joules since the meter was opened; never less than before."""
        ...


def open_meter(target: str, powercap: Path = POWERCAP) -> EnergyMeter | None:
    """The meter of a target's device (`cpu`, `cuda:N`, `cuda:*`); None where the hardware does not count for us."""
    if target.startswith("cuda"):
        return _open_gpus(target, kept())
    return _open_packages(powercap) if target == "cpu" else None


class GpuEnergy:
    """The driver's counter of the energy of whole GPUs, other users of theirs included."""

    late = False  # 64 bits of millijoules do not go round

    def __init__(self, nvml: Nvml, handles: Sequence[Any], target: str) -> None:
        self._nvml = nvml
        self._handles = tuple(handles)
        self.source = f"NVML total energy counter of {target}"
        self._start = self._total()
        self._last = 0.0

    def read(self) -> float:
        """Joules since the meter was opened."""
        self._last = max(self._last, self._total() - self._start)
        return self._last

    def _total(self) -> float:
        return sum(_millijoules(self._nvml, handle) or 0 for handle in self._handles) / 1000.0


class PackageEnergy:
    """The processor packages' counters, which go round after some tens of kilojoules."""

    def __init__(self, domains: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._domains = tuple(domains)
        self._clock = clock
        self._ranges = [_number(domain / "max_energy_range_uj") for domain in domains]
        self._seen = [_number(domain / "energy_uj") for domain in domains]
        self._microjoules = 0
        self._at = clock()
        # Between readings further apart than this a counter could have gone round more than once.
        self.longest_gap = min(
            size / _largest_power(domain) for size, domain in zip(self._ranges, self._domains, strict=True)
        )
        self.late = False
        count = len(self._domains)
        self.source = f"RAPL counter{'s' if count > 1 else ''} of {count} CPU package{'s' if count > 1 else ''}"

    def read(self) -> float:
        """Joules since the meter was opened."""
        now = self._clock()
        self.late = self.late or now - self._at > self.longest_gap
        self._at = now
        for index, domain in enumerate(self._domains):
            value = _number(domain / "energy_uj")
            growth = value - self._seen[index]
            self._microjoules += growth if growth >= 0 else growth + self._ranges[index]
            self._seen[index] = value
        return self._microjoules / 1e6


def _open_packages(powercap: Path) -> PackageEnergy | None:
    # Only the top level of one interface: the parts below a package are counted in it, and the memory-mapped
    # interface (intel-rapl-mmio) shows the same packages once more.
    domains = sorted(path for path in powercap.glob("intel-rapl:*") if path.name.count(":") == 1)
    try:
        packages = [path for path in domains if (path / "name").read_text().startswith("package")]
        return PackageEnergy(packages) if packages else None
    except (OSError, ValueError):  # most systems let only root read the counters
        return None


def _number(path: Path) -> int:
    return int(path.read_text())


def _largest_power(domain: Path) -> int:
    """Microwatts that the package draws at most for any length of time."""
    known = []
    for path in domain.glob("constraint_*_power_limit_uw"):
        try:
            known.append(_number(path))
        except (OSError, ValueError):
            continue
    return min(max(known, default=0) or _MOST_MICROWATTS, _MOST_MICROWATTS)


def _open_gpus(target: str, nvml: Nvml | None) -> GpuEnergy | None:
    handles = nvml.handles(target) if nvml is not None else []
    # A card may not count, and a part of one (MIG) has no counter of its own.
    if nvml is None or not handles or any(_millijoules(nvml, handle) is None for handle in handles):
        return None
    return GpuEnergy(nvml, handles, target)


def _millijoules(nvml: Nvml, handle: Any) -> int | None:
    answer = nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle)
    return None if answer is None else int(answer)
