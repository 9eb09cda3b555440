"""Explain where the time of a step goes and what would make it faster, and prove it by switching."""

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
from paceline.analysis.explain import Candidate, traced_case
from paceline.analysis.roofline import KnownCeilings
from paceline.cli._options import complete_runs, value_of
from paceline.core.errors import InputError
from paceline.core.kept_output import KeptOutput
from paceline.core.metric import Better
from paceline.core.quantity import parse_duration, parse_fraction
from paceline.core.record import Record
from paceline.core.run import RunRecords
from paceline.core.stats import Interval
from paceline.report.explain import Explanation, Trial, clock_of, data, document, explained, trial_data, tried
from paceline.report.render import terminal

if TYPE_CHECKING:
    from paceline.cli.ab import Alternation, Limits
    from paceline.store.store import Store


ROUNDS = 10
BUDGET = "10m"
WITHIN = "2%"


@click.command("explain")
@click.argument("run", default="last", shell_complete=complete_runs)
@click.argument("case", required=False)
@click.option("--try", "is_tried", is_flag=True, help="Measure each candidate that is a setting against the original.")
@click.option(
    "--rounds", default=ROUNDS, show_default=True, type=click.IntRange(2), help="With --try: at most so many for each."
)
@click.option(
    "--budget", default=BUDGET, show_default=True, metavar="TIME",
    help="With --try: for each candidate, begin no round that would end later.",
)  # fmt: skip
@click.option(
    "--within", default=WITHIN, show_default=True, metavar="PART",
    help="With --try: a difference that is smaller does not matter.",
)  # fmt: skip
@click.option("--store", metavar="PATH|URL", help="Where results are stored.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def command(
    run: str,
    case: str | None,
    is_tried: bool,
    rounds: int,
    budget: str,
    within: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Explain the traced cases of RUN: the budget of a step, its longest operations, and candidates with their gain.

    CASE is a case's number in the run, or words of its name. A run has traces if it was measured with --profile or
    --explain. Candidates that are settings can be tried; the others are changes of the model's code, and say where.
    """
    from paceline.api.sources import known_ceilings
    from paceline.cli.ab import Limits
    from paceline.store import open_reader, open_store

    seconds, part = value_of("--budget", budget, parse_duration), value_of("--within", within, parse_fraction)
    limits = Limits(rounds, seconds, part)
    with open_reader(store) as opened:
        meant = opened.find_run(run)
        if run == "last":  # what was tried for an explanation is a run as well, and has no trace
            meant = next((row.id for row in opened.runs(LATEST) if not row.name.startswith(TRIAL)), meant)
        records = opened.load(meant)
    named = [(one, f"{one.case.benchmark} {one.case.title}".strip()) for one in records.records]
    chosen = [(one, name) for one, name in named if case is None or _is_meant(case, one.case.index, name)]
    if not chosen:
        known = "; ".join(f"{one.case.index + 1}: {name}" for one, name in named)
        message = f"run {records.run.id} has no case '{case}'; it has {known}"
        raise InputError("unknown-case", message, key="CASE", value=case)
    traced = [one for one, _ in chosen if one.trace is not None and one.trace.spent is not None]
    ceilings = known_ceilings(records)
    for record in traced or [chosen[0][0]]:
        explaining = Explaining(records, record, ceilings, as_json=as_json)
        explaining.show()
        if is_tried:
            with open_store(store) as opened_for_writing:
                explaining.measure(opened_for_writing, limits)


def _is_meant(text: str, index: int, name: str) -> bool:
    return index + 1 == int(text) if text.isdecimal() else all(word in name.split() for word in text.split())


TRIAL, LATEST = "explain ", 200  # begins the names of runs that try a setting; runs that are looked at
WRONG = ("miscompiled", "diverged")  # warnings that say that a result is not what it should be


@dataclass(frozen=True)
class Explaining:
    """One case of a run and how its explanation is shown."""

    records: RunRecords
    record: Record
    ceilings: KnownCeilings
    as_json: bool = False

    @cached_property
    def answer(self) -> Explanation:
        clock = clock_of(self.records.run.environment, self.record)
        return explained(traced_case(self.records, self.ceilings, self.record), clock)

    def show(self) -> None:
        """Print the explanation."""
        if self.as_json:
            click.echo(json.dumps(data(*self.answer)))
        else:
            terminal.show(document(*self.answer))

    def measure(self, store: Store, limits: Limits) -> None:
        """Measure every candidate that is a setting in alternation with the case as it is."""
        trials: list[tuple[Candidate, Trial]] = []
        try:
            for one in self.answer[-1]:
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
        from paceline.cli import ab
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
                ab.check_sides((first, second), words)
                records = ab.records_of(store, f"{TRIAL}{one.setting}", None, ())
                measure = ab.measuring(words, ab.Figure())
                alternation = ab.Alternation((first, second), measure, limits, records, store)
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
    if losses := list(_losses(first, second)):
        return f"the first losses differ by at most {max(losses):.2%}"
    outputs = KeptOutput.read(first.facts), KeptOutput.read(second.facts)
    if outputs[0] is not None and outputs[1] is not None:
        return outputs[0].compared(outputs[1])
    said: Any = second.facts.get("compared_with_uncompiled")
    return f"compared with uncompiled, {said}" if said else "not compared"


def _losses(first: Record, second: Record) -> Iterator[float]:
    pair = first.measurement("loss"), second.measurement("loss")
    if pair[0] and pair[1]:
        for one, other in zip(pair[0].samples, pair[1].samples, strict=False):
            yield abs(other - one) / max(abs(one), 1e-12)
