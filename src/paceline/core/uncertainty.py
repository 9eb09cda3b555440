"""How sure a figure is that was measured again and again: samples in repeats, repeats in runs, runs in sessions.

Runs differ by more than their samples say, and sessions by more than their runs. So the degrees of freedom come from
the highest level that varies: of a side with several sessions, their means are the units; of one with a single session,
its runs. What shifts a whole session cancels where both sides of a comparison were measured in it. Where a side has too
few units to show how far they scatter, the other side and the history of the same case and machine show it; without
either nothing can be decided. All functions take many cases at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.stats import CONFIDENCE, student_quantile

ENOUGH = 5  # units of each side, from which they say themselves how far they scatter
SEPARATE = 3  # units of each side, from which each side has a variance of its own (Welch)
FEW = 2  # degrees of freedom: of fewer, the level above may have more
LARGER = 4.0  # times the variance of the history: then the history is not about these units

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Level(StrEnum):
    """What the units are whose scatter decides, the highest first."""

    SESSION = "session"
    RUN = "run"
    REPEAT = "repeat"
    SAMPLE = "sample"


class Part(NamedTuple):
    """One repeat: where it belongs, the logarithm of its figure, and how far its own samples leave that open."""

    session: str
    run: str
    log: float
    variance: float = math.nan  # NaN where a single value says nothing about itself
    freedom: float = 1.0  # of the variance


Cases = Sequence[Sequence[Part]]


class Estimates(NamedTuple):
    """The mean of each case's parts, as logarithms."""

    logs: Floats
    variances: Floats  # of the mean; NaN where nothing is known of it
    freedoms: Floats
    levels: list[Level]  # what varies
    units: Integers  # how many of them


class Differences(NamedTuple):
    """What each case's new side has over its reference, as logarithms."""

    references: Floats  # means of the sides
    news: Floats
    changes: Floats
    variances: Floats  # of the change; NaN where it cannot be known
    freedoms: Floats
    scatters: Floats  # the variance of one unit
    levels: list[Level]  # what the units are
    units: list[tuple[int, int]]  # of each side
    runs: list[tuple[int, int]]  # of each side
    histories: Floats  # degrees of freedom that come from the history


def estimates(cases: Cases) -> Estimates:
    """The mean of each case's parts and its variance, from the highest level that varies."""
    count = len(cases)
    with np.errstate(all="ignore"):
        parts, freedom = _flat(cases, {})
        runs = _group(parts, parts.case, parts.session, parts.run)
        sessions = _group(runs, runs.case, runs.session)
        levels = [_group(units, units.case) for units in (sessions, runs, parts)]
        # Satterthwaite: a sum of variances knows as much as its largest members do.
        freedoms = _sum(parts.own, parts.case, count) ** 2 / _sum(parts.own**2 / freedom, parts.case, count)
        variances, units, places = levels[2].own, levels[2].counts, np.full(count, len(levels))
        for place, level in reversed(list(enumerate(levels))):
            varies = level.counts > 1
            spread = level.scatter / (level.counts - 1) / level.counts
            spread = np.where(level.counts < SEPARATE, np.fmax(spread, level.own), spread)
            variances = np.where(varies, spread, variances)
            freedoms = np.where(varies, level.counts - 1, freedoms)
            units, places = np.where(varies, level.counts, units), np.where(varies, place, places)
    names = list(Level)
    return Estimates(levels[0].logs, variances, freedoms, [names[one] for one in places], units.astype(np.int64))


def differences(references: Cases, news: Cases, histories: Sequence[Cases] = ()) -> Differences:
    """Compare the sides of each case; a history has earlier parts of one side of each case."""
    numbers: dict[str, int] = {}
    with np.errstate(all="ignore"):
        runs = [_runs(side, numbers) for side in (references, news)]
        past = [_runs(side, numbers) for side in histories]
        cells = [_group(side, side.case, side.session) for side in runs]
        within, between = _within_sessions(cells, past, len(references)), _between_sessions(cells, past)
        known = [one.freedom + one.past_freedom for one in (within, between)]
        # Where the runs of shared sessions are too few, the scatter of sessions is at least as large as theirs.
        is_within = np.isfinite(within.factor) & ((known[0] >= FEW) | (known[0] >= known[1]))
        chosen = _Contrast(*(np.where(is_within, one, other) for one, other in zip(within, between, strict=True)))
        variances, freedoms, scatters, borrowed = _judged(chosen)
        counted = [_group(side, side.case).counts.astype(int).tolist() for side in runs]
    return Differences(
        references=chosen.reference,
        news=chosen.reference + chosen.change,
        changes=chosen.change,
        variances=variances,
        freedoms=freedoms,
        scatters=scatters,
        levels=[Level.RUN if one else Level.SESSION for one in is_within],
        units=list(zip(chosen.before.astype(int).tolist(), chosen.after.astype(int).tolist(), strict=True)),
        runs=list(zip(*counted, strict=True)),
        histories=borrowed,
    )


