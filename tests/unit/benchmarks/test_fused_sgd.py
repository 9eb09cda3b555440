"""The fused SGD that trains under a loss scale."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from paceline.benchmarks.training.train import fused_sgd


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Memory that nobody wrote holds no number."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def trained(slopes: list[float]) -> torch.Tensor:
    """A weight after a step for each slope of its loss, under a loss scale that skips what overflows."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = fused_sgd([weight])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for slope in slopes:
        optimizer.zero_grad()
        scaler.scale((slope * weight).sum()).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
    return weight.detach()


@pytest.mark.parametrize("overflowing", [0, 1, 3], ids=["first", "second", "last"])
def test_a_step_that_overflows_leaves_no_trace(overflowing: int) -> None:
    slopes = [2.0, -1.0, 0.5]
    torch.testing.assert_close(
        trained([*slopes[:overflowing], float("inf"), *slopes[overflowing:]]), trained(slopes), rtol=0, atol=0
    )


def test_steps_are_those_of_plain_sgd() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    plain = torch.optim.SGD([weight], lr=1e-3, momentum=0.9)
    for slope in (2.0, -1.0, 0.5):
        plain.zero_grad()
        (slope * weight).sum().backward()  # type: ignore[no-untyped-call]
        plain.step()
    torch.testing.assert_close(trained([2.0, -1.0, 0.5]), weight.detach())
