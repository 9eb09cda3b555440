"""`compare`: how often it calls a change where nothing changed, and how often it shows one that is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.verdicts.cell import Cell
from paceline.analysis.compare.significance import FALSE_ALARMS, Cases, Ratio, RepeatSamples, ratios, significant
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement
from paceline.core.stats import Interval, Summary, student_upper

STEP_TIME = Metric(name="step_time", unit="s", better=Better.LOWER)
SAMPLES, WITHIN = 30, 0.01  # of each repeat, and their deviation
SHOCK = 0.02  # deviation of a session's shift
FAMILY = 300  # cases that are judged together
NO_CHANGE, SHIFTED, FAMILIES = "compare, no change", "compare, planted change", "compare, 300 unchanged cases"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """What is measured of one side of each case."""

    sessions: int = 1
    runs: int = 1  # of each session
    repeats: int = 1

    def __str__(self) -> str:
        parts = {"session": self.sessions, "run": self.runs, "repeat": self.repeats}
        return " x ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in parts.items())


@dataclass(frozen=True)
class Noise:
    """How far sessions and runs of the same thing differ."""

    run: float = 0.02
    session: float = 0.0
    is_common: bool = False  # a session shifts all cases alike


class Laboratory:
    """Measures cases of which the truth is known."""

    def __init__(self, cases: int, noise: Noise, seed: int) -> None:
        self.cases, self.noise, self.random = cases, noise, np.random.default_rng(seed)

    def sessions(self, count: int) -> Floats:
        """The shifts of some sessions, for each case."""
        width = 1 if self.noise.is_common else self.cases
        return np.broadcast_to(self.random.normal(0.0, self.noise.session, (count, width)), (count, self.cases))

    def side(self, name: str, layout: Layout, shifts: Floats, where: str, change: float = 0.0) -> tuple[Cases, Floats]:
        """The repeats of each case, and the logarithm of each run's mean, a row for each case."""
        shape = (self.cases, layout.sessions, layout.runs)
        runs = change + shifts.T[:, :, None] + self.random.normal(0.0, self.noise.run, shape)
        repeats = runs[..., None] + self.random.normal(0.0, WITHIN / np.sqrt(SAMPLES), (*shape, layout.repeats))
        places = [
            (f"{where}{s}", f"{name}{where}{s}.{r}", s, r) for s in range(layout.sessions) for r in range(layout.runs)
        ]
        made = [
            [
                RepeatSamples(_measured(float(repeats[case, s, r, k])), (), run, session)
                for session, run, s, r in places
                for k in range(layout.repeats)
            ]
            for case in range(self.cases)
        ]
        return made, repeats.mean(axis=3).reshape(self.cases, -1)


def _measured(log: float) -> Measurement:
    """A mean time with what is known of its samples; drawing each sample would change nothing but the time it takes."""
    value = float(np.exp(log))
    reach = 2.045 * WITHIN * value / SAMPLES**0.5
    interval = Interval(low=value - reach, high=value + reach, confidence=0.95)
    summary = Summary(
        count=SAMPLES,
        effective_count=SAMPLES,
        mean=value,
        median=value,
        minimum=value,
        maximum=value,
        deviation=WITHIN * value,
        mean_interval=interval,
        median_interval=interval,
        percentiles={},
        outliers=0,
    )
    return Measurement(metric=STEP_TIME, statistic="mean", summary=summary, samples=[])


