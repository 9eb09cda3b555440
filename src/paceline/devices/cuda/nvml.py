"""The NVIDIA driver's management library, and what it says of GPUs; CUDA is not initialised.

Each question is guarded alone: virtual machines answer only some.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.core.environment import Driver, Ecc, Gpu, GpuProcess
from paceline.core.probe import ROOT, attempt, read_text
from paceline.devices.base import DeviceConditions, DeviceUse, visible

VISIBLE = "CUDA_VISIBLE_DEVICES"

REASONS = {
    0x001: "gpu-idle",
    0x002: "applications-clocks-setting",
    0x004: "sw-power-cap",
    0x008: "hw-slowdown",
    0x010: "sync-boost",
    0x020: "sw-thermal-slowdown",
    0x040: "hw-thermal-slowdown",
    0x080: "hw-power-brake-slowdown",
    0x100: "display-clock-setting",
    0x200: "board-limit",
    0x400: "reliability",
}

_COUNTERS = {
    "sw-power-cap": "NVML_FI_DEV_PERF_POLICY_POWER",
    "thermal": "NVML_FI_DEV_PERF_POLICY_THERMAL",
    "board-limit": "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT",
    "reliability": "NVML_FI_DEV_PERF_POLICY_RELIABILITY",
    "sw-thermal-slowdown": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "hw-thermal-slowdown": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "hw-power-brake-slowdown": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}


class Nvml:
    """An opened library; what the driver, the card or the binding does not know is None."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer, or None for whatever reason there is none."""
        try:
            return getattr(self.module, function)(*arguments)
        except Exception:  # the library's own errors, and those of a binding older or newer than it
            return None

    def constant(self, name: str) -> Any:
        """A constant of the binding; older ones lack some."""
        return getattr(self.module, name, None)

    def text(self, function: str, *arguments: Any) -> str | None:
        """A string; some bindings answer in bytes."""
        answer = self.ask(function, *arguments)
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def count(self) -> int:
        """How many GPUs the driver shows to this process."""
        return int(self.ask("nvmlDeviceGetCount") or 0)

    def uuids(self) -> list[str]:
        """Names of all GPUs in the driver's order; an unknown one is empty."""
        handles = [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(self.count())]
        return [self.text("nvmlDeviceGetUUID", handle) or "" if handle is not None else "" for handle in handles]

    def order_is_known(self) -> bool:
        """Whether CUDA counts the GPUs as the driver does: it puts the fastest first unless told otherwise."""
        if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
            return True
        handles = [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(self.count())]
        return len({self.text("nvmlDeviceGetName", handle) for handle in handles}) <= 1

    def handles(self, target: str) -> list[Any]:
        """What `cuda:N` or `cuda:*` names in this process; empty where that cannot be known."""
        entries = visible(self.uuids(), os.environ.get(VISIBLE))
        number = target.partition(":")[2] or "0"
        chosen = entries if number == "*" else entries[int(number) : int(number) + 1]
        if any(isinstance(entry, int) for entry in chosen) and not self.order_is_known():
            return []
        handles = [
            self.ask("nvmlDeviceGetHandleByIndex" if isinstance(entry, int) else "nvmlDeviceGetHandleByUUID", entry)
            for entry in chosen
        ]
        return [handle for handle in handles if handle is not None]


def reasons(mask: int) -> list[str]:
    """The names of the bits; one that is not known here keeps its number."""
    named = [name for bit, name in REASONS.items() if mask & bit]
    rest = mask & ~sum(REASONS)
    return [*named, f"unknown-{rest:#x}"] if rest else named


@contextmanager
def opened() -> Iterator[Nvml | None]:
    """The library for a short while; None where there is no driver."""
    nvml = _load()
    try:
        yield nvml
    finally:
        if nvml is not None:
            nvml.ask("nvmlShutdown")


_kept: tuple[int, Nvml | None] | None = None


