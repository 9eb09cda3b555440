"""Starts, resumes and ends runs: machine, runner and store brought together, for Python and the command line alike."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.case import Case, measuring_order
from paceline.core.errors import InputError, PacelineError, StoreError
from paceline.core.files import data_directory
from paceline.core.record import Outcome
from paceline.core.run import Run, RunRecords, RunStatus
from paceline.machine.cpu import FLAG as AFFINITY
from paceline.machine.cpu import read_affinity, show_cpu_list
from paceline.remote.hosts import SSH, RemoteShell
from paceline.report.text import listed
from paceline.runner.fork_client import WarmServer
from paceline.runner.hosts import HostRanks, NodeLost, RemoteNode, read_hosts
from paceline.runner.launcher_ranks import JoinedRanks, World
from paceline.runner.run import Listener, SuiteRun, execute_at_once, execute_here

if TYPE_CHECKING:
    from paceline.analysis.diagnose.early import DefectRules
    from paceline.store.store import Store

# Who measures: processes of a launcher, hosts together, another host, or this machine alone.
Others = JoinedRanks | HostRanks | RemoteNode | None


@dataclass(frozen=True)
class Todo:
    """A run that the store has, and what is to be measured of it."""

    run: Run
    cases: list[Case]
    attempts: dict[int, int]  # made already, by case


@dataclass(frozen=True)
class Measured:
    """What came of a run, and whether all is well."""

    records: RunRecords
    ok: bool
    ended_early: str = ""  # why


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


def begin(
    store: Store,
    name: str,
    cases: list[Case],
    world: Others = None,
    tags: Sequence[str] = (),
    traces: Path | None = None,  # where those of its models go
    cpus: Collection[int] = (),  # to pin them to; none for all
    command: Sequence[str] | None = None,
) -> Todo:
    """A run of these cases from the beginning, which the store knows of from now on."""
    run = _pinned(new_run(name, cases, world, tags, command), cpus)
    if traces is not None:
        run = run.model_copy(update={"cases": with_traces(cases, traces / run.id)})
    store.begin(run)
    return Todo(run, run.cases, {})


def reopen(store: Store, name: str, world: Others, *, retry_failed: bool) -> Todo:
    """What is missing of an earlier run."""
    from paceline.analysis.compare.sides import is_interleaved
    from paceline.core.benchmark import BENCHMARKS

    run_id = store.find_run(name)
    if store.is_alive(run_id):
        message = f"run {run_id} is still being measured by another process; wait for it or end it"
        raise InputError("run-in-progress", message, key="--resume", value=run_id)
    store.recover(run_id)
    stored = store.load(run_id)
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
    store.reopen(run_id)
    attempts = {record.case.index: record.attempt for record in stored.records}
    return Todo(stored.run, todo, attempts)


def records_of(store: Store, name: str, resumed: str | None, tags: Sequence[str]) -> RunRecords:
    """A new run whose cases are not known yet, or an earlier one of the same name to go on with."""
    if resumed is None:
        return RunRecords(run=new_run(name, [], None, tags), records=[])
    run_id = store.find_run(resumed)
    if store.is_alive(run_id):
        message = f"run {run_id} is still being measured by another process; wait for it or end it"
        raise InputError("run-in-progress", message, key="--resume", value=run_id)
    records = store.load(run_id)
    if records.run.name != name:
        message = f"run {run_id} is '{records.run.name}', not '{name}': name the same as before"
        raise InputError("other-sides", message, key="--resume", value=resumed)
    store.recover(run_id)
    store.reopen(run_id)
    return store.load(run_id)


def new_run(
    name: str, cases: list[Case], world: Others, tags: Sequence[str], command: Sequence[str] | None = None
) -> Run:
    """A run that begins now, with what this machine is; the command is this process's, unless another is named."""
    from paceline.machine import describe
    from paceline.machine.software import scrub
    from paceline.version import VERSION

    now = datetime.now(UTC)
    # As text that every format can hold: a path need not be in UTF-8.
    words = ["paceline", *sys.argv[1:]] if command is None else command
    return Run(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        name=name,
        started_at=now,
        version=VERSION,
        command=[scrub(os.fsencode(word).decode(errors="replace")) for word in words],
        environment=describe().model_dump(mode="json")
        if world is None or isinstance(world, JoinedRanks)
        else world.environment(),
        tags=list(dict.fromkeys(tags)),
        cases=cases,
    )


def _pinned(run: Run, cpus: Collection[int]) -> Run:
    """The run with the CPUs that it is pinned to in its environment, where `--resume` looks for them."""
    if not cpus:
        return run
    cpu = run.environment.cpu.model_copy(update={"affinity": len(cpus), "pinned": show_cpu_list(cpus)})
    return run.model_copy(update={"environment": run.environment.model_copy(update={"cpu": cpu})})


def check_tag(tag: str, key: str = "--tag") -> None:
    """Refuse a tag that nobody could read or type."""
    if not tag.strip() or not tag.isprintable():
        message = f"{key} {tag!r} is not a name: give one that can be read and typed, such as nightly"
        raise InputError("invalid-tag", message, key=key, value=tag)


