"""A compiled step is compared with the same step uncompiled: what is missing is a doubt, rounding is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.benchmarks.model.uncompiled import FACT, Gradients, compare_gradients, compare_outputs
from paceline.core.parameters import MeasuringParameters
from paceline.core.record import Doubt
from paceline.measure.device import CpuDevice, Device


@dataclass
class Session:
    device: Device = field(default_factory=CpuDevice)
    parameters: MeasuringParameters = field(default_factory=MeasuringParameters)
    compiled: bool = True
    is_graph: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    doubts: list[Doubt] = field(default_factory=list)


class Pair(nn.Module):
    """Two layers; `between` stands for what a compiler makes of what is between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.second(self.between(x) if torch.compiler.is_compiling() else x)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch.compiler.reset()


ROWS = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def forward_of(between: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor] = lambda x: x) -> Any:
    compiled = torch.compile(Pair(between), backend="eager")
    return lambda: after(compiled(ROWS))


def backward_of(between: Callable[[Tensor], Tensor], scale: float = 1.0) -> Callable[[], Gradients]:
    model = Pair(between)
    compiled = torch.compile(model, backend="eager")

    def backward() -> Gradients:
        model.zero_grad()
        loss = compiled(ROWS).square().mean()
        (loss * scale).backward()
        return Gradients.of(loss.detach(), model.named_parameters(), scale)

    return backward


def test_a_gradient_that_the_compiler_drops_is_a_doubt() -> None:
    session = Session()
    compare_gradients(session, backward_of(Tensor.detach))
    (doubt,) = session.doubts
    assert doubt.kind == "miscompiled"
    assert "the gradient of first." in doubt.message
    assert "is 0 compiled" in doubt.message
    assert session.facts[FACT].endswith("by up to 100.00%")


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_what_agrees_is_told_and_no_doubt(scale: float) -> None:
    session = Session()
    compare_gradients(session, backward_of(torch.clone, scale))
    assert session.facts[FACT] == "the loss differs by 0.00%, the norm of a parameter's gradient by up to 0.00%"
    compare_outputs(session, forward_of(torch.clone), exact=True)
    assert session.facts[FACT] == "the output differs by 0.00% of its norm"
    assert not session.doubts


def test_the_norms_are_those_before_scaling() -> None:
    plain, scaled = backward_of(torch.clone)(), backward_of(torch.clone, 1024.0)()
    assert scaled.norms == pytest.approx(plain.norms, rel=1e-5)
    assert scaled.loss == plain.loss


def test_rounding_is_no_doubt_where_outputs_are_not_exact() -> None:
    session = Session()
    noise = 0.2 * torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
    compare_outputs(session, forward_of(lambda x: x + noise), exact=False)
    assert not session.doubts
    compare_outputs(session, forward_of(lambda x: x + noise), exact=True)
    assert [doubt.kind for doubt in session.doubts] == ["miscompiled"]


@pytest.mark.parametrize("exact", [False, True])
def test_an_output_that_is_no_longer_there_is_a_doubt(exact: bool) -> None:
    session = Session()
    forward = forward_of(torch.clone, lambda x: x)
    silent = forward_of(lambda x: x * 0 - 8.0)
    compare_outputs(session, silent, exact=exact)
    assert [doubt.kind for doubt in session.doubts] == ["miscompiled"]
    compare_outputs(session, lambda: {"a": forward(), "b": [forward(), 3]}, exact=exact)
    assert session.facts[FACT] == "the output differs by 0.00% of its norm"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (torch.OutOfMemoryError("no memory"), "no: uncompiled, a step does not fit into the device's memory"),
        (RuntimeError("only compiled"), "no: RuntimeError: only compiled"),
    ],
)
def test_what_cannot_run_uncompiled_is_measured_all_the_same(error: Exception, why: str) -> None:
    class Only(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if not torch.compiler.is_compiling():
                raise error
            return super().forward(x)

    session = Session()
    compiled = torch.compile(Only(8, 8), backend="eager")
    compare_outputs(session, lambda: compiled(ROWS), exact=True)
    assert session.facts[FACT] == why
    assert not session.doubts


def test_what_is_not_finite_is_not_compared() -> None:
    session = Session()
    compare_gradients(session, backward_of(lambda x: x * float("inf")))
    assert session.facts[FACT] == "no: a loss or a gradient is not finite"
    compare_outputs(session, forward_of(lambda x: x * float("nan")), exact=True)
    assert session.facts[FACT] == "no: an output is not finite"
    assert not session.doubts


def test_it_is_compiled_again_afterwards() -> None:
    seen: list[bool] = []
    compiled = torch.compile(lambda x: x + (2.0 if torch.compiler.is_compiling() else 1.0), backend="eager")
    compare_outputs(Session(), lambda: seen.append(bool(compiled(torch.zeros(1)) == 2.0)) or torch.ones(1), exact=True)
    assert seen == [False, True]