def kept() -> Nvml | None:
    """The library, opened once per process: opening it again costs more than all questions."""
    global _kept
    if _kept is None or _kept[0] != os.getpid():  # a forked child must open its own
        _kept = (os.getpid(), _load())
    return _kept[1]


def _load() -> Nvml | None:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver, no permission: no GPU to ask about
        return None
    return Nvml(pynvml)


def describe_driver(nvml: Nvml) -> Driver:
    """The driver and the newest CUDA it runs."""
    number = nvml.ask("nvmlSystemGetCudaDriverVersion_v2") or nvml.ask("nvmlSystemGetCudaDriverVersion")
    return Driver(
        version=nvml.text("nvmlSystemGetDriverVersion"),
        cuda=f"{number // 1000}.{number % 1000 // 10}" if number else None,
    )


def describe_gpus(nvml: Nvml, setting: str | None = None) -> list[Gpu]:
    """Every GPU that the driver shows; `setting` says which of them CUDA shows."""
    entries = visible(nvml.uuids(), setting)
    is_ordered = nvml.order_is_known()
    gpus = []
    for index in range(nvml.count()):
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        cuda_index = entries.index(index) if is_ordered and index in entries else None
        gpus.append(
            Gpu(index=index, cuda_index=cuda_index) if handle is None else _describe(nvml, handle, index, cuda_index)
        )
    return gpus


