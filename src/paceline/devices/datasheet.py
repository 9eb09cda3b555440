"""A vendor's figures for a device; the tables of known ones are files next to their kinds.

Dense rates (no sparsity) and bandwidths from the vendors' datasheets and architecture papers, by the name that the
driver gives. Where a paper has only rates with sparsity, half of them are the dense ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

from paceline.core.files import shipped_rows
from paceline.core.subject import NumberFormat, number_format


@dataclass(frozen=True)
class Datasheet:
    """One device's figures: TFLOP/s (TOP/s for int8) and GB/s. None: no such unit, or not published."""

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
        unit = number_format(precision)
        if not tensor_cores:
            tera = {"fp64": self.fp64, "fp32": self.fp32, "fp16": self.fp16_plain}.get(unit)
        elif unit == "fp64":
            tera = self.fp64_tc or self.fp64
        else:
            tera = getattr(self, unit) if unit in get_args(NumberFormat) else None
        return tera * 1e12 if tera else None

    @property
    def memory_bandwidth(self) -> float:
        """Bytes per second."""
        return self.memory * 1e9

    @property
    def link_bandwidth(self) -> float | None:
        """Bytes per second that one GPU sends to its neighbours, all its links together."""
        return self.nvlink * 1e9 if self.nvlink else None


# Bits per second and lane that are left for data after the line code, by generation of PCIe.
_LANE = {1: 2.5e9 * 8 / 10, 2: 5e9 * 8 / 10, 3: 8e9 * 128 / 130, 4: 16e9 * 128 / 130, 5: 32e9 * 128 / 130}
_LANE[6] = 64e9 * 242 / 256


def read_sheets(name: str) -> tuple[Datasheet, ...]:
    """The table of a kind, in its order; an empty cell is None."""
    sheets = []
    for row in shipped_rows("paceline.devices", name):
        pattern = row.pop("pattern")
        figures: dict[str, Any] = {unit: float(figure) if figure else None for unit, figure in row.items()}
        sheets.append(Datasheet(pattern, **figures))
    return tuple(sheets)


def sheet_of(device_name: str, sheets: Iterable[Datasheet]) -> Datasheet | None:
    """The first whose pattern is in the name."""
    return next((sheet for sheet in sheets if re.search(sheet.pattern, device_name)), None)


def pcie_bandwidth(generation: int | None, width: int | None) -> float | None:
    """Bytes per second in one direction over a PCIe link, before the headers of packets; None for an unknown kind."""
    lane = _LANE.get(generation or 0)
    return lane * width / 8 if lane and width else None
