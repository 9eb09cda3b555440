"""NVIDIA's GPUs: CUDA through torch, the driver's management library (NVML), and the vendor's datasheets."""

from __future__ import annotations

import os
import re

from paceline.core.errors import Unsupported
from paceline.core.probe import attempt
from paceline.core.subject import number_format
from paceline.devices._torch_gpu import GpuEnergy, TorchGpu, TorchGpuKind
from paceline.devices.base import (
    NATIVE,
    Described,
    Device,
    DeviceConditions,
    DeviceUse,
    EnergyMeter,
    FormatSupport,
    VendorTool,
    visible,
)
from paceline.devices.cuda import nvml
from paceline.devices.datasheet import Datasheet, sheet_of

# Compute capability from which a GPU has the format.
_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "int8": (7, 5)}
_EMPTY_KERNEL = """\
.version 6.4
.target {target}
.address_size 64
.visible .entry {name}() {{ ret; }}
"""


class CudaKind(TorchGpuKind):
    """NVIDIA's GPUs."""

    name = "cuda"
    copy_call = "cudaMemcpyAsync"
    launches_kernels = True
    graph_name = "CUDA graph"
    visible_variable = nvml.VISIBLE
    variables = ("CUDA_DEVICE_ORDER",)
    slowdowns = (
        "hw-slowdown",
        "hw-thermal-slowdown",
        "sw-thermal-slowdown",
        "hw-power-brake-slowdown",
        "thermal",
        "board-limit",
        "reliability",
    )
    power_cap = "sw-power-cap"
    out_of_memory_words = ("cuda", "cudnn", "cublas")
    fork_environment = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    tool = VendorTool(
        name="nvidia-smi",
        lock_clocks="nvidia-smi -lgc",
        set_power="nvidia-smi -pl",
        set_power_of="nvidia-smi -i {index} -pl {watts:.0f}",
        reset="nvidia-smi -r",
        show_errors="nvidia-smi -q -d ECC",
    )

    def count(self) -> int:
        with nvml.opened() as library:
            if library is None:
                return 0
            setting = os.environ.get(nvml.VISIBLE)
            return library.count() if setting is None else len(visible(library.uuids(), setting))

    def open(self, index: int) -> Device:
        return CudaDevice(self, index)

    def describe(self) -> Described:
        with nvml.opened() as library:
            if library is None:
                return Described()
            gpus = attempt(lambda: nvml.describe_gpus(library, os.environ.get(nvml.VISIBLE)))
            return Described(attempt(lambda: nvml.describe_driver(library)), gpus or [])

    def meter(self, target: str) -> EnergyMeter | None:
        library = nvml.kept()
        handles = library.handles(target) if library else []
        # A card may not count, and a part of one (MIG) has no counter of its own.
        if library is None or not handles or any(nvml.millijoules(library, handle) is None for handle in handles):
            return None
        return GpuEnergy(
            f"NVML total energy counter of {target}",
            lambda: sum(nvml.millijoules(library, handle) or 0 for handle in handles) / 1000.0,
        )

    def conditions(self, target: str) -> list[DeviceConditions]:
        library = nvml.kept()
        handles = (attempt(lambda: library.handles(target)) if library else None) or []
        return [nvml.observe(library, handle) for handle in handles] if library else []

    def use(self, target: str) -> list[DeviceUse]:
        library = nvml.kept()
        return [nvml.use_of(library, handle) for handle in library.handles(target)] if library else []

    def link(self, target: str) -> tuple[int, int] | None:
        library = nvml.kept()
        handles = library.handles(target) if library else []
        if library is None or len(handles) != 1:
            return None
        # An idle link slows down, so not as it is just now.
        generation = library.ask("nvmlDeviceGetMaxPcieLinkGeneration", handles[0])
        width = library.ask("nvmlDeviceGetMaxPcieLinkWidth", handles[0])
        return (int(generation), int(width)) if generation and width else None

    def datasheet(self, device_name: str) -> Datasheet | None:
        return None if _NOT_WHOLE.search(device_name) else sheet_of(device_name, _KNOWN)


class CudaDevice(TorchGpu):
    """One NVIDIA GPU."""

    def __init__(self, kind: CudaKind, index: int) -> None:
        import torch

        if torch.version.hip:
            raise Unsupported(
                f"target 'cuda:{index}' needs a GPU of NVIDIA's, but torch {torch.__version__} is built for ROCm; use "
                "--target rocm:0"
            )
        super().__init__(kind, index)

    def format(self, precision: str) -> FormatSupport:
        needed = _CAPABILITY.get(number_format(precision))
        if needed is None or self.capability >= needed:
            return NATIVE
        have, want = ".".join(map(str, self.capability)), ".".join(map(str, needed))
        reason = f"{precision} needs compute capability {want}; {self.name} has {have}: use fp32 or fp16"
        return FormatSupport("none", reason)

    def empty_kernel(self, name: str) -> str:
        # The oldest target that the driver of such a device still translates.
        return _EMPTY_KERNEL.format(target="sm_75" if self.capability >= (7, 5) else "sm_50", name=name)


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
