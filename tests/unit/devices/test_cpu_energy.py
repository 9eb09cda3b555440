"""Energy counters of processor packages, from a tree of files; those of GPUs are tested with the machine's driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.devices.cpu import PackageEnergy, open_packages


def domain(root: Path, folder: str, name: str, energy: int, largest: int = 1_000_000) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{energy}\n")
    (path / "max_energy_range_uj").write_text(f"{largest}\n")
    return path


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    first = domain(tmp_path, "intel-rapl:0", "package-0", 100)
    second = domain(tmp_path, "intel-rapl:1", "package-1", 500)
    others = [
        domain(tmp_path, "intel-rapl:0:0", "core", 100),
        domain(tmp_path, "intel-rapl:2", "psys", 100),
        domain(tmp_path, "intel-rapl-mmio:0", "package-0", 100),
    ]
    meter = open_packages(tmp_path)
    assert meter is not None
    assert meter.read() == 0.0
    for path in (first, second, *others):
        (path / "energy_uj").write_text("200600")
    assert meter.read() == pytest.approx((200_500 + 200_100) / 1e6)
    assert meter.source == "RAPL counters of 2 CPU packages"


def test_a_counter_that_goes_round(tmp_path: Path) -> None:
    package = domain(tmp_path, "intel-rapl:0", "package-0", 900_000)
    meter = open_packages(tmp_path)
    assert meter is not None
    readings = []
    for value in (950_000, 20_000, 990_000, 5_000):
        (package / "energy_uj").write_text(str(value))
        readings.append(meter.read())
    assert readings == pytest.approx([0.05, 0.12, 1.09, 1.105])


def test_readings_too_far_apart_are_admitted(tmp_path: Path) -> None:
    package = domain(tmp_path, "intel-rapl:0", "package-0", 0, largest=65_000_000_000)
    (package / "constraint_0_power_limit_uw").write_text("250000000")
    now = 0.0
    meter = PackageEnergy([package], clock=lambda: now)
    assert meter.longest_gap == pytest.approx(260.0)
    now = 200.0
    meter.read()
    assert not meter.late
    now = 500.0
    meter.read()
    assert meter.late


def test_no_counter_is_no_meter(tmp_path: Path) -> None:
    assert open_packages(tmp_path / "absent") is None
    domain(tmp_path, "intel-rapl:0", "psys", 0)
    assert open_packages(tmp_path) is None


def test_a_counter_that_may_not_be_read_is_no_meter(tmp_path: Path) -> None:
    package = domain(tmp_path, "intel-rapl:0", "package-0", 0)
    (package / "energy_uj").unlink()
    (package / "energy_uj").mkdir()  # even root cannot read a folder
    assert open_packages(tmp_path) is None
