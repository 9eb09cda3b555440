"""What people read while a run goes on: lines in a terminal or a log, and one line that changes in a notebook."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TextIO

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
    from paceline.report.run.lead import token_sentence as of_tokens

    if record.outcome is not Outcome.OK:
        return one_line(f"{record.outcome}: {record.cause.message if record.cause else 'no cause is known'}")
    if not record.measurements:
        return "ok, nothing measured"
    lead = headline_of(record) or record.measurements[0]
    words = show(lead.value, lead.metric.unit)
    if lead.metric.name.startswith("latency_p"):  # a bare time does not say which percentile it is
        words = f"{lead.metric.name.removeprefix('latency_')} {words}"
    words = with_interval(words, show_interval(lead.value, lead.interval, partial(show, unit=lead.metric.unit)))
    words = of_tokens(record) or words
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


def load_figures(load: Mapping[str, float]) -> str:
    """How a server did in the last second."""
    words = [f"{load['rate']:.4g}/s"]
    words += [f"{name} {show_duration(load[name])}" for name in ("p50", "p99") if name in load]
    return ", ".join([*words, f"{load['failures']:.4g} failed/s"])


def label(case: Case) -> str:
    """A case in a few words."""
    again = f" #{case.repeat}" if case.repeat > 1 else ""
    return one_line(f"{case.benchmark} {case.title}") + again


class PlainLines(Listener):
    """One line when a case has ended: for pipes, logs and CI."""

    def __init__(self) -> None:
        self._total = self._done = 0

    def started(self, run: Run, todo: Sequence[Case]) -> None:
        self._total, self._done = len(todo), 0
        _write(
            f"run {run.id}: suite {one_line(run.name)}, {len(todo)} of {len(run.cases)} cases to measure", sys.stdout
        )

    def case_ended(self, record: Record) -> None:
        self._done += 1
        symbol = SYMBOLS.get(record.outcome, "✗")
        count = f"[{self._done:>{len(str(self._total))}}/{self._total}]"
        line = f"{count} {symbol} {label(record.case)}: {sentence(record)}  [{show_duration(record.seconds)}]"
        _write(clean(line), sys.stdout)

    def trouble(self, message: str) -> None:
        _write(f"paceline: {clean(message)}", sys.stderr)


class NotebookLine(Listener):
    """One line below the cell, which always says the latest."""

    def __init__(self, display: Any) -> None:
        self._total = self._done = 0
        self._handle = display("", raw=False, display_id=True)

    def started(self, run: Run, todo: Sequence[Case]) -> None:
        self._total, self._done = len(todo), 0
        self._say(f"{one_line(run.name)}: {len(todo)} cases to measure")

    def case_progress(self, case: Case, progress: Mapping[str, Any], samples: Sequence[float]) -> None:
        self._say(f"[{self._done + 1}/{self._total}] {label(case)}: {estimate(progress, samples)}")

    def case_ended(self, record: Record) -> None:
        self._done += 1
        self._say(f"[{self._done}/{self._total}] {label(record.case)}: {sentence(record)}")

    def trouble(self, message: str) -> None:
        _write(f"paceline: {clean(message)}", sys.stderr)

    def _say(self, words: str) -> None:
        self._handle.update({"text/plain": clean(words)}, raw=True)


def listener_for(progress: bool) -> Listener:
    """Who shows the progress here: nobody, a notebook's cell, or the terminal."""
    if not progress:
        return Listener()
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        from IPython.display import display

        return NotebookLine(display)
    return PlainLines()


def _write(line: str, stream: TextIO) -> None:
    stream.write(line + "\n")
    stream.flush()
