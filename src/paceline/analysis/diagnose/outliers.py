"""Nodes that are worse than chance explains, in one metric or in many that belong together.

A node's deviation in a metric is its distance from the reference in the bad direction, in units of the spread between
nodes. A defect of a component shows in several metrics, so the means over components, benchmarks, ranks and whole nodes
are judged as well, each by its own spread, which has the correlation of its metrics in it. How small the chance of a
node's worst deviation must be to accuse it depends on how much is looked at: for each defective node, only a small part
of a healthy one is to be expected among the accused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.baseline import FEW_NODES
from paceline.analysis.diagnose.table import MetricColumn
from paceline.analysis.diagnose.tails import Floats, Tails, freedom, learn_tails, spreads
from paceline.core.metric import Better

FALSE_SHARE = 0.04  # healthy nodes that may be accused, for each defective one
SEEN = 0.8  # the part of defects of a size that must be found for the size to count as seen
LEAST = 0.01  # a smaller change makes no node defective, however alike the others are
FINEST = LEAST / 10  # spread below which nodes count as equal
CLIP = 8.0  # deviations: a single metric has no more say in a mean
FREAKS = 4  # nodes whose being far too good says nothing about the others
MOST_EXCESS = 1000.0  # so that some better nodes never excuse all bad ones
UNUSUAL = 2.0  # deviations from which on a chance is worth working out
WHOLE_NODE = "whole node"
Places = NDArray[np.intp]
_MARGIN = NormalDist().inv_cdf(SEEN)


@dataclass(frozen=True)
class Group:
    """Metrics that one defect would move together."""

    name: str
    members: tuple[int, ...]  # places of its metrics
    is_component: bool = False


@dataclass(frozen=True)
class Accused:
    """A node, and where it is worse than chance explains: the groups that explain most first."""

    node: int
    groups: tuple[Group, ...]
    metrics: tuple[int, ...]


@dataclass(frozen=True)
class Sensitivity:
    """The smallest defects of a component that would have been found, as parts of what it should do."""

    component: str
    metrics: int
    spread: float  # between nodes, the middle one of its metrics
    together: float  # in all of its metrics
    alone: tuple[float, float]  # in one metric alone: in the steadiest, and in the one that varies most


@dataclass(frozen=True)
class Outliers:
    """All of it."""

    accused: tuple[Accused, ...]
    limits: Floats  # by metric, the loss beyond which a node is accused for it alone, as a logarithm
    smallest: Floats  # by metric, the loss that would have been found in it alone, as a logarithm
    sensitivities: tuple[Sensitivity, ...]


def losses(values: Floats, references: Floats, columns: Sequence[MetricColumn]) -> Floats:
    """How much worse than its reference each value is, as a logarithm; where signs forbid it, as a part of it.

    From a reference of zero there is no part; the distance itself is given.
    """
    signs = np.asarray([-1.0 if column.better is Better.HIGHER else 1.0 for column in columns])
    with np.errstate(invalid="ignore", divide="ignore"):
        is_positive = ~(np.minimum(values, references) <= 0.0).any(axis=0)
        parts = (values - references) / np.where(references == 0.0, 1.0, np.abs(references))
        return np.asarray(signs * np.where(is_positive, np.log(values / references), parts))


def groups_of(columns: Sequence[MetricColumn]) -> list[Group]:
    """Components first, then what is smaller or lies across them; the same metrics are one group only."""
    named: dict[tuple[str, bool], list[int]] = {}
    for place, column in enumerate(columns):
        named.setdefault((column.component, True), []).append(place)
    for place, column in enumerate(columns):
        named.setdefault((column.benchmark, False), []).append(place)
        if column.rank:
            named.setdefault((f"rank {column.rank}", False), []).append(place)
        named.setdefault((WHOLE_NODE, False), []).append(place)
    by_members: dict[tuple[int, ...], Group] = {}
    for (name, is_component), members in named.items():
        by_members.setdefault(tuple(members), Group(name, tuple(members), is_component))
    return list(by_members.values())


def find_outliers(
    worse: Floats,
    columns: Sequence[MetricColumn],
    given_spreads: Floats,
    given_freedoms: Floats,
    *,
    is_relative: Sequence[bool],
    centred: bool,
) -> Outliers:
    """Judge losses by the spread that is given, and where it is not (not a number), by that of the nodes themselves.

    Every metric needs one of the two. `centred`: the reference is the nodes' own median, not a baseline's.
    """
    return _Search(worse, columns, given_spreads, given_freedoms, np.asarray(is_relative), centred).outliers()


class _Search:
    """Metrics and groups side by side, as columns of one table of deviations."""

    def __init__(
        self,
        worse: Floats,
        columns: Sequence[MetricColumn],
        given_spreads: Floats,
        given_freedoms: Floats,
        is_relative: NDArray[np.bool_],
        centred: bool,
    ) -> None:
        self.nodes, self.metrics = worse.shape
        self.groups = [
            Group(one.name, tuple(place for place in one.members if is_relative[place]), one.is_component)
            for one in groups_of(columns)
        ]
        self.worse = worse
        self.is_relative = is_relative
        is_given = ~np.isnan(given_spreads)
        self.spreads = np.where(is_given, given_spreads, spreads(worse))
        self.spreads = np.where(is_relative, np.maximum(self.spreads, FINEST), self.spreads)
        freedoms = np.where(is_given, given_freedoms, freedom((~np.isnan(worse)).sum(axis=0)))
        with np.errstate(invalid="ignore", divide="ignore"):
            alone = np.where(worse == 0.0, 0.0, worse / self.spreads)
        self.means = [group for group in self.groups if len(group.members) > 1]
        together = np.empty((self.nodes, len(self.means)))
        losses_together = np.empty_like(together)
        self.mean_spreads = np.ones(len(self.means))
        mean_freedoms = np.empty(len(self.means))
        for place, group in enumerate(self.means):
            members = list(group.members)
            means = _means(np.clip(alone[:, members], -CLIP, CLIP))
            losses_together[:, place] = _means(worse[:, members])
            mean_freedoms[place] = freedoms[members].min()
            if self.nodes >= FEW_NODES:
                # A mean over few nodes whose spread is unknown could be anything.
                self.mean_spreads[place] = max(float(spreads(means[:, None])[0]), 1e-3)
                mean_freedoms[place] = freedom(np.asarray(float((~np.isnan(means)).sum())))
            middle = float(np.nanmedian(means)) if centred else 0.0
            together[:, place] = (means - middle) / self.mean_spreads[place]
        self.deviations = np.hstack([alone, together])
        self.losses = np.hstack([worse, losses_together])
        self.counts_always = np.concatenate([~is_relative, np.zeros(len(self.means), dtype=bool)])
        shown = self.deviations - np.nanmedian(self.deviations, axis=0) if not centred else self.deviations
        if self.nodes < FEW_NODES:
            shown = shown[:0]
        # Means have tails of their own, lighter than those of what they are means of.
        of_metrics = learn_tails(shown[:, : self.metrics], freedoms)
        self.tails = Tails(
            np.vstack([of_metrics.chances, learn_tails(shown[:, self.metrics :], mean_freedoms).chances])
        )

    def outliers(self) -> Outliers:
        tests = self.deviations.shape[1]
        chances = [self.unusual(test, 1.0) for test in range(tests)]
        best = self.smallest_chances(chances)
        # The chance that a node's smallest may have, by how many nodes are worse. Benjamini and Hochberg count the node
        # itself among them, and so let twice as many healthy ones pass beside a single defective one.
        worse = np.log(np.maximum(np.arange(self.nodes), 1))
        allowed = math.log(FALSE_SHARE / (self.nodes * tests)) + worse - self.excess(tests)
        accused = int(np.flatnonzero(np.sort(best) <= allowed).max(initial=-1)) + 1
        limit = float(allowed[accused - 1]) if accused else -math.inf
        by_node: dict[int, list[int]] = {}
        for test, (nodes, logs) in enumerate(chances):
            for node in nodes[logs <= limit].tolist():
                by_node.setdefault(node, []).append(test)
        # What it would have taken to be accused next.
        limits = self.tails.limit(float(allowed[min(accused, self.nodes - 1)]))
        least = math.log1p(LEAST)
        of_metrics = np.where(self.is_relative, self.spreads, np.nan)
        smallest = np.maximum((limits[: self.metrics] + _MARGIN) * of_metrics, least)
        return Outliers(
            accused=tuple(self.explained(node, found) for node, found in sorted(by_node.items())),
            limits=np.maximum(limits[: self.metrics] * of_metrics, least),
            smallest=smallest,
            sensitivities=tuple(self.sensitivities(limits[self.metrics :], smallest)),
        )

    def unusual(self, test: int, sign: float) -> tuple[Places, Floats]:
        """The nodes that are unusually bad (or good) in a metric or a mean, and the logarithms of the chance of it."""
        is_large = (sign * self.losses[:, test] > math.log1p(LEAST)) | self.counts_always[test]
        nodes = np.flatnonzero(is_large & (sign * self.deviations[:, test] > UNUSUAL))
        return nodes, self.tails.log_chance(test, sign * self.deviations[nodes, test])

    def smallest_chances(self, chances: Sequence[tuple[Places, Floats]]) -> Floats:
        """The smallest of each node."""
        best = np.zeros(self.nodes)
        for nodes, logs in chances:
            np.minimum.at(best, nodes, logs)
        return best

    def excess(self, tests: int) -> float:
        """By how much chance does more than the tails say, as a logarithm: nodes that are far too good show it."""
        chances = [self.unusual(test, -1.0) for test in range(tests)]
        best = np.sort(self.smallest_chances(chances))[FREAKS : self.nodes // 10]
        ranks = np.arange(FREAKS + 1, FREAKS + 1 + best.size)
        at_least = np.log((ranks - 2.0 * np.sqrt(ranks)) / (self.nodes * tests))  # less by the error of such a count
        return min(max(float((at_least - best).max(initial=0.0)), 0.0), math.log(MOST_EXCESS))

    def explained(self, node: int, found: list[int]) -> Accused:
        """What was found of a node, without groups that are only bad because of what is named already."""
        covered: set[int] = set()
        groups: list[Group] = []
        # Far out, chances depend on what is least known of the tails; deviations do not.
        for test in sorted(found, key=lambda one: -self.deviations[node, one]):
            if test < self.metrics:
                covered.add(test)
                continue
            group = self.means[test - self.metrics]
            rest = [place for place in group.members if place not in covered]
            values = self.deviations[node, rest]
            if rest and np.nanmean(np.clip(values, -CLIP, CLIP)) > UNUSUAL * self.mean_spreads[test - self.metrics]:
                groups = [one for one in groups if not set(one.members) <= set(group.members)] + [group]
                covered |= set(group.members)
        metrics = tuple(sorted(test for test in found if test < self.metrics))
        return Accused(node, tuple(groups), metrics)

    def sensitivities(self, mean_limits: Floats, smallest: Floats) -> Iterator[Sensitivity]:
        by_members = {group.members: place for place, group in enumerate(self.means)}
        for group in self.groups:
            if not group.is_component or not group.members:
                continue
            members = list(group.members)
            alone = smallest[members]
            together = float(alone.min())
            place = by_members.get(group.members)
            if place is not None:
                wanted = (mean_limits[place] + _MARGIN) * self.mean_spreads[place]
                together = min(together, _shift(float(wanted), self.spreads[members]))
            yield Sensitivity(
                component=group.name,
                metrics=len(members),
                spread=float(np.median(self.spreads[members])),
                together=as_part(max(together, math.log1p(LEAST))),
                alone=(as_part(float(alone.min())), as_part(float(alone.max()))),
            )


def as_part(loss: float) -> float:
    """A loss that is a logarithm, as a part of what should have been reached."""
    return -math.expm1(-loss)


def _means(values: Floats) -> Floats:
    """The mean of each row of which at least half was measured."""
    is_known = ~np.isnan(values)
    counts = is_known.sum(axis=1)
    sums = np.where(is_known, values, 0.0).sum(axis=1)
    return np.where(2 * counts >= values.shape[1], sums / np.maximum(counts, 1), np.nan)


def _shift(wanted: float, of_metrics: Floats) -> float:
    """The common loss that moves the clipped mean of deviations so far; without end where clipping forbids it."""
    if wanted >= CLIP:
        return math.inf
    low, high = 0.0, CLIP * float(of_metrics.max())
    for _ in range(50):
        middle = (low + high) / 2.0
        is_enough = np.minimum(middle / of_metrics, CLIP).mean() >= wanted
        low, high = (low, middle) if is_enough else (middle, high)
    return high
