"""The plan: which benchmarks on which nodes find the most defects in the time there is, and what stays untested."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from paceline.analysis.select.history import Floats, Mask
from paceline.analysis.select.model import FleetModel

GUARANTEE = (1 - 1 / math.e) / 2  # of the best plan, by any history: greedy by gain per minute, or one single case


@dataclass(frozen=True)
class SelectionPlan:
    """What to run where."""

    model: FleetModel
    chosen: Mask  # by node and benchmark
    budget: float  # minutes on all nodes together
    found: float  # defective nodes that it is expected to find
    bound: float  # no plan within the budget is expected to find more

    @property
    def minutes(self) -> Floats:
        """Of each node."""
        minutes: Floats = self.chosen @ self.model.history.minutes
        return minutes

    @property
    def whole_minutes(self) -> float:
        """Of all benchmarks on all nodes that can run them."""
        return float((self.model.history.possible @ self.model.history.minutes).sum())

    @property
    def expected(self) -> float:
        """Nodes that are expected to be defective."""
        return float(self.model.probability.sum())

    @property
    def whole(self) -> float:
        """Defective nodes that all benchmarks on all nodes are expected to find."""
        return float((self.model.mass * (1.0 - self.model.kinds.missed(self.model.history.possible))).sum())

    @property
    def share(self) -> float:
        """Of what all benchmarks on all nodes would find, the part that the plan finds."""
        return self.found / self.whole if self.whole else 1.0


def choose(model: FleetModel, budget: float) -> SelectionPlan:
    """Case after case the one that finds most per minute, or the best one alone if that finds more."""
    minutes, shown, possible = model.history.minutes, model.kinds.shown, model.history.possible
    left = model.mass.copy()  # by node and kind: what the cases chosen so far would miss
    chosen = np.zeros((len(model.history.nodes), len(minutes)), dtype=bool)
    gains = left @ shown
    single = np.where(possible & (minutes <= budget), gains, -1.0)
    spent = found = 0.0
    heap: list[tuple[float, int, int]] = []

    def offer(node: int) -> None:
        """The best case of a node that still fits."""
        fits = possible[node] & ~chosen[node] & (minutes <= budget - spent)
        ratios = np.where(fits, gains[node] / minutes, -1.0)
        best = int(np.argmax(ratios))
        if ratios[best] > 0:
            heapq.heappush(heap, (-float(ratios[best]), node, best))

    for node in range(len(chosen)):
        offer(node)
    while heap:
        _, node, best = heapq.heappop(heap)
        if minutes[best] <= budget - spent:
            chosen[node, best] = True
            spent += float(minutes[best])
            found += float(gains[node, best])
            left[node] *= 1.0 - shown[:, best]
            gains[node] = left[node] @ shown
        offer(node)
    if single.size and float(single.max()) > found:
        node, best = divmod(int(np.argmax(single)), len(minutes))
        chosen[:] = False
        chosen[node, best] = True
        found = float(single[node, best])
        gains = model.mass @ shown
        gains[node] = (model.mass[node] * (1.0 - shown[:, best])) @ shown
    return SelectionPlan(
        model, chosen, budget, found, found + _most_more(np.where(chosen | ~possible, 0.0, gains), minutes, budget)
    )


def _most_more(gains: Floats, minutes: Floats, budget: float) -> float:
    """What no set of further cases within the budget can add: gains only shrink, so that each counts as it is now."""
    costs = np.broadcast_to(minutes, gains.shape).ravel()
    order = np.argsort(-gains.ravel() / costs, kind="stable")
    spent = np.cumsum(costs[order])
    parts = np.clip((budget - (spent - costs[order])) / costs[order], 0.0, 1.0)
    return float(gains.ravel()[order] @ parts)
