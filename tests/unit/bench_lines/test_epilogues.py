"""Feed-forward layers with epilogues: their gradients, what cuBLASLt is told, and what the bench says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from click import ClickException

from paceline.core.errors import Unsupported
from paceline.devices import open_device
from paceline.devices._cublaslt import GELU_AUX_BIAS, MATRIX_ROWS, NO_TRANSPOSE, PLAIN, TRANSPOSE, Epilogue, Side
from paceline.models._modules.transformer import FeedForward

fused = pytest.importorskip("bench.fused", reason="is found from the repository: python -m pytest")
epilogues = pytest.importorskip("bench.epilogues", reason="is found from the repository, and needs torch")
ratio = pytest.importorskip("bench.ratio")

TOKENS, HIDDEN = 24, 8


def doubles(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("way", fused.WAYS)
def test_its_gradients_are_those_of_numbers_nearby(way: str) -> None:
    torch.manual_seed(0)
    inputs = doubles(3, 4), doubles(16, 4), doubles(16), doubles(4, 16), doubles(4)
    assert torch.autograd.gradcheck(
        lambda *given: fused.feed_forward(*given, way)[0], inputs, check_undefined_grad=False
    )


@pytest.mark.parametrize("way", fused.WAYS)
def test_a_fused_layer_is_the_plain_one_compiled_too(way: str) -> None:
    torch.manual_seed(0)
    plain = FeedForward(HIDDEN, gelu="tanh").double()
    layer = copy.deepcopy(plain)
    assert fused.fuse(torch.nn.Sequential(layer), way) == 1
    x, gradient = doubles(2, TOKENS, HIDDEN), torch.randn(2, TOKENS, HIDDEN, dtype=torch.float64)

    def computed(module: Any) -> list[torch.Tensor]:
        y = module(x)
        return [y, *torch.autograd.grad(y, [x, *plain.parameters(), *layer.parameters()], gradient, allow_unused=True)]

    for module in (layer, torch.compile(layer, backend="aot_eager", dynamic=False)):
        wanted = [one for one in computed(plain) if one is not None]
        found = [one for one in computed(module) if one is not None]
        torch.testing.assert_close(found, wanted)


def test_each_product_is_described_by_columns() -> None:
    """The library computes B' A' = C': its first operand is the second here."""
    x, expand, contract, wide = (torch.empty(shape) for shape in ((24, 8), (32, 8), (8, 32), (24, 32)))
    assert [Side.of(one) for one in (expand.t(), x)] == [Side(TRANSPOSE, 8, 32), Side(NO_TRANSPOSE, 8, 24)]
    assert [Side.of(one) for one in (contract, x)] == [Side(NO_TRANSPOSE, 32, 8), Side(NO_TRANSPOSE, 8, 24)]
    assert [Side.of(one) for one in (wide, x.t())] == [Side(NO_TRANSPOSE, 32, 24), Side(TRANSPOSE, 8, 24)]


def test_an_epilogue_names_its_tensors_and_how_the_matrix_lies() -> None:
    vector, matrix = torch.empty(32), torch.empty(24, 32)
    made = {attribute: value.value for attribute, value in Epilogue(GELU_AUX_BIAS, vector, matrix).settings()}
    assert made == {7: 164, 8: vector.data_ptr(), 11: matrix.data_ptr(), MATRIX_ROWS: 32}
    assert PLAIN.settings() == []


def test_a_line_has_every_side_and_the_right_results() -> None:
    [line] = epilogues.epilogue_ratios(ratio.Wanted("cpu", only=("gpt2 gelu gradient",)))
    assert line.value > 0
    for side in ("product of torch", "separate", "with sum by torch", "without sum by torch"):
        assert f"{side} apart by 0.00%" in line.made_of or side == "product of torch"
        assert f"{side} " in line.made_of


def test_what_is_refused_is_a_note_and_what_is_wrong_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def part(*_: object) -> Any:
        def refuse() -> Any:
            raise Unsupported("cublasLtMatmul of cuBLASLt answered 15")

        def wrong() -> Any:
            return {"": epilogues.Way(lambda: (1.1 * torch.ones(4),))}

        right = epilogues.Way(lambda: (torch.ones(4),))
        return epilogues.Part(right, {"refused": refuse, "wrong": wrong}, [torch.ones(4)])

    monkeypatch.setattr(epilogues, "PARTS", {"part": part})
    lines = epilogues.epilogue_ratios(ratio.Wanted("cpu", only=("gpt2",)))
    line = next(lines)
    assert "refused unsupported: cublasLtMatmul of cuBLASLt answered 15" in line.made_of
    assert not line.is_met
    with pytest.raises(ClickException, match="gpt2 part: wrong apart by 10"):
        next(lines)


def test_a_part_that_cannot_be_had_costs_no_other_and_gives_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> Any:
        raise RuntimeError("out of memory")

    def part(*_: object) -> Any:
        right = epilogues.Way(lambda: (torch.ones(4),))
        return epilogues.Part(right, {"fused": lambda: {"": right}}, [torch.ones(4)])

    monkeypatch.setattr(epilogues, "PARTS", {"absent": absent, "part": part})
    lines = epilogues.epilogue_ratios(ratio.Wanted("cpu", only=("gpt2",)))
    assert next(lines).name == "gpt2 part"
    with pytest.raises(ClickException, match="gpt2 absent failed: RuntimeError: out of memory"):
        next(lines)


def test_a_result_that_is_not_written_is_wrong() -> None:
    bed, out = epilogues.Bed(open_device("cpu")), torch.ones(4)
    way = epilogues.Way(lambda: (torch.ones(4), out), (out,))
    assert bed._checked("part", "side", way, [torch.ones(4), torch.ones(4)])[0] is False
    assert bed.wrong == ["part: side apart by nan%"]
