"""DETR on a ResNet-50, trained to find random boxes in random images.

Every image holds the same number of boxes, so that shapes never change. All decoder layers are scored, each by its own
matching with the targets. The images have padding of random extent to the right and below, as a batch of photographs
has: a mask marks the padding, and no time depends on it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from paceline.models.base import Batch, Marks, ModelSpec, Workload, build_scaled

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SMALLEST_BOX, LARGEST_BOX = 0.1, 0.5  # of the image's width and height


@dataclass(frozen=True, kw_only=True)
class DetrShape:
    """The sizes that make one DETR: `blocks` and `width` of the ResNet, `inner` of the feed-forward layers."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    encoder_layers: int = 6
    decoder_layers: int = 6
    hidden: int = 256
    heads: int = 8
    inner: int = 2048
    dropout: float = 0.1
    queries: int = 100
    classes: int = 91
    image: int = 800
    boxes: int = 4


# Without dropout, so that the losses of different numbers of ranks can be compared.
TINY = DetrShape(
    blocks=(1, 1, 1, 1),
    width=8,
    encoder_layers=2,
    decoder_layers=2,
    hidden=32,
    heads=4,
    inner=64,
    dropout=0.0,
    queries=10,
    classes=7,
    image=64,
    boxes=3,
)


def build_detr(shape: DetrShape) -> Workload:
    """A DETR of any shape with random images and boxes to train it on."""
    from paceline.models._modules.detr import Detr

    marks = Marks()
    return Workload(
        module=Detr(shape),
        make_batch=partial(_make_batch, shape),
        loss=partial(_detection_loss, marks),
        marks=marks,
        loss_compiles=False,
    )


def _make_batch(shape: DetrShape, samples: int, generator: torch.Generator) -> Batch:
    import torch

    device, image = generator.device, shape.image
    images = torch.empty(samples, 3, image, image, device=device)
    extents = torch.empty(samples, 2, dtype=torch.int64, device=device)
    labels = torch.empty(samples, shape.boxes, dtype=torch.int64, device=device)
    drawn = torch.empty(samples, shape.boxes, 4, device=device)
    for row in range(samples):  # row by row: the first samples must not depend on how many follow
        images[row].normal_(generator=generator)
        extents[row].random_(image // 2, image + 1, generator=generator)
        labels[row].random_(shape.classes, generator=generator)
        drawn[row].uniform_(generator=generator)
    pixels = torch.arange(image, device=device)
    real = (pixels[:, None] < extents[:, 0, None, None]) & (pixels < extents[:, 1, None, None])
    sizes = SMALLEST_BOX + (LARGEST_BOX - SMALLEST_BOX) * drawn[..., 2:]
    centres = sizes / 2 + (1 - sizes) * drawn[..., :2]
    return Batch(inputs=(images * real.unsqueeze(1), real), targets=(labels, torch.cat((centres, sizes), dim=2)))


def _detection_loss(marks: Marks, output: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
    """Match every layer's predictions with the targets, then score them; in fp32, as neither costs much."""
    import torch

    from paceline.models._modules.detr import assign, matching_costs, set_loss

    logits, boxes = (part.float() for part in output)
    labels, true_boxes = batch.targets
    with torch.no_grad():
        chosen, answered = assign(matching_costs(logits, boxes, labels, true_boxes))
    marks("matcher")
    return set_loss(logits, boxes, labels, true_boxes, chosen, answered)


FULL = DetrShape()
DETR = ModelSpec(
    name="detr",
    family="detr",
    task="object detection",
    summary=f"DETR on a ResNet-50 with frozen batch norms: {FULL.encoder_layers} + {FULL.decoder_layers} post-norm "
    f"layers, hidden size {FULL.hidden}, {FULL.queries} queries, all decoder layers scored after Hungarian matching; "
    f"images of {FULL.image} x {FULL.image} with {FULL.boxes} boxes, dropout {FULL.dropout}",
    build=partial(build_scaled, build_detr, FULL, TINY),
    parameters=41_524_768,
    flops=120_339_200_000,
    batch_size=12,
    sample="image",
    channels_last=True,
    imports=("torch", "paceline.models._modules.torchvision_import", "scipy.optimize"),
    settings=asdict(FULL),
)
