"""AMD's GPUs: torch's HIP build, AMD's management library (amdsmi), and the vendor's datasheets.

Written from AMD's documentation and tested against a scripted amdsmi: it has not run on hardware yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.core.environment import Driver, Ecc, Gpu, GpuProcess
from paceline.core.errors import Unsupported
from paceline.core.probe import read_text
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
    numbers,
    visible,
)
from paceline.devices.datasheet import Datasheet, sheet_of

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

    def count(self) -> int:
        return len(_handles(_library()))

    def open(self, index: int) -> Device:
        return RocmDevice(self, index)

    def describe(self) -> Described:
        library = _library()
        if library is None:
            return Described()
        everything, shown = library.handles(), _handles(library)
        gpus = [
            _describe(library, handle, index, shown.index(handle) if handle in shown else None)
            for index, handle in enumerate(everything)
        ]
        if not everything:
            return Described()
        version = library.field("amdsmi_get_gpu_driver_info", "driver_version", everything[0])
        rocm = read_text(Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / ".info/version") or None
        return Described(Driver(version=version, rocm=rocm), gpus)

    def meter(self, target: str) -> EnergyMeter | None:
        library = _library()
        handles = _named(library, target)
        if library is None or not handles or any(_joules(library, handle) is None for handle in handles):
            return None
        return GpuEnergy(
            f"amdsmi energy accumulator of {target}",
            lambda: sum(_joules(library, handle) or 0.0 for handle in handles),
        )

    def conditions(self, target: str) -> list[DeviceConditions]:
        library = _library()
        return [_observe(library, handle) for handle in _named(library, target)] if library else []

    def use(self, target: str) -> list[DeviceUse]:
        library = _library()
        return [_use(library, handle) for handle in _named(library, target)] if library else []

    def link(self, target: str) -> tuple[int, int] | None:
        library = _library()
        handles = _named(library, target)
        if library is None or len(handles) != 1:
            return None
        link = library.ask("amdsmi_get_pcie_info", handles[0]) or {}
        generation, width = (_number(link.get("pcie_static", {}), key) for key in _BEST_LINK)
        return (generation, width) if generation and width else None

    def datasheet(self, device_name: str) -> Datasheet | None:
        return sheet_of(device_name, _KNOWN)


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

    def format(self, precision: str) -> FormatSupport:
        unit = number_format(precision)
        if unit == "tf32":
            return FormatSupport("none", "tf32 is a format of NVIDIA's GPUs: use fp32 or bf16")
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


class AmdSmi:
    """An opened amdsmi; what the driver, the card or the binding does not know is None."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer, or None for whatever reason there is none."""
        try:
            answer = getattr(self.module, function)(*arguments)
        except Exception:  # the library's own errors, and those of a binding older or newer than it
            return None
        return None if answer == "N/A" else answer

    def field(self, function: str, key: str, *arguments: Any) -> Any:
        """One field of an answer that is a dictionary."""
        answer = self.ask(function, *arguments)
        value = answer.get(key) if isinstance(answer, dict) else None
        return None if value in ("N/A", "") else value

    def choice(self, enumeration: str, name: str) -> Any:
        """A value of one of the binding's enumerations; older ones lack some."""
        return getattr(getattr(self.module, enumeration, None), name, None)

    def handles(self) -> list[Any]:
        """All GPUs, in HIP's order where the driver reports it."""
        processors = list(self.ask("amdsmi_get_processor_handles") or [])
        order = [self.field("amdsmi_get_gpu_enumeration_info", "hip_id", handle) for handle in processors]
        if all(isinstance(number, int) for number in order) and len(set(order)) == len(order):
            return [handle for _, handle in sorted(zip(order, processors, strict=True), key=lambda pair: pair[0])]
        return processors

    def text(self, function: str, handle: Any) -> str | None:
        """An answer that is a string."""
        answer = self.ask(function, handle)
        return answer if isinstance(answer, str) else None


_opened: tuple[int, AmdSmi | None] | None = None


def _library() -> AmdSmi | None:
    """The library, opened once per process; None where there is no driver."""
    global _opened
    if _opened is None or _opened[0] != os.getpid():  # a forked child must open its own
        try:
            import amdsmi

            amdsmi.amdsmi_init()
            _opened = (os.getpid(), AmdSmi(amdsmi))
        except Exception:  # not installed, no driver, no permission
            _opened = (os.getpid(), None)
    return _opened[1]


def _handles(library: AmdSmi | None) -> list[Any]:
    """The GPUs that HIP shows to this process, in its order."""
    shown = library.handles() if library else []
    for variable in (_SHOWN_FIRST, RocmKind.visible_variable):
        uuids = [library.text("amdsmi_get_gpu_device_uuid", handle) or "" for handle in shown] if library else []
        shown = [shown[entry] for entry in visible(uuids, os.environ.get(variable)) if isinstance(entry, int)]
    return shown


def _named(library: AmdSmi | None, target: str) -> list[Any]:
    """What `rocm:N` or `rocm:*` names in this process."""
    shown = _handles(library)
    return [shown[number] for number in numbers(target, len(shown)) if number < len(shown)]


