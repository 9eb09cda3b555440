"""Simulated fleets with a known truth: when nodes become defective, what shows it, and when a job runs into it.

Nothing here knows how a selector models a fleet, and none of the three is of the form that ours assumes. `steady`: the
rates of nodes differ by a gamma factor, and stay. `racks`: young and old nodes fail more often, racks have bad weeks,
repairs that did not help, defects that begin small, benchmarks that accuse healthy nodes. `drifting`: half of the nodes
grow worse, the mix of defects moves, and a driver brings a kind of defect that was never seen before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

MINUTES = {
    "kernel-launch": 1.0,
    "gemm": 6.0,
    "matmul": 4.0,
    "blas": 5.0,
    "dnn": 5.0,
    "stream": 2.0,
    "copy": 4.0,
    "memory-latency": 2.0,
    "p2p": 3.0,
    "collective": 12.0,
    "overlap": 8.0,
    "tcp": 2.0,
    "rdma": 6.0,
    "disk": 15.0,
    "inference": 10.0,
    "train-cnn": 18.0,
    "train-bert": 20.0,
    "train-gpt": 25.0,
    "all-nodes": 20.0,
    "burn": 30.0,
}
BENCHMARKS = tuple(MINUTES)


@dataclass(frozen=True)
class Kind:
    """A kind of defect: how often, what finds it with which probability in one go, days until a job runs into it."""

    share: float
    days: float  # mean, from its beginning to an incident
    seen_by: dict[str, float]
    warns: float = 0.5  # the part that leaves events in the logs before

    @property
    def sensitivity(self) -> NDArray[np.float64]:
        """By benchmark."""
        return np.array([self.seen_by.get(name, 0.0) for name in BENCHMARKS])


KINDS = {
    "nic": Kind(0.16, 25, {"rdma": 0.93, "all-nodes": 0.8, "tcp": 0.3}, 0.7),
    "pcie": Kind(0.13, 40, {"copy": 0.95, "p2p": 0.3, "collective": 0.4, "train-cnn": 0.4}, 0.5),
    "throttle": Kind(
        0.13,
        30,
        {"burn": 0.95, "gemm": 0.6, "matmul": 0.5, "inference": 0.4, "train-bert": 0.7, "train-gpt": 0.75},
        0.6,
    ),
    "hbm": Kind(0.12, 20, {"stream": 0.9, "copy": 0.3, "gemm": 0.35, "train-bert": 0.5, "train-gpt": 0.6}, 0.7),
    "nvlink": Kind(0.11, 25, {"p2p": 0.92, "collective": 0.85, "overlap": 0.6, "train-gpt": 0.4}, 0.6),
    "host-memory": Kind(0.08, 35, {"memory-latency": 0.85, "stream": 0.2, "train-cnn": 0.25}, 0.5),
    "disk": Kind(0.07, 45, {"disk": 0.9}, 0.5),
    "cpu": Kind(0.05, 50, {"kernel-launch": 0.8, "memory-latency": 0.5, "tcp": 0.3, "train-cnn": 0.3}, 0.2),
    "library": Kind(0.05, 40, {"dnn": 0.85, "blas": 0.4, "inference": 0.6, "train-bert": 0.5}, 0.1),
    "tensor-unit": Kind(0.05, 25, {"gemm": 0.85, "matmul": 0.7, "blas": 0.8}, 0.3),
    "whole-model": Kind(0.03, 40, {"train-bert": 0.6, "train-gpt": 0.7, "overlap": 0.3}, 0.2),
    "unseen": Kind(0.02, 30, {"burn": 0.1}, 0.3),
}
DRIVER = Kind(0.0, 20, {"dnn": 0.4, "inference": 0.85, "train-bert": 0.6}, 0.3)  # its share grows from nothing


@dataclass
class Defect:
    """What is wrong with a node, which nobody sees before a benchmark or a job does."""

    kind: str
    since: int
    incident: int  # the day on which a job runs into it
    event: int  # the day of its entry in the logs, or -1
    key: tuple[int, ...]  # of its random numbers


class Fleet:
    """Nodes that become defective, day by day; a fleet of the same seed has the same fate under every policy."""

    name = "steady"
    rate = 1 / 100  # defects a day and node, on average
    sudden = 0.05  # the part of defects that a job runs into on the same day
    noise = 1 / 200  # events a day of healthy nodes
    alarms = 0.0  # the probability that a benchmark accuses a healthy node

    def __init__(self, nodes: int, seed: int) -> None:
        self.nodes, self.seed = nodes, seed
        self.benchmarks = BENCHMARKS
        self.minutes = np.array(list(MINUTES.values()))
        self.kinds = dict(KINDS)
        self.defects: dict[int, Defect] = {}
        self.counts = np.zeros(nodes, dtype=int)
        generator = np.random.default_rng([seed, 1])
        self.frailty = generator.gamma(0.5, 2.0, nodes)  # mean 1: some nodes never, some again and again
        self.installed = np.zeros(nodes, dtype=int)  # the first day of each

    def hazard(self, day: int) -> NDArray[np.float64]:
        """The probability that each node becomes defective today."""
        return self.rate * self.frailty

    def shares(self, day: int) -> NDArray[np.float64]:
        """How often each kind is, today."""
        return np.array([kind.share for kind in self.kinds.values()])

    def visibility(self, defect: Defect, day: int) -> float:
        """What is left of a benchmark's sensitivity on this day."""
        return 1.0

    def step(self, day: int) -> tuple[list[int], list[int]]:
        """A day goes by: the nodes with events in their logs, and those on which a job ran into a defect."""
        generator = np.random.default_rng([self.seed, 2, day])
        draws, kinds, others = generator.random(self.nodes), generator.random(self.nodes), generator.random(self.nodes)
        present = self.installed <= day
        shares = np.cumsum(self.shares(day))
        for node in np.flatnonzero((draws < self.hazard(day)) & present):
            if int(node) not in self.defects:
                place = int(np.searchsorted(shares, kinds[node] * shares[-1]))
                self.begin(int(node), day, list(self.kinds)[min(place, len(shares) - 1)])
        events = set(np.flatnonzero((others < self.noise) & present).tolist())
        events |= {node for node, defect in self.defects.items() if defect.event == day}
        return sorted(events), [node for node, defect in self.defects.items() if defect.incident <= day]

    def begin(self, node: int, day: int, kind: str) -> None:
        """A node becomes defective."""
        self.counts[node] += 1
        key = (self.seed, 3, node, int(self.counts[node]))
        generator = np.random.default_rng(key)
        is_sudden, warns, wait, when = generator.random(4)
        lasts = 0 if is_sudden < self.sudden else 1 + int(-self.kinds[kind].days * math.log(max(wait, 1e-12)))
        event = day + int(when * min(lasts, 7)) if warns < self.kinds[kind].warns and lasts else -1
        self.defects[node] = Defect(kind, day, day + lasts, event, key)

    def check(self, node: int, day: int) -> Mask:
        """Which benchmarks would accuse the node today, if all were run."""
        defect = self.defects.get(node)
        if defect is None:
            return np.random.default_rng([self.seed, 4, node, day]).random(len(BENCHMARKS)) < self.alarms
        draws = np.random.default_rng([*defect.key, day]).random(len(BENCHMARKS))
        found: Mask = draws < self.kinds[defect.kind].sensitivity * self.visibility(defect, day)
        return found

    def repair(self, node: int, day: int) -> None:
        """Whatever was wrong is looked after."""
        self.defects.pop(node, None)


