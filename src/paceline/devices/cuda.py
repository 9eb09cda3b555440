"""NVIDIA's GPUs: CUDA through torch, the driver's management library (NVML), and the vendor's datasheets.

Describing GPUs does not initialise CUDA. Each question to NVML is guarded alone: virtual machines answer only some.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from paceline.core.environment import Driver, Ecc, Gpu, GpuProcess
from paceline.core.errors import Unsupported
from paceline.core.probe import ROOT, attempt, read_text
from paceline.core.subject import number_format
from paceline.devices._torch_gpu import ManagementLibrary, TorchGpu, TorchGpuKind
from paceline.devices.base import (
    NATIVE,
    Datasheet,
    Described,
    Device,
    DeviceConditions,
    DeviceUse,
    Entry,
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

# Compute capability from which a GPU has the format.
_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "int8": (7, 5), "int4": (8, 0), "fp4": (10, 0)}
_EMPTY_KERNEL = """\
.version 6.4
.target {target}
.address_size 64
.visible .entry {name}() {{ ret; }}
"""

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

# What has held the clocks down is counted by these fields.
_COUNTERS = {
    "sw-power-cap": "NVML_FI_DEV_PERF_POLICY_POWER",
    "hw-thermal-slowdown": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "sw-thermal-slowdown": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "hw-power-brake-slowdown": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
    "thermal": "NVML_FI_DEV_PERF_POLICY_THERMAL",
    "board-limit": "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT",
    "reliability": "NVML_FI_DEV_PERF_POLICY_RELIABILITY",
}

# What is read again and again next to clocks, temperature and power, with the unit of each count.
_WATCHED = (
    ("ecc_corrected", "NVML_FI_DEV_ECC_SBE_VOL_TOTAL", 1.0),
    ("ecc_uncorrected", "NVML_FI_DEV_ECC_DBE_VOL_TOTAL", 1.0),
    ("remapped_rows", "NVML_FI_DEV_REMAPPED_COR", 1.0),
    ("remapped_rows", "NVML_FI_DEV_REMAPPED_UNC", 1.0),
    ("nvlink_errors", "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 1.0),
    ("nvlink_errors", "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 1.0),
    ("nvlink_errors", "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 1.0),
    ("sent", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", 1024.0),
    ("received", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", 1024.0),
)
_ALL_LINKS = 0xFFFFFFFF  # the scope of what is counted by link


class CudaKind(TorchGpuKind):
    """NVIDIA's GPUs."""

    name = "cuda"
    libraries = ("cudnn", "tensorrt")
    copy_call = "cudaMemcpyAsync"
    launches_kernels = True
    graph_name = "CUDA graph"
    visible_variable = "CUDA_VISIBLE_DEVICES"
    variables = ("CUDA_DEVICE_ORDER",)
    power_cap = "sw-power-cap"
    slowdowns = ("hw-slowdown", *(reason for reason in _COUNTERS if reason != "sw-power-cap"))
    out_of_memory_words = ("cuda", "cudnn", "cublas")
    fork_environment = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    tool = VendorTool(
        name="nvidia-smi",
        lock_clocks="nvidia-smi -lgc",
        set_power="nvidia-smi -pl",
        set_power_of="nvidia-smi -i {index} -pl {watts:.0f}",
        reset="nvidia-smi -r",
        show_errors="nvidia-smi -q -d ECC",
        keep_loaded="nvidia-smi -pm 1",
    )

    @staticmethod
    def open_library() -> Nvml:
        return Nvml()

    def count(self) -> int:
        with self._opened_for_now() as nvml:
            is_restricted = self.visible_variable in os.environ
            return len(nvml.visible_entries()) if is_restricted else int(nvml.ask("nvmlDeviceGetCount") or 0)

    def open(self, index: int) -> Device:
        return CudaDevice(self, index)

    def watcher(self, target: str) -> Callable[[], Sequence[Mapping[str, float]]]:
        nvml = self.library()
        assert isinstance(nvml, Nvml)
        watched = [(handle, nvml.error_events(handle)) for handle in nvml.handles(target)]

        def read() -> list[dict[str, float]]:
            levels = (self.levels(DeviceConditions(**nvml.levels(handle))) for handle, _ in watched)
            return [
                level | nvml.counters(handle) | events()
                for level, (handle, events) in zip(levels, watched, strict=True)
            ]

        return read

    def limit_power(self, target: str, watts: float, undo: ExitStack) -> None:
        nvml, milliwatts = self._settable(target), round(watts * 1000)
        for handle in nvml.handles(target):
            least, most = nvml.ask("nvmlDeviceGetPowerManagementLimitConstraints", handle) or (0, milliwatts)
            if not least <= milliwatts <= most:
                name = nvml.text("nvmlDeviceGetName", handle)
                raise Unsupported(
                    f"{name} takes {least / 1000:g} to {most / 1000:g} W; choose power_limit in this range"
                )
            before = nvml.ask("nvmlDeviceGetPowerManagementLimit", handle)
            nvml.order("nvmlDeviceSetPowerManagementLimit", handle, milliwatts)
            undo.callback(nvml.order, "nvmlDeviceSetPowerManagementLimit", handle, before)
            if (now := nvml.ask("nvmlDeviceGetPowerManagementLimit", handle)) != milliwatts:
                raise Unsupported(f"the driver took it and kept its limit at {now / 1000:g} W; leave power_limit out")

    def limit_clock(self, target: str, megahertz: float, undo: ExitStack) -> None:
        nvml, clock = self._settable(target), round(megahertz)
        for handle in nvml.handles(target):
            memory = nvml.ask("nvmlDeviceGetSupportedMemoryClocks", handle) or [None]
            clocks = nvml.ask("nvmlDeviceGetSupportedGraphicsClocks", handle, memory[0]) or [clock]
            if not min(clocks) <= clock <= max(clocks):
                name = nvml.text("nvmlDeviceGetName", handle)
                raise Unsupported(f"{name} takes {min(clocks)} to {max(clocks)} MHz; choose clock_limit in this range")
            nvml.order("nvmlDeviceSetGpuLockedClocks", handle, min(clocks), clock)
            undo.callback(nvml.order, "nvmlDeviceResetGpuLockedClocks", handle)

    def _settable(self, target: str) -> Nvml:
        nvml = self.library()
        assert isinstance(nvml, Nvml)
        if not nvml.handles(target):
            raise Unsupported("NVIDIA's driver shows no such GPU; see 'paceline machine'")
        return nvml

    def describe(self) -> Described:
        with self._opened_for_now() as nvml:
            return nvml.describe()

    @contextmanager
    def _opened_for_now(self) -> Iterator[Nvml]:
        """The library for a process that may go on to fork others."""
        nvml = self.open_library()
        try:
            yield nvml
        finally:
            nvml.ask("nvmlShutdown")

    def datasheet(self, device_name: str) -> Datasheet | None:
        return None if _NOT_WHOLE.search(device_name) else sheet_of(device_name, _SHEETS)


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

    def tuned_product(self, a: Tensor, b: Tensor, out: Tensor, *, tf32: bool) -> tuple[Step, str]:
        from paceline.devices._cublaslt import tuned_product

        stream = self.current_stream
        return tuned_product(a, b, out, tf32=tf32, stream=lambda: int(stream().cuda_stream), seconds_of=self.seconds_of)

    def empty_kernel(self, name: str) -> str:
        # The oldest target that the driver of such a device still translates.
        return _EMPTY_KERNEL.format(target="sm_75" if self.capability >= (7, 5) else "sm_50", name=name)


