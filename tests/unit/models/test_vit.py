"""The vision transformer: torchvision's numbers with the same weights, drop-path, and a tiny scale that learns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paceline.models import MODELS, Batch
from paceline.models._modules.torchvision_import import models
from paceline.models._modules.transformer import PreNormBlock, Vit, drop_path
from paceline.models.flops import forward_flops
from paceline.models.vit import BASE, TINY, VitShape, build_vit

SMALL = VitShape(layers=3, hidden=48, heads=4, image=32, patch=8, classes=11, drop_path=0.0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vit_weights(theirs: dict[str, Tensor], shape: VitShape) -> dict[str, Tensor]:
    """Torchvision's names and layout into ours: patches are a product, and projections lie head by head."""
    ours = {
        "class_token": theirs["class_token"],
        "positions": theirs["encoder.pos_embedding"],
        "patch_embedding.weight": theirs["conv_proj.weight"].flatten(1),
        "patch_embedding.bias": theirs["conv_proj.bias"],
    }
    for kind in ("weight", "bias"):
        ours[f"final_norm.{kind}"] = theirs[f"encoder.ln.{kind}"]
        ours[f"classifier.{kind}"] = theirs[f"heads.head.{kind}"]
        for layer in range(shape.layers):
            block, other = f"blocks.{layer}", f"encoder.layers.encoder_layer_{layer}"
            by_part = theirs[f"{other}.self_attention.in_proj_{kind}"].unflatten(0, (3, shape.heads, -1))
            ours[f"{block}.attention.qkv.{kind}"] = by_part.transpose(0, 1).flatten(0, 2)
            ours[f"{block}.attention.output.{kind}"] = theirs[f"{other}.self_attention.out_proj.{kind}"]
            ours[f"{block}.attention_norm.{kind}"] = theirs[f"{other}.ln_1.{kind}"]
            ours[f"{block}.feed_forward_norm.{kind}"] = theirs[f"{other}.ln_2.{kind}"]
            ours[f"{block}.feed_forward.expand.{kind}"] = theirs[f"{other}.mlp.0.{kind}"]
            ours[f"{block}.feed_forward.contract.{kind}"] = theirs[f"{other}.mlp.3.{kind}"]
    return ours