class _Units(NamedTuple):
    """Parts, runs or sessions as arrays."""

    case: Integers
    session: Integers
    run: Integers
    logs: Floats
    own: Floats  # the variance that the samples within leave
    counts: Floats  # of what each consists of
    scatter: Floats  # sum of the squares around their mean


class _Contrast(NamedTuple):
    """What the units of each case say about its change."""

    reference: Floats
    change: Floats
    factor: Floats  # variance of the change, for units of variance one
    scatter: Floats
    freedom: Floats
    welch: Floats  # variance of the change and its freedom, if each side has a variance of its own
    welch_freedom: Floats
    own: Floats
    before: Floats  # units of each side
    after: Floats
    past_scatter: Floats
    past_freedom: Floats


def _within_sessions(cells: Sequence[_Units], past: Sequence[_Units], count: int) -> _Contrast:
    """Of the sessions in which both sides were measured: runs are the units, and a session's shift cancels."""
    (one, other), sessions = cells, 1 + max(int(side.session.max(initial=0)) for side in cells)
    keys = [side.case * sessions + side.session for side in cells]
    _, here, there = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    case = one.case[here]
    before, after = one.counts[here], other.counts[there]
    weight = before * after / (before + after)
    total = _sum(weight, case, count)
    total[total == 0] = np.nan
    change = _sum(weight * (other.logs[there] - one.logs[here]), case, count) / total
    residual = weight * (other.logs[there] - one.logs[here] - change[case]) ** 2
    shared = _sum(np.ones(len(case)), case, count)
    counts = [_sum(before, case, count), _sum(after, case, count)]
    alone = [_sum(side.scatter[place], case, count) for side, place in ((one, here), (other, there))]
    welch, welch_freedom = _welch(counts, alone)
    earlier = [_group(side, side.case, side.session) for side in past]
    return _Contrast(
        reference=_sum(weight * one.logs[here], case, count) / total,
        change=change,
        factor=1.0 / total,
        scatter=_sum(residual, case, count) + sum(_sum(side.scatter, side.case, count) for side in cells),
        freedom=shared - 1.0 + sum(_sum(side.counts - 1.0, side.case, count) for side in cells),
        welch=np.where(shared == 1, welch, np.nan),
        welch_freedom=welch_freedom,
        own=_sum((weight / total[case]) ** 2 * (one.own[here] + other.own[there]), case, count),
        before=counts[0],
        after=counts[1],
        past_scatter=sum((_sum(side.scatter, side.case, count) for side in earlier), np.zeros(count)),
        past_freedom=sum((_sum(side.counts - 1.0, side.case, count) for side in earlier), np.zeros(count)),
    )


def _between_sessions(cells: Sequence[_Units], past: Sequence[_Units]) -> _Contrast:
    """Of sides that share no session: means of sessions are the units."""
    before, after = (_group(side, side.case) for side in cells)
    count = len(before.case)
    welch, welch_freedom = _welch([before.counts, after.counts], [before.scatter, after.scatter])
    # One run of each session: no session of a side is an average of fewer.
    earlier = [_group(one, one.case) for one in map(_first_of_sessions, past)]
    return _Contrast(
        reference=before.logs,
        change=after.logs - before.logs,
        factor=1.0 / before.counts + 1.0 / after.counts,
        scatter=before.scatter + after.scatter,
        freedom=before.counts + after.counts - 2.0,
        welch=welch,
        welch_freedom=welch_freedom,
        own=before.own + after.own,
        before=before.counts,
        after=after.counts,
        past_scatter=sum((_sum(side.scatter, side.case, count) for side in earlier), np.zeros(count)),
        past_freedom=sum((_sum(side.counts - 1.0, side.case, count) for side in earlier), np.zeros(count)),
    )


