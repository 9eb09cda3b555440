"""Starts, resumes and follows runs for the verbs that measure: store, runner and report brought together."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.core.benchmark import Benchmark
from paceline.core.case import RENAMED, Case, measuring_order
from paceline.core.errors import InputError, PacelineError, StoreError
from paceline.core.files import data_directory, private_directory
from paceline.core.interrupt import catch_interrupts
from paceline.core.record import Outcome
from paceline.core.run import Run, RunRecords, RunStatus
from paceline.core.suite import Here, Suite, expand, only
from paceline.machine.affinity import FLAG as AFFINITY
from paceline.machine.affinity import read_affinity, show_cpu_list
from paceline.remote.hosts import SSH, RemoteShell
from paceline.runner.fork_client import WarmServer
from paceline.runner.hosts import HostRanks, read_hosts
from paceline.runner.launcher_ranks import JoinedRanks, World
from paceline.runner.run import Listener, SuiteRun, execute_here, imports_of

if TYPE_CHECKING:
    from paceline.store.store import Store


FLAG = "--profile"
NAME_LENGTH = 32  # of what a case is called in the name of its file, so that a path fits into a line


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


def folder_of(given: str | None) -> Path | None:
    """Where traces go, checked to be writable before hours are spent; None if there are none."""
    if given is None:
        return None
    folder = Path(given).expanduser().absolute() if given else data_directory() / "traces"
    _require_writable(folder, FLAG, folder)
    return folder


def _require_writable(folder: Path, flag: str, value: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{flag} {value}: the folder cannot be made: {error.strerror}; choose another"
        raise InputError("cannot-make-folder", message, key=flag, value=str(value)) from None
    if not os.access(folder, os.W_OK):
        message = f"{flag} {value}: the folder is not writable; choose another"
        raise InputError("cannot-write", message, key=flag, value=str(value))


def refuse_if_none_can(cases: Sequence[Case]) -> None:
    """Refuse a run of which no case could be traced."""
    from paceline.core.benchmark import BENCHMARKS

    benchmarks = BENCHMARKS.registry().entries
    if any(benchmarks[case.benchmark].traceable for case in cases):
        return
    traceable = ", ".join(sorted(name for name, benchmark in benchmarks.items() if benchmark.traceable))
    measured = ", ".join(dict.fromkeys(case.benchmark for case in cases))
    remedy, suggestion = f"profile one of {traceable}", None
    if any(case.benchmark == "serve" for case in cases):
        model = next(case.parameters.get("model") for case in cases if case.benchmark == "serve")
        suggestion = f"paceline run inference --model {model} {FLAG}"
        remedy = f"the model alone can be: {suggestion}"
    message = f"{FLAG} traces the steps of a model, and {measured} has none that can be traced: {remedy}"
    raise InputError("not-traceable", message, key=FLAG, value=measured, suggestion=suggestion)


def with_traces(cases: Sequence[Case], folder: Path) -> list[Case]:
    """The cases, each that can be traced with a file of its own; the user's home is not named in them."""
    from paceline.core.benchmark import BENCHMARKS
    from paceline.machine.software import scrub

    refuse_if_none_can(cases)
    traced = []
    for case in cases:
        if BENCHMARKS.registry().entries[case.benchmark].traceable:
            words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{case.benchmark} {case.title}")[:NAME_LENGTH].strip("-")
            path = folder / f"{case.index + 1:02}-{words}.json.gz"
            case = case.model_copy(update={"trace": scrub(str(path))})
        traced.append(case)
    return traced