class Nvml(ManagementLibrary):
    """The NVIDIA driver's management library."""

    binding = "pynvml"
    start = "nvmlInit"
    energy_counter = "NVML total energy counter"

    def __init__(self) -> None:
        super().__init__()
        self._event_sets: dict[str, Any] = {}

    def constant(self, name: str) -> Any:
        """A constant of the binding; older ones lack some."""
        return getattr(self.module, name, None)

    def order(self, function: str, *arguments: Any) -> None:
        """Have something set; Unsupported with what to do where the driver refuses."""
        try:
            getattr(self.module, function)(*arguments)
        except Exception as error:  # each refusal has a class of its own
            kind = type(error).__name__
            remedy = "leave the limit out, or measure where the driver allows it"
            if "NoPermission" in kind:
                remedy = "run as root; in a container also with the capability SYS_ADMIN"
            elif "NotSupported" in kind:
                remedy = "this GPU, or the virtual machine that it is lent to, has none that can be set: use the host"
            raise Unsupported(f"the driver refuses {function} ({error}); {remedy}") from None

    def text(self, function: str, *arguments: Any) -> str | None:
        """A string; some bindings answer in bytes."""
        answer = self.ask(function, *arguments)
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def first(self, functions: tuple[str, ...], *arguments: Any) -> Any:
        """The first answer; drivers of another age support the other functions."""
        answers = (self.ask(function, *arguments) for function in functions)
        return next((answer for answer in answers if answer is not None), None)

    def every_handle(self) -> list[Any]:
        """All GPUs that the driver shows to this process, in its order; None for one that it does not open."""
        count = int(self.ask("nvmlDeviceGetCount") or 0)
        return [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]

    def visible_entries(self) -> list[Entry]:
        """What CUDA shows to this process, in its order."""
        handles = self.every_handle()
        uuids = [self.text("nvmlDeviceGetUUID", handle) or "" if handle is not None else "" for handle in handles]
        return visible(uuids, os.environ.get(CudaKind.visible_variable))

    def has_cuda_order(self) -> bool:
        """Whether CUDA counts the GPUs as the driver does: it puts the fastest first unless configured otherwise."""
        if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
            return True
        return len({self.text("nvmlDeviceGetName", handle) for handle in self.every_handle()}) <= 1

    def handles(self, target: str) -> list[Any]:
        entries = named(target, self.visible_entries())
        if any(isinstance(entry, int) for entry in entries) and not self.has_cuda_order():
            return []
        handles = [
            self.ask("nvmlDeviceGetHandleByIndex" if isinstance(entry, int) else "nvmlDeviceGetHandleByUUID", entry)
            for entry in entries
        ]
        return [handle for handle in handles if handle is not None]

    def describe(self) -> Described:
        return Described(attempt(self._driver) if self.module else None, attempt(self._gpus) or [])

    def _driver(self) -> Driver:
        number = self.first(("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"))
        return Driver(
            version=self.text("nvmlSystemGetDriverVersion"),
            cuda=f"{number // 1000}.{number % 1000 // 10}" if number else None,
        )

    def _gpus(self) -> list[Gpu]:
        entries = self.visible_entries() if self.has_cuda_order() else []
        return [
            Gpu(index=index, cuda_index=entries.index(index) if index in entries else None, **self._description(handle))
            for index, handle in enumerate(self.every_handle())
        ]

    def _description(self, handle: Any) -> dict[str, Any]:
        if handle is None:
            return {}
        capability = self.ask("nvmlDeviceGetCudaComputeCapability", handle)
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        limits = self.ask("nvmlDeviceGetPowerManagementLimitConstraints", handle)
        mig = self.ask("nvmlDeviceGetMigMode", handle)
        persistence = self.ask("nvmlDeviceGetPersistenceMode", handle)
        bus = getattr(self.ask("nvmlDeviceGetPciInfo", handle), "busId", None)
        return self._state(handle) | {
            "name": self.text("nvmlDeviceGetName", handle),
            "pci_bus_id": bus.decode(errors="replace") if isinstance(bus, bytes) else bus,
            "compute_capability": f"{capability[0]}.{capability[1]}" if capability else None,
            "memory_total": memory.total if memory else None,
            "memory_used": memory.used if memory else None,
            "sm_clock_max_mhz": self.ask("nvmlDeviceGetMaxClockInfo", handle, self.constant("NVML_CLOCK_SM")),
            "memory_clock_max_mhz": self.ask("nvmlDeviceGetMaxClockInfo", handle, self.constant("NVML_CLOCK_MEM")),
            "power_limit_default_watts": _watts(self.ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
            "power_limit_max_watts": _watts(limits[1]) if limits else None,
            "ecc": self._ecc(handle),
            "mig": bool(mig[0]) if mig else None,
            "persistence": None if persistence is None else bool(persistence),
            "pcie_generation": self.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            "pcie_generation_max": self.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            "pcie_width": self.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
            "pcie_width_max": self.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        }

    def levels(self, handle: Any) -> dict[str, Any]:
        """Clocks, temperature and power now."""
        temperature = self.first(
            ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), handle, self.constant("NVML_TEMPERATURE_GPU")
        )
        mask = self.first(
            ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), handle
        )
        return {
            "sm_clock_mhz": self.ask("nvmlDeviceGetClockInfo", handle, self.constant("NVML_CLOCK_SM")),
            "memory_clock_mhz": self.ask("nvmlDeviceGetClockInfo", handle, self.constant("NVML_CLOCK_MEM")),
            "temperature_celsius": None if temperature is None else int(temperature),
            "power_watts": _watts(self.ask("nvmlDeviceGetPowerUsage", handle)),
            "throttle_reasons": None if mask is None else reasons(int(mask)),
        }

    def _state(self, handle: Any) -> dict[str, Any]:
        """The fields that a description and the conditions share."""
        limit = self.first(("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"), handle)
        running = self.ask("nvmlDeviceGetComputeRunningProcesses", handle)
        # A process of another container has a number that means nothing here, so no name.
        processes = [
            GpuProcess(pid=one.pid, name=read_text(ROOT / f"proc/{one.pid}/comm"), memory=one.usedGpuMemory)
            for one in running or ()
        ]
        return self.levels(handle) | {
            "uuid": self.text("nvmlDeviceGetUUID", handle),
            "power_limit_watts": _watts(limit),
            "processes": None if running is None else processes,
        }

    def _ecc(self, handle: Any) -> Ecc:
        mode = self.ask("nvmlDeviceGetEccMode", handle)
        rows = self.ask("nvmlDeviceGetRemappedRows", handle)

        def errors(kind: str, counter: str) -> int | None:
            constants = self.constant(f"NVML_MEMORY_ERROR_TYPE_{kind}"), self.constant(f"NVML_{counter}_ECC")
            answer = self.ask("nvmlDeviceGetTotalEccErrors", handle, *constants)
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

    def conditions(self, handle: Any) -> DeviceConditions:
        held_down = attempt(lambda: self._held_down(handle)) or {}
        return DeviceConditions(**self._state(handle), held_down_seconds=held_down)

    def _held_down(self, handle: Any) -> dict[str, float]:
        """How long each reason has held the clocks down since the driver was loaded; the driver counts nanoseconds."""
        fields = {name: self.constant(constant) for name, constant in _COUNTERS.items()}
        fields = {name: field for name, field in fields.items() if field is not None}
        values = self.ask("nvmlDeviceGetFieldValues", handle, list(fields.values()))
        pairs = zip(fields, values, strict=False) if values is not None else ()
        return {name: value.value.ullVal / 1e9 for name, value in pairs if value.nvmlReturn == 0}

    def counters(self, handle: Any) -> dict[str, float]:
        """Errors and traffic since the driver was loaded, as far as the card counts them."""
        fields = [(name, self.constant(constant), scale) for name, constant, scale in _WATCHED]
        fields = [(name, field, scale) for name, field, scale in fields if field is not None]
        asked = [(field, _ALL_LINKS) if name in ("sent", "received") else field for name, field, _ in fields]
        values = self.ask("nvmlDeviceGetFieldValues", handle, asked)
        counts: dict[str, float] = {}
        for (name, _, scale), value in zip(fields, values or (), strict=False):
            if value.nvmlReturn == 0:
                is_short = value.valueType == self.constant("NVML_VALUE_TYPE_UNSIGNED_INT")
                count = value.value.uiVal if is_short else value.value.ullVal
                counts[name] = counts.get(name, 0.0) + scale * count
        return counts

    def error_events(self, handle: Any) -> Callable[[], dict[str, float]]:
        """What says the number of the last error (Xid) that the driver has reported from now on, 0 for none."""
        uuid = self.text("nvmlDeviceGetUUID", handle) or ""
        if uuid not in self._event_sets:  # one for as long as this process lives
            events, kind = self.ask("nvmlEventSetCreate"), self.constant("nvmlEventTypeXidCriticalError")
            try:
                self.module.nvmlDeviceRegisterEvents(handle, kind, events)  # type: ignore[union-attr]
            except Exception:  # not in every virtual machine
                return dict
            self._event_sets[uuid] = events
        events, last = self._event_sets[uuid], 0.0

        def read() -> dict[str, float]:
            nonlocal last
            while (event := self.first(("nvmlEventSetWait_v2", "nvmlEventSetWait"), events, 0)) is not None:
                last = float(event.eventData)
            return {"xid": last}

        return read

    def use(self, handle: Any) -> DeviceUse:
        rates = self.ask("nvmlDeviceGetUtilizationRates", handle)
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        return DeviceUse(
            busy_percent=None if rates is None else float(rates.gpu),
            memory_used=None if memory is None else int(memory.used),
        )

    def joules(self, handle: Any) -> float | None:
        millijoules = self.ask("nvmlDeviceGetTotalEnergyConsumption", handle)
        return None if millijoules is None else int(millijoules) / 1000


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def reasons(mask: int) -> list[str]:
    """The names of the bits; an unknown one keeps its number."""
    names = [name for bit, name in REASONS.items() if mask & bit]
    rest = mask & ~sum(REASONS)
    return [*names, f"unknown-{rest:#x}"] if rest else names


_SHEETS = read_sheets("cuda.csv")
# A part of a GPU, or a slower one that shares its name.
_NOT_WHOLE = re.compile(r"\bMIG\b|-\d+[ABCQ]$|\bLaptop\b|\bMax-Q\b")
