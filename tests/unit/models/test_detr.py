"""DETR: what its batches hold, that the matcher reads them, and a tiny scale that learns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from paceline.models import MODELS
from paceline.models._modules.detr import FrozenBatchNorm2d, backbone, sine_positions
from paceline.models.base import Batch, Workload
from paceline.models.detr import FULL, TINY, build_detr
from paceline.models.flops import count_flops, forward_flops


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def tiny() -> Workload:
    return build_detr(TINY)


def test_it_has_the_parameters_of_its_parts() -> None:
    resnet = 25_557_032 - (2048 * 1000 + 1000) - 2 * 26_560  # without the classifier and without norms to train
    attention, feed_forward, norm = 4 * (256 * 256 + 256), 2 * 256 * 2048 + 2048 + 256, 2 * 256
    encoder = 6 * (attention + feed_forward + 2 * norm)
    decoder = 6 * (2 * attention + feed_forward + 3 * norm) + norm
    heads = (256 * 92 + 92) + 2 * (256 * 256 + 256) + (256 * 4 + 4)
    expected = resnet + (2048 * 256 + 256) + encoder + decoder + 100 * 256 + heads
    assert MODELS.registry().get("detr").parameters == expected


def test_the_backbone_and_the_layers_make_up_its_flops() -> None:
    features, hidden, inner, queries = 25 * 25, 256, 2048, 100
    encoder = 6 * (2 * features * (4 * hidden**2 + 2 * hidden * inner) + 4 * features**2 * hidden)
    own = 2 * queries * (4 * hidden**2 + 2 * hidden * inner + 2 * hidden**2) + 4 * queries**2 * hidden
    cross = 2 * features * 2 * hidden**2 + 4 * queries * features * hidden
    heads = 2 * queries * (hidden * 92 + 2 * hidden**2 + hidden * 4)
    resnet = (8_178_368_512 - 2 * 2048 * 1000) * (800 / 224) ** 2  # by the area
    expected = resnet + 2 * features * 2048 * hidden + encoder + 6 * (own + cross) + heads
    assert forward_flops(MODELS.registry().get("detr")) == pytest.approx(expected, rel=1e-3)


def test_flops_are_counted_in_inference_mode_too() -> None:
    with torch.inference_mode():
        inside = count_flops(MODELS.registry().get("detr"), "tiny")
    assert inside == count_flops(MODELS.registry().get("detr"), "tiny") > 0


def test_batches_hold_real_boxes_inside_the_image_and_a_mask_of_the_padding(tiny: Workload) -> None:
    batch = tiny.make_batch(50, generator())
    (images, real), (labels, boxes) = batch.inputs, batch.targets
    assert labels.shape == (50, TINY.boxes)
    assert set(labels.flatten().tolist()) == set(range(TINY.classes))
    centres, sizes = boxes[..., :2], boxes[..., 2:]
    assert (sizes >= 0.1).all() and (sizes <= 0.5).all()
    assert (centres - sizes / 2 >= -1e-6).all() and (centres + sizes / 2 <= 1 + 1e-6).all()
    assert boxes.flatten(0, 1).unique(dim=0).shape[0] == 50 * TINY.boxes
    assert real.dtype == torch.bool
    assert real[:, 0, 0].all() and not real.all()
    assert (images[~real.unsqueeze(1).expand_as(images)] == 0).all()
    heights, widths = real[:, :, 0].sum(1), real[:, 0].sum(1)
    assert torch.equal(real.sum((1, 2)), heights * widths)  # a rectangle each
    assert heights.min() >= TINY.image // 2 and len(set(heights.tolist())) > 5


def test_training_scores_every_layer_and_inference_gives_the_last(tiny: Workload) -> None:
    inputs = tiny.make_batch(2, generator()).inputs
    with torch.no_grad():
        logits, boxes = tiny.module.train()(*inputs)
        last_logits, last_boxes = tiny.module.eval()(*inputs)
    assert logits.shape == (2, TINY.decoder_layers, TINY.queries, TINY.classes + 1)
    assert boxes.shape == (2, TINY.decoder_layers, TINY.queries, 4)
    assert (boxes > 0).all() and (boxes < 1).all()
    torch.testing.assert_close(last_logits, logits[:, -1])
    torch.testing.assert_close(last_boxes, boxes[:, -1])


def test_the_matcher_reads_the_targets(tiny: Workload) -> None:
    batch, other = tiny.make_batch(2, generator(1)), tiny.make_batch(2, generator(2))
    output = tiny.module.train()(*batch.inputs)
    loss = tiny.loss(output, batch)
    assert loss != tiny.loss(output, Batch(batch.inputs, other.targets))
    labels, boxes = batch.targets
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(tiny.loss(output, Batch(batch.inputs, (labels[:, order], boxes[:, order]))), loss)


def test_the_end_of_the_matching_is_marked_once_before_the_loss(tiny: Workload) -> None:
    batch = tiny.make_batch(2, generator())
    output = tiny.module.train()(*batch.inputs)
    seen: list[str] = []
    tiny.marks.listener = seen.append
    tiny.loss(output, batch)
    assert seen == ["matcher"]
    assert not tiny.loss_compiles


def test_the_features_of_padding_are_not_attended_to(tiny: Workload) -> None:
    module = tiny.module.eval()
    module.backbone = torch.nn.Identity()  # so that features are given: convolutions reach a little over the edge
    real = torch.ones(1, 96, 160, dtype=torch.bool)
    real[:, :, 96:] = False
    features = torch.randn(1, 2048, 3, 5)
    changed = torch.where(real[:, None, ::32, ::32], features, torch.randn(1, 2048, 3, 5))
    with torch.no_grad():
        logits, boxes = module(features, real)
        same_logits, same_boxes = module(changed, real)
        unmasked, _ = module(features, torch.ones_like(real))
    torch.testing.assert_close(logits, same_logits)
    torch.testing.assert_close(boxes, same_boxes)
    assert not torch.allclose(logits, unmasked)


def test_positions_reach_one_turn_at_the_end_of_the_real_part() -> None:
    real = torch.zeros(1, 4, 6, dtype=torch.bool)
    real[:, :2, :3] = True
    positions = sine_positions(real, 8).view(4, 6, 8)
    torch.testing.assert_close(positions[1, 2, :2], torch.tensor([0.0, 1.0]), atol=1e-4, rtol=0)  # sine and cosine
    torch.testing.assert_close(positions[0, 0, :2], torch.tensor([0.0, -1.0]), atol=1e-4, rtol=0)  # half a turn
    assert (positions[0, :3, :4] == positions[0, 0, :4]).all()  # the same row
    assert (positions[:2, 0, 4:] == positions[0, 0, 4:]).all()  # the same column


def test_the_frozen_norm_scales_and_shifts_in_the_format_of_its_input() -> None:
    norm = FrozenBatchNorm2d(3)
    norm.scale.copy_(torch.tensor([1.0, 2.0, 3.0]))
    norm.shift.copy_(torch.tensor([0.0, -1.0, 1.0]))
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    torch.testing.assert_close(norm(x)[:, 1], 2 * x[:, 1] - 1)
    assert norm(x).is_contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert norm(x.bfloat16()).dtype == torch.bfloat16
    assert list(norm.parameters()) == []


def test_features_keep_their_size_through_an_untrained_backbone() -> None:
    with torch.no_grad():
        features = backbone(FULL.blocks, FULL.width)(torch.randn(1, 3, 128, 128))
    assert features.shape == (1, 2048, 4, 4)
    assert 0.1 < features.std() < 10


def test_the_module_compiles_as_one_graph_and_never_asks_the_device() -> None:
    with torch.device("meta"):
        workload = build_detr(replace(FULL, blocks=(1, 1, 1, 1)))
    inputs = workload.make_batch(1, generator()).to(torch.device("meta")).inputs
    logits, boxes = workload.module.train()(*inputs)
    (logits.sum() + boxes.sum()).backward()

    module = build_detr(replace(TINY, dropout=0.1)).module.train()
    inputs = build_detr(TINY).make_batch(2, generator()).inputs
    logits, _ = torch.compile(module, fullgraph=True, backend="eager")(*inputs)
    assert torch.isfinite(logits).all()


def test_mixed_precision_stays_near_full_precision(tiny: Workload) -> None:
    batch = tiny.make_batch(2, generator())
    full = tiny.loss(tiny.module(*batch.inputs), batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = tiny.loss(tiny.module(*batch.inputs), batch)
    assert mixed.dtype == torch.float32
    assert mixed.item() == pytest.approx(full.item(), rel=0.05)


def test_inference_in_half_precision_keeps_its_format(tiny: Workload) -> None:
    images, real = tiny.make_batch(2, generator()).inputs
    with torch.inference_mode():
        logits, boxes = tiny.module.eval().bfloat16()(images.bfloat16(), real)
    assert logits.dtype == boxes.dtype == torch.bfloat16
    assert torch.isfinite(logits).all()


def losses(steps: int) -> Iterator[float]:
    torch.manual_seed(0)
    workload = build_detr(TINY)
    module = workload.module.train()
    batch = workload.make_batch(2, generator())
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = workload.loss(module(*batch.inputs), batch)
        loss.backward()
        optimizer.step()
        yield loss.item()


@pytest.mark.long
def test_the_tiny_scale_learns_one_batch() -> None:
    found = losses(steps=60)
    first = next(found)
    assert any(loss < first / 2 for loss in found)


def test_the_same_seed_gives_the_same_losses() -> None:
    assert list(losses(steps=3)) == list(losses(steps=3))


def test_the_loss_of_a_batch_is_the_mean_over_its_halves(tiny: Workload) -> None:
    batch = tiny.make_batch(4, generator())
    whole, first, second = (
        tiny.loss(tiny.module(*part.inputs), part) for part in (batch, batch.rows(0, 2), batch.rows(2, 4))
    )
    torch.testing.assert_close(whole, (first + second) / 2)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="not a multiple of 3 heads"):
        build_detr(replace(TINY, heads=3))
