"""What a tuning came to: a sentence, and the settings by length of trial with figures; for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from paceline.analysis.tune import LENGTHS, REFERENCE, TuneTrial, Tuning
from paceline.core.quantity import show_duration
from paceline.report.document import Block, Column, Document, Lines, Section, Table, Tone
from paceline.report.text import between, humanize, one_line, ratio, show_figure

RUNG_NAMES = (*(f"{part:.0%} of the time" if part < 1 else "Whole trial" for part in LENGTHS), "Rounds that decide")


def answer(tuning: Tuning) -> str:
    """The sentence that leads."""
    first, winner = f"{tuning.settings[REFERENCE]} (the first setting)", tuning.winner
    tried = len({one.trial.setting for one in tuning.trials})
    of = f"of {tried} settings tried out of {len(tuning.settings)}"
    if winner is None:
        return one_line(f"None {of} can be recommended: every one failed or misses the SLO.")
    name = tuning.settings[winner]
    if winner == REFERENCE:
        return one_line(f"No setting is shown to be better than {first}: it had the best {tuning.objective} {of}.")
    found = tuning.ratio
    if found is None or found.value is None:
        reason = tuning.failed.get(REFERENCE, "there is nothing to compare it with")
        return one_line(f"{name} had the best {tuning.objective} {of}; {first} is out: {reason}.")
    how = f"{ratio(found.value)} times as good by {tuning.objective}"
    how += f" ({between(found.interval)})" if found.interval else ""
    rounds = f"in {found.units[0]} round{'s' if found.units[0] != 1 else ''} of whole trials"
    if tuning.is_better:
        return one_line(f"{name} is better than {first}: {how}, {rounds}; it was the best {of}.")
    return one_line(f"No setting is shown to be better than {first}: {name}, the best {of}, is {how}, {rounds}.")


def document(tuning: Tuning) -> Document:
    """The sentence, and below it the settings by their figures, the best first."""
    rows = _rows(tuning)
    columns = [Column.of("Setting", [one_line(tuning.settings[setting]) for setting, _ in rows], numeric=False)]
    for rung, name in enumerate(RUNG_NAMES):
        if any(one.trial.rung == rung for one in tuning.trials):
            columns.append(Column.of(name, [_cell([t for t in made if t.trial.rung == rung]) for _, made in rows]))
    failed = tuple(one_line(f"{tuning.settings[one]}: {why}") for one, why in sorted(tuning.failed.items()))
    seconds = sum(one.record.seconds for one in tuning.trials)
    about = f"{len(tuning.trials)} trials in {show_duration(round(seconds))}"
    figure = next((one.figure for one in tuning.trials if one.figure is not None), None)
    named = f"{humanize(figure.name)}, {figure.unit}" if figure is not None else ""
    sections = (
        Section(f"Settings by length of trial: {named}", (Table(tuple(columns)),)),
        Section("Settings that are out", (Lines(failed),), Tone.WARNING),
    )
    return Document("Tuning", (Block(answer(tuning), about, sections),))


def to_json(tuning: Tuning) -> str:
    """For programs."""
    found = tuning.ratio
    interval = found.interval if found is not None else None
    whole: dict[str, Any] = {
        "kind": "tuning",
        "answer": answer(tuning),
        "objective": tuning.objective,
        "winner": tuning.settings[tuning.winner] if tuning.winner is not None else None,
        "reference": tuning.settings[REFERENCE],
        "is_better": tuning.is_better,
        "ratio": found.value if found is not None else None,
        "low": interval.low if interval is not None else None,
        "high": interval.high if interval is not None else None,
        "trials": [_trial(one, tuning.settings) for one in tuning.trials],
    }
    return json.dumps(whole) + "\n"


def _trial(one: TuneTrial, settings: Sequence[str]) -> dict[str, Any]:
    figure = one.figure
    return {
        "setting": settings[one.trial.setting],
        "rung": one.trial.rung,
        "case": one.record.case.index + 1,
        "value": figure.value if figure is not None else None,
        "relative": figure.relative if figure is not None else None,
        "seconds": one.record.seconds,
        "problem": one.problem,
    }


def _rows(tuning: Tuning) -> list[tuple[int, list[TuneTrial]]]:
    """The trials of each setting: the winner's, then the better ones', then of those that failed."""
    settings = {one.trial.setting for one in tuning.trials}
    rows = [(setting, [one for one in tuning.trials if one.trial.setting == setting]) for setting in settings]

    def place(row: tuple[int, list[TuneTrial]]) -> tuple[bool, bool, float]:
        setting, made = row
        scores = [score for one in made if (score := one.result.score) is not None]
        return setting != tuning.winner, setting in tuning.failed, -fmean(scores or [0.0])

    return sorted(rows, key=place)


def _cell(trials: Sequence[TuneTrial]) -> str:
    figures = [one.figure for one in trials if one.figure is not None]
    if not figures:
        return "failed" if trials else ""
    if len(figures) == 1:
        return show_figure(figures[0], "{:.4g}".format)
    return f"{fmean(one.value for one in figures):.4g} (mean of {len(figures)})"
