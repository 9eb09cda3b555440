"""The speech model: its documented sizes, its layer-drop, and its CTC loss against torch's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models import MODELS, Workload
from paceline.models._modules.asr_transformer import AsrTransformer, costs_and_gradient, ctc_loss
from paceline.models.asr_transformer import TINY, AsrShape, build_asr

SPEC = MODELS.registry().get("asr-transformer")
DROPPING = replace(TINY, layers=3, input_dropout=0.3, dropout=0.4, layer_drop=0.4)


def train_step(workload: Workload, seed: int = 0, frames: Tensor | None = None) -> Tensor:
    torch.manual_seed(seed)
    batch = workload.make_batch(2, torch.Generator().manual_seed(1))
    return workload.loss(workload.module.train()(batch.inputs[0] if frames is None else frames), batch)


def test_the_sizes_are_those_documented() -> None:
    with torch.device("meta"):
        workload = SPEC.build("full")
        logits = workload.module(torch.empty(8, 1500, 80))
    assert SPEC.parameters == sum(parameter.numel() for parameter in workload.module.parameters())
    assert round((SPEC.parameters or 0) / 1e6) == 256
    assert logits.shape == (8, 500, 30)
    assert workload.audio_per_sample == pytest.approx(15.0)


def test_the_flops_are_those_of_a_sum_by_hand() -> None:
    products = 36 * 2 * 500 * 12 * 768**2
    attention = 36 * 4 * 500**2 * 768
    ends = 2 * 500 * (7 * 80 * 1536 + 768 * 30)
    assert SPEC.flops == products + attention + ends


def test_an_utterance_holds_letters_but_no_blank() -> None:
    with torch.device("meta"):
        workload = SPEC.build("full")
    batch = workload.make_batch(2, torch.Generator().manual_seed(0))
    (frames,), (letters,) = batch.inputs, batch.targets
    assert (frames.shape, letters.shape) == ((2, 1500, 80), (2, 100))
    assert (letters.min().item(), letters.max().item()) == (1, 29)


def test_the_model_learns_one_batch() -> None:
    workload = SPEC.build("tiny")
    optimizer = torch.optim.Adam(workload.module.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = train_step(workload)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("shape", [TINY, DROPPING], ids=["tiny", "dropping"])
def test_silence_has_finite_gradients(shape: AsrShape) -> None:
    workload = build_asr(shape)
    loss = train_step(workload, frames=torch.zeros(2, shape.frames, shape.features))
    loss.backward()
    gradients = [weight.grad for weight in workload.module.parameters()]
    assert torch.isfinite(loss)
    assert all(gradient is not None and torch.isfinite(gradient).all() for gradient in gradients)


def test_a_dropped_layer_only_normalises_but_keeps_its_gradients() -> None:
    module = build_asr(replace(TINY, layer_drop=1.0)).module.train()
    assert isinstance(module, AsrTransformer)
    frames = torch.randn(2, TINY.frames, TINY.features)
    logits = module(frames)
    normalised = F.layer_norm(module.embed(frames), (TINY.hidden,))
    torch.testing.assert_close(logits, module.symbols(normalised), rtol=1e-3, atol=1e-3)
    logits.sum().backward()
    assert [name for name, weight in module.named_parameters() if weight.grad is None] == []
    assert all(not weight.grad.any() for weight in module.layers[0].attention.parameters())  # type: ignore[union-attr]


def test_layers_are_dropped_at_their_rate_and_in_training_only() -> None:
    module = build_asr(replace(DROPPING, layers=40, input_dropout=0.0, dropout=0.0)).module
    assert isinstance(module, AsrTransformer)
    gates: list[float] = []
    for layer in module.layers:
        layer.register_forward_pre_hook(lambda _, args: gates.extend(gate.item() for gate in args[1:]))
    frames = torch.randn(1, TINY.frames, TINY.features)
    with torch.no_grad():
        for _ in range(10):
            module.train()(frames)
        assert len(gates) == 400
        assert set(gates) == {0.0, 1.0}
        assert 0.5 < sum(gates) / 400 < 0.7
        module.eval()(frames)
    assert len(gates) == 400


def test_drops_are_drawn_from_the_seed() -> None:
    workload = build_asr(DROPPING)
    first, again, other = (train_step(workload, seed).item() for seed in (3, 3, 4))
    assert first == again != other


def test_inference_drops_nothing() -> None:
    module = build_asr(DROPPING).module.eval()
    frames = torch.randn(2, TINY.frames, TINY.features)
    with torch.no_grad():
        assert torch.equal(module(frames), module(frames))


def test_the_loss_is_fp32_under_autocast() -> None:
    workload = SPEC.build("tiny")
    plain = train_step(workload)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = train_step(workload)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, plain, rtol=0.02, atol=0)


def torchs_loss(logits: Tensor, labels: Tensor) -> Tensor:
    rows = logits.shape[0]
    probabilities = logits.float().log_softmax(dim=2).transpose(0, 1)
    lengths = (logits.shape[1],) * rows, (labels.shape[1],) * rows
    return F.ctc_loss(probabilities, labels, *lengths, zero_infinity=True)


def with_gradient(loss: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ctc_is_that_of_torch(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 40, 10).to(dtype).requires_grad_()
    labels = torch.randint(1, 10, (3, 12))
    ours, theirs = (with_gradient(loss(logits, labels), logits) for loss in (ctc_loss, torchs_loss))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    assert ours[0].dtype == torch.float32


def test_labels_that_cannot_fit_cost_nothing_and_spoil_nothing() -> None:
    logits = torch.randn(2, 20, 10, requires_grad=True)
    labels = torch.stack([torch.full((12,), 3), torch.arange(12) % 9 + 1])  # repeats need a blank in between: 23 frames
    loss, gradient = with_gradient(ctc_loss(logits, labels), logits)
    assert loss > 0
    assert not gradient[0].any()
    assert gradient[1].any()
    assert torch.isfinite(gradient).all()


def test_the_operator_keeps_the_rules_of_operators() -> None:
    probabilities = torch.randn(9, 2, 5).log_softmax(dim=2).requires_grad_()
    torch.library.opcheck(costs_and_gradient, (probabilities, torch.randint(1, 5, (2, 3))))


def test_model_and_loss_compile_into_one_graph() -> None:
    workload = build_asr(TINY)
    batch = workload.make_batch(2, torch.Generator())

    def step(frames: Tensor) -> Tensor:
        return workload.loss(workload.module(frames), batch)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*batch.inputs), step(*batch.inputs))


def test_frames_that_do_not_fit_are_refused() -> None:
    for frames in (61, 33):
        with pytest.raises(ValueError, match="choose a multiple of 3, and at least 6 for a letter"):
            build_asr(replace(TINY, frames=frames))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0], ids=["silence", "usual", "sharp"])
def test_ctc_on_the_gpu_agrees_with_the_cpu_and_never_makes_the_host_wait(spread: float) -> None:
    logits = (spread * torch.randn(8, 500, 30)).requires_grad_()
    labels = torch.randint(1, 30, (8, 100))
    here = with_gradient(torchs_loss(logits, labels), logits)
    far_logits, far_labels = logits.detach().cuda().requires_grad_(), labels.cuda()
    ctc_loss(far_logits, far_labels)  # what is made once may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        there = with_gradient(ctc_loss(far_logits, far_labels), far_logits)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(tuple(part.cpu() for part in there), here, rtol=1e-3, atol=1e-5)