def with_peer(cases: Sequence[Case], peer: str, benchmarks: Mapping[str, type[Benchmark[Any]]]) -> list[Case]:
    """After each case that the peer can measure, the same under the peer: what drifts in a run hits both alike."""

    fitting = {}  # the other benchmarks that take the same parameters
    for name in dict.fromkeys(case.benchmark for case in cases):
        taken = benchmarks[name].Parameters
        fitting[name] = [one for one in benchmarks if one != name and benchmarks[one].Parameters is taken]
    if not any(peer in names for names in fitting.values()):
        shown = ", ".join(fitting)
        if peer in fitting:
            code, reason = "peer-of-itself", "it is measured already, and nothing else here takes its parameters"
        elif peer in benchmarks:
            code, reason = "peer-does-not-fit", f"it takes other parameters than {shown}"
        else:
            code, reason = "unknown-benchmark", f"there is no such benchmark to compare with {shown}"
        allowed = "; ".join(f"{', '.join(names)} for {name}" for name, names in fitting.items() if names)
        message = f"{reason}; " + (f"these fit: {allowed}" if allowed else "none fits")
        if flags := sorted({new.replace("_", "-") for one in fitting if (new := RENAMED.get(one, {}).get("peer"))}):
            message += f"; another host is named with --{flags[0]}"
        raise InputError(code, message, where=f"--peer {peer}", key="--peer", value=peer)
    other = benchmarks[peer]
    together: list[Case] = []
    for case in cases:
        together.append(case.model_copy(update={"index": len(together)}))
        if peer in fitting[case.benchmark]:
            parameters = other.Parameters.model_validate(case.parameters)
            title = other.title(parameters) + (f" x{case.ranks}" if case.ranks > 1 else "")
            update = {"benchmark": other.name, "title": title, "category": other.category, "index": len(together)}
            together.append(case.model_copy(update=update))
            if case.repeat == 1:
                other.check(parameters, together[-1])
    return together


INTERRUPTED = 130
PAST_CASES = 1_000  # from which the time of a run is estimated

Others = JoinedRanks | HostRanks | None  # who measures together: processes of a launcher, hosts, or this machine alone


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
        _require_writable(path.parent, "--report", path)


@contextmanager
def others(
    hosts: str | None, remote_shell: str | None, remote_python: str | None, master_address: str | None
) -> Iterator[Others]:
    """Who measures together; a process that a launcher started next to the first takes part here, and exits.

    Whatever happens in the first, the processes next to it hear when it is over, and its exit code.
    """
    world = World.of_environment()
    if hosts is not None:
        if world is not None:
            message = "--hosts starts the ranks itself: leave it out under torchrun, mpirun or srun"
            raise InputError("hosts-with-launcher", message, key="--hosts", value=hosts)
        shell = RemoteShell(remote_shell or SSH, remote_python or sys.executable)
        with closing(HostRanks(read_hosts(hosts), shell, master_address)) as ranks:
            yield ranks
        return
    if remote_shell or remote_python or master_address:
        message = "--remote-shell, --remote-python and --master-address go with --hosts A,B"
        raise InputError("remote-without-hosts", message, key="--hosts")
    if world is None:
        yield None
        return
    joined = JoinedRanks(world)
    if world.rank != 0:
        sys.exit(_follow(joined))
    code = 1
    try:
        yield joined
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else code
        raise
    except PacelineError as error:
        code = error.exit_code
        raise
    finally:
        joined.announce([])  # unless there were cases, which then stand
        joined.leave(code)


def _follow(joined: JoinedRanks) -> int:
    """In a process that a launcher started next to the first: take part in every case, keep nothing."""
    with WarmServer() as server:
        for case in joined.hear_cases():
            joined.execute(server, case, lambda _progress: None)
    return joined.leave(0)


def expand_here(
    suite: Suite,
    overrides: dict[str, Any],
    world: Others = None,
    peer: str | None = None,
    filters: Sequence[str] = (),  # what the name of a case must have in it
) -> list[Case]:
    """The suite's cases on this machine, or where its ranks will be; each also under the peer."""
    from paceline.core.benchmark import BENCHMARKS
    from paceline.devices import counts

    devices = world.devices if isinstance(world, HostRanks) else counts()
    size, nodes = (world.size, world.nodes) if world is not None else (1, 1)
    here = Here(devices=devices, world=size, nodes=nodes)
    cases = only(expand(suite, BENCHMARKS.get, here, overrides), filters, suite.name)
    return with_peer(cases, peer, BENCHMARKS.registry().entries) if peer is not None else cases


