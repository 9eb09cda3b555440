"""How far chance alone takes a healthy node: the noise of each metric between nodes, its size and its tail.

Defects make a metric worse, never better. So the better half of the nodes shows noise alone, however far it reaches,
and the worse half shows it near the median, where no defect counts yet. Each half is matched with Student's
distributions from normal to very heavy tails; what all metrics say together is where each begins, so that a hundred
nodes are enough to know a tail. The halves of a metric are most likely alike, and each then speaks for the other; where
they are not, the heavier tail is believed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.baseline import FEW_NODES, SCALE, column_medians
from paceline.analysis.diagnose.table import MetricColumn
from paceline.core.metric import Better
from paceline.core.stats import student_upper

Floats = NDArray[np.float64]

FARTHEST = 3.0  # deviations beyond which a node has no say in the spread
WITHIN_FARTHEST = 0.97334  # variance of normal noise within it
# Degrees of freedom of Student's t, with the deviation that `spreads` gives of it.
SHAPES = (
    (math.inf, 1.0), (50.0, 1.0147), (20.0, 1.0365), (10.0, 1.0717), (6.0, 1.1163), (5.0, 1.1378), (4.0, 1.1689),
    (3.5, 1.1905), (3.0, 1.2184), (2.5, 1.2562), (2.0, 1.3108), (1.5, 1.3979), (1.0, 1.5686),
)  # fmt: skip
NORMAL_FIRST = np.asarray([0.999, *([0.001 / (len(SHAPES) - 1)] * (len(SHAPES) - 1))])
ONE_HEAVIER = np.eye(
    len(SHAPES), k=1
)  # from each shape to the next, but from nearly normal ones and the heaviest to itself
ONE_HEAVIER[:2] = np.eye(len(SHAPES))[:2]
ONE_HEAVIER[-1, -1] = 1.0
BELIEF = 8.0  # metrics that it takes to outweigh it
UNLIKE = 0.01  # the part of metrics whose better and worse half may have different tails
BELIEVED = 8.0  # deviations: one freak value says no more than this about a tail
FROM = 0.5  # deviations from which on a node says something about a tail; values that are all alike do not
NEAR = 3.5  # deviations up to which the worse half shows noise
ROUNDS = 150  # of learning what all metrics have in common
KNOTS = np.expm1(np.linspace(0.0, math.log1p(1e6), 240))


def spreads(values: Floats) -> Floats:
    """The standard deviation of each column, of the nodes near its median alone: as good as with nobody far off."""
    distance = np.abs(values - column_medians(values))
    spread = SCALE * column_medians(distance)
    for _ in range(2):
        is_near = distance <= FARTHEST * spread
        count = np.maximum(is_near.sum(axis=0) - 1, 1)
        squares = np.einsum("ij,ij->j", np.where(is_near, distance, 0.0), np.where(is_near, distance, 0.0))
        spread = np.sqrt(squares / count / WITHIN_FARTHEST)
    return spread


def freedom(nodes: Floats) -> Floats:
    """Degrees of freedom of a spread from so many nodes, fitted to what it gives of normal noise."""
    return np.maximum(np.maximum(0.38 * nodes, 0.85 * nodes - 7.0), 1.0)


@dataclass(frozen=True)
class Tails:
    """For each column, the chance that a healthy node is worse than so many deviations."""

    chances: Floats  # a row for each column: the logarithm of the chance at each of KNOTS

    def log_chance(self, column: int, deviations: Floats) -> Floats:
        """The logarithm of the chance of being worse than this."""
        return np.asarray(np.interp(np.log1p(deviations), np.log1p(KNOTS), self.chances[column]))

    def limit(self, log_chance: float) -> Floats:
        """By column, the deviations beyond which the chance is smaller than this."""
        scale = np.log1p(KNOTS)
        found = [np.interp(-log_chance, -one, scale, right=math.inf) for one in self.chances]
        return np.expm1(np.asarray(found))


def learn_tails(deviations: Floats, freedoms: Floats) -> Tails:
    """The tails of columns of deviations, each by its own nodes and by what all columns have in common."""
    degrees = _rounded(freedoms)
    fits = _fits(deviations, degrees)
    shared = np.full(len(SHAPES), 1.0 / len(SHAPES))
    for _ in range(ROUNDS):
        weights = _weights(fits, shared)
        shared = (weights.mean(axis=0).sum(axis=0) + BELIEF * NORMAL_FIRST) / (degrees.size + BELIEF)
    # Of noise that adds up from several heavy-tailed parts, the middle looks lighter than the tail is.
    weights = weights @ ONE_HEAVIER
    chances = np.empty((degrees.size, KNOTS.size))
    for column, degree in enumerate(degrees.tolist()):
        halves = weights[:, column, :] @ _chances(degree)
        chances[column] = np.log(np.maximum(halves.max(axis=0), 1e-300))
    return Tails(chances)


def _weights(fits: Floats, shared: Floats) -> Floats:
    """How likely each shape is, of each half of each column, if columns have shapes as often as `shared` says."""
    together = fits[0] * fits[1] * shared
    apart = fits * shared
    sums, sums_apart = together.sum(axis=-1, keepdims=True), apart.sum(axis=-1, keepdims=True)
    is_alike = (1.0 - UNLIKE) * sums
    is_alike /= is_alike + UNLIKE * sums_apart.prod(axis=0)
    # Halves of which no shape explains both have no sum together.
    return np.asarray(is_alike * together / np.maximum(sums, 1e-300) + (1.0 - is_alike) * apart / sums_apart)


def _fits(deviations: Floats, degrees: Floats) -> Floats:
    """How well each shape explains the better and the worse half of each column: likelihoods, the best is 1."""
    logs = np.zeros((2, degrees.size, len(SHAPES)))
    is_better = deviations <= -FROM
    is_near = (deviations >= FROM) & (deviations <= NEAR)
    squares = np.square(np.where(is_better | is_near, np.maximum(deviations, -BELIEVED), 0.0))
    for number, (shape, unit) in enumerate(SHAPES):
        degree = 1.0 / (1.0 / shape + 1.0 / degrees)
        constants = np.asarray([_log_front(one) for one in degree.tolist()]) + math.log(unit)
        decline = np.log1p(squares * (unit * unit / degree)) * (-(degree + 1.0) / 2.0)
        for half, (is_shown, end) in enumerate(((is_better, math.inf), (is_near, NEAR))):
            shown = np.asarray([_log_between(FROM * unit, end * unit, one) for one in degree.tolist()])
            sums = np.where(is_shown, decline, 0.0).sum(axis=0)
            logs[half, :, number] = is_shown.sum(axis=0) * (constants - shown) + sums
    return np.asarray(np.exp(logs - logs.max(axis=-1, keepdims=True)))


def _rounded(freedoms: Floats) -> Floats:
    """Rounded down to steps of 5 %, so that few curves have to be drawn."""
    return np.asarray(1.05 ** np.floor(np.log(np.minimum(freedoms, 1e5)) / math.log(1.05)))


@lru_cache(maxsize=256)
def _chances(degree: float) -> Floats:
    """The chance of being beyond each of KNOTS, a row for each shape."""
    of_shapes = [(1.0 / (1.0 / shape + 1.0 / degree), unit) for shape, unit in SHAPES]
    return np.asarray([[student_upper(knot * unit, one) for knot in KNOTS.tolist()] for one, unit in of_shapes])


@lru_cache(maxsize=4096)
def _log_front(degree: float) -> float:
    """The logarithm of the density of Student's t at zero."""
    return math.lgamma((degree + 1.0) / 2.0) - math.lgamma(degree / 2.0) - 0.5 * math.log(degree * math.pi)


