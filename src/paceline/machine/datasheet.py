"""What vendors promise of known devices; an unknown device has no promise rather than a wrong one.

Dense rates (no sparsity) and bandwidths from the vendors' datasheets and architecture papers, by the name that the
driver gives. Where a paper has only rates with sparsity, half of them are the dense ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Datasheet:
    """One device's promises: TFLOP/s (TOP/s for int8) and GB/s. None: no such unit, or not published."""

    pattern: str  # of the driver's name
    fp64: float | None
    fp64_tc: float | None  # with Tensor Cores
    fp32: float
    tf32: float | None
    fp16_plain: float | None  # without Tensor Cores
    fp16: float | None  # with Tensor Cores and fp32 accumulation
    bf16: float | None
    fp8: float | None
    int8: float | None
    memory: float  # bandwidth
    nvlink: float | None  # all links of one GPU in one direction, where every board of this name has them

    def rate(self, precision: str, *, tensor_cores: bool = True) -> float | None:
        """Operations per second in a precision, with Tensor Cores where the device has them for it, or without."""
        unit = computed_in(precision)
        if not tensor_cores:
            found = {"fp64": self.fp64, "fp32": self.fp32, "fp16": self.fp16_plain}.get(unit)
        elif unit == "fp64":
            found = self.fp64_tc or self.fp64
        else:
            found = getattr(self, unit) if unit in _UNITS else None
        return found * 1e12 if found else None

    @property
    def memory_bandwidth(self) -> float:
        """Bytes per second."""
        return self.memory * 1e9

    @property
    def link_bandwidth(self) -> float | None:
        """Bytes per second that one GPU sends to its neighbours, all its links together."""
        return self.nvlink * 1e9 if self.nvlink else None


_UNITS = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")

# pattern
#   fp64, fp64_tc, fp32, tf32, fp16_plain, fp16, bf16, fp8, int8, memory, nvlink
_KNOWN = tuple(
    Datasheet(pattern, *figures)
    for pattern, figures in (
        (r"\bGB200\b", (40.0, 40.0, 80.0, 1250.0, None, 2500.0, 2500.0, 5000.0, 5000.0, 8000.0, 900.0)),
        (r"\bB200\b", (37.0, 37.0, 75.0, 1125.0, None, 2250.0, 2250.0, 4500.0, 4500.0, 8000.0, 900.0)),
        (r"\bGH200 480GB\b", (33.5, 66.9, 66.9, 494.7, 133.8, 989.4, 989.4, 1978.9, 1978.9, 4000.0, 450.0)),
        (r"\bH200 NVL\b", (30.0, 60.0, 60.0, 417.5, None, 835.5, 835.5, 1670.5, 1670.5, 4800.0, None)),
        (r"\bH200\b", (33.5, 66.9, 66.9, 494.7, 133.8, 989.4, 989.4, 1978.9, 1978.9, 4800.0, 450.0)),
        (r"\bH100 NVL\b", (30.0, 60.0, 60.0, 417.5, None, 835.5, 835.5, 1670.5, 1670.5, 3900.0, None)),
        (r"\bH100 PCIe\b", (25.6, 51.2, 51.2, 378.0, 102.4, 756.0, 756.0, 1513.0, 1513.0, 2000.0, None)),
        (r"\bH100 80GB HBM3\b", (33.5, 66.9, 66.9, 494.7, 133.8, 989.4, 989.4, 1978.9, 1978.9, 3350.0, 450.0)),
        (r"\bA100 80GB PCIe\b", (9.7, 19.5, 19.5, 156.0, 78.0, 312.0, 312.0, None, 624.0, 1935.0, None)),
        (r"\bA100-SXM4?-80GB\b", (9.7, 19.5, 19.5, 156.0, 78.0, 312.0, 312.0, None, 624.0, 2039.0, 300.0)),
        (r"\bA100-SXM4-40GB\b", (9.7, 19.5, 19.5, 156.0, 78.0, 312.0, 312.0, None, 624.0, 1555.0, 300.0)),
        (r"\bA100-PCIE-40GB\b", (9.7, 19.5, 19.5, 156.0, 78.0, 312.0, 312.0, None, 624.0, 1555.0, None)),
        (r"\bA30\b", (5.2, 10.3, 10.3, 82.0, None, 165.0, 165.0, None, 330.0, 933.0, None)),
        (r"\bA40\b", (None, None, 37.4, 74.8, None, 149.7, 149.7, None, 299.3, 696.0, None)),
        (r"\bA10\b", (None, None, 31.2, 62.5, None, 125.0, 125.0, None, 250.0, 600.0, None)),
        (r"\bL40S\b", (None, None, 91.6, 183.0, None, 362.05, 362.05, 733.0, 733.0, 864.0, None)),
        (r"\bL40\b", (None, None, 90.5, 90.5, None, 181.05, 181.05, 362.0, 362.0, 864.0, None)),
        (r"\bL4\b", (None, None, 30.3, 60.0, None, 121.0, 121.0, 242.5, 242.5, 300.0, None)),
        (r"\bRTX A6000\b", (None, None, 38.7, 77.4, 38.7, 154.8, 154.8, None, 309.7, 768.0, None)),
        (r"\bV100-SXM2\b", (7.8, None, 15.7, None, 31.4, 125.0, None, None, None, 900.0, 150.0)),
        (r"\bV100-PCIE\b", (7.0, None, 14.0, None, 28.0, 112.0, None, None, None, 900.0, None)),
        (r"\bV100S-PCIE\b", (8.2, None, 16.4, None, 32.8, 130.0, None, None, None, 1134.0, None)),
        (r"\bTesla T4\b", (None, None, 8.1, None, None, 65.0, None, None, 130.0, 320.0, None)),
        (r"\bRTX 4090\b(?! D)", (1.29, None, 82.6, 82.6, 82.6, 165.2, 165.2, 330.3, 660.6, 1008.0, None)),
        (r"\bRTX 3090\b(?! Ti)", (0.556, None, 35.6, 35.6, 35.6, 71.0, 71.0, None, 284.0, 936.0, None)),
    )
)
# A part of a GPU, or a slower one that shares its name.
_NOT_WHOLE = re.compile(r"\bMIG\b|-\d+[ABCQ]$|\bLaptop\b|\bMax-Q\b")

# Bytes per second of one lane in one direction, after the line code, by generation.
_PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 8e9 / 8 * 128 / 130, 4: 16e9 / 8 * 128 / 130, 5: 32e9 / 8 * 128 / 130}


def datasheet(device_name: str) -> Datasheet | None:
    """What the vendor promises of the device of this name, if it is known."""
    if _NOT_WHOLE.search(device_name):
        return None
    return next((sheet for sheet in _KNOWN if re.search(sheet.pattern, device_name)), None)


def computed_in(precision: str) -> str:
    """The number format that the units compute in: the recipes of 8-bit training share one."""
    return "fp8" if precision.startswith("fp8") else precision


def pcie_bandwidth(generation: int | None, width: int | None) -> float | None:
    """Bytes per second in one direction over a PCIe link, before the cost of packets; None for an unknown kind."""
    lane = _PCIE_LANE.get(generation or 0)
    return lane * width if lane and width else None