def foreseen(cases: Sequence[Case], store: str | None) -> str:
    """How long the cases take, judged by what the store has of others; one that is not there stays so."""
    from paceline.cli import _time_left
    from paceline.store.location import default_url, locate
    from paceline.store.reader import open_file

    past: list[tuple[Case, float]] = []
    with suppress(InputError, StoreError):  # said by the run itself
        if (reader := open_file(locate(store or default_url()))) is not None:
            with reader:
                past = reader.durations(PAST_CASES)
    return _time_left.foreseen(cases, past)


@contextmanager
def warm_server(cpus: Collection[int]) -> Iterator[WarmServer]:
    """The process that forks the cases, which starts while they are made; it is gone when they are refused."""
    server = WarmServer(frozenset(cpus))
    try:
        server.begin()
        yield server
    finally:
        server.abandon()


def start(
    name: str,
    cases: list[Case],
    store: str | None,
    output: Output,
    world: Others = None,
    tags: Sequence[str] = (),
    traces: Path | None = None,  # where those of its models go
    cpus: Collection[int] = (),  # to pin them to; none for all
    warm: WarmServer | None = None,
) -> int:
    """Measure the cases of a suite from the beginning; returns the exit code."""
    if warm is not None:  # which imports while the store is opened and the machine described
        warm.begin(imports_of(measuring_order(cases)[0]))
    from paceline.store import open_store

    with open_store(store) as opened:
        run = _pinned(new_run(name, cases, world, tags), cpus)
        if traces is not None:
            run = run.model_copy(update={"cases": with_traces(cases, traces / run.id)})
        opened.begin(run)
        return _measure(opened, run, run.cases, {}, output, world, warm)


def resume(name: str, store: str | None, output: Output, world: Others, *, retry_failed: bool) -> int:
    """Measure what is missing of an earlier run; returns the exit code."""
    from paceline.analysis.compare.rounds import is_interleaved
    from paceline.core.benchmark import BENCHMARKS
    from paceline.store import open_existing

    with open_existing(store) as opened:
        run_id = opened.find_run(name)
        if opened.is_alive(run_id):
            message = f"run {run_id} is still being measured by another process; wait for it or end it"
            raise InputError("run-in-progress", message, key="--resume", value=run_id)
        opened.recover(run_id)
        stored = opened.load(run_id)
        if is_interleaved(stored):
            message = f"run {run_id} is of 'paceline ab': go on with paceline ab --resume {run_id} and the same sides"
            raise InputError("resume-of-ab", message, key="--resume", value=run_id)
        again = {case.index for case in stored.missing}
        if retry_failed:
            again |= {record.case.index for record in stored.records if record.outcome is not Outcome.OK}
        todo = [case for case in stored.run.cases if case.index in again]
        here = world.nodes if world is not None else 1
        for case in todo:  # one that says over how many hosts it goes must not be resumed over others
            benchmark = BENCHMARKS.get(case.benchmark)
            nodes = benchmark.nodes(benchmark.Parameters.read(case.parameters))
            if nodes not in (None, here):
                same = "give the same --hosts as before"
                message = f"{case.title} is for {nodes} nodes, but it would run on {here}: {same}"
                raise InputError("wrong-number-of-nodes", message, key="--hosts", value=here)
        opened.reopen(run_id)
        attempts = {record.case.index: record.attempt for record in stored.records}
        return _measure(opened, stored.run, todo, attempts, output, world)


def new_run(name: str, cases: list[Case], world: Others, tags: Sequence[str]) -> Run:
    """A run that begins now, with what this machine is."""
    from paceline.machine import describe
    from paceline.machine.software import scrub
    from paceline.version import VERSION

    now = datetime.now(UTC)
    # As text that every format can hold: a path need not be in UTF-8.
    words = [os.fsencode(word).decode(errors="replace") for word in sys.argv[1:]]
    return Run(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        name=name,
        started_at=now,
        version=VERSION,
        command=[scrub(word) for word in ["paceline", *words]],
        environment=world.environment() if isinstance(world, HostRanks) else describe().model_dump(mode="json"),
        tags=list(dict.fromkeys(tags)),
        cases=cases,
    )