def _describe(library: AmdSmi, handle: Any, index: int, cuda_index: int | None) -> Gpu:
    clocks = {name: _clock(library, handle, kind) for name, kind in (("sm", "GFX"), ("memory", "MEM"))}
    caps = library.ask("amdsmi_get_power_cap_info", handle) or {}
    link = library.ask("amdsmi_get_pcie_info", handle) or {}
    errors = library.ask("amdsmi_get_gpu_total_ecc_count", handle) or {}
    memory = library.ask("amdsmi_get_gpu_vram_usage", handle) or {}
    best, now = link.get("pcie_static", {}), link.get("pcie_metric", {})
    return Gpu(
        kind=RocmKind.name,
        index=index,
        cuda_index=cuda_index,
        name=library.field("amdsmi_get_gpu_asic_info", "market_name", handle),
        architecture=library.field("amdsmi_get_gpu_asic_info", "target_graphics_version", handle),
        uuid=library.text("amdsmi_get_gpu_device_uuid", handle),
        pci_bus_id=library.text("amdsmi_get_gpu_device_bdf", handle),
        memory_total=_bytes(memory, "vram_total"),
        memory_used=_bytes(memory, "vram_used"),
        sm_clock_mhz=_number(clocks["sm"], "clk"),
        sm_clock_max_mhz=_number(clocks["sm"], "max_clk"),
        memory_clock_mhz=_number(clocks["memory"], "clk"),
        memory_clock_max_mhz=_number(clocks["memory"], "max_clk"),
        power_watts=_power(library, handle),
        power_limit_watts=_watts(caps, "power_cap"),
        power_limit_default_watts=_watts(caps, "default_power_cap"),
        power_limit_max_watts=_watts(caps, "max_power_cap"),
        temperature_celsius=_temperature(library, handle),
        ecc=Ecc(
            corrected_volatile=_number(errors, "correctable_count"),
            uncorrected_volatile=_number(errors, "uncorrectable_count"),
        ),
        throttle_reasons=_throttle_reasons(library, handle),
        pcie_generation_max=_number(best, _BEST_LINK[0]),
        pcie_width=_number(now, "pcie_width"),
        pcie_width_max=_number(best, _BEST_LINK[1]),
        processes=_processes(library, handle),
    )


_BEST_LINK = ("pcie_interface_version", "max_pcie_width")


def _observe(library: AmdSmi, handle: Any) -> DeviceConditions:
    return DeviceConditions(
        uuid=library.text("amdsmi_get_gpu_device_uuid", handle),
        sm_clock_mhz=_number(_clock(library, handle, "GFX"), "clk"),
        memory_clock_mhz=_number(_clock(library, handle, "MEM"), "clk"),
        temperature_celsius=_temperature(library, handle),
        power_watts=_power(library, handle),
        power_limit_watts=_watts(library.ask("amdsmi_get_power_cap_info", handle) or {}, "power_cap"),
        throttle_reasons=_throttle_reasons(library, handle),
        processes=_processes(library, handle),
    )


def _use(library: AmdSmi, handle: Any) -> DeviceUse:
    busy = library.field("amdsmi_get_gpu_activity", "gfx_activity", handle)
    memory = library.ask("amdsmi_get_gpu_vram_usage", handle) or {}
    return DeviceUse(busy_percent=None if busy is None else float(busy), memory_used=_bytes(memory, "vram_used"))


def _clock(library: AmdSmi, handle: Any, kind: str) -> dict[str, Any]:
    return library.ask("amdsmi_get_clock_info", handle, library.choice("AmdSmiClkType", kind)) or {}


def _power(library: AmdSmi, handle: Any) -> float | None:
    """MI300 and newer report the current power, older ones an average."""
    info = library.ask("amdsmi_get_power_info", handle) or {}
    readings = (_number(info, key) for key in ("current_socket_power", "average_socket_power"))
    watts = next((value for value in readings if value is not None), None)
    return None if watts is None else float(watts)


def _temperature(library: AmdSmi, handle: Any) -> int | None:
    """Degrees Celsius of the hottest spot, or at the edge where nothing else is reported."""
    now = library.choice("AmdSmiTemperatureMetric", "CURRENT")
    for place in ("HOTSPOT", "EDGE"):
        answer = library.ask("amdsmi_get_temp_metric", handle, library.choice("AmdSmiTemperatureType", place), now)
        if isinstance(answer, int | float):
            return int(answer)
    return None


def _throttle_reasons(library: AmdSmi, handle: Any) -> list[str] | None:
    """What holds the clocks down now; only MI300 and newer report it."""
    status = library.ask("amdsmi_get_violation_status", handle)
    if not isinstance(status, dict):
        return None
    return [reason for key, reason in _VIOLATIONS.items() if status.get(key) in (True, 1)]


def _processes(library: AmdSmi, handle: Any) -> list[GpuProcess] | None:
    processes = library.ask("amdsmi_get_gpu_process_list", handle)
    if not isinstance(processes, list):
        return None
    return [
        GpuProcess(pid=one["pid"], name=one["name"] if one.get("name") != "N/A" else None, memory=_number(one, "mem"))
        for one in processes
        if isinstance(one, dict) and _number(one, "pid")
    ]


def _joules(library: AmdSmi, handle: Any) -> float | None:
    """The accumulator counts in steps of `counter_resolution` microjoules."""
    answer = library.ask("amdsmi_get_energy_count", handle)
    if not isinstance(answer, dict):
        return None
    steps, resolution = answer.get("energy_accumulator"), answer.get("counter_resolution")
    if not isinstance(steps, int) or not isinstance(resolution, int | float):
        return None
    return steps * resolution / 1e6


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


# pattern
#   fp64, fp64 with matrix cores, fp32, tf32, fp16_plain, fp16, bf16, fp8, int8, memory, links
_KNOWN = tuple(
    Datasheet(pattern, *figures)
    for pattern, figures in (
        (r"\bMI300X$", (81.7, 163.4, 163.4, None, None, 1307.4, 1307.4, 2614.9, 2614.9, 5300.0, 448.0)),
        (r"\bMI325X$", (81.7, 163.4, 163.4, None, None, 1307.4, 1307.4, 2614.9, 2614.9, 6000.0, 448.0)),
    )
)
