"""Matching and the loss of sets, against loops that are slow and plain."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from paceline.core.errors import CaseError
from paceline.models._modules.detr import assign, corners, generalized_iou, matching_costs, set_loss
from paceline.models._modules.torchvision_import import torchvision

BATCH, LAYERS, QUERIES, TARGETS, CLASSES = 3, 2, 6, 4, 5


def random_boxes(*shape: int) -> Tensor:
    sizes = 0.1 + 0.4 * torch.rand(*shape, 2)
    return torch.cat((sizes / 2 + (1 - sizes) * torch.rand(*shape, 2), sizes), dim=-1)


def random_case(queries: int = QUERIES, targets: int = TARGETS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, boxes, labels and true boxes; the last class is no object."""
    logits = torch.randn(BATCH, LAYERS, queries, CLASSES + 1)
    labels = torch.randint(CLASSES, (BATCH, targets))
    return logits, random_boxes(BATCH, LAYERS, queries), labels, random_boxes(BATCH, targets)


def slow_iou(one: list[float], other: list[float]) -> float:
    """The generalised overlap of two boxes as (centre x, centre y, width, height)."""
    (left, top, right, bottom), (left2, top2, right2, bottom2) = (
        (x - width / 2, y - height / 2, x + width / 2, y + height / 2) for x, y, width, height in (one, other)
    )
    shared = max(0.0, min(right, right2) - max(left, left2)) * max(0.0, min(bottom, bottom2) - max(top, top2))
    union = one[2] * one[3] + other[2] * other[3] - shared
    covering = (max(right, right2) - min(left, left2)) * (max(bottom, bottom2) - min(top, top2))
    return shared / union - (covering - union) / covering


def cheapest(matrix: Tensor) -> float:
    """The least total cost of all ways to pair, tried one by one."""
    costs = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    rows = range(costs.shape[0])
    ways = itertools.permutations(range(costs.shape[1]), costs.shape[0])
    return min(sum(float(costs[row, column]) for row, column in zip(rows, way, strict=True)) for way in ways)


def test_generalized_iou_is_that_of_torchvision() -> None:
    one, other = corners(random_boxes(40)), corners(random_boxes(30))
    expected = torchvision.ops.generalized_box_iou(one, other)
    torch.testing.assert_close(generalized_iou(one[:, None], other), expected)
    assert expected.min() < 0 < expected.max()  # apart and overlapping


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((0.5, 0.5, 0.2, 0.2), (0.5, 0.5, 0.2, 0.2), 1.0),  # the same box
        ((0.5, 0.5, 0.0, 0.0), (0.5, 0.5, 0.0, 0.0), 0.0),  # the same place without any area
        ((0.5, 0.5, 0.0, 0.0), (0.5, 0.5, 0.2, 0.2), 0.0),  # a point in a box
        ((0.25, 0.5, 0.5, 1.0), (0.75, 0.5, 0.5, 1.0), 0.0),  # two halves side by side
        ((0.1, 0.1, 0.2, 0.2), (0.9, 0.9, 0.2, 0.2), 0.08 - 1),  # far corners
    ],
)
def test_generalized_iou_of_edge_cases(one: tuple[float, ...], other: tuple[float, ...], expected: float) -> None:
    first = torch.tensor(one, requires_grad=True)
    found = generalized_iou(corners(first), corners(torch.tensor(other)))
    found.backward()
    assert found.item() == pytest.approx(expected, abs=1e-6)
    assert first.grad is not None
    assert torch.isfinite(first.grad).all()


def test_costs_are_those_of_a_plain_loop() -> None:
    logits, boxes, labels, true_boxes = random_case()
    costs = matching_costs(logits, boxes, labels, true_boxes)
    assert costs.shape == (BATCH, LAYERS, QUERIES, TARGETS)
    for image, layer, query, target in itertools.product(*map(range, costs.shape)):
        box, true = boxes[image, layer, query].tolist(), true_boxes[image, target].tolist()
        exponentials = [math.exp(value) for value in logits[image, layer, query].tolist()]
        probability = exponentials[int(labels[image, target])] / sum(exponentials)
        distance = sum(abs(a - b) for a, b in zip(box, true, strict=True))
        expected = -probability + 5 * distance - 2 * slow_iou(box, true)
        assert float(costs[image, layer, query, target]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("queries", "targets"), [(6, 4), (4, 6), (5, 5), (7, 1), (1, 3)])
