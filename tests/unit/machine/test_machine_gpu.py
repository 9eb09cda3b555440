"""GPUs as a stand-in driver describes them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.devices import device_count, kind_of
from paceline.devices.base import visible
from paceline.devices.cuda import Nvml, reasons
from paceline.machine import describe
from paceline.machine.conditions import observe

Install = Callable[..., Any]
UUIDS = ["GPU-0aaa", "GPU-1aaa", "GPU-2aaa"]


def test_one_gpu_in_full(fake_nvml: Install) -> None:
    fake = fake_nvml()
    fake.processes = [SimpleNamespace(pid=999_999_999, usedGpuMemory=1024)]
    (gpu,) = Nvml().describe().gpus
    assert (gpu.index, gpu.cuda_index, gpu.name, gpu.uuid) == (0, 0, "NVIDIA H200", "GPU-0aaa")
    assert (gpu.compute_capability, gpu.memory_total) == ("9.0", 143 * 1024**3)
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, gpu.memory_clock_mhz) == (345, 1980, 3201)
    assert (gpu.power_watts, gpu.power_limit_watts, gpu.power_limit_max_watts) == (76.5, 700.0, 700.0)
    assert (gpu.ecc.enabled, gpu.ecc.uncorrected_volatile, gpu.ecc.uncorrected_aggregate) == (True, 10, 11)
    assert (gpu.mig, gpu.persistence, gpu.temperature_celsius) == (False, True, 31)
    assert gpu.throttle_reasons == ["sw-power-cap", "hw-thermal-slowdown"]
    assert gpu.processes is not None and gpu.processes[0].name is None
    assert gpu.pcie_width_max is None, "the driver was not able to tell"
    driver = Nvml().describe().driver
    assert driver is not None
    assert (driver.version, driver.cuda) == ("570.86.15", "12.8")


@pytest.mark.parametrize(
    "question", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetEccMode", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode"]
)
def test_a_refused_question_leaves_the_others(fake_nvml: Install, question: str) -> None:
    fake_nvml(unsupported=(question,))
    (gpu,) = Nvml().describe().gpus
    known = {"nvmlDeviceGetPowerUsage": gpu.power_watts, "nvmlDeviceGetEccMode": gpu.ecc.enabled}
    known |= {"nvmlDeviceGetMemoryInfo": gpu.memory_total, "nvmlDeviceGetMigMode": gpu.mig}
    assert known.pop(question) is None
    assert all(value is not None for value in known.values())


def test_a_driver_that_refuses_everything_after_counting(fake_nvml: Install) -> None:
    fake = fake_nvml()
    every = tuple(name for name in dir(type(fake)) if name.startswith("nvmlDeviceGet") and not name.endswith("Count"))
    fake_nvml(unsupported=every)
    (gpu,) = Nvml().describe().gpus
    assert gpu.model_dump(exclude_none=True, exclude={"ecc"}) == {"kind": "cuda", "index": 0, "cuda_index": 0}


def test_describe_and_count_with_a_driver(fake_nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_nvml("NVIDIA H200", "NVIDIA H200", "NVIDIA H200")
    assert device_count() == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert device_count() == 2
    assert [gpu.cuda_index for gpu in describe().gpus] == [1, None, 0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device_count() == 0
    assert fake.opened == 0, "the library is closed again"


def test_no_driver_is_no_gpu(fake_nvml: Install) -> None:
    fake_nvml(unsupported=("all",))
    assert device_count() == 0
    assert describe().gpus == []
    assert observe("cuda:0").gpus == []
    assert kind_of("cuda:0").meter("cuda:0") is None


VISIBILITY = [
    (None, [0, 1, 2]),
    ("", []),
    ("-1", []),
    ("1", [1]),
    ("2, 0", [2, 0]),
    ("0,7,1", [0]),
    ("0,0", []),
    ("GPU-2", [2]),
    ("GPU-1aaa,0", [1, 0]),
    ("GPU-", []),
    ("NoDevFiles", []),
]


@pytest.mark.parametrize(("setting", "expected"), VISIBILITY)
def test_visible_devices(setting: str | None, expected: list[int]) -> None:
    assert visible(UUIDS, setting) == expected


def test_a_part_of_a_gpu_is_visible() -> None:
    assert visible(UUIDS, "MIG-abc") == ["MIG-abc"]


def test_unlike_gpus_are_not_guessed(fake_nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml("NVIDIA T400", "NVIDIA H200")
    assert Nvml().handles("cuda:0") == []
    assert [gpu.cuda_index for gpu in Nvml().describe().gpus] == [None, None]
    assert kind_of("cuda:0").meter("cuda:0") is None
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert Nvml().handles("cuda:1") == [1]
    assert Nvml().handles("cuda:*") == [0, 1]


def test_reasons_have_names() -> None:
    assert reasons(0) == []
    assert reasons(0x1) == ["gpu-idle"]
    assert reasons(0x8 | 0x10000) == ["hw-slowdown", "unknown-0x10000"]


def test_observing_a_gpu(fake_nvml: Install) -> None:
    fake_nvml()
    (seen,) = observe("cuda:0").gpus
    assert (seen.sm_clock_mhz, seen.temperature_celsius, seen.power_watts) == (345, 31, 76.5)
    assert seen.held_down_seconds == {"sw-power-cap": 2.0}, "a counter that is not supported is left out"
    assert observe("cpu").gpus == []
    assert observe("cuda:5").gpus == []


def test_energy_of_a_gpu(fake_nvml: Install) -> None:
    fake = fake_nvml()
    meter = kind_of("cuda:0").meter("cuda:0")
    assert meter is not None
    fake.energy += 1500
    assert meter.read() == 1.5
    assert "cuda:0" in meter.source
    fake_nvml(unsupported=("nvmlDeviceGetTotalEnergyConsumption",))
    assert kind_of("cuda:0").meter("cuda:0") is None
