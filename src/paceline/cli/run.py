"""Measure a suite or one benchmark on this machine."""

from __future__ import annotations

import json
import secrets
import shlex
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli._flags import case_flags, flags_of, read_flags, read_settings
from paceline.core.errors import InputError, StoreError, nearest, unknown

if TYPE_CHECKING:
    from paceline.core.case import Case
    from paceline.core.run import Run, RunStatus
    from paceline.core.suite import Suite
    from paceline.runner.joined import JoinedRanks
    from paceline.runner.run import Listener
    from paceline.store import Store

DEFAULT_SUITE = "quick"


class RunCommand(click.Command):
    """A command whose flags depend on what is run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        what = self._what(args)
        if what is not None:
            suite = find_suite(what)
            ctx.meta["paceline.suite"] = suite
            self.params = [*self.params, *flags_of(_fields_of(suite))]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flags = [flag for option in self.params if isinstance(option, click.Option) for flag in option.opts]
            raise unknown("flag", error.option_name, flags) from None
        except click.UsageError as error:  # one line, as for every other mistake
            raise InputError(error.format_message()) from None

    def _what(self, args: list[str]) -> str | None:
        """The first argument that is neither a flag nor the value of one."""
        takes_value = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        skip = False
        for arg in args:
            if skip:
                skip = False
            elif arg in takes_value:
                skip = True
            elif not arg.startswith("-"):
                return arg
        return None if "--resume" in args or any(arg.startswith("--resume=") for arg in args) else DEFAULT_SUITE


def find_suite(what: str) -> Suite:
    """A suite file, a suite that ships, or a benchmark as a suite of one case."""
    from paceline.benchmarks import registry
    from paceline.core.suite import Suite
    from paceline.runner.suite_file import load_suite, shipped

    if "/" in what or what.endswith((".yaml", ".yml")) or what in shipped():
        return load_suite(what)
    benchmarks = registry()
    if what in benchmarks.entries or any(what in failure.module for failure in benchmarks.broken):
        benchmarks.get(what)
        return Suite(name=what, cases=[{"benchmark": what}])
    known = [*shipped(), *benchmarks.entries]
    guess = nearest(what, known)
    hint = f"did you mean '{guess}'?" if guess else f"known are {', '.join(sorted(known))}"
    raise InputError(f"unknown suite or benchmark '{what}': {hint}")


def _fields_of(suite: Suite) -> dict[str, Any]:
    """The parameters of every benchmark in the suite, once each."""
    from paceline.benchmarks import registry

    fields: dict[str, Any] = {}
    for entry in suite.cases:
        name = entry.get("benchmark")
        if isinstance(name, str) and name in registry().entries:
            for key, field in registry().get(name).Parameters.model_fields.items():
                # In a suite the cases have what is required already.
                fields.setdefault(key, field)
    return fields


@click.command(cls=RunCommand, params=case_flags())
@click.argument("what", required=False)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a parameter in every case that has it."
)
@click.option("--store", metavar="PATH|URL", help="Where results go: a SQLite file or postgresql://...")
@click.option("--resume", metavar="RUN", help="Do only what is missing of an earlier run.")
@click.option("--retry-failed", is_flag=True, help="With --resume: also what did not succeed.")
@click.option("--report", "report_path", metavar="PATH", help="Where the HTML report goes.")
@click.option("--no-report", is_flag=True, help="Make no HTML report.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line for every event.")
@click.option("--dry-run", is_flag=True, help="Show the cases and measure nothing.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    what: str | None,
    settings: tuple[str, ...],
    store: str | None,
    resume: str | None,
    retry_failed: bool,
    report_path: str | None,
    no_report: bool,
    as_json: bool,
    dry_run: bool,
    **flags: Any,
) -> None:
    """Measure WHAT: a suite by name or file, or one benchmark (default: the suite 'quick').

    Flags named after parameters override them; a value list (a,b) measures every combination.
    """
    from paceline.runner.joined import JoinedRanks, World

    overrides = read_flags(flags) | read_settings(settings)
    if resume is not None:
        if what is not None or overrides:
            raise InputError("--resume goes on with a run as it was: leave out the suite and its parameters")
        code = _resume(resume, store, retry_failed, _listener(as_json), report_path, no_report, as_json)
        sys.exit(code)
    if retry_failed:
        raise InputError("--retry-failed goes with --resume RUN")
    suite: Suite = ctx.meta["paceline.suite"]
    world = World.of_environment()
    if world is not None:
        overrides["ranks"] = str(world.size)
    cases = _expand(suite, overrides)
    if dry_run:
        _show_cases(cases, as_json)
        return
    joined = JoinedRanks(world, timeout=max(case.timeout for case in cases)) if world is not None else None
    if joined is not None and joined.world.rank != 0:
        sys.exit(_follow(joined, suite, cases))
    from paceline.store import open_store

    with open_store(store) as opened:
        run = _begin(opened, suite, cases)
        code = _measure(opened, run, cases, {}, _listener(as_json), report_path, no_report, as_json, joined=joined)
    sys.exit(joined.leave(code) if joined is not None else code)


def _expand(suite: Suite, overrides: dict[str, Any]) -> list[Case]:
    from paceline.benchmarks import registry
    from paceline.core.suite import Here, expand
    from paceline.machine import gpu_count

    return expand(suite, registry().get, Here(gpus=gpu_count()), overrides)


def _begin(store: Store, suite: Suite, cases: list[Case]) -> Run:
    from paceline.core.run import Run
    from paceline.machine import describe
    from paceline.machine.privacy import scrub
    from paceline.version import VERSION

    now = datetime.now(UTC)
    run = Run(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        name=suite.name,
        started_at=now,
        version=VERSION,
        command=[scrub(word) for word in ["paceline", *sys.argv[1:]]],
        environment=describe().model_dump(mode="json"),
        cases=cases,
    )
    store.begin(run)
    return run


def _resume(
    name: str,
    store: str | None,
    retry_failed: bool,
    listener: Listener,
    report_path: str | None,
    no_report: bool,
    as_json: bool,
) -> int:
    from paceline.core.record import Outcome
    from paceline.store import open_store

    with open_store(store) as opened:
        run_id = opened.find_run(name)
        if opened.is_alive(run_id):
            raise InputError(f"run {run_id} is still being measured by another process; wait for it or end it")
        opened.recover(run_id)
        stored = opened.load(run_id)
        todo = list(stored.missing)
        if retry_failed:
            again = {r.case.index for r in stored.records if r.outcome is not Outcome.OK} | {c.index for c in todo}
            todo = [case for case in stored.run.cases if case.index in again]
        opened.reopen(run_id)
        attempts = {record.case.index: record.attempt for record in stored.records}
        return _measure(opened, stored.run, todo, attempts, listener, report_path, no_report, as_json)


def _measure(
    store: Store,
    run: Run,
    todo: list[Case],
    attempts: dict[int, int],
    listener: Listener,
    report_path: str | None,
    no_report: bool,
    as_json: bool,
    *,
    joined: JoinedRanks | None = None,
) -> int:
    """Measure, report, and say with the exit code whether all is well."""
    from paceline.runner.run import SuiteRun, execute_here

    suite_run = SuiteRun(
        run=run,
        todo=todo,
        sink=store,
        listener=listener,
        attempts=attempts,
        execute=joined.execute if joined is not None else execute_here,
    )
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        suite_run.go()
    except KeyboardInterrupt:
        _finish(store, run.id, "interrupted", listener)
        again = f"paceline run --resume {run.id}{_store_flag(store)}"
        click.echo(f"\npaceline: interrupted; go on with: {again}", err=True)
        return 130
    finally:
        listener_close = getattr(listener, "close", None)
        if listener_close is not None:
            listener_close()
    finished = _finish(store, run.id, "finished", listener)
    records = store.load(run.id)
    ok = records.all_ok and suite_run.all_ok and finished
    path = None if no_report else _write_report(records, report_path)
    if as_json:
        words = {"event": "run_ended", "run": run.id, "ok": ok, "report": str(path) if path else None}
        click.echo(json.dumps(words))
    else:
        from paceline.cli.report import primary_metrics
        from paceline.report import console

        click.echo()
        console.render(records, primary=primary_metrics())
        if path is not None:
            click.echo(f"\nReport: {path}")
        click.echo(f"Run:    {run.id}")
    return 0 if ok else 1


def _finish(store: Store, run_id: str, status: RunStatus, listener: Listener) -> bool:
    """Say in the store how the run ended; on a full disk that may fail, and what was measured is safe all the same."""
    try:
        if status == "interrupted":
            store.recover(run_id)
        store.finish(run_id, status)
    except StoreError as error:
        listener.trouble(str(error))
        return False
    return True


def _store_flag(store: Store) -> str:
    """What a later command must say to find this store; a URL without its password."""
    given = click.get_current_context().params.get("store")
    if not given:
        return ""
    return f" --store {shlex.quote(store.location.shown if '://' in given else given)}"


def _follow(joined: JoinedRanks, suite: Suite, cases: list[Case]) -> int:
    """In a process that a launcher started beside the first: take part in every case, keep nothing."""
    from paceline.runner.server import WarmServer

    with WarmServer() as server:
        for case in cases:
            joined.execute(server, case, lambda _progress: None)
    return joined.leave(0)


def _write_report(records: Any, report_path: str | None) -> Path | None:
    from paceline.cli.report import primary_metrics
    from paceline.report import html
    from paceline.store.location import data_directory

    path = Path(report_path) if report_path else data_directory() / "reports" / f"{records.run.id}.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return html.write(records, path, primary=primary_metrics())
    except OSError as error:  # what was measured is in the store: a report can be made later
        click.echo(f"paceline: no report at {path}: {error}; try: paceline report {records.run.id} --html", err=True)
        return None


def _listener(as_json: bool) -> Listener:
    from paceline.cli import _live

    if as_json:
        return _live.JsonLines()
    return _live.Terminal() if sys.stdout.isatty() else _live.PlainLines()


def _show_cases(cases: list[Case], as_json: bool) -> None:
    for case in cases:
        if as_json:
            click.echo(case.model_dump_json())
        else:
            click.echo(f"{case.index + 1:4}  {case.benchmark:12} {case.title}  on {case.target}")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
