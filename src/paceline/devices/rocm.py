"""AMD's GPUs: torch's HIP build, AMD's management library (amdsmi), and the vendor's datasheets.

Written from AMD's documentation and tested against a scripted amdsmi: it has not run on hardware yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.environment import Driver, Ecc, Gpu, GpuProcess
from paceline.core.errors import Unsupported
from paceline.core.probe import read_text
from paceline.core.subject import number_format
from paceline.devices._torch_gpu import ManagementLibrary, TorchGpu, TorchGpuKind
from paceline.devices.base import (
    NATIVE,
    Datasheet,
    Described,
    Device,
    DeviceConditions,
    DeviceUse,
    FormatSupport,
    Step,
    VendorTool,
    named,
    read_sheets,
    sheet_of,
    visible,
)

if TYPE_CHECKING:
    from torch import Tensor

_SHOWN_FIRST = "ROCR_VISIBLE_DEVICES"  # of the runtime below HIP; HIP counts those that it leaves

# Architectures with matrix instructions for the format, by the beginning of their name.
_ARCHITECTURES = {
    "bf16": ("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"),
    "int8": ("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"),
    "fp8": ("gfx95", "gfx12"),  # in the encodings that are measured here; MI300 (gfx942) has others
}
_WHOLE = {"MI300X": 304, "MI325X": 304}  # compute units: a partition has the name of the whole
_VIOLATIONS = {
    "active_prochot_thrm": "prochot-thermal",
    "active_socket_thrm": "socket-thermal",
    "active_vr_thrm": "regulator-thermal",
    "active_hbm_thrm": "memory-thermal",
    "active_ppt_pwr": "package-power",
}


class RocmKind(TorchGpuKind):
    """AMD's GPUs."""

    name = "rocm"
    visible_variable = "HIP_VISIBLE_DEVICES"
    variables = (_SHOWN_FIRST,)
    graph_name = "HIP graph"
    collective_name = "RCCL"
    copy_call = "hipMemcpyAsync"
    slowdowns = tuple(reason for name, reason in _VIOLATIONS.items() if name.endswith("thrm"))
    power_cap = _VIOLATIONS["active_ppt_pwr"]
    out_of_memory_words = ("hip", "miopen", "hipblas")
    tool = VendorTool(
        name="amd-smi",
        lock_clocks="amd-smi set --clk-limit",
        set_power="amd-smi set --power-cap",
        set_power_of="amd-smi set --gpu {index} --power-cap {watts:.0f}",
        reset="amd-smi reset --gpureset",
        show_errors="amd-smi metric --ecc",
    )

    @staticmethod
    def open_library() -> AmdSmi:
        return AmdSmi()

    def count(self) -> int:
        return len(self.library().handles("rocm:*"))

    def open(self, index: int) -> Device:
        return RocmDevice(self, index)

    def describe(self) -> Described:
        return self.library().describe()

    def datasheet(self, device_name: str) -> Datasheet | None:
        return sheet_of(device_name, _SHEETS)


class RocmDevice(TorchGpu):
    """One AMD GPU, or a partition of one."""

    def __init__(self, kind: RocmKind, index: int) -> None:
        import torch

        if not torch.version.hip:
            raise Unsupported(
                f"target 'rocm:{index}' needs torch's build for ROCm, but this is torch {torch.__version__}; see "
                "https://pytorch.org/get-started, or use --target cpu"
            )
        super().__init__(kind, index)
        properties = self.properties()
        # torch gives (9, 4) as capability of MI300, which would pass for a GPU of NVIDIA's: the name counts.
        self.architecture = str(properties.gcnArchName).partition(":")[0]
        whole = next((units for name, units in _WHOLE.items() if name in self.name), None)
        if whole is not None and properties.multi_processor_count != whole:
            self.name += f", {properties.multi_processor_count} of {whole} compute units"

    def tuned_product(self, a: Tensor, b: Tensor, out: Tensor, *, tf32: bool) -> tuple[Step, str]:
        import torch

        if a.element_size() == 1:
            raise self._lacks("tuned products of 8-bit formats in torch")
        tunable = torch.cuda.tunable
        tunable.set_filename(os.devnull)  # otherwise its results lie in the current folder at the end
        tunable.enable(True)
        tunable.tuning_enable(True)
        return partial(torch.bmm if a.dim() == 3 else torch.mm, a, b, out=out), "TunableOp of torch"

    def format(self, precision: str) -> FormatSupport:
        unit = number_format(precision)
        if unit == "tf32":
            return FormatSupport("none", "tf32 is a format of NVIDIA's GPUs: use fp32 or bf16")
        if unit in ("fp4", "int4"):
            return FormatSupport("none", f"{precision} is measured on NVIDIA's GPUs alone: use fp8 or int8")
        needed = _ARCHITECTURES.get(unit)
        if needed is None or self.architecture.startswith(needed):
            return NATIVE
        if unit == "fp8" and self.architecture.startswith("gfx94"):
            why = f"{self.architecture} has fp8 in another encoding (FNUZ) than is measured here"
        else:
            why = f"{self.architecture} has no {unit} instructions"
        return FormatSupport("none", f"{precision} is not measured on {self.name}: {why}; use fp32, fp16 or bf16")

    def build_kernel(self, source: str, name: str) -> Callable[..., object]:
        raise Unsupported("kernels of our own are written for NVIDIA's GPUs: use tensor_cores = auto")