@lru_cache(maxsize=4096)
def _log_between(low: float, high: float, degree: float) -> float:
    """The logarithm of the chance of lying between the two."""
    return math.log(student_upper(low, degree) - (student_upper(high, degree) if math.isfinite(high) else 0.0))


FALSE_SHARE = 0.04  # healthy nodes that may be accused, for each defective one
SEEN = 0.8  # the part of defects of a size that must be found for the size to count as seen
LEAST = 0.01  # a smaller change makes no node defective, however alike the others are
FINEST = LEAST / 10  # spread below which nodes count as equal
NOTHING = 1e-9  # of its reference, in place of a rate of zero, which has no logarithm
CLIP = 8.0  # deviations: a single metric has no more say in a mean
FREAKS = 4  # nodes whose being far too good says nothing about the others
APART = 3.0  # times as far from the others as the next best node
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
class Freak:
    """A node that is far better than all others in a whole component, and by which part."""

    node: int
    component: str
    gain: float


@dataclass(frozen=True)
class Outliers:
    """All of it."""

    accused: tuple[Accused, ...]
    limits: Floats  # by metric, the loss beyond which a node is accused for it alone, as a logarithm
    smallest: Floats  # by metric, the loss that would have been found in it alone, as a logarithm
    sensitivities: tuple[Sensitivity, ...]
    freaks: tuple[Freak, ...]


