"""Explains one traced case, and measures its candidates against it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from paceline.analysis.compare.sides import MARKS
from paceline.analysis.explain import Candidate, Traced, budget, candidates, operations, traced_case
from paceline.analysis.roofline import KnownCeilings
from paceline.core.errors import InputError
from paceline.core.metric import Better
from paceline.core.record import Record
from paceline.core.run import RunRecords
from paceline.core.stats import Interval
from paceline.report.explain import Trial, data, document, trial_data, tried
from paceline.report.render import terminal

if TYPE_CHECKING:
    from paceline.cli._ab import Alternation, Limits
    from paceline.store.store import Store

WRONG = ("miscompiled", "diverged")  # warnings that say that a result is not what it should be


@dataclass(frozen=True)
class Explaining:
    """One case of a run and how its explanation is shown."""

    records: RunRecords
    record: Record
    ceilings: KnownCeilings
    as_json: bool = False

    @cached_property
    def case(self) -> Traced:
        return traced_case(self.records, self.ceilings, self.record)

    @cached_property
    def candidates(self) -> list[Candidate]:
        return candidates(self.case)

    def show(self) -> None:
        """Print the explanation."""
        answer = self.case, budget(self.case, self._clock()), operations(self.case), self.candidates
        if self.as_json:
            click.echo(json.dumps(data(*answer)))
        else:
            terminal.show(document(*answer))

    def _clock(self) -> float | None:
        """The clock of the device at the end of the measurement, as a part of its maximum."""
        gpus = (self.record.facts.get("conditions") or {}).get("after", {}).get("gpus") or [{}]
        now, most = gpus[0].get("sm_clock_mhz"), [gpu.sm_clock_max_mhz for gpu in self.records.run.environment.gpus]
        return now / most[0] if now and most and most[0] else None

    def measure(self, store: Store, limits: Limits) -> None:
        """Measure every candidate that is a setting in alternation with the case as it is."""
        trials: list[tuple[Candidate, Trial]] = []
        try:
            for one in self.candidates:
                if one.setting:
                    if not self.as_json:
                        click.echo(f"trying {one.setting}")
                    trials.append((one, self._trial(one, store, limits)))
                    if self.as_json:
                        click.echo(json.dumps(trial_data(*trials[-1])))
        finally:  # one that is interrupted shows what it has
            if not self.as_json:
                terminal.show(tried(trials))

    def _trial(self, one: Candidate, store: Store, limits: Limits) -> Trial:
        from paceline.cli import _ab
        from paceline.runner.sides import RUN, make_side
        from paceline.web.form_fields import suite_text

        case = self.record.case
        with TemporaryDirectory(prefix="paceline-explain-") as folder:
            path = Path(folder) / "suite.yaml"
            path.write_text(suite_text(self.records.run, [case]), encoding="utf-8")
            words = [RUN, str(path), "--set", f"target={case.target}"]
            texts = zip("AB", ("", one.setting), strict=True)
            sides = tuple(make_side(mark, "set", text, words, None, click.echo) for mark, text in texts)
            first, second = sides
            try:
                _ab.check_sides((first, second), words)
                records = _ab.records_of(store, f"explain {one.setting}", None, ())
                measure = _ab.measuring(words, _ab.Figure())
                alternation = _ab.Alternation((first, second), measure, limits, records, store)
                _alternate(alternation)
            except InputError as error:
                return Trial(None, None, 0, f"not measured: {error}")
        return _outcome(alternation, one)


def _alternate(alternation: Alternation) -> None:
    is_through = False
    try:
        while not alternation.why_ended:
            alternation.measure_round()
        is_through = True
    finally:
        alternation.finish("finished" if is_through else "interrupted")


def _outcome(alternation: Alternation, one: Candidate) -> Trial:
    if not alternation.decisions:
        return Trial(None, None, alternation.rounds, alternation.problem or "no round succeeded")
    row, _ = alternation.decisions[0]
    gain, interval = row.ratio.value, row.ratio.interval
    if row.metric.better is Better.LOWER and gain:
        gain = 1.0 / gain
        interval = interval and Interval(
            low=1.0 / interval.high, high=1.0 / interval.low, confidence=interval.confidence
        )
    return Trial(gain, interval, alternation.rounds, agreement(alternation.records.records, one.setting))


def agreement(records: list[Record], setting: str) -> str:
    """Whether the changed side computes what the original does, as far as its records tell."""
    first, second = (next((one for one in reversed(records) if one.case.title.endswith(mark)), None) for mark in MARKS)
    if first is None or second is None:
        return "not compared"
    wrong = next((one.message for one in second.warnings if one.kind in WRONG), None)
    if wrong:
        return f"no: {wrong}"
    if setting.startswith("batch_size="):
        return "not compared: other data"
    losses = list(_losses(first, second))
    said: Any = second.facts.get("compared_with_uncompiled")
    if losses:
        return f"the first losses differ by at most {max(losses):.2%}"
    return f"compared with uncompiled, {said}" if said else "not compared"


def _losses(first: Record, second: Record) -> Iterator[float]:
    pair = first.measurement("loss"), second.measurement("loss")
    if pair[0] and pair[1]:
        for one, other in zip(pair[0].samples, pair[1].samples, strict=False):
            yield abs(other - one) / max(abs(one), 1e-12)