class Racks(Fleet):
    """Hazards by age and by rack, repairs that fail, defects that grow, false alarms."""

    name = "racks"
    alarms = 0.0005

    def __init__(self, nodes: int, seed: int) -> None:
        super().__init__(nodes, seed)
        generator = np.random.default_rng([seed, 5])
        self.age = generator.integers(0, 1200, nodes)  # on the first day
        late = generator.random(nodes) < 0.15
        self.installed = np.where(late, generator.integers(1, 300, nodes), 0)
        self.age[late] = 0
        self.rack = np.arange(nodes) // 16
        self.frailty = generator.lognormal(-0.5, 1.0, nodes)
        self.relapses: dict[int, tuple[int, str]] = {}

    def hazard(self, day: int) -> NDArray[np.float64]:
        age = self.age + np.maximum(0, day - self.installed)
        bathtub = 0.5 + 3.0 * np.exp(-age / 30) + (age / 1000) ** 3
        weeks = np.random.default_rng([self.seed, 6, day // 14]).random(self.rack[-1] + 1) < 0.05
        hazard: NDArray[np.float64] = 0.9 * self.rate * self.frailty * bathtub * np.where(weeks[self.rack], 6.0, 1.0)
        return np.minimum(0.5, hazard)

    def visibility(self, defect: Defect, day: int) -> float:
        return min(1.0, 0.4 + 0.6 * (day - defect.since) / 10)

    def step(self, day: int) -> tuple[list[int], list[int]]:
        for node, (when, kind) in list(self.relapses.items()):
            if when <= day:
                del self.relapses[node]
                if node not in self.defects:
                    self.begin(node, day, kind)
        return super().step(day)

    def repair(self, node: int, day: int) -> None:
        defect = self.defects.get(node)
        if defect is not None:
            helped, when = np.random.default_rng([*defect.key, 7]).random(2)
            if helped < 0.25:
                self.relapses[node] = (day + 1 + int(20 * when), defect.kind)
        super().repair(node, day)


class Drifting(Fleet):
    """From day 180 on, other nodes, other kinds of defects, and one that is new."""

    name = "drifting"
    turn = 180

    def __init__(self, nodes: int, seed: int) -> None:
        super().__init__(nodes, seed)
        self.kinds["driver"] = DRIVER
        self.second = np.random.default_rng([seed, 8]).gamma(0.5, 2.0, nodes)  # what the rates become
        self.is_old = np.arange(nodes) % 2 == 0

    def _gone(self, day: int) -> float:
        return min(1.0, max(0.0, (day - self.turn) / 120))

    def hazard(self, day: int) -> NDArray[np.float64]:
        gone = self._gone(day)
        moved = (1 - gone) * self.frailty + gone * (0.5 * self.frailty + 0.5 * self.second)
        return self.rate * moved * np.where(self.is_old, 1.0 + gone, 1.0 - 0.5 * gone)

    def shares(self, day: int) -> NDArray[np.float64]:
        gone = self._gone(day)
        moves = {"nic": -0.10, "pcie": -0.06, "disk": 0.05, "whole-model": 0.02, "hbm": 0.06, "driver": 0.08}
        return np.array([kind.share + gone * moves.get(name, 0.0) for name, kind in self.kinds.items()])


FLEETS: dict[str, type[Fleet]] = {fleet.name: fleet for fleet in (Fleet, Racks, Drifting)}
