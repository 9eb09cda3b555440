"""What a person or a program sees while a run goes on."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from paceline.api.progress import SYMBOLS, PlainLines, estimate, label, load_figures, sentence
from paceline.core.case import Case
from paceline.core.device import split_target
from paceline.core.quantity import show_duration
from paceline.core.record import Outcome, Record
from paceline.core.run import Run
from paceline.report.text import clean, one_line
from paceline.runner.run import Listener
from paceline.service.scheduler.duration_predictor import Basis, History


class JsonLines(Listener):
    """One JSON object per event: for programs."""

    def _say(self, event: str, **words: Any) -> None:
        click.echo(json.dumps({"event": event, **words}))
        sys.stdout.flush()

    def started(self, run: Run, todo: Sequence[Case]) -> None:
        self._say("run_started", run=run.id, suite=run.name, cases=len(run.cases), todo=[c.index for c in todo])

    def case_started(self, case: Case) -> None:
        self._say("case_started", case=case.model_dump(mode="json"))

    def case_progress(self, case: Case, progress: Mapping[str, Any], samples: Sequence[float]) -> None:
        load = {"load": dict(progress["load"])} if progress.get("load") else {}
        self._say("case_progress", index=case.index, phase=progress["phase"], samples=len(samples), **load)

    def case_ended(self, record: Record) -> None:
        without_samples = record.model_dump(mode="json", exclude={"measurements": {"__all__": {"samples"}}})
        self._say("case_ended", record=without_samples)

    def trouble(self, message: str) -> None:
        self._say("trouble", message=message)


class Terminal(Listener):
    """A line per case as it goes, and one bar for the whole with the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        self._escape = escape
        self._console = Console()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),  # asks for the text whenever it is drawn
            console=self._console,
            transient=True,
        )
        self._left = TimeLeft()
        self._overall = self._bar.add_task("", total=None, left=self._left)

    def started(self, run: Run, todo: Sequence[Case]) -> None:
        self._console.print(
            f"[bold]{self._escape(one_line(run.name))}[/]  run {run.id}, {len(todo)} cases", highlight=False
        )
        self._left.started(todo)
        self._bar.update(self._overall, total=len(todo), completed=0)
        self._bar.start()

    def case_started(self, case: Case) -> None:
        self._left.case_started(case)
        self._show(case, "starting")

    def case_progress(self, case: Case, progress: Mapping[str, Any], samples: Sequence[float]) -> None:
        if progress.get("load"):  # figures first: a narrow terminal cuts the rest
            self._describe(f"{load_figures(progress['load'])}; {label(case)}: {progress['phase']}")
        else:
            self._show(case, estimate(progress, samples))

    def case_ended(self, record: Record) -> None:
        colour = {Outcome.OK: "green", Outcome.UNSUPPORTED: "yellow"}.get(record.outcome, "red")
        symbol = SYMBOLS.get(record.outcome, "✗")
        self._console.print(
            f"[{colour}]{symbol}[/] {self._escape(label(record.case)):<44} {self._escape(clean(sentence(record)))}",
            highlight=False,
            no_wrap=True,
            overflow="ellipsis",
        )
        self._left.case_ended(record)
        self._bar.advance(self._overall)

    def trouble(self, message: str) -> None:
        self._console.print(f"[red]paceline: {self._escape(clean(message))}[/]", highlight=False)

    def close(self) -> None:
        self._bar.stop()

    def _show(self, case: Case, words: str) -> None:
        self._describe(f"{label(case)}: {words}")

    def _describe(self, words: str) -> None:
        self._bar.update(self._overall, description=self._escape(one_line(words)))


def until_output_fails(listener: Listener) -> Listener:
    """The same listener, which hears no more once its output fails: a reader that left must not end a measurement."""
    is_muted = False

    def guarded(method: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            nonlocal is_muted
            try:
                if not is_muted:
                    method(*arguments)
            except OSError:  # a closed pipe, a full disk behind a redirection
                is_muted = True
                # Nobody reads any more: let what is still written go nowhere instead of failing.
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.close(nowhere)

        return call

    for name in ("started", "case_started", "case_progress", "case_ended", "trouble", "close"):
        setattr(listener, name, guarded(getattr(listener, name)))
    return listener


__all__ = ["JsonLines", "PlainLines", "Terminal", "estimate", "label", "sentence", "until_output_fails"]


def foreseen(cases: Sequence[Case], past: Iterable[tuple[Case, float]]) -> str:
    """What these cases will take together, judged by what others took, and how good that guess is."""
    history = History()
    for case, seconds in past:
        history.add(case, _device(case), seconds)
    predictions = [history.predict(case, _device(case)) for case in cases]
    measured = sum(one.basis is Basis.SAME_CASE for one in predictions)
    noun = "1 case" if len(cases) == 1 else f"{len(cases):,} cases"
    if measured == len(cases):
        how = "as in earlier runs"
    elif all(one.basis in (Basis.BUDGET, Basis.TIMEOUT) for one in predictions):
        how = "a guess from their budgets"
    else:
        how = f"{measured} of them measured before, the others judged by similar cases or their budgets"
    return f"{noun}, about {_shown(sum(one.seconds for one in predictions))} ({how})"


class TimeLeft:
    """Counts down what is left of a run: each case that ends corrects what the others are expected to take."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._history = History()
        self._cases: dict[int, Case] = {}  # not ended yet
        self._others = self._this = self._begun = 0.0

    def started(self, cases: Sequence[Case]) -> None:
        """These are to be measured."""
        self._cases = {case.index: case for case in cases}
        self._foresee(None)

    def case_started(self, case: Case) -> None:
        """From now on this one takes its time."""
        self._foresee(case)

    def case_ended(self, record: Record) -> None:
        """One is done, which says something of the others."""
        self._cases.pop(record.case.index, None)
        self._history.add(record.case, _device(record.case), record.seconds)
        self._foresee(None)

    def _foresee(self, this: Case | None) -> None:
        self._begun = self._now()
        expected = {case.index: self._history.predict(case, _device(case)).seconds for case in self._cases.values()}
        self._this = expected.pop(this.index, 0.0) if this is not None else 0.0
        self._others = sum(expected.values())

    def __str__(self) -> str:
        """For a display that asks again and again."""
        this = self._this - (self._now() - self._begun)
        if self._this and this < 0:
            after = f"about {_shown(self._others)} after it" if self._others else "the last one"
            return f"longer than expected, {after}"
        return f"about {_shown(max(0.0, this) + self._others)} left"


def _device(case: Case) -> str:
    return split_target(case.target)[0]


def _shown(seconds: float) -> str:
    return show_duration(max(1, round(seconds)))  # parts of a second are noise
