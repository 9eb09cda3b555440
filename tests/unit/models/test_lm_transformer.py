"""The language model: its documented sizes, its text, and that model and loss train together."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paceline.models import MODELS, Workload
from paceline.models._modules.adaptive import LmTransformer, ScalarLayerNorm, sinusoidal_positions
from paceline.models.lm_transformer import FULL, TINY, build_lm

SPEC = MODELS.registry().get("lm-transformer")


def count(module: object) -> int:
    assert isinstance(module, nn.Module)
    return sum(parameter.numel() for parameter in module.parameters())


def train_step(workload: Workload, seed: int) -> Tensor:
    torch.manual_seed(seed)
    batch = workload.make_batch(2, torch.Generator().manual_seed(1))
    return workload.loss(workload.module.train()(*batch.inputs), batch)


def test_the_parameters_are_those_documented() -> None:
    with torch.device("meta"):
        workload = SPEC.build("full")
    module = workload.module
    assert isinstance(module, LmTransformer)
    assert count(module.layers) == 201_326_656
    assert count(module.embedding) == 28_256_256
    assert count(module) == SPEC.parameters == 201_326_656 + 28_256_256
    assert count(workload.loss) == 27_209_728
    norms = [part for part in module.modules() if isinstance(part, ScalarLayerNorm)]
    assert [count(norm) for norm in norms] == [2] * 32
    assert module.embedding_scale == 32
    assert workload.tokens_per_sample == 2048


def test_the_flops_are_those_of_a_sum_by_hand() -> None:
    length, hidden, layers = FULL.sequence, FULL.hidden, FULL.layers
    products = layers * 2 * length * 12 * hidden**2
    attention = layers * 4 * length**2 * hidden
    embedding = 2 * length * (1024 + 256 + 64) * hidden
    assert SPEC.flops == products + attention + embedding


@pytest.mark.parametrize("scale", ["tiny", "full"])
def test_the_flops_of_the_loss_are_those_counted(scale: str) -> None:
    with torch.device("meta"):
        workload = SPEC.build(scale)  # type: ignore[arg-type]
    batch = workload.make_batch(1, torch.Generator()).to(torch.device("meta"))
    hidden = torch.empty(1, *batch.targets[0].shape[1:], (FULL if scale == "full" else TINY).hidden, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        workload.loss(hidden, batch)
    assert workload.loss_flops == counter.get_total_flops()


@pytest.mark.parametrize("scale", ["tiny", "full"])
def test_the_text_has_the_same_number_of_rare_words_in_every_row(scale: str) -> None:
    shape = FULL if scale == "full" else TINY
    with torch.device("meta"):
        workload = SPEC.build(scale)  # type: ignore[arg-type]
    batch = workload.make_batch(3, torch.Generator().manual_seed(2))
    (words,), (following, *positions) = batch.inputs, batch.targets
    assert words.shape == following.shape == (3, shape.sequence)
    assert torch.equal(words[:, 1:], following[:, :-1])
    for start, end, rare, where in zip(shape.cutoffs, shape.cutoffs[1:], shape.rare, positions, strict=False):
        for text in (words, following):
            assert ((text >= start) & (text < end)).sum(dim=1).tolist() == [rare] * 3
        chosen = following.gather(1, where)
        assert where.shape == (3, rare)
        assert (where.diff(dim=1) > 0).all()
        assert ((chosen >= start) & (chosen < end)).all()
    assert 0.18 < FULL.rare[0] / FULL.sequence < 0.2
    assert 0.04 < FULL.rare[1] / FULL.sequence < 0.05


def test_positions_are_sines_and_cosines_in_turn() -> None:
    table = sinusoidal_positions(7, 6)
    for position in range(7):
        for place in range(6):
            angle = position / 10_000 ** (2 * (place // 2) / 6)
            expected = math.cos(angle) if place % 2 else math.sin(angle)
            assert table[position, place].item() == pytest.approx(expected, abs=1e-6)


def test_no_word_sees_those_after_it() -> None:
    module = SPEC.build("tiny").module.eval()
    words = torch.arange(32).unsqueeze(0)
    changed = words.clone()
    changed[0, 20:] += 100
    with torch.no_grad():
        before, after = module(words), module(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_model_and_loss_learn_one_batch_together() -> None:
    workload = SPEC.build("tiny")
    loss_of = workload.loss
    assert isinstance(loss_of, nn.Module)
    batch = workload.make_batch(2, torch.Generator().manual_seed(0))
    both = nn.ModuleList([workload.module.train(), loss_of])
    before = {name: weight.detach().clone() for name, weight in both.named_parameters()}
    optimizer = torch.optim.Adam(both.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = loss_of(workload.module(*batch.inputs), batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(64) + 0.25 * math.log(128), rel=0.3)  # of words that are mere chance
    assert losses[-1] < losses[0] / 2
    assert [name for name, weight in both.named_parameters() if torch.equal(weight, before[name])] == []


def test_dropout_is_drawn_from_the_seed() -> None:
    workload = build_lm(replace(TINY, dropout=0.1))
    first, again, other = (train_step(workload, seed).item() for seed in (3, 3, 4))
    assert first == again != other


def test_the_loss_is_fp32_under_autocast() -> None:
    workload = SPEC.build("tiny")
    plain = train_step(workload, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = train_step(workload, 0)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, plain, rtol=0.02, atol=0)


def test_rare_words_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one number for each of the 2 clusters after the first"):
        build_lm(replace(TINY, rare=(6,)))
    with pytest.raises(ValueError, match="less than the 32 words"):
        build_lm(replace(TINY, rare=(30, 2)))


def test_model_and_loss_compile_into_one_graph() -> None:
    workload = SPEC.build("tiny")
    batch = workload.make_batch(2, torch.Generator())

    def step(words: Tensor) -> Tensor:
        return workload.loss(workload.module(words), batch)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*batch.inputs), step(*batch.inputs))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_the_gpu_agrees_with_the_cpu_and_never_makes_the_host_wait() -> None:
    workload = SPEC.build("tiny")
    loss_of = workload.loss
    assert isinstance(loss_of, nn.Module)
    here = train_step(workload, 0).detach()
    device = torch.device("cuda")
    batch = workload.make_batch(2, torch.Generator().manual_seed(1)).to(device)
    workload.module.to(device)
    loss_of.to(device)
    loss_of(workload.module(*batch.inputs), batch).backward()  # what is made once may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = loss_of(workload.module(*batch.inputs), batch)
        loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(loss.detach().cpu(), here, rtol=1e-3, atol=1e-4)
