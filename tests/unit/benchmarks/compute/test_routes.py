"""The routes of a product: what is refused where, the layouts that cuBLASLt is given, and four-bit formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import TIME, MicroParameters
from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.compute import gemm
from paceline.benchmarks.compute.blas_functions import BlasFunctions, BlasFunctionsParameters
from paceline.benchmarks.compute.gemm import Gemm, GemmParameters, Product
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import Unsupported
from paceline.devices._cublaslt import TRANSPOSE, Side
from paceline.devices.base import NATIVE, Device, DeviceConditions, DeviceKind, FormatSupport
from paceline.devices.cpu import CpuDevice
from support.micro_records import gemm as gemm_record
from support.refused import refused

CASE = Case(index=0, benchmark="gemm", parameters={}, title="")


class FakeKind(DeviceKind):
    name = "fake"

    def count(self) -> int:
        return 1

    def open(self, index: int) -> Device:
        return FakeGpu()

    def conditions(self, target: str) -> list[DeviceConditions]:
        return [DeviceConditions(sm_clock_mhz=1755, power_watts=512.5)]


class FakeGpu(Device):
    """A GPU whose memory is the host's, with a choice of libraries."""

    def __init__(self) -> None:
        super().__init__(FakeKind(), "Fake")
        self.preferred: list[str] = []
        self.tuned: list[tuple[Tensor, Tensor]] = []

    def torch(self) -> torch.device:
        return torch.device("cpu")

    def synchronize(self) -> None:
        pass

    def format(self, precision: str) -> FormatSupport:
        return NATIVE

    def prefer_library(self, name: str) -> None:
        self.preferred.append(name)

    def tuned_product(self, a: Tensor, b: Tensor, out: Tensor, *, tf32: bool) -> tuple[Callable[[], object], str]:
        self.tuned.append((a, b))
        return (lambda: out.copy_(a.to(out.dtype) @ b.to(out.dtype))), "the second of two"


def product(device: Device, **parameters: Any) -> Product:
    return Product(GemmParameters(m=24, n=64, k=128, **parameters), device)


@pytest.mark.parametrize("route", ["cublas", "cublaslt", "autotuned", "triton", "cutlass"])
def test_a_cpu_has_one_route_and_says_so(route: str) -> None:
    with pytest.raises(Unsupported, match=f"route = {route} needs a GPU: on a CPU use --route auto"):
        product(CpuDevice(), route=route)


@pytest.mark.parametrize("route", ["cublas", "cublaslt"])
def test_a_library_is_preferred_before_the_product(route: str) -> None:
    gpu = FakeGpu()
    product(gpu, route=route).check()
    assert gpu.preferred == [route]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_autotuned_product_is_the_devices_own_and_checked(precision: str) -> None:
    gpu = FakeGpu()
    made = product(gpu, route="autotuned", precision=precision)
    made.check()
    assert made.how == "the second of two"
    [(_, b)] = gpu.tuned
    assert (b.stride(-2) == 1) == (precision == "int8")


@pytest.mark.parametrize(
    ("precision", "route", "instead"),
    [
        ("fp8", "cublas", "cublaslt"),
        ("int8", "cublas", "cublaslt"),
        ("int4", "triton", "auto"),
        ("fp4", "autotuned", "cublaslt"),
    ],
)
def test_a_format_without_the_route_names_one_that_it_has(precision: str, route: str, instead: str) -> None:
    with pytest.raises(Unsupported, match=f"use --route {instead}"):
        product(FakeGpu(), precision=precision, route=route)


def test_cutlass_needs_its_sources_and_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cuda, "cutlass_dir", str(tmp_path))
    with pytest.raises(Unsupported, match="set TORCHINDUCTOR_CUTLASS_DIR"):
        product(FakeGpu(), route="cutlass")
    (tmp_path / "include" / "cutlass").mkdir(parents=True)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDACXX", raising=False)
    with pytest.raises(Unsupported, match="needs nvcc"):
        product(FakeGpu(), route="cutlass")


@pytest.mark.parametrize(
    ("kernels", "taken"), [(["triton_tem_fused_mm_0"], True), (["nvjet_hsh_128x256"], False), ([], True)]
)
def test_a_compiler_that_falls_back_to_a_library_did_not_take_the_route(
    monkeypatch: pytest.MonkeyPatch, kernels: list[str], taken: bool
) -> None:
    asked: dict[str, Any] = {}

    def compile_(call: Callable[[], object], **given: Any) -> Callable[[], object]:
        asked.update(given)
        return call

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(gemm, "kernels_of", lambda call, device: kernels)
    if taken:
        product(FakeGpu(), route="triton").check()
    else:
        with pytest.raises(Unsupported, match="has no triton kernel for this product and ran nvjet_hsh_128x256"):
            product(FakeGpu(), route="triton")
    assert asked["options"] == {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}


