"""Layers that compute with 16-bit copies train as layers with fp32 weights do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.benchmarks.parallel import _optimizer, _trainer
from paceline.benchmarks.parallel._optimizer import Masters, fused_adamw
from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.benchmarks.parallel._stage import Mesh
from paceline.benchmarks.parallel._trainer import ParallelTrainer
from paceline.devices.cpu import CpuDevice
from support.layouts import TINY

RATE = 1e-2
SHAPES = ((8, 6), (8,), (4, 8), (4,))


@pytest.fixture(autouse=True)
def _uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed, without the minute that a compiler takes."""
    monkeypatch.setattr(_optimizer, "_compiled", lambda: _optimizer._update)
    monkeypatch.setattr(_trainer, "_compile_parts", lambda stage, *, whole: None)


def layers() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4))


def gradients(seed: int) -> list[Tensor]:
    """One for every weight and bias, as a product in bf16 writes it: matrices first."""
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=drawn).bfloat16() for shape in sorted(SHAPES, key=lambda one: -len(one))]


def masters_of(module: nn.Module, dtype: torch.dtype = torch.bfloat16) -> Masters:
    return Masters(module, dtype, RATE, capturable=False)


def test_steps_are_those_of_adamw_on_fp32_weights() -> None:
    module, plain = layers(), layers()
    masters = masters_of(module)
    weights = [one for layer in (plain[0], plain[2]) for one in layer.parameters()]
    weights.sort(key=lambda one: -one.dim())
    reference = fused_adamw(weights, RATE, capturable=False)
    for step in range(6):
        found = gradients(step)
        masters.step(found, torch.tensor(2.0), None)
        for weight, gradient in zip(weights, found, strict=True):
            weight.grad = gradient.float() / 2.0
        reference.step()
    stepped = {one.numel(): one for one in masters.memory()["parameter_memory"] if one.dtype == torch.float32}
    for weight, copy in zip(weights, masters.copies, strict=True):
        torch.testing.assert_close(stepped[weight.numel()].view_as(weight), weight.detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(copy.detach(), stepped[weight.numel()].view_as(weight).bfloat16())


def test_small_steps_add_up_though_no_copy_could_hold_them() -> None:
    module = layers()
    masters = masters_of(module)
    before = [copy.detach().clone() for copy in masters.copies]
    tiny = [torch.ones_like(one) for one in gradients(0)]
    masters._rate = 1e-6  # far below the spacing of bf16 at most weights
    for _ in range(2000):
        masters._step_matrices(tiny[:2], torch.tensor(1.0), None)
    moved = before[0].float() - masters.copies[0].detach().float()
    assert float(moved.mean()) == pytest.approx(2e-3, rel=0.2)


def test_overflow_leaves_everything_as_it_was() -> None:
    masters = masters_of(layers(), torch.float16)
    finite = [one.half() for one in gradients(0)]
    broken = [torch.full_like(one, torch.inf) for one in finite]
    fresh = [one.detach().clone() for one in masters.memory()["parameter_memory"]]
    masters.step(broken, torch.tensor(1.0), torch.tensor(True))  # even in the first step
    assert all(map(torch.equal, masters.memory()["parameter_memory"], fresh))
    masters.step(finite, torch.tensor(1.0), torch.tensor(False))
    before = [one.detach().clone() for one in masters.memory()["parameter_memory"]]
    moments = [(one.first.clone(), one.second.clone()) for one in masters._matrices]
    masters.step(broken, torch.tensor(1.0), torch.tensor(True))
    assert all(map(torch.equal, masters.memory()["parameter_memory"], before))
    for one, (first, second) in zip(masters._matrices, moments, strict=True):
        assert torch.equal(one.first, first)
        assert torch.equal(one.second, second)
    assert float(masters._steps) == 1.0


def test_norms_and_layers_of_another_kind_keep_their_weights() -> None:
    class Own(nn.Linear):
        pass

    module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), Own(4, 4))
    masters_of(module)
    assert [one.dtype for one in module.parameters()] == [torch.bfloat16] * 2 + [torch.float32] * 4


def make(*, compiled: bool = True, **parameters: Any) -> ParallelTrainer:
    chosen = ParallelParameters(**TINY | parameters)
    return ParallelTrainer(chosen, CpuDevice(), Mesh.of(chosen.layout, 0, "cpu"), compiled=compiled)


@pytest.mark.parametrize("model", ["gpt2", "bert"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_with_copies_is_training_under_autocast(model: str, precision: str, checkpointing: bool) -> None:
    of: dict[str, Any] = {"model": model, "precision": precision, "checkpointing": checkpointing, "micro_batch": 4}
    copied, usual = make(**of), make(compiled=False, **of)
    assert copied.masters is not None
    assert usual.masters is None
    for _ in range(5):
        losses = copied.step(), usual.step()
        assert losses[0] is not None
        assert losses[1] is not None
        assert float(losses[0]) == pytest.approx(float(losses[1]), rel=2e-4)
        assert copied.norm is not None
        assert usual.norm is not None
        assert float(copied.norm) == pytest.approx(float(usual.norm), rel=2e-3)


def test_gradients_that_add_up_do_so_in_fp32() -> None:
    assert make(precision="bf16", micro_batch=1).masters is None
    assert make(precision="fp32", micro_batch=4).masters is None
    several = make(precision="bf16", micro_batch=1)
    several.step()
    assert {one.grad.dtype for one in several.optimizer.parameters if one.grad is not None} == {torch.float32}


def test_memory_tells_of_weights_and_copies() -> None:
    copied, usual = make(precision="bf16", micro_batch=4), make(precision="bf16", micro_batch=4, compiled=False)
    for trainer in (copied, usual):
        trainer.step()
    assert copied.masters is not None
    low = sum(one.numel() for one in copied.masters.copies)
    found, expected = copied.optimizer.memory(), usual.optimizer.memory()
    assert found["parameter_memory"] == expected["parameter_memory"] + 2 * low
    vectors = sum(one.numel() for one in copied.masters.copies if one.dim() == 1)
    assert found["gradient_memory"] == expected["gradient_memory"] - 2 * (low - vectors) + 2 * vectors
