"""The process that measures one attempt: `python -m paceline.service.follower.measuring FOLDER`.

It depends on no other process: its results go into the spool, and it ends by itself when its lease has run out.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import Case, measuring_order
from paceline.core.errors import InputError
from paceline.core.interrupt import catch_interrupts
from paceline.core.record import Outcome, Record
from paceline.core.run import Run
from paceline.core.suite import Suite, command_line, expand, only
from paceline.core.text import clean
from paceline.devices import counts
from paceline.machine import describe
from paceline.machine.inventory import parts
from paceline.machine.software import scrub
from paceline.runner.run import Execute, Listener, SuiteRun, execute_at_once, execute_here
from paceline.service import admission
from paceline.service.engines.base import Assignment, AttemptProgress, CaseSamples, LiveFigure
from paceline.service.follower.spool import SPOOL_FAILED, Spool, SpoolFailed
from paceline.service.jobs import STOPPED, FailureKind, JobFailure, MachineNeeds
from paceline.store import location
from paceline.version import VERSION

_WATCH_SECONDS = 1.0
_KINDS = {Outcome.TIMEOUT: FailureKind.TIMEOUT, Outcome.OUT_OF_MEMORY: FailureKind.MEMORY}


class _SpoolListener(Listener):
    """Sink and listener in one: records, samples and lines go into the spool, progress alongside."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._progress = AttemptProgress()
        self._shown_at = 0.0
        self.records: list[Record] = []

    def add(self, record: Record) -> None:
        """Store a record for good before returning."""
        self._spool.append("record", record=record)
        self.records.append(record)

    def keep_partial(
        self, run_id: str, case_index: int, attempt: int, metric: str, unit: str, samples: Sequence[float]
    ) -> None:
        """Store samples of the case in flight."""
        values = tuple(map(float, samples))
        partial = CaseSamples(case_index=case_index, attempt=attempt, metric=metric, unit=unit, values=values)
        self._spool.append("samples", samples=partial)

    def started(self, run: Run, todo: Sequence[Case]) -> None:
        self._show(cases=len(todo))

    def case_started(self, case: Case) -> None:
        title = f"{case.benchmark} {case.title}".strip()
        self._show(case_index=case.index, title=title, case_started_at=datetime.now(UTC), phase="", figures={})
        self._log(f"{title} on {case.target}")

    def case_progress(self, case: Case, progress: Mapping[str, Any], samples: Sequence[float]) -> None:
        phase, now = clean(str(progress.get("phase", ""))), time.monotonic()
        if phase != self._progress.phase or now - self._shown_at >= EVERY:
            self._shown_at = now
            self._show(phase=phase, figures=live_figures(progress, samples))

    def case_ended(self, record: Record) -> None:
        self._show(cases_done=self._progress.cases_done + 1, phase="", figures={})
        why = f": {record.cause.message}" if record.cause else ""
        self._log(f"  {record.outcome.value} after {record.seconds:.1f} s{why}")

    def trouble(self, message: str) -> None:
        self._log(message)

    def _log(self, text: str) -> None:
        self._spool.append("log", text=f"{text}\n")

    def _show(self, **news: object) -> None:
        self._progress = self._progress.model_copy(update=news)
        self._spool.progress = self._progress


def measure(spool: Spool, assignment: Assignment) -> None:
    """All of an attempt, from its beginning to the last item."""
    from paceline.service.follower import gang

    failure = None
    try:
        if assignment.place > 0:
            gang.follow(spool, assignment)
        elif assignment.peers:
            with gang.lead(assignment) as execute:
                failure = _run(spool, assignment, execute)
        else:
            failure = _run(spool, assignment, execute_here)
    except gang.GangBroken as error:
        failure = JobFailure(kind=error.kind, message=str(error))
    except InputError as error:
        failure = JobFailure(kind=FailureKind.REFUSED, message=str(error))
    except KeyboardInterrupt:
        failure = JobFailure(kind=FailureKind.LOST, message=STOPPED)
    spool.append("ended", failure=failure)


