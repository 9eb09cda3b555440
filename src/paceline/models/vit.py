"""The vision transformer in its base size, trained on random images with soft labels over 1000 classes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from paceline.models.base import Batch, ModelSpec, Workload, build_scaled, class_loss

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class VitShape:
    """The sizes that make one vision transformer; `drop_path` is the rate of the last layer, the first has none."""

    layers: int
    hidden: int
    heads: int
    image: int = 224
    patch: int = 16
    classes: int = 1000
    drop_path: float = 0.1


# Without drop-path, so that the losses of different numbers of ranks can be compared.
TINY = VitShape(layers=2, hidden=64, heads=4, image=32, patch=8, classes=10, drop_path=0.0)


def build_vit(shape: VitShape) -> Workload:
    """A vision transformer of any shape with random images to train it on."""
    from paceline.models._modules.transformer import Vit

    return Workload(module=Vit(**asdict(shape)), make_batch=partial(_make_batch, shape), loss=class_loss)


def _make_batch(shape: VitShape, samples: int, generator: torch.Generator) -> Batch:
    import torch

    images = torch.empty(samples, 3, shape.image, shape.image, device=generator.device)
    labels = torch.empty(samples, shape.classes, device=generator.device)
    for row in range(samples):  # row by row: the first samples must not depend on how many follow
        images[row].normal_(generator=generator)
        labels[row].uniform_(generator=generator)
    return Batch(inputs=(images,), targets=(labels / labels.sum(dim=1, keepdim=True),))


BASE = VitShape(layers=12, hidden=768, heads=12)
VIT_BASE = ModelSpec(
    name="vit-base",
    family="vit",
    task="image classification",
    summary=f"ViT-Base: {BASE.layers} pre-norm layers, hidden size {BASE.hidden}, {BASE.heads} heads; images of "
    f"{BASE.image} x {BASE.image} in patches of {BASE.patch}, soft labels over {BASE.classes} classes, "
    f"drop-path up to {BASE.drop_path}, no dropout",
    build=partial(build_scaled, build_vit, BASE, TINY),
    parameters=86_567_656,
    flops=35_127_656_448,
    batch_size=64,
    sample="image",
    settings=asdict(BASE),
)