def test_the_assignment_is_the_cheapest_of_all(queries: int, targets: int) -> None:
    costs = matching_costs(*random_case(queries, targets))
    chosen, answered = assign(costs)
    assert chosen.shape == answered.shape == (BATCH, LAYERS, min(queries, targets))
    for image, layer in itertools.product(range(BATCH), range(LAYERS)):
        one, other = chosen[image, layer], answered[image, layer]
        assert len(set(one.tolist())) == len(set(other.tolist())) == min(queries, targets)
        total = float(costs[image, layer][one, other].sum())
        assert total == pytest.approx(cheapest(costs[image, layer]), abs=1e-5)


def test_equal_costs_and_identical_boxes_still_give_pairs_that_differ() -> None:
    for costs in (torch.zeros(2, 5, 3), matching_costs(*(part[:, :1] for part in random_case()[:2]), *twins())):
        chosen, answered = assign(costs)
        for one, other in zip(chosen.reshape(-1, chosen.shape[-1]), answered.flatten(0, -2), strict=True):
            assert len(set(one.tolist())) == len(one)
            assert sorted(other.tolist()) == list(range(costs.shape[-1]))


def twins() -> tuple[Tensor, Tensor]:
    """Targets that are all the same."""
    return torch.zeros(BATCH, TARGETS, dtype=torch.int64), torch.full((BATCH, TARGETS, 4), 0.5)


def test_no_targets_give_no_pairs_and_a_loss_of_classes_alone() -> None:
    case = random_case(targets=0)
    chosen, answered = assign(matching_costs(*case))
    assert chosen.shape == answered.shape == (BATCH, LAYERS, 0)
    expected = LAYERS * -case[0].log_softmax(-1)[..., -1].mean()
    torch.testing.assert_close(set_loss(*case, chosen, answered), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_costs_that_are_not_finite_are_refused(bad: float) -> None:
    costs = torch.zeros(2, 5, 3)
    costs[1, 2, 0] = bad
    with pytest.raises(CaseError, match="1 of 30 costs of matching are not finite: the model has diverged"):
        assign(costs)


@pytest.mark.parametrize("targets", [TARGETS, QUERIES + 1])
def test_the_loss_is_that_of_a_plain_loop(targets: int) -> None:
    logits, boxes, labels, true_boxes = random_case(targets=targets)
    chosen, answered = assign(matching_costs(logits, boxes, labels, true_boxes))
    expected = 0.0
    for layer in range(LAYERS):
        entropy = weights = distance = overlap = 0.0
        for image in range(BATCH):
            pairs = dict(zip(chosen[image, layer].tolist(), answered[image, layer].tolist(), strict=True))
            for query in range(QUERIES):
                wanted = int(labels[image, pairs[query]]) if query in pairs else CLASSES
                weight = 1.0 if query in pairs else 0.1
                entropy -= weight * float(logits[image, layer, query].log_softmax(0)[wanted])
                weights += weight
            for query, target in pairs.items():
                box, true = boxes[image, layer, query].tolist(), true_boxes[image, target].tolist()
                distance += sum(abs(a - b) for a, b in zip(box, true, strict=True))
                overlap += 1 - slow_iou(box, true)
        expected += entropy / weights + (5 * distance + 2 * overlap) / (BATCH * targets)
    found = set_loss(logits, boxes, labels, true_boxes, chosen, answered)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_perfect_predictions_are_matched_in_their_order_and_cost_nothing() -> None:
    _, _, labels, true_boxes = random_case()
    order = torch.tensor([2, 0, 3, 1])
    boxes = torch.cat((true_boxes[:, order], random_boxes(BATCH, QUERIES - TARGETS)), dim=1).unsqueeze(1)
    classes = torch.cat((labels[:, order], torch.full((BATCH, QUERIES - TARGETS), CLASSES)), dim=1)
    logits = 50.0 * torch.nn.functional.one_hot(classes, CLASSES + 1).float().unsqueeze(1)
    chosen, answered = assign(matching_costs(logits, boxes, labels, true_boxes))
    assert chosen.tolist() == [[[0, 1, 2, 3]]] * BATCH
    assert answered.tolist() == [[order.tolist()]] * BATCH
    assert float(set_loss(logits, boxes, labels, true_boxes, chosen, answered)) == pytest.approx(0, abs=1e-5)
