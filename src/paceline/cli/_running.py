"""Measures for the verbs that do: what the user sees while a run goes on, and what it came to."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.api import running
from paceline.api.running import FLAG, require_writable
from paceline.core.case import Case, measuring_order
from paceline.core.errors import InputError, StoreError
from paceline.core.files import data_directory, private_directory, write_atomic
from paceline.core.interrupt import catch_interrupts
from paceline.core.run import RunRecords
from paceline.runner.fork_client import WarmServer
from paceline.runner.run import Listener, imports_of

if TYPE_CHECKING:
    from paceline.store.store import Store

INTERRUPTED = 130
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
        from paceline.cli import _live

        if self.as_json:
            return _live.until_output_fails(_live.JsonLines())
        return _live.until_output_fails(_live.Terminal() if sys.stdout.isatty() else _live.PlainLines())

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


def foreseen(cases: Sequence[Case], store: str | None) -> str:
    """How long the cases take, judged by what the store has of others; one that is not there stays so."""
    from paceline.cli._live import foreseen
    from paceline.store.location import default_url, locate
    from paceline.store.reader import open_file

    past: list[tuple[Case, float]] = []
    with suppress(InputError, StoreError):  # said by the run itself
        if (reader := open_file(locate(store or default_url()))) is not None:
            with reader:
                past = reader.durations(PAST_CASES)
    return foreseen(cases, past)


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
) -> int:
    """Measure the cases of a suite from the beginning; returns the exit code."""
    if warm is not None:  # which imports while the store is opened and the machine described
        warm.begin(imports_of(measuring_order(cases)[0]))
    from paceline.store import open_store

    with open_store(store) as opened:
        return _measure(opened, running.begin(opened, name, cases, world, tags, traces, cpus), output, world, warm)


def resume(name: str, store: str | None, output: Output, world: running.Others, *, retry_failed: bool) -> int:
    """Measure what is missing of an earlier run; returns the exit code."""
    from paceline.store import open_existing

    with open_existing(store) as opened:
        return _measure(opened, running.reopen(opened, name, world, retry_failed=retry_failed), output, world)


def _measure(
    store: Store, todo: running.Todo, output: Output, world: running.Others, warm: WarmServer | None = None
) -> int:
    """Measure, report, and say with the exit code whether all is well."""
    run_id = todo.run.id
    catch_interrupts()
    try:
        measured = running.measure(store, todo, output.listener(), world, warm)
    except KeyboardInterrupt:
        if output.as_json:
            click.echo(json.dumps({"event": "run_ended", "run": run_id, "ok": False, "status": "interrupted"}))
        # What a later command must say: the store, a URL without its password, and the hosts.
        options = dict(click.get_current_context().params)
        if "://" in (options.get("store") or ""):
            options["store"] = store.location.shown
        command = f"paceline run --resume {run_id}"
        for name in ("store", "hosts", "remote_shell", "remote_python", "master_address"):
            if options.get(name):
                command += f" --{name.replace('_', '-')} {shlex.quote(options[name])}"
        click.echo(f"\npaceline: interrupted; go on with: {command}", err=True)
        return INTERRUPTED
    written = _show(measured.records, output, ok=measured.ok)
    return 0 if measured.ok and (written or output.report_path is None) else 1


def _show(records: RunRecords, output: Output, *, ok: bool) -> bool:
    """Print the results and write the report; whether there is one."""
    path = _write_report(records, output) if output.report else None
    summary = write_summary(records.run.id, [records])
    if output.as_json:
        if output.answer is not None:
            output.answer(records)
        words = {"event": "run_ended", "run": records.run.id, "ok": ok, "status": "finished"}
        written = {"results_summary": str(summary)} if summary is not None else {}
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
