"""Datasheets: exact names, dense rates, and nothing for what only looks alike."""

from __future__ import annotations

import pytest

from paceline.core.subject import number_format
from paceline.devices import datasheet
from paceline.devices.base import pcie_bandwidth
from paceline.devices.cuda import _SHEETS

NAMES = {  # as the driver says them
    "NVIDIA GB200": 8000,
    "NVIDIA B200": 8000,
    "NVIDIA GH200 480GB": 4000,
    "NVIDIA H200": 4800,
    "NVIDIA H200 NVL": 4800,
    "NVIDIA H100 80GB HBM3": 3350,
    "NVIDIA H100 PCIe": 2000,
    "NVIDIA H100 NVL": 3900,
    "NVIDIA A100-SXM4-80GB": 2039,
    "NVIDIA A100 80GB PCIe": 1935,
    "NVIDIA A100-SXM4-40GB": 1555,
    "A100-PCIE-40GB": 1555,
    "NVIDIA A30": 933,
    "NVIDIA A40": 696,
    "NVIDIA A10": 600,
    "NVIDIA L40S": 864,
    "NVIDIA L40": 864,
    "NVIDIA L4": 300,
    "NVIDIA RTX A6000": 768,
    "Tesla V100-SXM2-32GB": 900,
    "Tesla V100-PCIE-16GB": 900,
    "Tesla V100S-PCIE-32GB": 1134,
    "Tesla T4": 320,
    "NVIDIA GeForce RTX 4090": 1008,
    "NVIDIA GeForce RTX 3090": 936,
}


@pytest.mark.parametrize(("name", "bandwidth"), NAMES.items())
def test_the_driver_s_name_finds_its_own_row(name: str, bandwidth: float) -> None:
    sheet = datasheet(name)
    assert sheet is not None
    assert sheet.memory_bandwidth == pytest.approx(bandwidth * 1e9)


def test_every_row_is_found_by_some_name() -> None:
    assert {datasheet(name) for name in NAMES} == set(_SHEETS)


@pytest.mark.parametrize("name", NAMES)
def test_shorter_formats_are_no_slower(name: str) -> None:
    sheet = datasheet(name)
    assert sheet is not None
    rates = [sheet.rate(precision) for precision in ("fp64", "fp32", "tf32", "fp16", "fp8", "int8")]
    known = [rate for rate in rates if rate]
    assert known == sorted(known)
    plain = sheet.rate("fp16", tensor_cores=False)
    assert plain is None or plain <= (sheet.rate("fp16") or 0)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM-64GB",
        "NVIDIA H100 64GB HBM2",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA H20",
        "NVIDIA H800",
        "NVIDIA A10G",
        "NVIDIA A10M",
        "NVIDIA B300",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "GRID A100-10C",
        "NVIDIA A40-48Q",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "Quadro RTX 6000 with Max-Q Design",
        "cpu",
        "",
    ],
)
def test_what_only_looks_alike_has_no_datasheet(name: str) -> None:
    assert datasheet(name) is None


def test_rates_with_and_without_tensor_cores() -> None:
    sheet = datasheet("NVIDIA H100 80GB HBM3")
    assert sheet is not None
    assert sheet.rate("fp64") == pytest.approx(66.9e12)
    assert sheet.rate("fp64", tensor_cores=False) == pytest.approx(33.5e12)
    assert sheet.rate("fp16", tensor_cores=False) == pytest.approx(133.8e12)
    assert sheet.rate("bf16", tensor_cores=False) is None
    assert sheet.rate("fp8_hybrid") == sheet.rate("fp8") == pytest.approx(1978.9e12)
    assert sheet.rate("pattern") is None
    assert sheet.link_bandwidth == pytest.approx(450e9)


@pytest.mark.parametrize(("precision", "unit"), [("fp8_hybrid", "fp8"), ("fp8_e4m3", "fp8"), ("bf16", "bf16")])
def test_recipes_of_one_format_share_its_units(precision: str, unit: str) -> None:
    assert number_format(precision) == unit


def test_a_pcie_link_is_its_lanes() -> None:
    assert pcie_bandwidth(5, 16) == pytest.approx(63.0e9, rel=1e-3)
    assert pcie_bandwidth(4, 8) == pytest.approx(15.75e9, rel=1e-3)
    assert pcie_bandwidth(None, 16) is None
    assert pcie_bandwidth(5, None) is None
    assert pcie_bandwidth(9, 16) is None