class AmdSmi(ManagementLibrary):
    """AMD's management library; what it calls N/A is None."""

    binding = "amdsmi"
    start = "amdsmi_init"
    energy_counter = "amdsmi energy accumulator"

    def ask(self, function: str, *arguments: Any) -> Any:
        answer = super().ask(function, *arguments)
        return None if answer == "N/A" else answer

    def fields(self, function: str, *arguments: Any) -> dict[str, Any]:
        """An answer that is a dictionary, without the fields that are not available."""
        answer = self.ask(function, *arguments)
        items = answer.items() if isinstance(answer, dict) else ()
        return {key: value for key, value in items if value not in ("N/A", "")}

    def text(self, function: str, handle: Any) -> str | None:
        """An answer that is a string."""
        answer = self.ask(function, handle)
        return answer if isinstance(answer, str) else None

    def choice(self, enumeration: str, name: str) -> Any:
        """A value of one of the binding's enumerations; older ones lack some."""
        return getattr(getattr(self.module, enumeration, None), name, None)

    def every_handle(self) -> list[Any]:
        """All GPUs, in HIP's order where the driver reports it."""
        processors = list(self.ask("amdsmi_get_processor_handles") or [])
        infos = [self.fields("amdsmi_get_gpu_enumeration_info", handle) for handle in processors]
        order = {info["hip_id"]: handle for info, handle in zip(infos, processors, strict=True) if "hip_id" in info}
        if len(order) == len(processors) and all(isinstance(number, int) for number in order):
            return [order[number] for number in sorted(order)]
        return processors

    def handles(self, target: str) -> list[Any]:
        handles = self.every_handle()
        for variable in (_SHOWN_FIRST, RocmKind.visible_variable):
            uuids = [self.text("amdsmi_get_gpu_device_uuid", handle) or "" for handle in handles]
            entries = visible(uuids, os.environ.get(variable))
            handles = [handles[entry] for entry in entries if isinstance(entry, int)]
        return named(target, handles)

    def describe(self) -> Described:
        handles, shown = self.every_handle(), self.handles("rocm:*")
        if not handles:
            return Described()
        gpus = [
            self._describe(handle, index, shown.index(handle) if handle in shown else None)
            for index, handle in enumerate(handles)
        ]
        version = self.fields("amdsmi_get_gpu_driver_info", handles[0]).get("driver_version")
        rocm = read_text(Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / ".info/version") or None
        return Described(Driver(version=version, rocm=rocm), gpus)

    def _describe(self, handle: Any, index: int, cuda_index: int | None) -> Gpu:
        asic = self.fields("amdsmi_get_gpu_asic_info", handle)
        caps = self.fields("amdsmi_get_power_cap_info", handle)
        errors = self.fields("amdsmi_get_gpu_total_ecc_count", handle)
        memory = self.fields("amdsmi_get_gpu_vram_usage", handle)
        link = self.fields("amdsmi_get_pcie_info", handle)
        best, now = link.get("pcie_static", {}), link.get("pcie_metric", {})
        return Gpu(
            kind=RocmKind.name,
            index=index,
            cuda_index=cuda_index,
            name=asic.get("market_name"),
            architecture=asic.get("target_graphics_version"),
            pci_bus_id=self.text("amdsmi_get_gpu_device_bdf", handle),
            memory_total=_bytes(memory, "vram_total"),
            memory_used=_bytes(memory, "vram_used"),
            sm_clock_max_mhz=self._clock(handle, "GFX", "max_clk"),
            memory_clock_max_mhz=self._clock(handle, "MEM", "max_clk"),
            power_limit_default_watts=_watts(caps, "default_power_cap"),
            power_limit_max_watts=_watts(caps, "max_power_cap"),
            ecc=Ecc(
                corrected_volatile=_number(errors, "correctable_count"),
                uncorrected_volatile=_number(errors, "uncorrectable_count"),
            ),
            pcie_generation_max=_number(best, "pcie_interface_version"),
            pcie_width=_number(now, "pcie_width"),
            pcie_width_max=_number(best, "max_pcie_width"),
            **self._state(handle),
        )

    def _state(self, handle: Any) -> dict[str, Any]:
        """The fields that a description and the conditions share."""
        return {
            "uuid": self.text("amdsmi_get_gpu_device_uuid", handle),
            "sm_clock_mhz": self._clock(handle, "GFX", "clk"),
            "memory_clock_mhz": self._clock(handle, "MEM", "clk"),
            "temperature_celsius": self._temperature(handle),
            "power_watts": self._power(handle),
            "power_limit_watts": _watts(self.fields("amdsmi_get_power_cap_info", handle), "power_cap"),
            "throttle_reasons": self._throttle_reasons(handle),
            "processes": self._processes(handle),
        }

    def conditions(self, handle: Any) -> DeviceConditions:
        return DeviceConditions(**self._state(handle))

    def use(self, handle: Any) -> DeviceUse:
        busy = self.fields("amdsmi_get_gpu_activity", handle).get("gfx_activity")
        memory = _bytes(self.fields("amdsmi_get_gpu_vram_usage", handle), "vram_used")
        return DeviceUse(busy_percent=None if busy is None else float(busy), memory_used=memory)

    def joules(self, handle: Any) -> float | None:
        """The accumulator counts in steps of `counter_resolution` microjoules."""
        counter = self.fields("amdsmi_get_energy_count", handle)
        steps, resolution = counter.get("energy_accumulator"), counter.get("counter_resolution")
        if not isinstance(steps, int) or not isinstance(resolution, int | float):
            return None
        return steps * resolution / 1e6

    def _clock(self, handle: Any, kind: str, key: str) -> int | None:
        return _number(self.fields("amdsmi_get_clock_info", handle, self.choice("AmdSmiClkType", kind)), key)

    def _power(self, handle: Any) -> float | None:
        """MI300 and newer report the current power, older ones an average."""
        info = self.fields("amdsmi_get_power_info", handle)
        readings = (_number(info, key) for key in ("current_socket_power", "average_socket_power"))
        return next((float(watts) for watts in readings if watts is not None), None)

    def _temperature(self, handle: Any) -> int | None:
        """Degrees Celsius of the hottest spot, or at the edge where nothing else is reported."""
        now = self.choice("AmdSmiTemperatureMetric", "CURRENT")
        for sensor in ("HOTSPOT", "EDGE"):
            answer = self.ask("amdsmi_get_temp_metric", handle, self.choice("AmdSmiTemperatureType", sensor), now)
            if isinstance(answer, int | float):
                return int(answer)
        return None

    def _throttle_reasons(self, handle: Any) -> list[str] | None:
        """What holds the clocks down now; only MI300 and newer report it."""
        status = self.ask("amdsmi_get_violation_status", handle)
        if not isinstance(status, dict):
            return None
        return [reason for key, reason in _VIOLATIONS.items() if status.get(key) in (True, 1)]

    def _processes(self, handle: Any) -> list[GpuProcess] | None:
        processes = self.ask("amdsmi_get_gpu_process_list", handle)
        if not isinstance(processes, list):
            return None
        return [
            GpuProcess(
                pid=one["pid"], name=one.get("name") if one.get("name") != "N/A" else None, memory=_number(one, "mem")
            )
            for one in processes
            if isinstance(one, dict) and _number(one, "pid")
        ]


def _watts(values: dict[str, Any], key: str) -> float | None:
    """The library counts limits in microwatts."""
    microwatts = _number(values, key)
    return None if microwatts is None else microwatts / 1e6


def _bytes(values: dict[str, Any], key: str) -> int | None:
    """The library counts memory in mebibytes."""
    mebibytes = _number(values, key)
    return None if mebibytes is None else mebibytes * 1024**2


def _number(values: dict[str, Any], key: str) -> int | None:
    value = values.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


_SHEETS = read_sheets("rocm.csv")
