"""cuBLASLt's epilogues on a GPU give what torch gives in one operation after the other."""

from __future__ import annotations

import copy

import pytest
import torch

from paceline.core.errors import Unsupported
from paceline.devices import device_count, open_device
from paceline.devices._cublaslt import BGRADA, BGRADB, DGELU, DGELU_BGRAD, GELU_AUX_BIAS, Epilogue
from paceline.models._modules.transformer import FeedForward

fused = pytest.importorskip("bench.fused", reason="is found from the repository: python -m pytest")
epilogues = pytest.importorskip("bench.epilogues", reason="is found from the repository")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU and its driver"),
]

TOKENS, HIDDEN = 2048, 512


def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device="cuda") * scale).bfloat16()


@pytest.mark.parametrize("kind", [GELU_AUX_BIAS, DGELU, DGELU_BGRAD, BGRADA, BGRADB])
def test_an_epilogue_gives_what_torch_gives(kind: int) -> None:
    torch.manual_seed(0)
    x, wide, weight = normal(TOKENS, HIDDEN), normal(TOKENS, 4 * HIDDEN), normal(HIDDEN, 4 * HIDDEN, scale=0.05)
    a, b, vector, matrix = {
        GELU_AUX_BIAS: (x, weight.t().contiguous().t(), normal(4 * HIDDEN), normal(TOKENS, 4 * HIDDEN)),
        DGELU: (x, weight, None, wide),
        DGELU_BGRAD: (x, weight, normal(4 * HIDDEN), wide),
        BGRADA: (wide.t(), x, normal(HIDDEN), None),
        BGRADB: (x.t(), wide, normal(HIDDEN), None),
    }[kind]
    results = []
    for is_fused in (False, True):
        tensors = [None if one is None else one.clone() for one in (vector, matrix)]
        epilogue, out = Epilogue(kind, *tensors), a.new_empty(a.shape[0], b.shape[1])
        if not is_fused:
            fused.by_torch(a, b, out, epilogue)
        else:
            try:
                calls = fused.first_and_fastest(open_device("cuda:0"), a, b, out, epilogue)
            except Unsupported as error:
                pytest.skip(f"this library does not have it: {error}")
            for call in calls.values():
                out.fill_(float("nan"))
                call()
        results.append([one for one in (out, *tensors) if one is not None])
    differences = [epilogues.apart(one, other) for other, one in zip(*results, strict=True)]
    print(f"epilogue {kind}: apart by", differences)
    assert all(difference < epilogues.MOST_APART for difference in differences)


@pytest.mark.parametrize("way", fused.WAYS)
def test_a_compiled_fused_layer_has_the_gradients_of_the_plain_one(way: str) -> None:
    torch.manual_seed(0)
    plain = FeedForward(HIDDEN, gelu="tanh").cuda().bfloat16()
    layer = copy.deepcopy(plain)
    fused.fuse(layer, way)
    x, gradient = normal(4, TOKENS // 4, HIDDEN).requires_grad_(), normal(4, TOKENS // 4, HIDDEN)
    results = []
    for module in (plain, layer):
        y = torch.compile(module, dynamic=False)(x)
        results.append([y, *torch.autograd.grad(y, [x, *module.parameters()], gradient)])
    assert all(epilogues.apart(one, other) < epilogues.MOST_APART for other, one in zip(*results, strict=True))
