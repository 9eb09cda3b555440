"""What a record says of its setting for an objective, and what all trials of a tuning came to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from paceline.analysis.compare.significance import Ratio
from paceline.analysis.configuration import flattened
from paceline.analysis.tune.search import Trial, TrialResult, is_better, leader, proof
from paceline.analysis.tune.surface import REFERENCE, Space
from paceline.core.case import Case
from paceline.core.metric import Better
from paceline.core.record import Measurement, Outcome, Record

Objective = Literal["goodput", "throughput", "cost"]
METRICS: Mapping[Objective, tuple[str, ...]] = {  # by objective, the first that a record has
    "goodput": ("capacity", "goodput"),
    "throughput": ("token_throughput", "throughput"),
    "cost": ("cost_per_million_tokens", "cost_per_thousand"),
}
OF_CASE = {"target", "ranks", "power_limit", "clock_limit"}  # what settings may differ in next to parameters and env
ERRORS_OF_INTERVAL = 2.0  # half an interval of 95 % has about so many standard errors


@dataclass(frozen=True)
class TuneTrial:
    """A trial and its record."""

    trial: Trial
    record: Record
    objective: Objective

    @property
    def figure(self) -> Measurement | None:
        """What the objective goes by; None where the case failed or has no such figure."""
        if self.record.outcome is not Outcome.OK:
            return None
        names = METRICS[self.objective] + ((self.record.primary,) if self.objective == "throughput" else ())
        return next((one for name in names if name and (one := self.record.measurement(name)) is not None), None)

    @property
    def problem(self) -> str:
        """Why the setting is out; empty if it is not."""
        record, figure = self.record, self.figure
        if record.outcome is not Outcome.OK:
            return f"{record.outcome.value}: {record.cause.message if record.cause else 'no cause is known'}"
        if self.objective != "goodput" and record.load is not None and record.load.slo_met is False:
            return f"misses the SLO: {record.load.slo_missed_because}"
        if figure is None:
            return f"its record has no {' or '.join(METRICS[self.objective])}"
        return "" if figure.value > 0 else "no request met the SLO"

    @property
    def result(self) -> TrialResult:
        """The trial as the search takes it."""
        figure = self.figure
        if self.problem or figure is None:
            return TrialResult(self.trial, None, seconds=self.record.seconds)
        relative = figure.relative
        if relative is None and self.objective == "cost" and (rate := self.record.measurement("throughput")):
            relative = rate.relative  # which the cost follows from
        sign = -1.0 if figure.metric.better is Better.LOWER else 1.0
        error = (relative or 0.0) / ERRORS_OF_INTERVAL
        return TrialResult(self.trial, sign * math.log(figure.value), error, self.record.seconds)


@dataclass(frozen=True)
class Tuning:
    """All trials, and what they show."""

    space: Space
    settings: Sequence[str]  # what distinguishes each from the others
    trials: Sequence[TuneTrial]
    objective: Objective

    @cached_property
    def winner(self) -> int | None:
        """The setting that leads; None if all failed."""
        return leader(self.space, [one.result for one in self.trials])

    @cached_property
    def ratio(self) -> Ratio | None:
        """How many times as good as the reference it is; None where that was not measured."""
        results = [one.result for one in self.trials]
        return proof(results, self.winner) if self.winner not in (None, REFERENCE) else None

    @property
    def is_better(self) -> bool:
        return is_better(self.ratio)

    @property
    def failed(self) -> dict[int, str]:
        """Settings that are out, and why."""
        return {one.trial.setting: one.problem for one in reversed(self.trials) if one.problem}


def space_of(cases: Sequence[Case]) -> tuple[Space, list[str]]:
    """The cases by their place on every axis along which they differ, and what distinguishes each."""
    flat = [flattened(case.parameters | {"env": case.env}) | case.model_dump(include=OF_CASE) for case in cases]
    names = list(dict.fromkeys(name for one in flat for name in one))
    axes = {name: _distinct([one.get(name) for one in flat]) for name in names}
    axes = {name: values for name, values in axes.items() if len(values) > 1}
    numbers = {name for name, values in axes.items() if all(_is_number(value) for value in values)}
    ordered = {name: sorted(values) if name in numbers else values for name, values in axes.items()}
    places = [tuple(values.index(one.get(name)) for name, values in ordered.items()) for one in flat]
    unordered = frozenset(axis for axis, name in enumerate(axes) if name not in numbers)
    labels = [" ".join(f"{name.removeprefix('server.')}={_shown(one.get(name))}" for name in axes) for one in flat]
    return Space(places, unordered), labels


def _distinct(values: Sequence[Any]) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