def cells(replicates: int, seed: int) -> Iterator[Cell]:
    """False calls in every layout, with and without history; families with a common shock; power against Welch."""
    yield from _same_session(replicates, seed)
    yield from _other_sessions(replicates, seed)
    yield from _histories(replicates, seed)
    yield from _families(max(20, replicates // 10), seed)
    yield from _powers(replicates, seed)


def _same_session(replicates: int, seed: int) -> Iterator[Cell]:
    for runs in (1, 2, 3, 5):
        for repeats in (1, 5):
            layout = Layout(runs=runs, repeats=repeats)
            for between in (0.0, 0.01, 0.02, 0.03):
                lab = Laboratory(replicates, Noise(run=between, session=SHOCK), seed)
                judged = _compared(lab, layout, layout, is_shared=True)
                yield _false_calls(f"{layout} of each side, one session, {between:.0%} between runs", judged)
    lab = Laboratory(replicates, Noise(session=SHOCK), seed)
    uneven = _compared(lab, Layout(runs=5), Layout(runs=1), is_shared=True)
    yield _false_calls("5 runs and 1 run, one session, 2% between runs", uneven)


def _other_sessions(replicates: int, seed: int) -> Iterator[Cell]:
    for sessions in (1, 2, 3, 5):
        for runs in (1, 3):
            layout = Layout(sessions=sessions, runs=runs)
            for is_shared in (False, True) if sessions > 1 else (False,):
                lab = Laboratory(replicates, Noise(run=0.01, session=SHOCK), seed)
                where = "the same sessions" if is_shared else "sessions of its own"
                yield _false_calls(
                    f"{layout} of each side, {where}", _compared(lab, layout, layout, is_shared=is_shared)
                )


def _histories(replicates: int, seed: int) -> Iterator[Cell]:
    for past in (Layout(sessions=3, runs=3), Layout(sessions=10), Layout(sessions=20)):
        for layout in (Layout(), Layout(runs=3), Layout(repeats=5)):
            for is_shared in (False, True):
                lab = Laboratory(replicates, Noise(run=0.01, session=SHOCK), seed)
                where = "one session" if is_shared else "one session each"
                judged = _compared(lab, layout, layout, is_shared=is_shared, past=past)
                yield _false_calls(f"{layout} of each side, {where}, history of {past}", judged)


def _families(replicates: int, seed: int) -> Iterator[Cell]:
    """Families in which anything is called, where a session shifts all cases alike."""
    layouts = {
        "one session each": (Layout(runs=3), False, None),
        "one session each, history of 10 sessions": (Layout(runs=3), False, Layout(sessions=10)),
        "3 sessions each": (Layout(sessions=3), False, None),
        "3 runs each in one session": (Layout(runs=3), True, None),
        "1 run each in one session, history of 5 x 3 runs": (Layout(), True, Layout(sessions=5, runs=3)),
    }
    for name, (layout, is_shared, past) in layouts.items():
        called = decided = 0
        for family in range(replicates):
            lab = Laboratory(FAMILY, Noise(run=0.01, session=SHOCK, is_common=True), seed + family)
            judged = _compared(lab, layout, layout, is_shared=is_shared, past=past)
            called += any(significant([ratio.chance for ratio in judged], FALSE_ALARMS))
            decided += any(ratio.interval is not None for ratio in judged)
        yield Cell(FAMILIES, name, "families with a call", 0.05, at_most=True, hits=called, tries=decided,
                   withheld=replicates - decided)  # fmt: skip


def _powers(replicates: int, seed: int) -> Iterator[Cell]:
    """How many points of power less than Welch's test on the means of runs."""
    for runs in (3, 5):
        for repeats in (1, 5):
            for between in (0.0, 0.02):
                layout = Layout(runs=runs, repeats=repeats)
                error = np.sqrt(2.0 / runs * (between**2 + WITHIN**2 / SAMPLES / repeats))
                for distance in (3.0, 4.0):
                    lab = Laboratory(replicates, Noise(run=between, session=SHOCK), seed)
                    shifts = lab.sessions(1)
                    before, runs_before = lab.side("a", layout, shifts, "s")
                    after, runs_after = lab.side("b", layout, shifts, "s", change=distance * error)
                    judged = ratios(before, after)
                    ours = np.array([ratio.chance is not None and ratio.chance <= FALSE_ALARMS for ratio in judged])
                    theirs = _welch(runs_before, runs_after) <= FALSE_ALARMS
                    power = float(theirs.mean())
                    if 0.5 <= power <= 0.95:
                        lost = theirs.astype(float) - ours
                        case = f"{layout}, {between:.0%} between runs, shift where Welch shows {power:.0%}"
                        standard_error = float(lost.std(ddof=1)) / np.sqrt(len(lost))
                        yield Cell(SHIFTED, case, "power below Welch's", 0.05, at_most=True, value=float(lost.mean()),
                                   error=standard_error)  # fmt: skip


def _compared(
    lab: Laboratory, one: Layout, other: Layout, *, is_shared: bool, past: Layout | None = None
) -> list[Ratio]:
    """The ratios of sides of which neither changed."""
    shifts = lab.sessions(max(one.sessions, other.sessions))
    before, _ = lab.side("a", one, shifts[: one.sessions], "s")
    theirs = shifts[: other.sessions] if is_shared else lab.sessions(other.sessions)
    after, _ = lab.side("b", other, theirs, "s" if is_shared else "t")
    histories = [lab.side("h", past, lab.sessions(past.sessions), "h")[0]] if past else []
    return ratios(before, after, histories)


def _false_calls(case: str, judged: Sequence[Ratio]) -> Cell:
    chances = [ratio.chance for ratio in judged if ratio.chance is not None]
    called = sum(chance <= FALSE_ALARMS for chance in chances)
    withheld = len(judged) - len(chances)
    return Cell(NO_CHANGE, case.replace("%", " %"), "false calls", 0.06, at_most=True, hits=called, tries=len(chances),
                withheld=withheld)  # fmt: skip


def _welch(one: Floats, other: Floats) -> Floats:
    """Welch's t test of the rows of two tables, by its own formula."""
    parts = [side.var(axis=1, ddof=1) / side.shape[1] for side in (one, other)]
    freedoms = sum(parts) ** 2 / sum(
        part**2 / (side.shape[1] - 1) for part, side in zip(parts, (one, other), strict=True)
    )
    distances = np.abs(other.mean(axis=1) - one.mean(axis=1)) / np.sqrt(sum(parts))
    return np.array([2.0 * student_upper(float(t), float(f)) for t, f in zip(distances, freedoms, strict=True)])
