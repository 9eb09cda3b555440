"""DETR as a plain module: a ResNet with frozen batch norms, post-norm encoder and decoder layers, and two heads."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.core.errors import CaseError, MissingDependency
from paceline.models._modules.torchvision_import import models
from paceline.models.detr import DetrShape

try:
    from scipy.optimize import linear_sum_assignment
except ModuleNotFoundError as error:
    raise MissingDependency("scipy (for matching)", "pip install '.[torch]'") from error

# What the class, the distance of the boxes and their overlap weigh, in the costs as in the loss.
CLASS_WEIGHT, DISTANCE_WEIGHT, OVERLAP_WEIGHT = 1.0, 5.0, 2.0
NO_OBJECT_WEIGHT = 0.1  # of the queries without a target, which are by far the most
SMALLEST_AREA = 1e-9


def corners(boxes: Tensor) -> Tensor:
    """Boxes as (left, top, right, bottom)."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat((centre - size / 2, centre + size / 2), dim=-1)


def generalized_iou(one: Tensor, other: Tensor) -> Tensor:
    """The generalised overlap of boxes given by their corners, -1 to 1; leading axes broadcast.

    Two boxes without any area have none in common: 0 for the same position, never a division by zero.
    """
    overlap = (torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])).clamp(min=0)
    hull = torch.maximum(one[..., 2:], other[..., 2:]) - torch.minimum(one[..., :2], other[..., :2])
    shared, covering = overlap.prod(-1), hull.prod(-1)
    union = (one[..., 2:] - one[..., :2]).prod(-1) + (other[..., 2:] - other[..., :2]).prod(-1) - shared
    return shared / union.clamp(min=SMALLEST_AREA) - (covering - union) / covering.clamp(min=SMALLEST_AREA)


def matching_costs(logits: Tensor, boxes: Tensor, labels: Tensor, true_boxes: Tensor) -> Tensor:
    """What it costs each query to answer for each target: [batch, layers, queries, targets], lower is better."""
    layers, queries = logits.shape[1:3]
    classes = labels[:, None, None, :].expand(-1, layers, queries, -1)
    probability = logits.softmax(-1).gather(3, classes)
    predicted, true = boxes.unsqueeze(3), true_boxes[:, None, None]
    distance = (predicted - true).abs().sum(-1)
    overlap = generalized_iou(corners(predicted), corners(true))
    return DISTANCE_WEIGHT * distance - CLASS_WEIGHT * probability - OVERLAP_WEIGHT * overlap


def assign(costs: Tensor) -> tuple[Tensor, Tensor]:
    """The cheapest pairs of every cost matrix [..., queries, targets]: the queries, and the targets they answer for.

    Both are [..., pairs] on the device of the costs, with as many pairs as there are queries or targets, whichever are
    fewer.
    """
    on_host = costs.detach().cpu().numpy()
    if not np.isfinite(on_host).all():
        raise CaseError(
            f"{np.count_nonzero(~np.isfinite(on_host))} of {on_host.size} costs of matching are not finite: the model "
            "has diverged or overflowed; use bf16 or fp32"
        )
    *batch, queries, targets = on_host.shape
    pairs = np.empty((2, *batch, min(queries, targets)), dtype=np.int64)
    for index in np.ndindex(*batch):
        pairs[:, *index] = linear_sum_assignment(on_host[index])
    chosen, answered = torch.from_numpy(pairs).to(costs.device)
    return chosen, answered