def _describe(nvml: Nvml, handle: Any, index: int, cuda_index: int | None) -> Gpu:
    capability = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    limits = nvml.ask("nvmlDeviceGetPowerManagementLimitConstraints", handle)
    mig = nvml.ask("nvmlDeviceGetMigMode", handle)
    persistence = nvml.ask("nvmlDeviceGetPersistenceMode", handle)
    bus = getattr(nvml.ask("nvmlDeviceGetPciInfo", handle), "busId", None)
    sm, ram = nvml.constant("NVML_CLOCK_SM"), nvml.constant("NVML_CLOCK_MEM")
    return Gpu(
        index=index,
        cuda_index=cuda_index,
        name=nvml.text("nvmlDeviceGetName", handle),
        uuid=nvml.text("nvmlDeviceGetUUID", handle),
        pci_bus_id=bus.decode(errors="replace") if isinstance(bus, bytes) else bus,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        memory_total=memory.total if memory else None,
        memory_used=memory.used if memory else None,
        sm_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", handle, sm),
        sm_clock_max_mhz=nvml.ask("nvmlDeviceGetMaxClockInfo", handle, sm),
        memory_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", handle, ram),
        memory_clock_max_mhz=nvml.ask("nvmlDeviceGetMaxClockInfo", handle, ram),
        power_watts=watts(nvml.ask("nvmlDeviceGetPowerUsage", handle)),
        power_limit_watts=watts(
            nvml.ask("nvmlDeviceGetEnforcedPowerLimit", handle) or nvml.ask("nvmlDeviceGetPowerManagementLimit", handle)
        ),
        power_limit_default_watts=watts(nvml.ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        power_limit_max_watts=watts(limits[1]) if limits else None,
        temperature_celsius=temperature(nvml, handle),
        ecc=_ecc(nvml, handle),
        mig=bool(mig[0]) if mig else None,
        persistence=None if persistence is None else bool(persistence),
        throttle_reasons=throttle_reasons(nvml, handle),
        pcie_generation=nvml.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_generation_max=nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_width_max=nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        processes=processes(nvml, handle),
    )


def watts(milliwatts: int | None) -> float | None:
    """The driver counts milliwatts."""
    return None if milliwatts is None else milliwatts / 1000


def temperature(nvml: Nvml, handle: Any) -> int | None:
    """Degrees Celsius; the second question is the one that older drivers know."""
    sensor = nvml.constant("NVML_TEMPERATURE_GPU")
    first = nvml.ask("nvmlDeviceGetTemperatureV", handle, sensor)
    answer = first if first is not None else nvml.ask("nvmlDeviceGetTemperature", handle, sensor)
    return None if answer is None else int(answer)


def throttle_reasons(nvml: Nvml, handle: Any) -> list[str] | None:
    """Why the clocks are not at their maximum; the second question is the one that older drivers know."""
    mask = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if mask is None:
        mask = nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if mask is None else reasons(int(mask))


def processes(nvml: Nvml, handle: Any, root: Path = ROOT) -> list[GpuProcess] | None:
    """What computes on the GPU; a process of another container has a number that means nothing here, so no name."""
    running = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    if running is None:
        return None
    return [
        GpuProcess(pid=one.pid, name=read_text(root / f"proc/{one.pid}/comm"), memory=one.usedGpuMemory)
        for one in running
    ]


def _ecc(nvml: Nvml, handle: Any) -> Ecc:
    mode = nvml.ask("nvmlDeviceGetEccMode", handle)
    rows = nvml.ask("nvmlDeviceGetRemappedRows", handle)

    def errors(kind: str, counter: str) -> int | None:
        answer = nvml.ask(
            "nvmlDeviceGetTotalEccErrors",
            handle,
            nvml.constant(f"NVML_MEMORY_ERROR_TYPE_{kind}"),
            nvml.constant(f"NVML_{counter}_ECC"),
        )
        return None if answer is None else int(answer)

    return Ecc(
        enabled=bool(mode[0]) if mode else None,
        corrected_volatile=errors("CORRECTED", "VOLATILE"),
        uncorrected_volatile=errors("UNCORRECTED", "VOLATILE"),
        corrected_aggregate=errors("CORRECTED", "AGGREGATE"),
        uncorrected_aggregate=errors("UNCORRECTED", "AGGREGATE"),
        remap_pending=bool(rows[2]) if rows else None,
        remap_failed=bool(rows[3]) if rows else None,
    )


def observe(library: Nvml, handle: Any) -> DeviceConditions:
    """One GPU now."""
    return DeviceConditions(
        uuid=library.text("nvmlDeviceGetUUID", handle),
        sm_clock_mhz=library.ask("nvmlDeviceGetClockInfo", handle, library.constant("NVML_CLOCK_SM")),
        memory_clock_mhz=library.ask("nvmlDeviceGetClockInfo", handle, library.constant("NVML_CLOCK_MEM")),
        temperature_celsius=temperature(library, handle),
        power_watts=watts(library.ask("nvmlDeviceGetPowerUsage", handle)),
        power_limit_watts=watts(library.ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
        throttle_reasons=throttle_reasons(library, handle),
        held_down_seconds=attempt(lambda: _held_down(library, handle)) or {},
        processes=processes(library, handle),
    )


def _held_down(library: Nvml, handle: Any) -> dict[str, float]:
    """How long each reason has held the clocks down since the driver was loaded; the driver counts nanoseconds."""
    fields = {name: library.constant(constant) for name, constant in _COUNTERS.items()}
    known = {name: field for name, field in fields.items() if field is not None}
    values = library.ask("nvmlDeviceGetFieldValues", handle, list(known.values()))
    pairs = zip(known, values, strict=False) if values is not None else ()
    return {name: value.value.ullVal / 1e9 for name, value in pairs if value.nvmlReturn == 0}


def use_of(library: Nvml, handle: Any) -> DeviceUse:
    """How busy one GPU is now."""
    rates = library.ask("nvmlDeviceGetUtilizationRates", handle)
    memory = library.ask("nvmlDeviceGetMemoryInfo", handle)
    return DeviceUse(
        busy_percent=None if rates is None else float(rates.gpu),
        memory_used=None if memory is None else int(memory.used),
    )


def millijoules(library: Nvml, handle: Any) -> int | None:
    """The energy counter of one GPU; None where it has none."""
    answer = library.ask("nvmlDeviceGetTotalEnergyConsumption", handle)
    return None if answer is None else int(answer)
