"""`paceline tune` against a grid and random search on the embedded server.

The whole grid is measured once, every setting in several starts of the server, second by second. Then each searcher is
replayed over these seconds with many seeds: a trial takes one start at random, draws its seconds from that start, and
costs what that start took beside its load, and the seconds of the load. So figures and times are measured, and only
which of them a trial meets is drawn. Tunings of the real server follow, where PACELINE_TUNINGS says how many.

The best is the setting with the largest mean over all its starts, a maximum of noisy means: it is flattered, and all
parts of it are too small. So tuning is also replayed over one half of the starts of each setting and judged by the
other half, next to the best of the first half, which the whole grid would have chosen. PACELINE_TUNE_STARTS has more
starts measured, which makes both exacter. The target is judged by the former, the harder one.

PACELINE_TUNE_GRID names a file for the grid; one that exists is not measured again.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from bench.tune_grid import (
    AXES,
    ENGINE,
    LIMIT,
    MODEL,
    SECONDS,
    USERS,
    WARM_UP,
    Start,
    core_groups,
    measured_grid,
    settings,
)
from paceline.analysis.tune import LENGTHS, PROOF, WHOLE, Space, Trial, TrialResult, leader, search
from paceline.core.grouping import group_by

SEEDS = 20
LOAD = 18.0  # seconds in a whole trial
ROUNDS = 4
ENOUGH, QUARTER = 0.95, 0.25
LIVE_SECONDS = 9


class Replay:
    """Trials drawn from what was measured, and the time that they would have taken."""

    def __init__(self, starts: Sequence[Start], seed: int) -> None:
        self.starts = group_by(starts, lambda start: start.setting)
        self.random = random.Random(seed)
        self.seconds = 0.0

    def trial(self, trial: Trial) -> TrialResult:
        length = LOAD * LENGTHS[min(trial.rung, WHOLE)]
        start = self.random.choice(self.starts[trial.setting])
        took = start.overhead + (length if start.seconds else 0.0)
        self.seconds += took
        drawn = [self.random.choice(start.seconds) for _ in range(round(length))] if start.seconds else [0.0]
        value = fmean(drawn)
        if value <= 0:
            return TrialResult(trial, None, seconds=took)
        spread = math.sqrt(fmean((one - value) ** 2 for one in drawn) / len(drawn)) / value
        return TrialResult(trial, math.log(value), spread, took)


def truth(starts: Sequence[Start]) -> list[float]:
    """What each setting gives, over all its starts."""
    by_setting = group_by(starts, lambda start: start.setting)
    count = len(settings())
    return [fmean(s for start in by_setting[one] for s in start.seconds or [0.0]) for one in range(count)]


def tuned(starts: Sequence[Start], seed: int) -> tuple[int, float, float]:
    """The setting, the time of the search, and that of the rounds that prove it."""
    space = Space([tuple(values.index(one[name]) for name, values in AXES.items()) for one in settings()])
    searching, replay = search(space, ROUNDS, seed), Replay(starts, seed)
    made: list[TrialResult] = []
    times = [0.0, 0.0]
    try:
        batch = next(searching)
        while True:
            before = replay.seconds
            results = [replay.trial(trial) for trial in batch]
            times[batch[0].rung == PROOF] += replay.seconds - before
            made += results
            batch = searching.send(results)
    except StopIteration:
        return leader(space, made) or 0, times[0], times[1]


def _best(results: Sequence[TrialResult]) -> int:
    """By the figures alone, as grid and random search take it."""
    good = [(one.score, one.trial.setting) for one in results if one.score is not None]
    return max(good, default=(0.0, 0))[1]


def drawn_at_random(starts: Sequence[Start], seed: int, seconds: float) -> int:
    """The best of whole trials of random settings, as many as begin within the time."""
    replay, results = Replay(starts, seed), []
    order = random.Random(seed).sample(range(len(settings())), len(settings()))
    while order and replay.seconds < seconds:
        results.append(replay.trial(Trial(order.pop(), WHOLE)))
    return _best(results)


def whole_grid(starts: Sequence[Start], seed: int) -> tuple[int, float]:
    """The best of one whole trial of every setting, and the time of all."""
    replay = Replay(starts, seed)
    results = [replay.trial(Trial(setting, WHOLE)) for setting in range(len(settings()))]
    return _best(results), replay.seconds


def main() -> None:
    """Print what each searcher finds, as a part of the best, and in which part of the grid's time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(os.environ.get("PACELINE_TUNE_GRID") or Path(folder, "grid.json"))
        starts = measured_grid(path)
    values = truth(starts)
    best = max(values)
    overhead = fmean(start.overhead for start in starts)
    failed = sum(not start.seconds for start in starts)
    click.echo(
        f"{len(values)} settings, {len(starts) // len(values)} starts of {SECONDS} s each with {ENGINE}, "
        f"{failed} failed; {overhead:.1f} s beside the load; "
        f"goodput {min(values):.0f} to {best:.0f} requests/s, of the first {values[0]:.0f}"
    )
    rows: dict[str, list[tuple[float, float]]] = {"tune": [], "tune and its proof": [], "random": [], "grid": []}
    for seed in range(SEEDS):
        of_grid, grid_seconds = whole_grid(starts, seed)
        found, searched, proved = tuned(starts, seed)
        lucky = drawn_at_random(starts, seed, searched)
        rows["tune"].append((values[found] / best, searched / grid_seconds))
        rows["tune and its proof"].append((values[found] / best, (searched + proved) / grid_seconds))
        rows["random"].append((values[lucky] / best, searched / grid_seconds))
        rows["grid"].append((values[of_grid] / best, 1.0))
    click.echo(f"{'':20} {'of the best':>11} {'worst seed':>10} {'>= 95 %':>8} {'of the time':>12} {'most':>6}")
    for name, made in rows.items():
        parts, times = zip(*made, strict=True)
        reached = sum(part >= ENOUGH for part in parts)
        line = f"{name:20} {fmean(parts):11.3f} {min(parts):10.3f} {reached:5}/{len(parts)}"
        click.echo(f"{line} {fmean(times):12.3f} {max(times):6.3f}")
    mine = rows["tune"]
    is_met = fmean(part for part, _ in mine) >= ENOUGH and fmean(time for _, time in mine) <= QUARTER
    met = "met" if is_met else "not met"
    click.echo(f"target: on average {ENOUGH:.0%} of the best in {QUARTER:.0%} of the grid's time: {met}")
    if min(len(made) for made in group_by(starts, lambda start: start.setting).values()) > 1:
        shares = judged_by_others(starts)
        click.echo(f"by half of the starts, judged by the others: {fmean(shares):.3f} of the grid's choice")
    for line in _live(int(os.environ.get("PACELINE_TUNINGS", "0")), values):
        click.echo(line)


