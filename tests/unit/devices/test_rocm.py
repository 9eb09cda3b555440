"""AMD's GPUs as a scripted amdsmi describes them; nothing here has seen the hardware."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.environment import Gpu
from paceline.core.errors import Unsupported
from paceline.devices import counts, datasheet, describe_devices, kind_named
from paceline.devices.base import DeviceUse
from paceline.devices.rocm import RocmDevice
from paceline.machine.conditions import observe, warnings

KIND = kind_named("rocm")


class FakeAmdSmi:
    """Answers as the vendor's documentation says, in its units; handles are listed in another order than HIP's."""

    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot", EDGE="edge")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self, unsupported: tuple[str, ...] = ()) -> None:
        self._unsupported = unsupported
        self.active: dict[str, Any] = {}
        self.energy = 1_000_000
        self.processes: list[dict[str, Any]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("amdsmi_") and name in object.__getattribute__(self, "_unsupported"):
            raise RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED")
        return object.__getattribute__(self, name)

    def amdsmi_init(self) -> None:
        pass

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["b", "a"]

    def amdsmi_get_gpu_enumeration_info(self, handle: str) -> dict[str, Any]:
        return {"hip_id": {"a": 0, "b": 1}[handle]}

    def amdsmi_get_gpu_device_uuid(self, handle: str) -> str:
        return f"uuid-{handle}"

    def amdsmi_get_gpu_device_bdf(self, _handle: str) -> str:
        return "0000:05:00.0"

    def amdsmi_get_gpu_driver_info(self, _handle: str) -> dict[str, str]:
        return {"driver_name": "amdgpu", "driver_version": "6.10.5"}

    def amdsmi_get_gpu_asic_info(self, _handle: str) -> dict[str, Any]:
        return {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"}

    def amdsmi_get_gpu_vram_usage(self, _handle: str) -> dict[str, int]:
        return {"vram_total": 196_592, "vram_used": 285}

    def amdsmi_get_clock_info(self, _handle: str, kind: str) -> dict[str, Any]:
        return {"gfx": {"clk": 132, "max_clk": 2100}, "mem": {"clk": "N/A", "max_clk": 1300}}[kind]

    def amdsmi_get_power_info(self, _handle: str) -> dict[str, Any]:
        return {"current_socket_power": 141, "average_socket_power": "N/A"}

    def amdsmi_get_power_cap_info(self, _handle: str) -> dict[str, int]:
        return {"power_cap": 750_000_000, "default_power_cap": 750_000_000, "max_power_cap": 750_000_000}

    def amdsmi_get_temp_metric(self, _handle: str, place: str, _metric: str) -> Any:
        return {"hotspot": 44, "edge": "N/A"}[place]

    def amdsmi_get_violation_status(self, _handle: str) -> dict[str, Any]:
        return dict.fromkeys(("active_ppt_pwr", "active_hbm_thrm"), 0) | self.active

    def amdsmi_get_pcie_info(self, _handle: str) -> dict[str, Any]:
        return {
            "pcie_static": {"max_pcie_width": 16, "pcie_interface_version": 5},
            "pcie_metric": {"pcie_width": 16, "pcie_speed": 32_000},
        }

    def amdsmi_get_gpu_total_ecc_count(self, _handle: str) -> dict[str, int]:
        return {"correctable_count": 3, "uncorrectable_count": 0}

    def amdsmi_get_gpu_process_list(self, _handle: str) -> list[dict[str, Any]]:
        return self.processes

    def amdsmi_get_gpu_activity(self, _handle: str) -> dict[str, Any]:
        return {"gfx_activity": 37, "umc_activity": 1}

    def amdsmi_get_energy_count(self, _handle: str) -> dict[str, Any]:
        return {"energy_accumulator": self.energy, "counter_resolution": 15.3}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeAmdSmi:
    return install(monkeypatch)


def install(monkeypatch: pytest.MonkeyPatch, unsupported: tuple[str, ...] = ()) -> FakeAmdSmi:
    fake = FakeAmdSmi(unsupported)
    monkeypatch.setitem(sys.modules, "amdsmi", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(KIND, "_opened", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]  # this machine may have NVIDIA's
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return fake


def test_one_gpu_in_full(driver: FakeAmdSmi) -> None:
    driver.processes = [{"pid": 17, "name": "N/A", "mem": 1024}, {"pid": 18, "name": "python", "mem": "N/A"}]
    found = describe_devices()
    assert found.driver is not None and found.driver.version == "6.10.5"
    first, second = (gpu for gpu in found.gpus if gpu.kind == "rocm")
    assert [first.uuid, second.uuid] == ["uuid-a", "uuid-b"], "in the order in which HIP counts"
    assert (first.cuda_index, second.cuda_index) == (0, 1)
    assert (first.name, first.architecture, first.compute_capability) == ("AMD Instinct MI300X", "gfx942", None)
    assert first.memory_total == 196_592 * 1024**2
    assert (first.sm_clock_mhz, first.sm_clock_max_mhz, first.memory_clock_mhz) == (132, 2100, None)
    assert (first.power_watts, first.power_limit_watts, first.temperature_celsius) == (141.0, 750.0, 44)
    assert (first.pcie_generation_max, first.pcie_width) == (5, 16)
    assert first.ecc.corrected_volatile == 3
    assert first.processes is not None
    assert [(one.pid, one.name, one.memory) for one in first.processes] == [(17, None, 1024), (18, "python", None)]


@pytest.mark.parametrize(
    "question",
    ["amdsmi_get_power_info", "amdsmi_get_gpu_vram_usage", "amdsmi_get_temp_metric", "amdsmi_get_clock_info"],
)
def test_a_refused_question_leaves_the_others(question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, (question,))
    gpu: Gpu = KIND.describe().gpus[0]
    known = {"amdsmi_get_power_info": gpu.power_watts, "amdsmi_get_gpu_vram_usage": gpu.memory_total}
    known |= {"amdsmi_get_temp_metric": gpu.temperature_celsius, "amdsmi_get_clock_info": gpu.sm_clock_mhz}
    assert known.pop(question) is None
    assert all(value is not None for value in known.values())


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, ["uuid-a", "uuid-b"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["uuid-b"]),
        ({"HIP_VISIBLE_DEVICES": "1,0"}, ["uuid-b", "uuid-a"]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, ["uuid-b"]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_what_is_visible_is_counted_as_hip_counts(
    settings: dict[str, str], shown: list[str], driver: FakeAmdSmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert counts().get("rocm", 0) == len(shown)
    assert [one.uuid for one in KIND.conditions("rocm:*")] == shown


def test_energy_is_counted_in_steps_of_the_resolution(driver: FakeAmdSmi) -> None:
    meter = KIND.meter("rocm:1")
    assert meter is not None and meter.source == "amdsmi energy accumulator of rocm:1"
    driver.energy += 100_000
    assert meter.read() == pytest.approx(1.53)
    assert KIND.meter("rocm:7") is None


def test_no_counter_is_no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("amdsmi_get_energy_count",))
    assert KIND.meter("rocm:0") is None


def test_throttling_and_strangers_are_warnings(driver: FakeAmdSmi) -> None:
    before = observe("rocm:0")
    driver.active = {"active_hbm_thrm": 1, "active_ppt_pwr": 1}
    driver.processes = [{"pid": 1, "name": "stranger", "mem": 1}]
    found = {warning.kind: warning for warning in warnings(before, observe("rocm:0")) if "rocm:0" in warning.message}
    assert found["throttled"].message == "rocm:0 held its clocks down at 44 °C: memory-thermal"
    assert "amd-smi lists it" in found["contended"].remedy
    driver.active = {"active_ppt_pwr": 1}
    capped = [warning for warning in warnings(before, observe("rocm:0")) if warning.kind == "power-capped"]
    assert "750 W" in capped[0].message and "amd-smi" in capped[0].remedy


def test_link_and_use(driver: FakeAmdSmi) -> None:
    assert KIND.link("rocm:0") == (5, 16)
    assert KIND.link("rocm:*") is None
    assert KIND.use("rocm:1") == [DeviceUse(busy_percent=37.0, memory_used=285 * 1024**2)]


def test_no_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setattr(KIND, "_opened", None)
    assert (KIND.count(), KIND.describe().gpus, KIND.conditions("rocm:0")) == (0, [], [])


class Gpu942(RocmDevice):
    """A GPU of which no more is known than its architecture; torch gives (9, 4) as capability of MI300."""

    def __init__(self, architecture: str) -> None:
        self.kind, self.name, self.architecture, self.capability = KIND, "a GPU", architecture, (9, 4)


@pytest.mark.parametrize(
    ("architecture", "precision", "how"),
    [
        ("gfx942", "bf16", "native"),
        ("gfx942", "int8", "native"),
        ("gfx942", "fp8", "none"),  # a GPU of NVIDIA's of capability 9.4 would have it
        ("gfx942", "fp8_hybrid", "none"),
        ("gfx942", "tf32", "none"),
        ("gfx950", "fp8", "native"),
        ("gfx1201", "fp8_e4m3", "native"),
        ("gfx906", "bf16", "none"),
        ("gfx906", "fp16", "native"),
        ("gfx1030", "int8", "none"),
        ("gfx1030", "fp64", "native"),
    ],
)
def test_formats_go_by_the_architecture_and_not_by_a_capability(architecture: str, precision: str, how: str) -> None:
    support = Gpu942(architecture).format(precision)
    assert support.how == how
    assert bool(support.reason) == (how == "none")


def test_the_other_encoding_of_fp8_is_the_reason() -> None:
    assert "another encoding" in Gpu942("gfx942").format("fp8").reason


def test_a_partition_has_no_promise_of_the_whole() -> None:
    sheet = datasheet("AMD Instinct MI300X")
    assert sheet is not None and sheet.rate("bf16") == pytest.approx(1307.4e12)
    assert datasheet("AMD Instinct MI300X, 38 of 304 compute units") is None
    assert datasheet("AMD Instinct MI250X") is None


def test_torch_of_another_vendor_cannot_open_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="needs it: pip install '.[torch]'")
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(Unsupported, match="needs torch's build for ROCm"):
        KIND.open(0)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(Unsupported, match="is built for ROCm; use --target rocm:0"):
        kind_named("cuda").open(0)
