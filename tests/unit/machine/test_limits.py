"""Power limits and clocks of a stand-in driver and of processor packages: set, refused with a remedy, restored."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import Unsupported
from paceline.devices import kind_of
from paceline.devices.cpu import limit_packages

Install = Callable[..., Any]


def test_each_gpu_is_limited_and_restored(fake_nvml: Install) -> None:
    fake = fake_nvml("NVIDIA H200", "NVIDIA H200")
    with ExitStack() as undo:
        kind_of("cuda:0").limit_power("cuda:0", 450.5, undo)
        kind_of("cuda:*").limit_clock("cuda:*", 1400, undo)
        assert fake.power_limits == [700_000, 450_500]
        assert fake.clocks == [(345, 1400)] * 2, "at most, not always"
    assert fake.power_limits == [700_000, 450_500, 700_000]
    assert fake.clocks[2:] == [None, None]


@pytest.mark.parametrize("watts", [150, 800])
def test_a_limit_out_of_range_names_the_range(fake_nvml: Install, watts: float) -> None:
    fake = fake_nvml()
    with ExitStack() as undo, pytest.raises(Unsupported, match="NVIDIA H200 takes 200 to 700 W"):
        kind_of("cuda:0").limit_power("cuda:0", watts, undo)
    assert fake.power_limits == [700_000]


@pytest.mark.parametrize("clock", [100, 2500])
def test_a_clock_out_of_range_names_the_range(fake_nvml: Install, clock: float) -> None:
    fake = fake_nvml()
    with ExitStack() as undo, pytest.raises(Unsupported, match="NVIDIA H200 takes 345 to 1980 MHz"):
        kind_of("cuda:0").limit_clock("cuda:0", clock, undo)
    assert fake.clocks == []


def test_a_driver_that_does_not_say_its_clocks_is_asked_for_this_one(fake_nvml: Install) -> None:
    fake = fake_nvml(unsupported=("nvmlDeviceGetSupportedMemoryClocks", "nvmlDeviceGetSupportedGraphicsClocks"))
    with ExitStack() as undo:
        kind_of("cuda:0").limit_clock("cuda:0", 1400, undo)
        assert fake.clocks == [(1400, 1400)]


def test_a_refusal_says_what_to_do(fake_nvml: Install) -> None:
    fake_nvml(unsupported=("nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetGpuLockedClocks"))
    with ExitStack() as undo:
        with pytest.raises(Unsupported, match=r"refuses nvmlDeviceSetPowerManagementLimit .* virtual machine"):
            kind_of("cuda:0").limit_power("cuda:0", 400, undo)
        with pytest.raises(Unsupported, match=r"refuses nvmlDeviceSetGpuLockedClocks .* virtual machine"):
            kind_of("cuda:0").limit_clock("cuda:0", 1400, undo)


def test_a_driver_without_permission(fake_nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError_NoPermission(Exception):
        """What the driver answers to a user who is not root."""

    def refuse(*_: object) -> None:
        raise NVMLError_NoPermission("Insufficient Permissions")

    monkeypatch.setattr(fake_nvml(), "nvmlDeviceSetPowerManagementLimit", refuse, raising=False)
    with ExitStack() as undo, pytest.raises(Unsupported, match=r"\(Insufficient Permissions\); run as root"):
        kind_of("cuda:0").limit_power("cuda:0", 400, undo)


def test_a_driver_that_keeps_its_limit_is_not_believed(fake_nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_nvml(), "nvmlDeviceGetPowerManagementLimit", lambda _handle: 700_000, raising=False)
    with ExitStack() as undo, pytest.raises(Unsupported, match="kept its limit at 700 W"):
        kind_of("cuda:0").limit_power("cuda:0", 400, undo)


def test_no_gpu(fake_nvml: Install) -> None:
    fake_nvml(unsupported=("all",))
    with ExitStack() as undo, pytest.raises(Unsupported, match="no such GPU"):
        kind_of("cuda:0").limit_power("cuda:0", 400, undo)


def packages(tree: Callable[[dict[str, str]], Path], limit: str = "constraint_0_power_limit_uw") -> Path:
    files: dict[str, str] = {}
    for number in range(2):
        folder = f"intel-rapl:{number}"
        files |= {
            f"{folder}/name": f"package-{number}\n",
            f"{folder}/{limit}": "250000000\n",
            f"{folder}/enabled": "0\n",
        }
    return tree(files)


def test_every_package_is_limited_and_restored(tree: Callable[[dict[str, str]], Path]) -> None:
    root = packages(tree)
    limits = [root / f"intel-rapl:{number}" / "constraint_0_power_limit_uw" for number in range(2)]
    with ExitStack() as undo:
        limit_packages(root, 120.0, undo)
        assert [limit.read_text() for limit in limits] == ["120000000"] * 2
        assert [(limit.parent / "enabled").read_text() for limit in limits] == ["1"] * 2
    assert [limit.read_text() for limit in limits] == ["250000000"] * 2
    assert [(limit.parent / "enabled").read_text() for limit in limits] == ["0"] * 2


def test_a_host_without_a_limit(tree: Callable[[dict[str, str]], Path], tmp_path: Path) -> None:
    with ExitStack() as undo, pytest.raises(Unsupported, match="no power limit of a processor package"):
        limit_packages(tmp_path / "nothing", 100.0, undo)
    with ExitStack() as undo, pytest.raises(Unsupported, match="no power limit of a processor package"):
        limit_packages(packages(tree, limit="energy_uj"), 100.0, undo)