def set_loss(
    logits: Tensor, boxes: Tensor, labels: Tensor, true_boxes: Tensor, chosen: Tensor, answered: Tensor
) -> Tensor:
    """The loss of all layers together, given the pairs; the last class stands for no object."""
    layers, _, classes = logits.shape[1:]
    true_classes = labels.unsqueeze(1).expand(-1, layers, -1).gather(2, answered)
    every_class = torch.full(logits.shape[:3], classes - 1, device=logits.device).scatter(2, chosen, true_classes)
    weights = logits.new_ones(classes)
    weights[-1] = NO_OBJECT_WEIGHT
    # Every layer has the same number of pairs, so that the mean over all of them is the mean of the layers' means.
    of_class = layers * F.cross_entropy(logits.flatten(0, 2), every_class.flatten(), weights)

    predicted = boxes.gather(2, chosen.unsqueeze(3).expand(-1, -1, -1, 4))
    true = true_boxes.unsqueeze(1).expand(-1, layers, -1, -1).gather(2, answered.unsqueeze(3).expand(-1, -1, -1, 4))
    objects = max(1, labels.numel())
    distance = (predicted - true).abs().sum() / objects
    overlap = (1 - generalized_iou(corners(predicted), corners(true))).sum() / objects
    return CLASS_WEIGHT * of_class + DISTANCE_WEIGHT * distance + OVERLAP_WEIGHT * overlap


REDUCTION = 32  # pixels per feature, either way
FEATURES = 2048
TEMPERATURE = 10_000.0
# Untrained branches would double the variance of the features with every block and overflow fp16 in deep ones; half of
# each branch keeps it level.
BRANCH_SCALE = 0.5


class FrozenBatchNorm2d(nn.Module):
    """A batch norm whose statistics and weights are frozen: a fixed scale and shift of each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(channels))
        self.register_buffer("shift", torch.zeros(channels))
        self.scale: Tensor
        self.shift: Tensor

    def forward(self, x: Tensor) -> Tensor:
        # In the format of the features: fp32 here would make them fp32 under autocast.
        scale, shift = self.scale.to(x.dtype), self.shift.to(x.dtype)
        return torch.addcmul(shift[:, None, None], x, scale[:, None, None])


def backbone(blocks: Sequence[int], width: int) -> nn.Sequential:
    """A ResNet of bottlenecks without its classifier: images to 2048 features per 32 x 32 pixels."""
    resnet = models.resnet.ResNet(
        models.resnet.Bottleneck, list(blocks), width_per_group=width, norm_layer=FrozenBatchNorm2d
    )
    for block in resnet.modules():
        if isinstance(block, models.resnet.Bottleneck):
            nn.init.constant_(block.bn3.scale, BRANCH_SCALE)
    layers = ((name, child) for name, child in resnet.named_children() if name not in ("avgpool", "fc"))
    return nn.Sequential(OrderedDict(layers))


def sine_positions(real: Tensor, hidden: int) -> Tensor:
    """Where each feature lies in the real part of its image: [batch, height, width] to [batch, height * width, hidden].

    Rows fill the first half of the numbers, columns the second: sines and cosines interleaved, at falling frequencies.
    """
    features = hidden // 2
    exponents = 2 * torch.arange(features // 2, device=real.device) / features
    encoded = []
    for axis in (1, 2):
        position = real.cumsum(axis)  # of whole numbers: the same in any order of adding
        position = position / (position.narrow(axis, -1, 1) + 1e-6) * (2 * math.pi)
        angle = position.unsqueeze(3) / TEMPERATURE**exponents
        encoded.append(torch.stack((angle.sin(), angle.cos()), dim=4).flatten(3))
    return torch.cat(encoded, dim=3).flatten(1, 2)


class Mixing(nn.Module):
    """What both attentions share: the mixing of values by head, and the projection of the result."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)

    def mix(self, query: Tensor, key: Tensor, source: Tensor, attendable: Tensor | None) -> Tensor:
        """Values of the source by the likeness of queries and keys."""
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (query, key, self.value(source))
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=attendable, dropout_p=dropout)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class SelfAttention(Mixing):
    """Attention of a sequence to itself; queries and keys include their positions, values do not."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__(hidden, heads, dropout)
        self.query_key = nn.Linear(hidden, 2 * hidden)

    def forward(self, x: Tensor, positions: Tensor, attendable: Tensor | None = None) -> Tensor:
        query, key = self.query_key(x + positions).chunk(2, dim=2)
        return self.mix(query, key, x, attendable)


class CrossAttention(Mixing):
    """Attention of the object queries to what the encoder made of the image."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__(hidden, heads, dropout)
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, positions: Tensor, memory: Tensor, placed: Tensor, attendable: Tensor) -> Tensor:
        return self.mix(self.query(x + positions), self.key(placed), memory, attendable)