def _pinned(run: Run, cpus: Collection[int]) -> Run:
    """The run with the CPUs that it is pinned to in its environment, where `--resume` looks for them."""
    if not cpus:
        return run
    cpu = run.environment.cpu.model_copy(update={"affinity": len(cpus), "pinned": show_cpu_list(cpus)})
    return run.model_copy(update={"environment": run.environment.model_copy(update={"cpu": cpu})})


def affinity(given: str | None, world: Others) -> set[int]:
    """The CPUs that `--affinity` names; none where it was not given."""
    if given is None:
        return set()
    if world is not None:
        message = f"{AFFINITY} pins the processes of this machine: with --hosts or a launcher, pin each rank there"
        raise InputError("affinity-with-hosts", message, key=AFFINITY, value=given)
    return read_affinity(given)


def _measure(
    store: Store,
    run: Run,
    todo: list[Case],
    attempts: dict[int, int],
    output: Output,
    world: Others,
    warm: WarmServer | None = None,
) -> int:
    """Measure, report, and say with the exit code whether all is well."""
    todo = measuring_order(todo)
    if world is not None:
        world.announce(todo)
    listener = output.listener()
    pinned = run.environment.cpu.pinned
    suite_run = SuiteRun(
        run=run,
        todo=todo,
        sink=store,
        listener=listener,
        attempts=attempts,
        execute=world.execute if world is not None else execute_here,
        cpus=frozenset(read_affinity(pinned) if pinned else ()),
        warm=warm,
    )
    catch_interrupts()
    try:
        suite_run.go()
    except KeyboardInterrupt:
        try:
            _finish(store, run.id, "interrupted", listener)
        finally:  # also for a user who interrupts this, too
            if output.as_json:
                click.echo(json.dumps({"event": "run_ended", "run": run.id, "ok": False, "status": "interrupted"}))
            # What a later command must say: the store, a URL without its password, and the hosts.
            options = dict(click.get_current_context().params)
            if "://" in (options.get("store") or ""):
                options["store"] = store.location.shown
            command = f"paceline run --resume {run.id}"
            for name in ("store", "hosts", "remote_shell", "remote_python", "master_address"):
                if options.get(name):
                    command += f" --{name.replace('_', '-')} {shlex.quote(options[name])}"
            click.echo(f"\npaceline: interrupted; go on with: {command}", err=True)
        return INTERRUPTED
    finally:
        listener.close()
    finished = _finish(store, run.id, "finished", listener)
    records = store.load(run.id).with_latest(suite_run.put_aside)
    ok = records.all_ok and suite_run.all_ok and finished
    written = _show(records, output, ok=ok)
    return 0 if ok and (written or output.report_path is None) else 1


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


def _show(records: RunRecords, output: Output, *, ok: bool) -> bool:
    """Print the results and write the report; whether there is one."""
    path = _write_report(records, output) if output.report else None
    if output.as_json:
        if output.answer is not None:
            output.answer(records)
        words = {"event": "run_ended", "run": records.run.id, "ok": ok, "status": "finished"}
        click.echo(json.dumps(words | {"report": str(path) if path else None}))
        return path is not None
    click.echo()
    if output.answer is not None:
        output.answer(records)
    else:
        from paceline.cli._sources import known_ceilings
        from paceline.report.run.document import show

        show(records, ceilings=known_ceilings(records))
    if path is not None:
        click.echo(f"\nReport: {path}")
    click.echo(f"Run:    {records.run.id}")
    return path is not None


def _write_report(records: RunRecords, output: Output) -> Path | None:
    from paceline.cli._sources import known_ceilings
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