def _welch(counts: Sequence[Floats], scatters: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The variance of the difference of two means, and Satterthwaite's degrees of freedom."""
    one, other = (scatter / (number - 1.0) / number for number, scatter in zip(counts, scatters, strict=True))
    freedom = (one + other) ** 2 / (one**2 / (counts[0] - 1.0) + other**2 / (counts[1] - 1.0))
    return one + other, np.where(one + other == 0, counts[0] + counts[1] - 2.0, freedom)


def _judged(of: _Contrast) -> tuple[Floats, Floats, Floats, Floats]:
    """Variance of the change, its freedom, the variance of one unit, and how much of the freedom is the history's."""
    fewest = np.minimum(of.before, of.after)
    is_quieter = (of.freedom > 1) & (of.scatter / of.freedom > LARGER * of.past_scatter / of.past_freedom)
    borrowed = np.where((fewest < ENOUGH) & ~is_quieter, of.past_freedom, 0.0)
    freedom = of.freedom + borrowed
    unit = (of.scatter + np.where(borrowed > 0, of.past_scatter, 0.0)) / freedom
    is_separate = (borrowed == 0) & (fewest >= SEPARATE) & np.isfinite(of.welch)
    # What the samples of each part leave open is there, however well two units happen to agree.
    variance = np.where(is_separate, of.welch, np.fmax(unit * of.factor, of.own))
    freedom = np.where(is_separate, of.welch_freedom, freedom)
    variance = np.where(freedom > 0, variance, np.nan)
    return variance, freedom, variance / of.factor, borrowed


def _runs(cases: Cases, numbers: dict[str, int]) -> _Units:
    parts, _ = _flat(cases, numbers)
    return _group(parts, parts.case, parts.session, parts.run)


def _flat(cases: Cases, numbers: dict[str, int]) -> tuple[_Units, Floats]:
    """All parts, and the freedom of each one's own variance; sessions and runs are numbered alike everywhere."""
    case = np.repeat(np.arange(len(cases)), [len(parts) for parts in cases])
    names, every = numbers, [part for parts in cases for part in parts]
    places = [(names.setdefault(one.session, len(names)), names.setdefault(one.run, len(names))) for one in every]
    session, run = np.array(places, dtype=np.int64).reshape(-1, 2).T
    figures = np.array([part[2:] for part in every], dtype=np.float64).reshape(-1, 3)
    logs, own, freedom = figures.T
    return _Units(case, session, run, logs, own, np.ones(len(every)), np.zeros(len(every))), freedom


def _group(units: _Units, *keys: Integers) -> _Units:
    """Means of the units that have the same keys; in the order of these."""
    combined = np.zeros(len(units.case), dtype=np.int64)
    for key in keys:
        combined = combined * (1 + key.max(initial=0)) + key
    _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
    counts = np.bincount(inverse, minlength=len(first)).astype(np.float64)
    logs = _sum(units.logs, inverse, len(first)) / counts
    scatter = _sum((units.logs - logs[inverse]) ** 2, inverse, len(first))
    own = _sum(units.own, inverse, len(first)) / counts**2
    return _Units(units.case[first], units.session[first], units.run[first], logs, own, counts, scatter)


def _first_of_sessions(runs: _Units) -> _Units:
    sessions = _group(runs, runs.case, runs.session)
    _, first = np.unique(runs.case * (1 + runs.session.max(initial=0)) + runs.session, return_index=True)
    return sessions._replace(logs=runs.logs[first])


def _sum(values: Floats, places: Integers, count: int) -> Floats:
    return np.bincount(places, values, count).astype(np.float64)


def units_needed(scatter: float, reach: float, most: int = 1000) -> int | None:
    """Units of each side from which the interval of a change reaches no farther than this; None for too many."""
    for count in range(2, most + 1):
        quantile = student_quantile(0.5 + CONFIDENCE / 2.0, 2.0 * min(count - 1, 100))
        if quantile * math.sqrt(2.0 * scatter / count) <= reach:
            return count
    return None