def judged_by_others(starts: Sequence[Start]) -> list[float]:
    """What tuning chose by half of the starts, as a part of the grid's choice, both measured by the other half."""
    by_setting = group_by(starts, lambda start: start.setting).values()
    halves = [[start for made in by_setting for start in made[number::2]] for number in (0, 1)]
    parts = []
    for seen, others in (halves, halves[::-1]):
        chosen_by, judged_by = truth(seen), truth(others)
        of_grid = judged_by[chosen_by.index(max(chosen_by))]
        parts += [judged_by[tuned(seen, seed)[0]] / of_grid for seed in range(SEEDS)]
    return parts


def _live(count: int, values: Sequence[float]) -> list[str]:
    """Tunings of the real server, as many at once as there are cores for."""
    lines, groups = [], core_groups()
    for first in range(0, count, len(groups)):
        seeds = range(first, min(count, first + len(groups)))
        processes = [(seed, _started(seed, groups[seed - first])) for seed in seeds]
        for seed, process in processes:
            said, _ = process.communicate()
            events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
            ended = next((one for one in events if one.get("kind") == "tuning"), None)
            lines.append(f"live, seed {seed}: {_said(ended, values) if ended else f'exit code {process.returncode}'}")
    return lines


def _said(ended: dict[str, Any], values: Sequence[float]) -> str:
    chosen = dict(word.partition("=")[::2] for word in (ended["winner"] or "").split())
    texts = [{name: f"{value:g}" for name, value in one.items()} for one in settings()]
    value = values[texts.index(chosen)] if chosen in texts else math.nan
    searched = sum(one["seconds"] for one in ended["trials"] if one["rung"] < PROOF)
    proved = sum(one["seconds"] for one in ended["trials"] if one["rung"] == PROOF)
    return f"{value / max(values):.3f} of the best in {searched:.0f} s, proof {proved:.0f} s: {ended['answer']}"


def _started(seed: int, cores: set[int]) -> subprocess.Popen[str]:
    lists = [
        word for name, of in AXES.items() for word in (f"--server.{name.replace('_', '-')}", ",".join(map(str, of)))
    ]
    words = [sys.executable, "-m", "paceline", "tune", "serve", "--model", MODEL, "--slo", f"p99={LIMIT * 1e3:g}ms"]
    words += ["--load.arrival", "closed", "--load.users", str(USERS), "--load.duration", f"{LIVE_SECONDS}s", *lists]
    words += ["--server.engine", ENGINE, "--warm-up", f"{WARM_UP}s", "--no-check-answers", "--json"]
    words += ["--search-seed", str(seed), "--store", str(Path(tempfile.mkdtemp(), "tune.db"))]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    finally:
        os.sched_setaffinity(0, before)
