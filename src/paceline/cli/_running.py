"""Measures for the verbs that do: what the user sees while a run goes on, and what it came to."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.api import running
from paceline.api.progress import SYMBOLS, PlainLines, estimate, label, load_figures, sentence
from paceline.api.running import FLAG, require_writable
from paceline.core.case import Case, measuring_order
from paceline.core.device import split_target
from paceline.core.errors import InputError, StoreError
from paceline.core.files import data_directory, private_directory, write_atomic
from paceline.core.interrupt import catch_interrupts
from paceline.core.quantity import show_duration
from paceline.core.record import Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.report.text import clean, one_line
from paceline.runner.fork_client import WarmServer
from paceline.runner.run import Listener, imports_of
from paceline.service.scheduler.duration_predictor import Basis, History

if TYPE_CHECKING:
    from paceline.analysis.diagnose.early import DefectRules
    from paceline.store.store import Store


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


INTERRUPTED = 130
JUDGING = ("until_defect", "rules", "baseline")  # options that say what ends a check
PAST_CASES = 1_000  # from which the time of a run is estimated


def joined_value(args: Sequence[str], names_what: Callable[[Sequence[str]], bool]) -> list[str]:
    """The same words with the flag and its folder as one.

    The word after the flag is its folder if the others name what to run, or if it is plainly a path; otherwise it is
    itself what to run, as in `paceline run --profile train`.
    """
    if FLAG not in args:
        return list(args)
    position = args.index(FLAG)
    before, after = list(args[:position]), list(args[position + 1 :])
    is_path = bool(after) and "/" in after[0] and not after[0].endswith((".yaml", ".yml"))
    if after and not after[0].startswith("-") and (is_path or names_what([*before, *after[1:]])):
        return [*before, f"{FLAG}={after[0]}", *after[1:]]
    return [*before, f"{FLAG}=", *after]


@dataclass(frozen=True)
class Output:
    """What the user wants to see."""

    as_json: bool = False
    report: bool = True
    report_path: str | None = None
    answer: Callable[[RunRecords], None] | None = None  # shows what the run came to, instead of the table of its cases

    def listener(self) -> Listener:
        """Lines for programs, for pipes, or a live display."""
        if self.as_json:
            return until_output_fails(JsonLines())
        return until_output_fails(Terminal() if sys.stdout.isatty() else PlainLines())

    def check(self) -> None:
        """Refuse a path where the report cannot be written, before hours are spent."""
        if self.report_path is None:
            return
        path = Path(self.report_path)
        if path.is_dir():
            example = str(path / "report.html")
            message = f"--report {path} is a directory; give the path of a file, such as {example}"
            raise InputError("not-a-file", message, key="--report", value=str(path), suggestion=example)
        require_writable(path.parent, "--report", path)


def past_durations(store: str | None) -> list[tuple[Case, float]]:
    """What the latest cases of a store took; nothing where there is none, and none is made."""
    from paceline.store.location import default_url, locate
    from paceline.store.reader import open_file

    with suppress(InputError, StoreError):  # said by the run itself
        if (reader := open_file(locate(store or default_url()))) is not None:
            with reader:
                return reader.durations(PAST_CASES)
    return []


def start(
    name: str,
    cases: list[Case],
    store: str | None,
    output: Output,
    world: running.Others = None,
    tags: Sequence[str] = (),
    traces: Path | None = None,
    cpus: Collection[int] = (),
    warm: WarmServer | None = None,
    until: DefectRules | None = None,
) -> int:
    """Measure the cases of a suite from the beginning; returns the exit code."""
    if warm is not None:  # which imports while the store is opened and the machine described
        warm.begin(imports_of(measuring_order(cases)[0]))
    from paceline.store import open_store

    with open_store(store) as opened:
        todo = running.begin(opened, name, cases, world, tags, traces, cpus)
        return _measure(opened, todo, output, world, warm, until)


def resume(
    name: str,
    store: str | None,
    output: Output,
    world: running.Others,
    *,
    retry_failed: bool,
    until: DefectRules | None = None,
) -> int:
    """Measure what is missing of an earlier run; returns the exit code."""
    from paceline.store import open_existing

    with open_existing(store) as opened:
        todo = running.reopen(opened, name, world, retry_failed=retry_failed)
        return _measure(opened, todo, output, world, until=until)


def _measure(
    store: Store,
    todo: running.Todo,
    output: Output,
    world: running.Others,
    warm: WarmServer | None = None,
    until: DefectRules | None = None,
) -> int:
    """Measure, report, and say with the exit code whether all is well."""
    run_id = todo.run.id
    catch_interrupts()
    listener = output.listener()
    enough = running.until_defect(store, todo, until, listener) if until is not None else lambda: ""
    try:
        measured = running.measure(store, todo, listener, world, warm, enough)
    except KeyboardInterrupt:
        if output.as_json:
            click.echo(json.dumps({"event": "run_ended", "run": run_id, "ok": False, "status": "interrupted"}))
        options = given(store, "hosts", "remote_shell", "remote_python", "master_address", *JUDGING)
        click.echo(f"\npaceline: interrupted; go on with: paceline run --resume {run_id}{options}", err=True)
        return INTERRUPTED
    accused = measured.ended_early or enough()  # which nobody has asked since the last case
    ok = measured.ok and not accused
    written = _show(measured.records, output, ok=ok, accused=accused)
    if measured.ended_early:
        rest = f"paceline run --resume {run_id}{given(store)} measures the other {len(measured.records.missing)}"
        click.echo(f"paceline: ended early because {accused}; {rest}", err=True)
    elif accused:
        click.echo(f"paceline: this machine is accused: {accused}", err=True)
    elif until is not None and (nothing := until.nothing_compared([measured.records])):
        click.echo(f"paceline: {nothing}", err=True)
    return 0 if ok and (written or output.report_path is None) else 1


def given(store: Store, *names: str) -> str:
    """The store and those of these options that this command was given, as a later command must say them."""
    options = dict(click.get_current_context().params)
    if "://" in (options.get("store") or ""):
        options["store"] = store.location.shown  # a URL without its password
    words = ""
    for name in ("store", *names):
        if value := options.get(name):
            flag = f"--{name.replace('_', '-')}"
            words += f" {flag}" if value is True else f" {flag} {shlex.quote(str(value))}"
    return words


def _show(records: RunRecords, output: Output, *, ok: bool, accused: str = "") -> bool:
    """Print the results and write the report; whether there is one."""
    path = _write_report(records, output) if output.report else None
    summary = write_summary(records.run.id, [records])
    if output.as_json:
        if output.answer is not None:
            output.answer(records)
        words = {"event": "run_ended", "run": records.run.id, "ok": ok, "status": "finished"}
        written = {"results_summary": str(summary)} if summary is not None else {}
        written |= {"accused": accused} if accused else {}
        click.echo(json.dumps(words | {"report": str(path) if path else None} | written))
        return path is not None
    click.echo()
    if output.answer is not None:
        output.answer(records)
    else:
        from paceline.api.sources import known_ceilings
        from paceline.report.run.document import show

        show(records, ceilings=known_ceilings(records))
    if path is not None:
        click.echo(f"\nReport: {path}")
    if summary is not None:
        click.echo(f"Results under SuperBench's names: {summary}")
    click.echo(f"Run:    {records.run.id}")
    return path is not None


def write_summary(name: str, runs: Sequence[RunRecords]) -> Path | None:
    """What SuperBench would have written of runs of its config, a line for each node; None where it was not one."""
    from paceline.report.export.superbench import EXPORT, render

    if not any(case.superbench for records in runs for case in records.run.cases):
        return None
    path = Path("outputs", name, EXPORT.file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_atomic(path, "".join(map(render, runs)))
    except OSError as error:  # what was measured is in the store
        again = f"paceline report {name} --superbench -o FILE"
        click.echo(f"paceline: no results at {path}: {error.strerror}; try: {again}", err=True)
        return None


def _write_report(records: RunRecords, output: Output) -> Path | None:
    from paceline.api.sources import known_ceilings
    from paceline.report.run.document import write_html

    run_id = records.run.id
    path = Path(output.report_path or f"{run_id}.html")
    try:
        if output.report_path is None:
            path = private_directory(data_directory() / "reports") / path
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_html(records, path, ceilings=known_ceilings(records))
    except (OSError, InputError) as error:  # what was measured is in the store: a report can be made later
        why = error.strerror if isinstance(error, OSError) else error
        click.echo(f"paceline: no report at {path}: {why}; try: paceline report {run_id} --html", err=True)
        return None
