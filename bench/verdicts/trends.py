"""Trends: false steps in series without any, and precision and recall of steps beside those of Apache Otava."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.trend_series import KINDS, LENGTHS, Kind, Score, series_of, stored_set
from bench.verdicts.cell import Cell
from paceline.analysis.trend.steps import find_changes

ANSWERS = Path(__file__).parents[2] / "tests/data/otava/answers.json"
TUNED_ON = 20  # the seed that the limits in the product were chosen with: never measured with it
SCALE = 10  # a series takes milliseconds: a tenth of the replicates, of each length


def cells(replicates: int, seed: int) -> Iterator[Cell]:
    """Every class at every length; classes with steps are held to Otava's shares of 1,800 series like these."""
    count, others = max(1, replicates // SCALE), counted_scores()
    for kind in KINDS:
        scores = {length: score_of(kind, length, count, seed) for length in LENGTHS}
        other = others[kind.name]
        if kind.has_steps:
            yield from _step_cells(kind, list(scores.values()), other)
        elif not kind.is_ramp:
            note = f"Otava {other.with_answers / other.series:.0%} over all lengths"
            for length, score in scores.items():
                case = f"{kind.name}, {length} runs"
                yield Cell("trend", case, "false series", 0.05, True, score.with_answers, score.series, note=note)
        else:
            hits = sum(score.with_answers for score in scores.values())
            yield Cell("trend", kind.name, "seen", 0.95, False, hits, len(LENGTHS) * count)


def _step_cells(kind: Kind, scores: list[Score], other: Score) -> Iterator[Cell]:
    found = sum(score.found for score in scores)
    steps, answers = sum(score.steps for score in scores), sum(score.answers for score in scores)
    own_stored, other_stored = own_scores([kind])[kind.name], stored_scores()[kind.name]
    note = f"of the 50 stored {own_stored.recall:.0%}, Otava {other_stored.recall:.0%}"
    yield Cell("trend", kind.name, "recall", other.recall, hits=found, tries=steps, note=note)
    note = f"of the 50 stored {own_stored.precision:.1%}, Otava {other_stored.precision:.1%}"
    yield Cell("trend", kind.name, "precision", other.precision, hits=found, tries=answers, note=note)


def score_of(kind: Kind, length: int, count: int, seed: int) -> Score:
    """What the product says of so many series."""
    score = Score()
    for known in series_of(kind, length, count, seed + 1 + TUNED_ON):
        score = score.plus(known, answers_of(known.values))
    return score


def answers_of(values: np.ndarray) -> list[int]:
    """Where the product sees changes; of logarithms, as a history does."""
    return [change.at for change in find_changes(np.log(values)).changes]


def stored_scores() -> dict[str, Score]:
    """What Otava's stored answers come to, by class."""
    scores = {kind.name: Score() for kind in KINDS}
    for (kind, known), answers in zip(stored_set(), json.loads(ANSWERS.read_text())["answers"], strict=True):
        scores[kind.name] = scores[kind.name].plus(known, answers)
    return scores


def own_scores(kinds: Sequence[Kind] = KINDS) -> dict[str, Score]:
    """What the product says of the stored series of these classes."""
    scores = {kind.name: Score() for kind in kinds}
    for kind, known in stored_set():
        if kind in kinds:
            scores[kind.name] = scores[kind.name].plus(known, answers_of(known.values))
    return scores


def counted_scores() -> dict[str, Score]:
    """What Otava came to on 600 other series of each class and length, whose answers are not stored."""
    return {name: Score(**counts) for name, counts in json.loads(ANSWERS.read_text())["more"].items()}
