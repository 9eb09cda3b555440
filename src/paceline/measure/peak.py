"""Datasheet peaks of known devices, for MFU; an unknown device has none rather than a wrong one.

Dense rates (no sparsity) in FLOP/s, from the vendors' datasheets, by the name that the driver gives.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# name pattern: (fp32, tf32, fp16 and bf16 with fp32 accumulation, fp8), in TFLOP/s; None: no such unit.
_DATASHEET: tuple[tuple[str, tuple[float | None, float | None, float | None, float | None]], ...] = (
    (r"\bH200 NVL\b", (60.0, 417.5, 835.5, 1671.0)),
    (r"\bH200\b", (66.9, 494.7, 989.4, 1978.9)),
    (r"\bH100 NVL\b", (60.0, 417.5, 835.5, 1671.0)),
    (r"\bH100 PCIe\b", (51.2, 378.0, 756.0, 1513.0)),
    (r"\bH100 80GB HBM3\b|\bH100 SXM", (66.9, 494.7, 989.4, 1978.9)),
    (r"\bA100\b", (19.5, 156.0, 312.0, None)),
    (r"\bA30\b", (10.3, 82.0, 165.0, None)),
    (r"\bA40\b", (37.4, 74.8, 149.7, None)),
    (r"\bA10\b", (31.2, 62.5, 125.0, None)),
    (r"\bL40S\b", (91.6, 183.2, 362.1, 733.0)),
    (r"\bL4\b", (30.3, 60.5, 121.0, 242.5)),
    (r"\bV100-SXM2\b", (15.7, None, 125.0, None)),
    (r"\bV100-PCIE\b", (14.0, None, 112.0, None)),
    (r"\bTesla T4\b", (8.1, None, 65.0, None)),
    (r"\bRTX 4090\b(?! D)", (82.6, 82.6, 165.2, 330.3)),
    (r"\bRTX 3090\b(?! Ti)", (35.6, 35.6, 71.0, None)),
)
# A part of a GPU, or a slower one that shares its name.
_NOT_WHOLE = re.compile(r"\bMIG\b|-\d+[ABCQ]$|\bLaptop\b|\bMax-Q\b")
_COLUMN = {"fp32": 0, "tf32": 1, "fp16": 2, "bf16": 2, "fp8_hybrid": 3, "fp8_e4m3": 3}


@dataclass(frozen=True)
class Peak:
    """The most a device can do in a precision, and where that figure is from."""

    flops: float
    source: str


def peak_flops(device_name: str, precision: str) -> Peak | None:
    """The datasheet peak of this device in this precision, if it is known."""
    if _NOT_WHOLE.search(device_name):
        return None
    for pattern, rates in _DATASHEET:
        if re.search(pattern, device_name):
            has_bf16 = rates[_COLUMN["tf32"]] is not None  # both came with the same generation
            rate = rates[_COLUMN[precision]] if precision != "bf16" or has_bf16 else None
            return Peak(rate * 1e12, f"datasheet, dense {precision}, {device_name}") if rate else None
    return None
