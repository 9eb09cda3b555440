"""Set prediction: which prediction answers for which target, and the loss of the pairs.

Boxes are (centre x, centre y, width, height) as parts of the image. Predictions have the shape [batch, layers, queries,
...] and targets [batch, targets, ...], so that every layer of every image is matched in one go: the costs are computed
on the device, cross to the host once, and the pairs come back once.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.errors import CaseError, MissingDependency

try:
    from scipy.optimize import linear_sum_assignment
except ModuleNotFoundError as error:
    raise MissingDependency("scipy (for matching)", "pip install 'paceline[torch]'") from error

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

    Two boxes without any area have none in common: 0 for the same place, never a division by zero.
    """
    overlap = (torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])).clamp(min=0)
    hull = torch.maximum(one[..., 2:], other[..., 2:]) - torch.minimum(one[..., :2], other[..., :2])
    shared, covering = overlap.prod(-1), hull.prod(-1)
    union = (one[..., 2:] - one[..., :2]).prod(-1) + (other[..., 2:] - other[..., :2]).prod(-1) - shared
    return shared / union.clamp(min=SMALLEST_AREA) - (covering - union) / covering.clamp(min=SMALLEST_AREA)


def matching_costs(logits: Tensor, boxes: Tensor, labels: Tensor, true_boxes: Tensor) -> Tensor:
    """What it costs each query to answer for each target: [batch, layers, queries, targets], lower is better."""
    layers, queries = logits.shape[1:3]
    wanted = labels[:, None, None, :].expand(-1, layers, queries, -1)
    probability = logits.softmax(-1).gather(3, wanted)
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
    for place in np.ndindex(*batch):
        pairs[:, *place] = linear_sum_assignment(on_host[place])
    chosen, answered = torch.from_numpy(pairs).to(costs.device)
    return chosen, answered


def set_loss(
    logits: Tensor, boxes: Tensor, labels: Tensor, true_boxes: Tensor, chosen: Tensor, answered: Tensor
) -> Tensor:
    """The loss of all layers together, given the pairs; the last class stands for no object."""
    layers, _, classes = logits.shape[1:]
    wanted = labels.unsqueeze(1).expand(-1, layers, -1).gather(2, answered)
    every_class = torch.full(logits.shape[:3], classes - 1, device=logits.device).scatter(2, chosen, wanted)
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
