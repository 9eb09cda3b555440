"""Which number formats a device is asked for, refused with what to use instead."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.benchmarks import ranks
from paceline.benchmarks._model import session
from paceline.core.errors import Unsupported
from paceline.devices import cpu, kind_named
from paceline.devices.cuda import CudaDevice

CPU = cpu.CpuDevice()


class Gpu(CudaDevice):
    """An NVIDIA GPU of which no more is known than its capability."""

    def __init__(self, *capability: int) -> None:
        self.kind, self.name, self.capability = kind_named("cuda"), "a GPU", capability


gpu = Gpu


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("fp32", CPU),
        ("bf16", CPU),
        ("fp16", CPU),
        ("fp16", gpu(7, 0)),
        ("tf32", gpu(8, 0)),
        ("bf16", gpu(8, 0)),
        ("fp8_hybrid", gpu(8, 9)),
        ("fp8_e4m3", gpu(10, 0)),
    ],
)
def test_what_the_device_can_do_is_allowed(name: str, device: Any) -> None:
    session.check(name, device, fp8_model=True, model="m")


@pytest.mark.parametrize(
    ("name", "device", "words"),
    [
        ("tf32", CPU, "on a CPU use fp32 or bf16"),
        ("fp8_e4m3", CPU, "on a CPU use fp32 or bf16"),
        ("bf16", gpu(7, 5), "needs compute capability 8.0; a GPU has 7.5"),
        ("tf32", gpu(7, 0), "needs compute capability 8.0; a GPU has 7.0"),
        ("fp8_hybrid", gpu(8, 6), "needs compute capability 8.9; a GPU has 8.6"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(name: str, device: Any, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        session.check(name, device, fp8_model=True, model="m")


def test_a_model_that_is_not_made_of_linear_layers_has_no_fp8() -> None:
    with pytest.raises(Unsupported, match="resnet50 is not: use bf16"):
        session.check("fp8_hybrid", gpu(9, 0), fp8_model=False, model="resnet50")


@pytest.mark.parametrize(
    ("name", "flags", "warned"),
    [
        ("fp32", set(), False),
        ("bf16", {"avx2"}, True),
        ("bf16", {"avx512_bf16"}, False),
        ("bf16", {"bf16"}, False),
        ("fp16", {"avx512_bf16"}, True),
        ("fp16", {"asimdhp"}, False),
        ("int8", {"avx2"}, True),
        ("int8", {"avx512_vnni"}, False),
    ],
)
def test_a_format_without_instructions_on_this_cpu_is_warned(
    name: str, flags: set[str], warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "instruction_flags", lambda: frozenset(flags))
    assert [warning.kind for warning in ranks.emulated(name, CPU)] == ["emulated"] * warned
    assert ranks.emulated(name, gpu(8, 0)) == []
