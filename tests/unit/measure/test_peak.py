"""Peaks: known devices have their datasheet's, others what was measured of them, or none."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from paceline.core.profile import Ceiling, Identity, Profile
from paceline.core.record import RecordWarning
from paceline.machine.profile import identify, profile_path, save_profile
from paceline.measure.memory import measured_peak_flops, peak_flops, peak_memory_bandwidth


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
        ("NVIDIA L40S", "bf16", 362.05),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla T4", "fp16", 65.0),
        ("NVIDIA GeForce RTX 4090", "fp16", 165.2),
    ],
)
def test_a_known_device_has_its_datasheet_peak_and_says_so(name: str, precision: str, tera: float) -> None:
    peak = peak_flops(name, precision)
    assert peak is not None
    assert peak.rate == pytest.approx(tera * 1e12)
    assert peak.source == f"datasheet, dense {precision}, {name}"


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA H20",
        "NVIDIA H800",
        "NVIDIA A10G",
        "NVIDIA A100X",
        "Tesla V100-SXM3-32GB",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "AMD Instinct MI210",
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


CONTENDED = RecordWarning(kind="contended", message="others used 40 % of the CPU", remedy="stop them")


def measured(identity: Identity, **warnings: tuple[RecordWarning, ...]) -> Profile:
    """A machine with an unknown GPU: 2 TFLOP/s of fp32 on its CPU, 250 TFLOP/s of fp8 on the GPU."""

    def ceiling(device: str, device_name: str, name: str, value: float) -> Ceiling:
        unit = "FLOP/s"
        return Ceiling(
            device=device, device_name=device_name, kind="compute", name=name, value=value, unit=unit, **warnings
        )

    return Profile(
        measured_at=datetime(2026, 3, 14, tzinfo=UTC),
        version="0.1.0",
        run_id="20260314-092653-k7qd",
        identity=identity,
        ceilings=(ceiling("cpu", "EPYC 9654", "fp32", 2e12), ceiling("cuda:0", "NVIDIA H20", "fp8", 250e12)),
    )


def test_a_measured_peak_says_when_and_in_which_run_it_was_measured() -> None:
    peak = measured_peak_flops("cpu", "fp32", measured(Identity()))
    assert peak is not None
    assert peak.rate == 2e12
    assert "measured by paceline machine --measure on 2026-03-14, run 20260314-092653-k7qd" in peak.source


@pytest.mark.parametrize("precision", ["fp8_hybrid", "fp8_e4m3"])
def test_both_recipes_of_fp8_take_the_product_in_fp8(precision: str) -> None:
    peak = measured_peak_flops("NVIDIA H20", precision, measured(Identity()))
    assert peak is not None
    assert peak.rate == 250e12


@pytest.mark.parametrize(("device", "precision"), [("cpu", "bf16"), ("NVIDIA H20", "fp32"), ("NVIDIA H800", "fp8")])
def test_what_was_not_measured_has_no_peak(device: str, precision: str) -> None:
    assert measured_peak_flops(device, precision, measured(Identity())) is None


def test_ranks_on_one_cpu_have_a_part_of_its_peak_each() -> None:
    peak = measured_peak_flops("cpu", "fp32", measured(Identity()), sharing=4)
    assert peak is not None
    assert peak.rate == 0.5e12
    assert "4 ranks" in peak.source


def test_a_warningful_peak_passes_its_warnings_on() -> None:
    peak = measured_peak_flops("cpu", "fp32", measured(Identity(), warnings=(CONTENDED,)))
    assert peak is not None
    assert "warnings: contended" in peak.source


def test_the_profile_of_this_machine_is_used_and_a_broken_one_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert measured_peak_flops("cpu", "fp32") is None
    save_profile(measured(identify()))
    assert measured_peak_flops("cpu", "fp32") is not None
    profile_path(identify()).write_text("{")
    assert measured_peak_flops("cpu", "fp32") is None


def test_a_peak_without_tensor_cores_says_so() -> None:
    plain, cores = (peak_flops("NVIDIA A100-SXM4-80GB", "fp16", tensor_cores=each) for each in (False, True))
    assert plain is not None
    assert cores is not None
    assert (plain.rate, cores.rate) == pytest.approx((78e12, 312e12))
    assert plain.source == "datasheet, dense fp16 without Tensor Cores, NVIDIA A100-SXM4-80GB"


def test_a_known_device_has_the_bandwidth_of_its_memory() -> None:
    peak = peak_memory_bandwidth("NVIDIA H200")
    assert peak is not None
    assert peak.rate == pytest.approx(4.8e12, rel=0.01)
    assert peak.source == "datasheet, memory bandwidth, NVIDIA H200"
    assert peak_memory_bandwidth("cpu") is None


@pytest.mark.parametrize(("sharing", "part"), [(1, ""), (2, ", divided by the 2 ranks on this machine")])
def test_a_measured_peak_is_divided_by_those_who_share_it(sharing: int, part: str) -> None:
    peak = measured_peak_flops("cpu", "fp32", measured(Identity()), sharing=sharing)
    assert peak is not None
    assert peak.rate == 2e12 / sharing
    assert peak.source.endswith(f"matrix product in fp32{part}")


def test_warnings_of_one_kind_are_named_once() -> None:
    peak = measured_peak_flops("cpu", "fp32", measured(Identity(), warnings=(CONTENDED, CONTENDED)))
    assert peak is not None
    assert peak.source.endswith("in fp32 (warnings: contended)")