def spread(module: nn.Module) -> None:
    """What starts as zeros and ones away from them, so that a wrong mapping cannot hide."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5, std=0.5)
    nn.init.normal_(module.heads.head.weight, std=0.1)
    nn.init.normal_(module.class_token, std=0.5)


@pytest.mark.long
@pytest.mark.usefixtures("quick_weights")
def test_the_base_size_agrees_with_torchvision() -> None:
    reference = models.vit_b_16(weights=None).eval()
    spread(reference)
    workload = build_vit(BASE)
    module = workload.module.eval()
    module.load_state_dict(vit_weights(reference.state_dict(), BASE))
    images = workload.make_batch(2, generator()).inputs[0]
    with torch.inference_mode():
        torch.testing.assert_close(module(images), reference(images), rtol=1e-4, atol=1e-4)


def test_the_gradients_agree_with_torchvision() -> None:
    reference = models.VisionTransformer(
        image_size=SMALL.image,
        patch_size=SMALL.patch,
        num_layers=SMALL.layers,
        num_heads=SMALL.heads,
        hidden_dim=SMALL.hidden,
        mlp_dim=4 * SMALL.hidden,
        num_classes=SMALL.classes,
    )
    spread(reference)
    workload = build_vit(SMALL)
    module = workload.module.train()
    module.load_state_dict(vit_weights(reference.state_dict(), SMALL))
    batch = workload.make_batch(3, generator())
    workload.loss(module(*batch.inputs), batch).backward()
    (-(reference(*batch.inputs).log_softmax(1) * batch.targets[0]).sum(1).mean()).backward()
    theirs = {name: parameter.grad for name, parameter in reference.named_parameters() if parameter.grad is not None}
    expected = vit_weights(theirs, SMALL)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(
            parameter.grad, expected[name], rtol=1e-3, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_it_has_the_published_parameters_and_the_flops_of_its_formula() -> None:
    spec = MODELS.registry().get("vit-base")
    assert spec.parameters == 86_567_656  # torchvision documents the same
    tokens, hidden = 197, 768
    blocks = 12 * (2 * 12 * hidden**2 * tokens + 4 * tokens**2 * hidden)
    patches, head = 2 * 196 * 3 * 16**2 * hidden, 2 * hidden * 1000
    assert forward_flops(spec) == blocks + patches + head


def test_labels_are_distributions_that_differ() -> None:
    (labels,) = build_vit(TINY).make_batch(4, generator()).targets
    assert labels.shape == (4, TINY.classes)
    assert (labels >= 0).all()
    torch.testing.assert_close(labels.sum(dim=1), torch.ones(4))
    assert not torch.equal(labels[0], labels[1])


def test_drop_path_rates_grow_linearly_and_the_tiny_scale_has_none() -> None:
    with torch.device("meta"):
        module = build_vit(BASE).module
    rates = [block.drop_path for block in module.modules() if isinstance(block, PreNormBlock)]
    assert rates == pytest.approx([0.1 * layer / 11 for layer in range(12)])
    assert TINY.drop_path == 0


def test_drop_path_skips_whole_samples_and_keeps_the_mean() -> None:
    branch = torch.randn(4000, 3, 2)
    dropped = drop_path(branch, 0.25)
    gone = (dropped == 0).all(dim=2).all(dim=1)
    torch.testing.assert_close(dropped[~gone], branch[~gone] / 0.75)
    assert 0.2 < gone.float().mean() < 0.3


def test_drop_path_is_for_training_alone() -> None:
    x = torch.randn(8, 4, 16)
    block = PreNormBlock(16, 2, drop_path=0.5)
    torch.testing.assert_close(block.eval()(x), block(x), rtol=0, atol=0)
    assert not torch.equal(block.train()(x), block.eval()(x))


def test_a_training_step_never_asks_the_device() -> None:
    """On the meta device there is nothing to ask: a value that went to the host would raise."""
    with torch.device("meta"):
        workload = build_vit(BASE)
    batch = workload.make_batch(2, generator()).to(torch.device("meta"))
    workload.loss(workload.module.train()(*batch.inputs), batch).backward()


def test_model_and_loss_compile_as_one_graph() -> None:
    workload = build_vit(VitShape(layers=2, hidden=32, heads=4, image=32, patch=8, classes=10, drop_path=0.5))
    module = workload.module.train()

    def step(batch: Batch) -> Tensor:
        return workload.loss(module(*batch.inputs), batch)

    loss = torch.compile(step, fullgraph=True, backend="eager")(workload.make_batch(2, generator()))
    assert torch.isfinite(loss)


def test_mixed_precision_stays_near_full_precision() -> None:
    workload = build_vit(TINY)
    batch = workload.make_batch(4, generator())
    full = workload.loss(workload.module(*batch.inputs), batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = workload.loss(workload.module(*batch.inputs), batch)
    assert mixed.dtype == torch.float32
    assert mixed.item() == pytest.approx(full.item(), rel=1e-2)


def losses(steps: int) -> list[float]:
    """Of training on one batch, less the entropy of its labels, which no model can go below."""
    torch.manual_seed(0)
    workload = build_vit(TINY)
    module = workload.module.train()
    batch = workload.make_batch(4, generator())
    labels = batch.targets[0]
    entropy = float(-(labels * labels.log()).sum(dim=1).mean())
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = workload.loss(module(*batch.inputs), batch)
        loss.backward()
        optimizer.step()
        found.append(loss.item() - entropy)
    return found


def test_the_tiny_scale_learns_one_batch() -> None:
    found = losses(steps=40)
    assert 0 < found[-1] < found[0] / 10


def test_the_same_seed_gives_the_same_losses() -> None:
    assert losses(steps=3) == losses(steps=3)


def test_the_loss_of_a_batch_is_the_mean_over_its_halves() -> None:
    workload = build_vit(TINY)
    batch = workload.make_batch(4, generator())
    whole, first, second = (
        workload.loss(workload.module(*part.inputs), part) for part in (batch, batch.rows(0, 2), batch.rows(2, 4))
    )
    torch.testing.assert_close(whole, (first + second) / 2)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="does not divide into patches of 15"):
        Vit(layers=1, hidden=8, heads=2, image=32, patch=15, classes=2, drop_path=0.0)