def affinity_of(given: str | None, world: Others) -> set[int]:
    """The CPUs that `--affinity` names; none where it was not given."""
    if given is None:
        return set()
    if world is not None:
        message = f"{AFFINITY} pins the processes of this machine: with --hosts or a launcher, pin each rank there"
        raise InputError("affinity-with-hosts", message, key=AFFINITY, value=given)
    return read_affinity(given)


@contextmanager
def warm_server(cpus: Collection[int]) -> Iterator[WarmServer]:
    """The process that forks the cases, which starts while they are made; it is gone when they are refused."""
    server = WarmServer(frozenset(cpus))
    try:
        server.begin()
        yield server
    finally:
        server.abandon()


def measure(
    store: Store,
    todo: Todo,
    listener: Listener,
    world: Others = None,
    warm: WarmServer | None = None,
    enough: Callable[[], str] = lambda: "",  # why no further case is to be measured
) -> Measured:
    """Measure, and say in the store how it ended; an interrupt is passed on when the store knows of it."""
    cases = measuring_order(todo.cases)
    if world is not None:
        world.announce(cases)
    run = todo.run
    pinned = run.environment.cpu.pinned
    several = execute_at_once if world is None else world.execute_at_once if isinstance(world, RemoteNode) else None
    suite_run = SuiteRun(
        run=run,
        todo=cases,
        sink=store,
        listener=listener,
        attempts=todo.attempts,
        execute=world.execute if world is not None else execute_here,
        several=several,
        cpus=frozenset(read_affinity(pinned) if pinned else ()),
        warm=warm,
        enough=enough,
    )
    try:
        suite_run.go()
    except (KeyboardInterrupt, NodeLost):
        finish(store, run.id, "interrupted", listener)
        raise
    finally:
        listener.close()
    finished = finish(store, run.id, "finished", listener)
    records = store.load(run.id).with_latest(suite_run.put_aside)
    return Measured(records, records.all_ok and suite_run.all_ok and finished, suite_run.ended_early)


def until_defect(store: Store, todo: Todo, defects: DefectRules, listener: Listener) -> Callable[[], str]:
    """Says of a run on this machine why it is enough: what accuses the machine by now."""
    from paceline.report.diagnose import sentence

    run, again = todo.run, {case.index for case in todo.cases}
    is_blind = False

    def enough() -> str:
        nonlocal is_blind
        if is_blind:
            return ""
        try:
            (so_far,) = store.glances([run.id]).values()
        except StoreError as error:  # which is no reason to stop measuring
            is_blind = True
            listener.trouble(f"this check does not end early any more: {error}")
            return ""
        node = run.environment.host_name
        records = [
            record
            for record in so_far.records  # an attempt that is to be repeated says nothing any more
            if record.case.index not in again or record.attempt > todo.attempts.get(record.case.index, 0)
        ]
        found = defects.accused_so_far({node: RunRecords(run=run, records=records)}, 1)
        return sentence(found[node]) if node in found else ""

    return enough


def finish(store: Store, run_id: str, status: RunStatus, listener: Listener) -> bool:
    """Say in the store how the run ended; on a full disk that may fail, and what was measured is safe all the same."""
    try:
        if status == "interrupted":
            store.recover(run_id)
        store.finish(run_id, status)
    except StoreError as error:
        listener.trouble(str(error))
        return False
    return True


FLAG = "--profile"
NAME_LENGTH = 32  # of what a case is called in the name of its file, so that a path fits into a line


def folder_of(given: str | None, flag: str = FLAG) -> Path | None:
    """Where traces go, checked to be writable before hours are spent; None if there are none; `flag` asked for them."""
    if given is None:
        return None
    folder = Path(given).expanduser().absolute() if given else data_directory() / "traces"
    require_writable(folder, flag, folder)
    return folder


def require_writable(folder: Path, flag: str, value: Path) -> None:
    """Make a folder if it is missing, and refuse one that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{flag} {value}: the folder cannot be made: {error.strerror}; choose another"
        raise InputError("cannot-make-folder", message, key=flag, value=str(value)) from None
    if not os.access(folder, os.W_OK):
        message = f"{flag} {value}: the folder is not writable; choose another"
        raise InputError("cannot-write", message, key=flag, value=str(value))


def refuse_if_none_can(cases: Sequence[Case], flag: str = FLAG) -> None:
    """Refuse a run of which no case could be traced, although `flag` asks for traces."""
    from paceline.core.benchmark import BENCHMARKS

    benchmarks = BENCHMARKS.registry().entries
    if any(benchmarks[case.benchmark].traceable for case in cases):
        return
    traceable = ", ".join(sorted(name for name, benchmark in benchmarks.items() if benchmark.traceable))
    names = list(dict.fromkeys(case.benchmark for case in cases))
    measured, has = listed(names), "has" if len(names) == 1 else "have"
    remedy, suggestion = f"trace one of {traceable}", None
    if any(case.benchmark == "serve" for case in cases):
        model = next(case.parameters.get("model") for case in cases if case.benchmark == "serve")
        suggestion = f"paceline run inference --model {model} {flag}"
        remedy = f"the model alone can be: {suggestion}"
    message = f"{flag} traces the steps of a model, and {measured} {has} none that can be traced: {remedy}"
    raise InputError("not-traceable", message, key=flag, value=measured, suggestion=suggestion)


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