class FeedForward(nn.Sequential):
    """Two linear layers with a ReLU and dropout in between."""

    def __init__(self, hidden: int, inner: int, dropout: float) -> None:
        super().__init__(nn.Linear(hidden, inner), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(inner, hidden))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward layer, each added to its input and normalised after."""

    def __init__(self, hidden: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden, heads, dropout)
        self.attention_norm = nn.LayerNorm(hidden)
        self.feed_forward = FeedForward(hidden, inner, dropout)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, positions: Tensor, attendable: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, positions, attendable)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Self-attention, attention to the image, the feed-forward layer: each added to its input and normalised after."""

    def __init__(self, hidden: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden, heads, dropout)
        self.attention_norm = nn.LayerNorm(hidden)
        self.cross_attention = CrossAttention(hidden, heads, dropout)
        self.cross_attention_norm = nn.LayerNorm(hidden)
        self.feed_forward = FeedForward(hidden, inner, dropout)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, positions: Tensor, memory: Tensor, placed: Tensor, attendable: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, positions)))
        attended = self.cross_attention(x, positions, memory, placed, attendable)
        x = self.cross_attention_norm(x + self.dropout(attended))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))  # type: ignore[no-any-return]


class Detr(nn.Module):
    """Images [batch, 3, height, width] and which of their pixels are real to class logits and boxes of every query.

    In training those of all decoder layers: [batch, layers, queries, ...]; otherwise of the last one, [batch, queries,
    ...]. The last class stands for no object; boxes are (centre x, centre y, width, height) as parts of the image.
    """

    def __init__(self, shape: DetrShape) -> None:
        super().__init__()
        hidden, heads = shape.hidden, shape.heads
        if hidden % heads or hidden % 4:
            raise ValueError(f"hidden size {hidden} is not a multiple of {heads} heads and of 4")
        self.hidden = hidden
        self.backbone = backbone(shape.blocks, shape.width)
        self.projection = nn.Conv2d(FEATURES, hidden, 1)
        sizes = hidden, heads, shape.inner, shape.dropout
        self.encoder = nn.ModuleList(EncoderLayer(*sizes) for _ in range(shape.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(shape.decoder_layers))
        for layers in (self.encoder, self.decoder):
            for weight in layers.parameters():
                if weight.dim() > 1:
                    nn.init.xavier_uniform_(weight)
        self.decoder_norm = nn.LayerNorm(hidden)
        self.query_positions = nn.Parameter(torch.empty(shape.queries, hidden))
        nn.init.normal_(self.query_positions)
        self.class_head = nn.Linear(hidden, shape.classes + 1)
        self.box_head = nn.Sequential(
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, 4),
        )

    def encode(self, images: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the encoder makes of the images, where each feature lies, and which ones may be attended to."""
        x = self.projection(self.backbone(images)).flatten(2).transpose(1, 2)
        real = real[:, ::REDUCTION, ::REDUCTION]
        positions = sine_positions(real, self.hidden).to(x.dtype)
        attendable = real.flatten(1)[:, None, None, :]
        for layer in self.encoder:
            x = layer(x, positions, attendable)
        return x, positions, attendable

    def decode(self, memory: Tensor, positions: Tensor, attendable: Tensor) -> list[Tensor]:
        """The object queries as they leave every decoder layer."""
        placed = memory + positions
        # Repeated, not expanded: torch's counter of operators cannot follow a weight's view into a layer.
        query_positions = self.query_positions.repeat(memory.shape[0], 1, 1)
        x = torch.zeros_like(query_positions)
        outputs = []
        for layer in self.decoder:
            x = layer(x, query_positions, memory, placed, attendable)
            outputs.append(x)
        return outputs

    def forward(self, images: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.decode(*self.encode(images, real))
        x = self.decoder_norm(torch.stack(outputs, dim=1) if self.training else outputs[-1])
        return self.class_head(x), self.box_head(x).sigmoid()
