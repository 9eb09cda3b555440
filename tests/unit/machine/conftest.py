"""Stand-ins for hardware that the machine under test need not have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.devices import kind_named


class NotSupported(Exception):
    """What the driver answers in a virtual machine."""


class FakeNvml:
    """A driver with some GPUs; a question named in `unsupported` is refused."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_AGGREGATE_ECC = 1
    NVML_VALUE_TYPE_UNSIGNED_INT = 1
    NVML_FI_DEV_PERF_POLICY_POWER = 74
    NVML_FI_DEV_PERF_POLICY_THERMAL = 75

    def __init__(self, names: tuple[str, ...] = ("NVIDIA H200",), unsupported: tuple[str, ...] = ()) -> None:
        self.names = names
        self.unsupported = unsupported
        self.opened = 0
        self.mask = 0x4 | 0x40
        self.processes: list[Any] = []
        self.energy = 5_000_000
        self.power_limits = [700_000]  # that were set, the last one holds
        self.clocks: list[tuple[int, int] | None] = []
        self.counters: dict[int, int | None] = {74: 2_000_000_000, 75: None}

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and (
            name in object.__getattribute__(self, "unsupported")
            or "all" in object.__getattribute__(self, "unsupported")
        ):
            raise NotSupported(name)
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.86.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12080

    def nvmlDeviceGetCount(self) -> int:
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}aaa"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.names[handle]

    def nvmlDeviceGetCudaComputeCapability(self, _handle: int) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetMemoryInfo(self, _handle: int) -> Any:
        return SimpleNamespace(total=143 * 1024**3, used=600 * 1024**2)

    def nvmlDeviceGetClockInfo(self, _handle: int, kind: int) -> int:
        return {1: 345, 2: 3201}[kind]

    def nvmlDeviceGetMaxClockInfo(self, _handle: int, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetPowerUsage(self, _handle: int) -> int:
        return 76_500

    def nvmlDeviceGetEnforcedPowerLimit(self, _handle: int) -> int:
        return 700_000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, _handle: int) -> int:
        return 700_000

    def nvmlDeviceGetPowerManagementLimitConstraints(self, _handle: int) -> tuple[int, int]:
        return 200_000, 700_000

    def nvmlDeviceGetPowerManagementLimit(self, _handle: int) -> int:
        return self.power_limits[-1]

    def nvmlDeviceSetPowerManagementLimit(self, _handle: int, milliwatts: int) -> None:
        self.power_limits.append(milliwatts)

    def nvmlDeviceGetSupportedMemoryClocks(self, _handle: int) -> list[int]:
        return [3201, 1593]

    def nvmlDeviceGetSupportedGraphicsClocks(self, _handle: int, memory: int) -> list[int]:
        return list(range(1980 if memory == 3201 else 1200, 344, -15))

    def nvmlDeviceSetGpuLockedClocks(self, _handle: int, least: int, most: int) -> None:
        self.clocks.append((least, most))

    def nvmlDeviceResetGpuLockedClocks(self, _handle: int) -> None:
        self.clocks.append(None)

    def nvmlDeviceGetTemperature(self, _handle: int, _sensor: int) -> int:
        return 31

    def nvmlDeviceGetEccMode(self, _handle: int) -> tuple[int, int]:
        return 1, 1

    def nvmlDeviceGetTotalEccErrors(self, _handle: int, kind: int, counter: int) -> int:
        return 10 * kind + counter

    def nvmlDeviceGetMigMode(self, _handle: int) -> tuple[int, int]:
        return 0, 0

    def nvmlDeviceGetPersistenceMode(self, _handle: int) -> int:
        return 1

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle: int) -> int:
        return self.mask

    def nvmlDeviceGetCurrPcieLinkGeneration(self, _handle: int) -> int:
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, _handle: int) -> int:
        return 16

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: int) -> list[Any]:
        return self.processes

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle: int) -> int:
        return self.energy

    def nvmlDeviceGetFieldValues(self, _handle: int, fields: list[int | tuple[int, int]]) -> list[Any]:
        counts = [self.counters[field[0] if isinstance(field, tuple) else field] for field in fields]
        return [
            SimpleNamespace(
                nvmlReturn=0 if count is not None else 3,
                valueType=1 if count is not None and count < 100 else 3,
                value=SimpleNamespace(ullVal=count or 0, uiVal=count or 0),
            )
            for count in counts
        ]


@pytest.fixture
def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeNvml]:
    """Puts a fake driver in the place of the real one."""

    def install(*names: str, unsupported: tuple[str, ...] = ()) -> FakeNvml:
        fake = FakeNvml(names or ("NVIDIA H200",), unsupported)
        monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
        monkeypatch.setattr(kind_named("cuda"), "_opened", None)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
        return fake

    return install


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Writes files below a folder that stands for the root of a machine."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write
