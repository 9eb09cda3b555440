"""What a person or a program sees while a run goes on."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import click

from paceline.cli._time_left import TimeLeft
from paceline.core.case import Case
from paceline.core.quantity import show, show_duration, show_interval, with_interval
from paceline.core.record import Outcome, Record
from paceline.core.run import Run
from paceline.core.stats import median_interval
from paceline.report.text import clean, one_line
from paceline.runner.run import Listener

SYMBOLS = {Outcome.OK: "✓", Outcome.UNSUPPORTED: "-"}


def sentence(record: Record) -> str:
    """A record in one line."""
    from paceline.analysis.summary import headline_of

    if record.outcome is not Outcome.OK:
        return one_line(f"{record.outcome}: {record.cause.message if record.cause else 'no cause is known'}")
    if not record.measurements:
        return "ok, nothing measured"
    lead = headline_of(record) or record.measurements[0]
    words = show(lead.value, lead.metric.unit)
    if lead.metric.name.startswith("latency_p"):  # a bare time does not say which percentile it is
        words = f"{lead.metric.name.removeprefix('latency_')} {words}"
    words = with_interval(words, show_interval(lead.value, lead.interval, partial(show, unit=lead.metric.unit)))
    step = record.measurement("step_time")
    if step is not None and step is not lead:
        words += f", step {show_duration(step.value)}, {step.summary.count} steps"
    warnings = ", ".join(dict.fromkeys(warning.kind for warning in record.warnings))
    return words + (f"  ({warnings})" if warnings else "")


def estimate(progress: Mapping[str, Any], samples: Sequence[float]) -> str:
    """The running figure of a case, with its interval once there is one."""
    if not samples or not progress["phase"].startswith("measuring"):
        return str(progress["phase"])
    middle, unit = sorted(samples)[len(samples) // 2], progress["unit"]
    interval, work = median_interval(samples), progress.get("work")
    if work and middle:
        middle, unit = work / middle, progress["rate_unit"]
        if interval is not None:
            low, high = (work / end if end > 0 else math.inf for end in (interval.high, interval.low))
            interval = interval.model_copy(update={"low": low, "high": high})
    shown = with_interval(show(middle, unit), show_interval(middle, interval, partial(show, unit=unit)))
    return f"{shown} so far, {len(samples)} steps"


def label(case: Case) -> str:
    """A case in a few words."""
    again = f" #{case.repeat}" if case.repeat > 1 else ""
    return one_line(f"{case.benchmark} {case.title}") + again


class PlainLines(Listener):
    """One line when a case has ended: for pipes, logs and CI."""

    def __init__(self) -> None:
        self._total = self._done = 0

    def started(self, run: Run, todo: Sequence[Case]) -> None:
        self._total = len(todo)
        click.echo(f"run {run.id}: suite {one_line(run.name)}, {len(todo)} of {len(run.cases)} cases to measure")

    def case_ended(self, record: Record) -> None:
        self._done += 1
        symbol = SYMBOLS.get(record.outcome, "✗")
        count = f"[{self._done:>{len(str(self._total))}}/{self._total}]"
        line = f"{count} {symbol} {label(record.case)}: {sentence(record)}  [{show_duration(record.seconds)}]"
        click.echo(clean(line))
        sys.stdout.flush()

    def trouble(self, message: str) -> None:
        click.echo(f"paceline: {clean(message)}", err=True)


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
        self._say("case_progress", index=case.index, phase=progress["phase"], samples=len(samples))

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
        self._bar.update(self._overall, total=len(todo))
        self._bar.start()

    def case_started(self, case: Case) -> None:
        self._left.case_started(case)
        self._show(case, "starting")

    def case_progress(self, case: Case, progress: Mapping[str, Any], samples: Sequence[float]) -> None:
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
        description = self._escape(one_line(f"{label(case)}: {words}"))
        self._bar.update(self._overall, description=description)


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
