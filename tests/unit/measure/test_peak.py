"""Datasheet peaks: known devices have theirs, unknown and partial ones have none."""

from __future__ import annotations

import pytest

from paceline.measure.peak import peak_flops


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA H100 80GB HBM3", "fp8_hybrid", 1978.9),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7),
        ("NVIDIA H100 PCIe", "fp16", 756.0),
        ("NVIDIA H100 NVL", "fp16", 835.5),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("NVIDIA A100-PCIE-40GB", "tf32", 156.0),
        ("NVIDIA A10", "fp16", 125.0),
        ("NVIDIA L4", "fp8_e4m3", 242.5),
        ("NVIDIA L40S", "bf16", 362.1),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla T4", "fp16", 65.0),
        ("NVIDIA GeForce RTX 4090", "fp16", 165.2),
    ],
)
def test_a_known_device_has_its_datasheet_peak_and_says_so(name: str, precision: str, tera: float) -> None:
    peak = peak_flops(name, precision)
    assert peak is not None
    assert peak.flops == pytest.approx(tera * 1e12)
    assert peak.source == f"datasheet, dense {precision}, {name}"


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GH200 480GB",
        "NVIDIA H20",
        "NVIDIA H800",
        "NVIDIA A10G",
        "NVIDIA A100X",
        "NVIDIA L40",
        "Tesla V100-SXM3-32GB",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "AMD Instinct MI300X",
        "cpu",
        "",
    ],
)
def test_an_unknown_device_has_no_peak_rather_than_its_neighbour_s(name: str) -> None:
    assert peak_flops(name, "fp16") is None


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "NVIDIA A40-48Q", "GRID A100-10C"]
)
def test_a_part_of_a_device_has_not_the_peak_of_the_whole(name: str) -> None:
    assert peak_flops(name, "fp16") is None


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("NVIDIA A100-SXM4-80GB", "fp8_hybrid"),
        ("Tesla V100-SXM2-16GB", "tf32"),
        ("Tesla V100-SXM2-16GB", "bf16"),
        ("Tesla T4", "bf16"),
    ],
)
def test_a_format_without_a_unit_for_it_has_no_peak(name: str, precision: str) -> None:
    assert peak_flops(name, precision) is None
