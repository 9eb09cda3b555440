"""A step's budget, its operations and what would make it faster, as a document and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from paceline.analysis.explain import (
    MOST_GAIN,
    BoundOperation,
    BudgetPart,
    Candidate,
    Traced,
    budget,
    candidates,
    operations,
    trace_advice,
)
from paceline.core.environment import Environment
from paceline.core.quantity import show_count
from paceline.core.record import Record
from paceline.core.stats import Interval
from paceline.core.subject import StepTrace
from paceline.core.trace_events import IDLE
from paceline.core.watch import read_watched
from paceline.report.document import Block, Column, Document, Lines, Section, Table, Tone
from paceline.report.run.sections.traces import short_name
from paceline.report.text import between, one_line, percent, ratio, show_value

MOST_TRACED = 1.1  # times what was measured; where traced steps took longer, they are no parts of a measured one
NAMES = 40  # characters of an operation


@dataclass(frozen=True)
class Trial:
    """What measuring a candidate against the original came to."""

    gain: float | None  # how many times as fast; None where it could not be measured
    interval: Interval | None
    rounds: int
    agreement: str  # whether it still computes the same, or why it was not measured


Explanation = tuple[Traced, list[BudgetPart], list[BoundOperation], list[Candidate]]


def explained(case: Traced, clock: float | None = None) -> Explanation:
    """All that is told of a case, with its settings as a user gives them; `clock` is that of the budget."""
    found = [replace(one, setting=case.trace.given.get(one.setting, one.setting)) for one in candidates(case)]
    return case, budget(case, clock), operations(case), found


WORKING = 0.75  # of the most power: at such readings a device works, and does not wait for its case to begin


def clock_of(environment: Environment, record: Record) -> float | None:
    """The clock of a case's device while it worked, as a part of its maximum; None where that is not known."""
    target = record.case.target
    most = next((one.sm_clock_max_mhz for one in environment.gpus if f"{one.kind}:{one.cuda_index}" == target), None)
    for watched in read_watched(record.conditions):
        series = {one.name: one.values for one in watched.series if one.of == target}
        length = max(map(len, series.values()), default=0)
        clocks, power = (
            values * length if len(values) == 1 else values
            for values in (series.get(name, []) for name in ("sm_clock", "power"))
        )
        pairs = [(a, b) for a, b in zip(clocks, power, strict=False) if a is not None and b is not None]
        if most and pairs:
            least = WORKING * max(b for _, b in pairs)
            return median(a for a, b in pairs if b >= least) / most
    return None


def document(
    case: Traced, parts: Sequence[BudgetPart], operations: Sequence[BoundOperation], candidates: Sequence[Candidate]
) -> Document:
    """The budget of the step, what takes it, and what to try."""
    return Document("Where the time goes", (block(case, parts, operations, candidates),))


def block(
    case: Traced, parts: Sequence[BudgetPart], operations: Sequence[BoundOperation], candidates: Sequence[Candidate]
) -> Block:
    """The same as one answer among others."""
    label = one_line(f"{case.record.case.benchmark} {case.record.case.title}".strip())
    largest = max(parts, key=lambda part: part.seconds)
    traced = sum(part.seconds for part in parts if part.seconds > 0)
    answer = f"{label}: of {show_value(case.step, 's')} a step, {percent(largest.seconds / case.step)} {largest.name}."
    base = case.step
    doubt: tuple[str, ...] = ()
    if traced > MOST_TRACED * case.step:
        base = traced
        doubt = ("Predictions rest on steps that took longer than the measured ones: trace on a quieter machine.",)
        answer = (
            f"{label}: {percent(largest.seconds / traced)} of the traced steps is {largest.name}, but they took "
            f"{ratio(traced / case.step)} times as long as the measured ones of {show_value(case.step, 's')}."
        )
    whole = BudgetPart("sum", sum(part.seconds for part in parts), "")
    budget = Table(
        (
            Column.of("Part", [part.name for part in (*parts, whole)], numeric=False),
            Column.of("Time", [show_value(part.seconds, "s") for part in (*parts, whole)]),
            Column.of("Share", [percent(part.seconds / base) for part in (*parts, whole)]),
        )
    )
    reasons = tuple(f"{part.name}: {part.why}" for part in parts)
    longest = Table(
        (
            Column.of("Operation", [short_name(one.name, NAMES) for one in operations], numeric=False),
            Column.of("Bound by", [one.bound or "not known" for one in operations], numeric=False),
            Column.of("Calls", [show_count(one.calls) for one in operations]),
            Column.of("Time a step", [show_value(one.seconds, "s") for one in operations]),
            Column.of("Times its best", [ratio(one.seconds / one.best) if one.best else "" for one in operations]),
            Column.of("Where", [one.where.rpartition("/")[2] for one in operations], numeric=False),
        )
    )
    lines = [line for number, one in enumerate(candidates, 1) for line in _lines(number, one)] or [_nothing(case.trace)]
    return Block(
        answer,
        label,
        (
            Section("Budget of a step", (budget, Lines(reasons, Tone.NOTE))),
            Section("What takes longest", (longest,)),
            Section(
                "What would make it faster",
                (
                    Lines(doubt, Tone.WARNING),
                    Lines(tuple(lines), Tone.TEXT),
                    Lines(_advice(case, candidates), Tone.TODO),
                ),
            ),
        ),
    )


