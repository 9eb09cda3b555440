"""The host's own processors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.device import HOST
from paceline.core.errors import Unsupported
from paceline.core.probe import ROOT, cpu_info, read_int
from paceline.core.subject import number_format
from paceline.devices.base import EMULATED, NATIVE, Device, DeviceKind, EnergyMeter, FormatSupport
from paceline.devices.timeline import HostTimeline, Timeline

if TYPE_CHECKING:
    import torch

FLAGS = frozenset(
    """
    sse4_2 avx avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512_vnni avx512_bf16 avx512_fp16
    amx_tile amx_bf16 amx_int8 amx_fp16 hypervisor
    asimd asimdhp asimddp asimdfhm fphp bf16 i8mm sve sve2 svebf16 svei8mm sme sme2
    """.split()  # noqa: SIM905
)
# Any of these flags of the kernel means that products in the format have instructions of their own.
_INSTRUCTIONS = {
    "bf16": {"bf16", "avx512_bf16", "amx_bf16"},
    "fp16": {"fphp", "asimdhp", "avx512_fp16"},
    "int4": {"bf16", "avx512_bf16", "amx_bf16"},  # of weights alone: the products are bf16's
    "int8": {"asimddp", "i8mm", "avx512_vnni", "avx_vnni", "amx_int8"},
}
POWERCAP = Path("/sys/class/powercap")
_MOST_MICROWATTS = 1_000_000_000  # a kilowatt: more than any package draws


class CpuKind(DeviceKind):
    """The host's own processors: work has ended when the call returns, and memory is the host's."""

    name = HOST
    noun = "CPU"
    is_accelerator = False
    boost_seconds = 28.0  # the usual window over which a processor averages its power before turbo ends

    def count(self) -> int:
        return 1

    def open(self, index: int = 0) -> Device:
        return CpuDevice(self)

    def meter(self, target: str) -> EnergyMeter | None:
        return open_packages(POWERCAP)

    def limit_power(self, target: str, watts: float, undo: ExitStack) -> None:
        limit_packages(POWERCAP, watts, undo)


class CpuDevice(Device):
    """All cores that this process may use."""

    def __init__(self, kind: DeviceKind | None = None) -> None:
        super().__init__(kind or CpuKind(), HOST)

    def timeline(self, in_flight: int) -> Timeline:
        return HostTimeline()

    def synchronize(self) -> None:
        """Work on the CPU has ended when the call returns."""

    def format(self, precision: str) -> FormatSupport:
        if precision in ("tf32", "fp4") or number_format(precision) == "fp8":
            return FormatSupport("none", f"{precision} needs a GPU's Tensor Cores; on a CPU use fp32 or bf16")
        needed = _INSTRUCTIONS.get(precision)
        return NATIVE if needed is None or instruction_flags() & needed else EMULATED

    def torch(self) -> torch.device:
        import torch

        return torch.device(HOST)


def instruction_flags(root: Path = ROOT) -> frozenset[str]:
    """The instruction sets that bear on speed, as the kernel names them."""
    info = cpu_info(root)
    return FLAGS.intersection((info.get("flags") or info.get("Features") or "").split())


class PackageEnergy:
    """The processor packages' counters, which go round after some tens of kilojoules."""

    def __init__(self, domains: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._domains = tuple(domains)
        self._clock = clock
        self._ranges = [_number(domain / "max_energy_range_uj") for domain in domains]
        self._last = [_number(domain / "energy_uj") for domain in domains]
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
            growth = value - self._last[index]
            self._microjoules += growth if growth >= 0 else growth + self._ranges[index]
            self._last[index] = value
        return self._microjoules / 1e6


def open_packages(powercap: Path) -> PackageEnergy | None:
    """The counters of all packages below this folder of the kernel; None where nobody may read them."""
    try:
        packages = _packages(powercap)
        return PackageEnergy(packages) if packages else None
    except (OSError, ValueError):  # most systems let only root read the counters
        return None


def limit_packages(powercap: Path, watts: float, undo: ExitStack) -> None:
    """Hold each package to a power over its long window, and leave with `undo` what puts the earlier limit back."""
    limits = [folder / "constraint_0_power_limit_uw" for folder in _packages(powercap)]
    if not limits or not all(limit.is_file() for limit in limits):
        raise Unsupported(
            f"this host has no power limit of a processor package in {powercap}, as virtual machines and processors "
            "without RAPL have none; leave power_limit out"
        )
    values = {limit: round(watts * 1e6) for limit in limits} | {limit.parent / "enabled": 1 for limit in limits}
    for file, value in values.items():
        before = read_int(file)
        if before is None:  # not every interface can be switched off
            continue
        try:
            file.write_text(str(value))
        except OSError as error:
            raise Unsupported(f"{file} cannot be written: {error.strerror}; only root may set it: use sudo") from None
        undo.callback(file.write_text, str(before))
        if file.name != "enabled" and abs((read_int(file) or 0) - value) > value / 100:
            raise Unsupported(f"the processor does not take {watts:g} W: it is at {(read_int(file) or 0) / 1e6:g} W")


def _packages(powercap: Path) -> list[Path]:
    # Only the top level of one interface: the parts below a package are counted in it, and the memory-mapped
    # interface (intel-rapl-mmio) shows the same packages once more.
    domains = sorted(path for path in powercap.glob("intel-rapl:*") if path.name.count(":") == 1)
    return [path for path in domains if (path / "name").read_text().startswith("package")]


def _number(path: Path) -> int:
    return int(path.read_text())


def _largest_power(domain: Path) -> int:
    """Microwatts that the package draws at most for any length of time."""
    limits = [limit for path in domain.glob("constraint_*_power_limit_uw") if (limit := read_int(path))]
    return min(max(limits, default=_MOST_MICROWATTS), _MOST_MICROWATTS)