def _run(spool: Spool, assignment: Assignment, execute: Execute) -> JobFailure | None:
    suite = Suite.read(assignment.suite, "the job", origin="network")
    needs = MachineNeeds(gpus=len(assignment.devices), nodes=1 + len(assignment.peers))
    here = needs.here(next(iter(counts()), None)).model_copy(update={"parts": parts()})
    cases = only(expand(suite, BENCHMARKS.registry().get, here, assignment.overrides), assignment.only, suite.name)
    admission.refuse(cases)  # again: here the suite may expand to other cases than where it was taken
    run = Run(
        id=assignment.run_id,
        name=suite.name,
        started_at=datetime.now(UTC),
        version=VERSION,
        command=[scrub(word) for word in command_line("submit", suite.name, assignment.overrides, assignment.only)],
        tags=list(assignment.tags),
        environment=describe().model_dump(mode="json"),
        cases=cases,
    )
    listener = _SpoolListener(spool)
    spool.append("began", run=run)
    several = execute_at_once if execute is execute_here else None
    todo = measuring_order(run.cases)
    SuiteRun(run=run, todo=todo, sink=listener, listener=listener, execute=execute, several=several).go()
    failed = [record for record in listener.records if not record.is_success]
    if not failed:
        return None
    first = failed[0]
    why = first.cause.message if first.cause else first.outcome.value
    name = f"{first.case.benchmark} {first.case.title}".strip()
    message = f"{len(failed)} of {len(listener.records)} cases did not succeed; the first, {name}: {why}"
    kinds = {_KINDS.get(record.outcome, FailureKind.CASES) for record in failed}
    return JobFailure(kind=kinds.pop() if len(kinds) == 1 else FailureKind.CASES, message=message)


def _watch(spool: Spool, seconds: float) -> None:
    """End everything once the lease has run out: by then another follower has the job."""
    heard, at = spool.renewed_at, time.monotonic()  # the wall clock may be set meanwhile
    while time.monotonic() - at < seconds:
        time.sleep(min(_WATCH_SECONDS, seconds / 4))
        try:
            renewed = spool.renewed_at
        except OSError:  # nobody wants it any more
            break
        if renewed != heard:
            heard, at = renewed, time.monotonic()
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main() -> None:
    """Measure what the folder says, unless somebody else does or did."""
    spool = Spool(Path(sys.argv[1]))
    assignment = spool.assignment
    if assignment is None:
        sys.exit(f"no assignment in {spool.folder}")
    with spool.exclusively() as is_mine:
        if not is_mine or spool.process is not None or spool.has_ended:
            sys.exit(f"the attempt in {spool.folder} is another process's")
        catch_interrupts()
        spool.process = location.this_runner()
        threading.Thread(target=_watch, args=(spool, assignment.lease_seconds), daemon=True).start()
        try:
            measure(spool, assignment)
        except SpoolFailed:
            sys.exit(SPOOL_FAILED)  # nor could a message be written; the worker knows what the code means


EVERY = 1.0  # seconds
_UNITS = {"rate": "requests/s", "p50": "s", "p99": "s", "failures": "requests/s"}  # of a load
_RECENT = 100  # samples that tell what is going on now
_LONGEST = 100  # characters of a name or a unit
_MOST = 8  # figures


def live_figures(progress: Mapping[str, Any], samples: Sequence[float]) -> dict[str, LiveFigure]:
    """The figures of a report on a case in flight; what is not a finite number is left out."""
    found: dict[str, tuple[Any, str]] = {}
    metric, work = progress.get("metric"), progress.get("work")
    if metric and samples:
        recent = sorted(samples[-_RECENT:])
        middle = recent[len(recent) // 2]
        if work and middle > 0:
            found["rate"] = (work / middle, progress.get("rate_unit", ""))
        found[metric] = (middle, progress.get("unit", ""))
    given = progress.get("load")
    if isinstance(given, Mapping):
        found |= {str(name): (value, _UNITS.get(name, "")) for name, value in given.items()}
    return {
        clean(name)[:_LONGEST]: LiveFigure(value=value, unit=clean(str(unit))[:_LONGEST])
        for name, (value, unit) in list(found.items())[:_MOST]
        if isinstance(value, int | float) and math.isfinite(value)
    }


if __name__ == "__main__":
    main()