def losses(values: Floats, references: Floats, columns: Sequence[MetricColumn]) -> Floats:
    """How much worse than its reference each value is, as a logarithm; where signs forbid it, as a part of it.

    From a reference of zero there is no part; the distance itself is given. A rate of zero counts as a tiny one, so
    that a node which does nothing does not change how the others are judged.
    """
    signs = np.asarray([-1.0 if column.better is Better.HIGHER else 1.0 for column in columns])
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where((values == 0.0) & (signs < 0.0) & (references > 0.0), NOTHING * references, values)
        is_positive = ~(np.minimum(values, references) <= 0.0).any(axis=0)
        parts = (values - references) / np.where(references == 0.0, 1.0, np.abs(references))
        return np.asarray(signs * np.where(is_positive, np.log(values / references), parts))


def lost_together(values: Floats, references: Floats, columns: Sequence[MetricColumn]) -> float:
    """The part of what several metrics should reach that one node lost, on average over those that it measured."""
    is_known = ~np.isnan(values) & ~np.isnan(references)
    signs = np.asarray([-1.0 if column.better is Better.HIGHER else 1.0 for column in columns])[is_known]
    values, references = values[is_known], references[is_known]
    if (np.minimum(values, references) > 0.0).all():
        return as_part(float(np.mean(signs * np.log(values / references))))
    moved = signs * (values - references) / np.abs(references)  # zero has no logarithm
    return float(np.mean(np.where(signs > 0.0, moved / (1.0 + np.maximum(moved, 0.0)), moved)))


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
    part: float = 1.0,
) -> Outliers:
    """Judge losses by the spread that is given, and where it is not (not a number), by that of the nodes themselves.

    Every metric needs one of the two. `centred`: the reference is the nodes' own median, not a baseline's. `part`: of
    all metrics, those to come included, so that looks on the way accuse as few by chance as one at the end.
    """
    return _Search(worse, columns, given_spreads, given_freedoms, np.asarray(is_relative), centred).outliers(part)


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
        self.freaks = list(self.find_freaks(shown)) if self.nodes >= FEW_NODES else []
        shown = self.without_freaks(shown) if self.nodes >= FEW_NODES else shown[:0]
        # Means have tails of their own, lighter than those of what they are means of.
        of_metrics = learn_tails(shown[:, : self.metrics], freedoms)
        self.tails = Tails(
            np.vstack([of_metrics.chances, learn_tails(shown[:, self.metrics :], mean_freedoms).chances])
        )

    def outliers(self, part: float) -> Outliers:
        tests = self.deviations.shape[1]
        chances = [self.unusual(test, 1.0) for test in range(tests)]
        best = self.smallest_chances(chances)
        # The chance that a node's smallest may have, by how many nodes are worse. Benjamini and Hochberg count the node
        # itself among them, and so let twice as many healthy ones pass beside a single defective one.
        worse = np.log(np.maximum(np.arange(self.nodes), 1))
        allowed = math.log(FALSE_SHARE * part / (self.nodes * tests)) + worse - self.excess(tests)
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
            freaks=tuple(self.freaks),
        )

    def find_freaks(self, shown: Floats) -> Iterator[Freak]:
        """Nodes that are of another kind, it seems: all of a component is far better, and no other node is near them.

        Chance does not do that to many metrics at once; one that it does it to is taken for chance.
        """
        for group in self.means:
            if not group.is_component:
                continue
            members = list(group.members)
            middles = np.nan_to_num(column_medians(shown[:, members].T))
            order = np.argsort(middles, kind="stable")
            for count in range(min(FREAKS, max(1, self.nodes // 10)), 0, -1):
                last, following = middles[order[count - 1]], middles[order[count]]
                if last <= -BELIEVED and last <= APART * following:
                    for node in order[:count].tolist():
                        yield Freak(node, group.name, math.expm1(-float(np.nanmean(self.worse[node, members]))))
                    break

    def without_freaks(self, shown: Floats) -> Floats:
        """What shows how far chance goes: a freak would show it in each metric anew."""
        shown = shown.copy()
        of_components = {group.name: set(group.members) for group in self.means if group.is_component}
        for freak in self.freaks:
            members = of_components[freak.component]
            columns = [self.metrics + place for place, one in enumerate(self.means) if members & set(one.members)]
            shown[freak.node, [*members, *columns]] = np.nan
        return shown

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