def test_a_product_that_does_not_compile_is_unsupported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("NoValidChoicesError: no\nchoices")

    monkeypatch.setattr(torch, "compile", lambda call, **given: fails)
    with pytest.raises(Unsupported, match="no triton kernel for this product: NoValidChoicesError: no choices"):
        product(FakeGpu(), route="triton")


def test_the_plain_units_have_no_routes() -> None:
    with refused("conflicting-keys", key="route"):
        Gemm.check(GemmParameters(tensor_cores="off", route="triton"), CASE)


def test_the_route_is_in_the_title_and_only_the_usual_one_has_names_in_other_tools() -> None:
    assert Gemm.title(GemmParameters(size=64, route="triton")) == "fp32 64 by triton"
    usual, other = (gemm_record(0, "fp32", 1e13, None, route=route) for route in ("auto", "cublaslt"))
    assert usual.aliases and not other.aliases
    assert usual.ceilings and other.ceilings


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_what_cublaslt_is_told_of_the_operands_is_the_product(transpose_a: bool, transpose_b: bool) -> None:
    """As the library reads them: the memory by columns, transposed where it is told so; the result by columns."""
    made = product(CpuDevice(), transpose_a=transpose_a, transpose_b=transpose_b, precision="fp64")

    def read(matrix: Tensor) -> Any:
        side = Side.of(matrix)
        memory = matrix.flatten() if matrix.is_contiguous() else matrix.mT.flatten()
        seen = memory.numpy().reshape((side.rows, side.columns), order="F")
        return seen.T if side.operation == TRANSPOSE else seen

    result = read(made._b) @ read(made._a)
    numpy.testing.assert_allclose(result.flatten(order="F"), made.call().flatten().numpy())


def test_power_and_clock_are_read_under_load() -> None:
    gpu, calls = FakeGpu(), 0
    context = Context(case=CASE.model_copy(update={"target": "fake:0"}))

    def call() -> None:
        nonlocal calls
        calls += 1

    with MicroSession(MicroParameters(steps=2, warm_up=0.0), context, gpu) as session:
        session.device.timeline = lambda in_flight: CpuDevice().timeline(in_flight)  # type: ignore[method-assign]
        point = session.time(call, TIME)
        before = calls
        levels = session.levels_under(call, point)
    assert {one.metric.name: one.value for one in levels} == {"power": 512.5, "clock": 1755}
    assert calls > before


def test_int4_weights_multiply_right_and_fp4_is_refused_on_a_cpu() -> None:
    made = product(CpuDevice(), precision="int4")
    made.check()
    assert 0 < made.worst <= 1
    assert "computed in bf16" in made.how
    with pytest.raises(Unsupported, match="k a multiple of 128"):
        Product(GemmParameters(m=8, n=64, k=100, precision="int4"), CpuDevice())
    assert CpuDevice().format("fp4").how == "none"


def test_fp4_is_packed_two_to_a_byte_the_first_below() -> None:
    values = torch.tensor([[0.0, 0.5, -1.0, 6.0], [-6.0, 3.0, 1.5, -0.5]], dtype=torch.bfloat16)
    packed = formats.packed_fp4(values)
    assert packed.tolist() == [[0x10, 0x7A], [0x5F, 0x93]]
    drawn = formats.random_operand("fp4", (64, 64), torch.Generator().manual_seed(1))
    assert set(drawn.abs().flatten().tolist()) == {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}


def test_padding_is_measured_for_shapes_that_need_it_and_counts_the_work_asked_for(tmp_path: Path) -> None:
    listed = tmp_path / "mine.yaml"
    listed.write_text("[{m: 64, n: 64, k: 64, name: even}, {m: 63, n: 64, k: 64, name: odd}]")
    parameters = BlasFunctionsParameters(file=listed, pad=64, steps=3, warm_up=0.0)
    result = BlasFunctions().measure(parameters, Context(case=CASE))

    def of(metric: str) -> dict[Any, float]:
        return {one.at["function"]: one.value for one in result.measurements if one.metric.name == metric and one.at}

    assert set(of("time")) == set(of("shape_share")) == {"even", "odd"}
    assert max(of("shape_share").values()) == pytest.approx(100.0)
    assert set(of("padded_time")) == set(of("padding_gain")) == {"odd"}
    means = [one.summary.mean for one in result.measurements if one.metric.name == "time"]
    total = next(one.value for one in result.measurements if one.metric.name == "total_time")
    assert total == pytest.approx(sum(means))  # without the padded one
