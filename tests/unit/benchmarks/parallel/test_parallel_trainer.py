"""One rank of the trainer does what a plain training loop does, and skips a step whose gradients overflow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.benchmarks.parallel._optimizer import GROWTH_STEPS, LossScale
from paceline.benchmarks.parallel._parameters import LEARNING_RATE, ParallelParameters, build
from paceline.benchmarks.parallel._stage import DeferredSum, LastSum, Mesh
from paceline.benchmarks.parallel._trainer import ParallelTrainer
from paceline.devices.cpu import CpuDevice
from support.layouts import TINY


def make(**parameters: Any) -> ParallelTrainer:
    chosen = ParallelParameters(**TINY | parameters)
    return ParallelTrainer(chosen, CpuDevice(), Mesh.of(chosen.layout, 0, "cpu"), compiled=False)


def plain_losses(parameters: ParallelParameters, steps: int) -> tuple[list[float], list[float]]:
    """The same training written down as anybody would."""
    torch.manual_seed(parameters.seed)
    workload = build(parameters)
    model = workload.module.train()
    batch = workload.make_batch(parameters.layout.global_batch, torch.Generator().manual_seed(parameters.seed))
    decayed = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=LEARNING_RATE[parameters.layout.model],
        betas=(0.9, 0.999),
        eps=1e-8,
    )
    losses, norms = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = workload.loss(model(*batch.inputs), batch)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, norms


@pytest.mark.parametrize("model", ["gpt2", "bert", "llama", "mixtral"])
@pytest.mark.parametrize("micro_batch", [4, 1])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_step_is_that_of_a_plain_loop(model: Any, micro_batch: int, checkpointing: bool) -> None:
    trainer = make(model=model, micro_batch=micro_batch, checkpointing=checkpointing)
    losses, norms = [], []
    for _ in range(5):
        loss = trainer.step()
        assert loss is not None
        assert trainer.norm is not None
        losses.append(float(loss))
        norms.append(float(trainer.norm))
    expected_losses, expected_norms = plain_losses(trainer.parameters, 5)
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    assert max(norms) > 1.0  # so that clipping took part


@pytest.mark.parametrize("model", ["gpt2", "bert", "llama", "mixtral"])
def test_what_is_arranged_for_a_compiler_changes_no_step(model: Any) -> None:
    trainer = make(model=model, micro_batch=2)
    trainer.stages[0].defer_sums()
    losses = [float(trainer.step() or torch.nan) for _ in range(5)]
    assert losses == pytest.approx(plain_losses(trainer.parameters, 5)[0], abs=1e-5)


def test_a_layer_that_ends_with_a_sum_leaves_it_to_the_next() -> None:
    stages = {model: make(model=model).stages[0] for model in ("gpt2", "bert", "llama")}
    before = {model: [type(block) for block in stage.model.blocks] for model, stage in stages.items()}
    for stage in stages.values():
        stage.defer_sums()
    after = {model: [type(block) for block in stage.model.blocks] for model, stage in stages.items()}
    assert after["gpt2"] == [DeferredSum] * len(before["gpt2"]) + [LastSum]
    assert after["llama"] == after["gpt2"]
    assert after["bert"] == before["bert"]  # ends with a norm


def weights(trainer: ParallelTrainer) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in trainer.optimizer.parameters])


def test_gradients_that_overflow_are_not_stepped_with() -> None:
    trainer = make(precision="fp16", micro_batch=4)
    trainer.step()
    before, scale = weights(trainer), float(trainer.scale.value)
    trainer.scale.value.fill_(1e30)
    trainer.step()
    assert torch.equal(weights(trainer), before)
    assert float(trainer.scale.value) == pytest.approx(5e29)
    trainer.scale.value.fill_(scale)
    trainer.step()
    assert not torch.equal(weights(trainer), before)
    assert torch.isfinite(weights(trainer)).all()


def test_the_loss_scale_falls_at_once_and_grows_late() -> None:
    scale = LossScale(torch.device("cpu"), dynamic=True)
    first = float(scale.value)
    scale.update(torch.tensor(True))
    assert float(scale.value) == first / 2
    for _ in range(GROWTH_STEPS - 1):
        scale.update(torch.tensor(False))
    assert float(scale.value) == first / 2
    scale.update(torch.tensor(False))
    assert float(scale.value) == first


def losses_of(steps: int, **parameters: Any) -> list[float]:
    trainer = make(**parameters)
    return [float(trainer.step() or torch.nan) for _ in range(steps)]


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_fp8_trains_nearly_as_bf16_does(recipe: str) -> None:
    pytest.importorskip("torchao", reason="needs torchao: pip install '.[fp8]'")
    usual = losses_of(5, precision="bf16")
    found = losses_of(5, precision="fp8", fp8_recipe=recipe)
    assert found == pytest.approx(usual, rel=0.02)
    assert found != usual  # eight bits are seen


def test_fp8_takes_the_layers_that_are_large_enough() -> None:
    pytest.importorskip("torchao", reason="needs torchao: pip install '.[fp8]'")
    everything = make(precision="fp8").fp8_layers
    wide = make(precision="fp8", fp8_least=128).fp8_layers  # the feed-forward layers are 4 x 32 wide
    assert (everything, wide) == (8, 4)
    assert make(precision="bf16").fp8_layers == 0


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_looking_at_gradients_takes_no_step(precision: Any) -> None:
    trainer, untouched = make(model="gpt2", precision=precision), make(model="gpt2", precision=precision)
    for _ in range(2):
        seen, again = trainer.gradients(), trainer.gradients()
        loss, other = trainer.step(), untouched.step()
        assert loss is not None
        assert other is not None
        assert float(loss) == float(other) == pytest.approx(seen.loss, rel=1e-5)
        assert seen.norms == again.norms
        assert trainer.norm is not None
        assert sum(norm**2 for norm in seen.norms.values()) ** 0.5 == pytest.approx(float(trainer.norm), rel=1e-4)


@pytest.mark.parametrize("micro_batch", [4, 1])
def test_inference_is_the_loss_of_the_first_step_again_and_again(micro_batch: int) -> None:
    trainer = make(micro_batch=micro_batch, mode="inference")
    before = weights(trainer)
    losses = [trainer.step() for _ in range(2)]
    expected, _ = plain_losses(trainer.parameters, 1)
    assert [float(loss) for loss in losses if loss is not None] == pytest.approx(2 * expected)
    assert torch.equal(weights(trainer), before)
    assert trainer.norm is None
    assert all(one.grad is None for stage in trainer.stages.values() for one in stage.parameters())
