"""The GPUs of this machine as the NVIDIA driver describes them; CUDA is not initialised."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from paceline.machine.environment import Driver, Ecc, Gpu, GpuProcess
from paceline.machine.nvml import Nvml, opened, reasons, visible
from paceline.machine.probe import ROOT, read_text


def gpu_count() -> int:
    """How many GPUs CUDA would show to this process; 0 where there is no driver."""
    with opened() as nvml:
        if nvml is None:
            return 0
        setting = os.environ.get("CUDA_VISIBLE_DEVICES")
        return nvml.count() if setting is None else len(visible(nvml.uuids(), setting))


def describe_driver(nvml: Nvml) -> Driver:
    """The driver and the newest CUDA it runs."""
    number = nvml.ask("nvmlSystemGetCudaDriverVersion_v2") or nvml.ask("nvmlSystemGetCudaDriverVersion")
    return Driver(
        version=nvml.text("nvmlSystemGetDriverVersion"),
        cuda=f"{number // 1000}.{number % 1000 // 10}" if number else None,
    )


def describe_gpus(nvml: Nvml, setting: str | None = None) -> list[Gpu]:
    """Every GPU that the driver shows; `setting` is CUDA_VISIBLE_DEVICES."""
    entries = visible(nvml.uuids(), setting)
    known = nvml.order_is_known()
    gpus = []
    for index in range(nvml.count()):
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        place = entries.index(index) if known and index in entries else None
        gpus.append(Gpu(index=index, cuda_index=place) if handle is None else _describe(nvml, handle, index, place))
    return gpus


def _describe(nvml: Nvml, handle: Any, index: int, place: int | None) -> Gpu:
    capability = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    limits = nvml.ask("nvmlDeviceGetPowerManagementLimitConstraints", handle)
    mig = nvml.ask("nvmlDeviceGetMigMode", handle)
    bus = getattr(nvml.ask("nvmlDeviceGetPciInfo", handle), "busId", None)
    sm, ram = nvml.constant("NVML_CLOCK_SM"), nvml.constant("NVML_CLOCK_MEM")
    return Gpu(
        index=index,
        cuda_index=place,
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
        persistence=_flag(nvml.ask("nvmlDeviceGetPersistenceMode", handle)),
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
    found = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    if found is None:
        return None
    return [
        GpuProcess(pid=one.pid, name=read_text(root / f"proc/{one.pid}/comm"), memory=one.usedGpuMemory)
        for one in found
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


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)
