"""A matrix product: shapes and layouts, what is refused before it runs, and a check that finds one wrong element."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.benchmarks.compute import gemm
from paceline.benchmarks.compute.gemm import CHECKED_ROWS, Gemm, GemmParameters, Product
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.devices.cpu import CpuDevice
from support.micro_records import gemm as gemm_record
from support.refused import refused

CASE = Case(index=0, benchmark="gemm", parameters={}, title="")
SMALL = {"m": 24, "n": 40, "k": 56}


def product(**parameters: Any) -> Product:
    return Product(GemmParameters(**(SMALL | parameters)), CpuDevice())


def test_m_n_and_k_are_rows_columns_and_depth() -> None:
    made = product()
    assert made.shape == (24, 40, 56)
    assert made.call().shape == (24, 40)
    made.check()


def test_a_size_makes_square_matrices() -> None:
    assert Product(GemmParameters(size=32), CpuDevice()).shape == (32, 32, 32)


@pytest.mark.parametrize(("slow", "size"), [(-1.0, gemm.SLOW_SIZE), (float("inf"), gemm.CPU_SIZE)])
def test_no_size_takes_the_devices_own_and_less_in_a_format_that_it_is_slow_in(
    monkeypatch: pytest.MonkeyPatch, slow: float, size: int
) -> None:
    monkeypatch.setattr(gemm, "SLOW_SECONDS", slow)
    assert Product(GemmParameters(), CpuDevice()).shape == (gemm.CPU_SIZE,) * 3
    assert Product(GemmParameters(precision="bf16"), CpuDevice()).shape == (size,) * 3


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_transposed_operands_lie_by_columns_and_give_a_right_result(
    transpose_a: bool, transpose_b: bool, batch: int
) -> None:
    made = product(transpose_a=transpose_a, transpose_b=transpose_b, batch=batch)
    for operand, transposed in ((made._a, transpose_a), (made._b, transpose_b)):
        assert operand.stride(-2 if transposed else -1) == 1
        assert operand.stride(-1 if transposed else -2) == operand.shape[-2 if transposed else -1]
    assert made.call().shape == ((3, 24, 40) if batch == 3 else (24, 40))
    made.check()
    assert 0 < made.worst <= 1


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16", "int8"])
def test_every_format_of_a_cpu_passes_its_check(precision: str) -> None:
    product(precision=precision).check()


def test_int8_is_exact() -> None:
    made = product(precision="int8")
    exact = made._a.long() @ made._b.long()
    assert torch.equal(made.call().long(), exact)
    made.check()
    assert made.worst == 0.0


@pytest.mark.parametrize(
    ("precision", "wrong"),
    [
        ("fp64", 1e-9),
        ("fp32", 0.05),
        ("bf16", 64.0),
        ("int8", 1),
        ("fp32", float("nan")),
        ("fp32", float("inf")),
    ],
)
@pytest.mark.parametrize("row", [0, -1])
def test_one_wrong_element_is_silent_corruption(precision: str, wrong: float, row: int) -> None:
    made = product(precision=precision)
    right = made.call

    def corrupted() -> torch.Tensor:
        result = right().clone()
        result[row, 17] += wrong
        return result

    made.call = corrupted
    with pytest.raises(SilentCorruption, match=f"the product in {precision} is wrong at"):
        made.check()


def test_a_product_with_fewer_rows_than_are_checked_is_checked_whole() -> None:
    made = product(m=CHECKED_ROWS - 3)
    right = made.call
    for row in range(CHECKED_ROWS - 3):
        made.call = lambda row=row: right().index_fill(0, torch.tensor(row), 1e6)
        with pytest.raises(SilentCorruption):
            made.check()


def test_one_product_of_a_batch_that_is_wrong_is_found() -> None:
    made = product(batch=3)
    right = made.call
    made.call = lambda: torch.cat([right()[:2], right()[2:] * 1.5])
    with pytest.raises(SilentCorruption, match=r"wrong at \[2, "):
        made.check()


@pytest.mark.parametrize(
    ("given", "code", "key"),
    [
        ({"m": 8}, "missing-key", "n"),
        ({"n": 8, "k": 8}, "missing-key", "m"),
        ({"m": 8, "n": 8, "k": 8, "size": 8}, "conflicting-keys", "size"),
    ],
)
def test_half_a_shape_or_two_are_refused(given: dict[str, int], code: str, key: str) -> None:
    with refused(code, key=key):
        Gemm.check(GemmParameters(**given), CASE)


@pytest.mark.parametrize("given", [{}, {"size": 8}, SMALL])
def test_a_whole_shape_a_size_or_nothing_is_taken(given: dict[str, int]) -> None:
    Gemm.check(GemmParameters(**given), CASE)


def test_bursts_are_another_case_with_a_pace_of_their_own() -> None:
    parameters = GemmParameters(size=32, burst=True, steps=3)
    assert Gemm.title(parameters) == "fp32 32 burst"
    result = Gemm().measure(parameters, Context(case=CASE))
    times = next(one for one in result.measurements if one.metric.name == "time")
    assert times.count == 3
    assert result.facts["pace"]["kind"] == "burst"
    assert result.facts["pace"]["rest"] >= 10 * result.facts["pace"]["measured"]
    assert "each sample a burst" in result.facts["timing"]


def test_bursts_are_no_ceiling_and_have_no_name_in_other_tools() -> None:
    lasting, bursts = (gemm_record(0, "fp32", 1e13, None, burst=burst) for burst in (False, True))
    assert lasting.ceilings
    assert lasting.aliases
    assert (bursts.ceilings, bursts.aliases, bursts.work) == ((), {}, None)
    assert bursts.primary == "compute_rate"


def test_a_batch_of_int8_says_what_to_use_instead() -> None:
    with pytest.raises(Unsupported, match="use batch = 1"):
        product(precision="int8", batch=2)


def test_a_call_that_leaves_the_last_right_result_in_place_is_found() -> None:
    made = product()
    stale = made.call()
    made.call = lambda: stale
    with pytest.raises(SilentCorruption):
        made.check()