BY_SIGNS = ("channels_last",)  # settings for which shares alone predict nothing


def _nothing(trace: StepTrace) -> str:
    """What is said where there is no candidate; of settings only where some were looked at."""
    is_predicted = any(one.partition("=")[0] not in BY_SIGNS for one in trace.alternatives)
    return "nothing in the trace stands out" + (", and no setting is predicted to gain 1 %" if is_predicted else "")


MORE_AT_ONCE = ("batch_size", "compile", "graph")  # settings that shorten what a device waits for the host
WAITS = ("synchronisation", "data-wait")  # signs that say why it waits


def _advice(case: Traced, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """What the shares of communication and idle time ask for, where no candidate has said it."""
    settings = {one.setting.partition("=")[0] for one in candidates}
    is_said = not settings.isdisjoint(MORE_AT_ONCE) or any(one.kind in WAITS for one in case.details.signs)
    kinds = ("communication",) if is_said else ("communication", IDLE)
    shares = {kind: case.spent.shares.get(kind, 0.0) for kind in kinds}
    return trace_advice(case.trace.model_copy(update={"spent": case.spent.model_copy(update={"shares": shares})}))


def _lines(number: int, one: Candidate) -> list[str]:
    name, _, value = one.setting.partition("=")
    how = f" (--{name.replace('_', '-')} {value})" if one.setting else " (in the code)"
    lines = [one_line(f"{number}. {one.what}{how}: predicted {_gain(one.gain)}; {one.reason}")]
    return [*lines, one_line(f"   at {one.where}")] if one.where else lines


def _gain(gain: float | None) -> str:
    if gain is None:
        return "gain not known"
    return f"{_predicted(gain)} times as fast{' or more' if gain >= MOST_GAIN else ''}"


def _predicted(gain: float | None) -> str:
    """Three digits at most: predictions are often off by 30 %."""
    return ratio(gain) if gain is None else f"{gain:.{2 if gain < 10 else 0}f}"


def tried(trials: Sequence[tuple[Candidate, Trial]]) -> Document:
    """Predicted against measured."""
    gains = [ratio(trial.gain) if trial.gain is not None else "none" for _, trial in trials]
    table = Table(
        (
            Column.of("Setting", [one.setting for one, _ in trials], numeric=False),
            Column.of("Predicted", [_predicted(one.gain) for one, _ in trials]),
            Column.of("Measured", gains),
            Column.of("Interval", [between(trial.interval) if trial.interval else "" for _, trial in trials]),
            Column.of("Rounds", [str(trial.rounds) for _, trial in trials]),
            Column.of("Computes the same", [one_line(trial.agreement) for _, trial in trials], numeric=False),
        )
    )
    # One round has no interval: a ratio alone proves nothing.
    proved = [(trial.gain or 0.0, one.setting) for one, trial in trials if trial.interval and trial.interval.low > 1]
    settings = "1 setting" if len(trials) == 1 else f"{len(trials)} settings"
    answer = f"Of {settings}, none is shown to be faster; more rounds or a quieter machine may decide."
    if proved:
        gain, setting = max(proved)
        answer = f"Of {settings}, {setting} gains most: {ratio(gain)} times as fast."
    return Document("Proof by switching", (Block(answer, "", (Section("", (table,)),)),))


def data(
    case: Traced, parts: Sequence[BudgetPart], operations: Sequence[BoundOperation], candidates: Sequence[Candidate]
) -> dict[str, Any]:
    """The same for programs."""
    return {
        "event": "explanation",
        "run": case.record.run_id,
        "case": f"{case.record.case.benchmark} {case.record.case.title}".strip(),
        "step_seconds": case.step,
        "budget": [asdict(part) for part in parts],
        "operations": [asdict(one) for one in operations],
        "candidates": [asdict(one) | {"gain": one.gain} for one in candidates],
    }


def trial_data(one: Candidate, trial: Trial) -> dict[str, Any]:
    """One measured candidate for programs."""
    interval = trial.interval
    ends = {"low": interval.low if interval else None, "high": interval.high if interval else None}
    measured = {"measured": trial.gain, "rounds": trial.rounds, "agreement": trial.agreement}
    return {"event": "trial", "setting": one.setting, "predicted": one.gain} | measured | ends
