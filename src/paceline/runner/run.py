"""Runs the cases of a suite one after the other and hands over each record as soon as it exists."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from paceline.core.benchmark import BENCHMARKS, described
from paceline.core.case import Case
from paceline.core.errors import StoreError
from paceline.core.interrupt import interrupts_held
from paceline.core.record import Outcome, Record
from paceline.core.run import Run
from paceline.core.text import clean, clean_all
from paceline.machine.cpu import show_cpu_list
from paceline.machine.software import scrub
from paceline.runner.execute import CaseEnd, CaseExecution, local_ranks, run_at_once
from paceline.runner.fork_client import WarmServer

PARTIAL_SECONDS = 1.0


class Sink(Protocol):
    """Where records go; the store is one."""

    def add(self, record: Record) -> None:
        """Keep a record for good before returning."""

    def keep_partial(
        self, run_id: str, case_index: int, attempt: int, metric: str, unit: str, samples: Sequence[float]
    ) -> None:
        """Keep samples of the case in flight, in case nobody lives to add its record."""


class Listener:
    """Hears of everything as it happens; does nothing with it."""

    def started(self, run: Run, todo: Sequence[Case]) -> None:
        """The run begins (or goes on) with these cases to do."""

    def case_started(self, case: Case) -> None:
        """A case begins."""

    def case_progress(self, case: Case, progress: Mapping[str, Any], samples: Sequence[float]) -> None:
        """A case goes on; `samples` are all that were measured so far of the metric in hand."""

    def case_ended(self, record: Record) -> None:
        """A case has ended, one way or another."""

    def trouble(self, message: str) -> None:
        """Something went wrong that ends no case."""

    def close(self) -> None:
        """Nothing more will happen."""


OnProgress = Callable[[dict[str, Any]], None]
# Runs a case and returns its end; None where another process keeps the record.
Execute = Callable[[WarmServer, Case, OnProgress], CaseEnd | None]
# The same for cases at the same time.
ExecuteAtOnce = Callable[[WarmServer, Sequence[tuple[Case, OnProgress]]], Sequence[CaseEnd]]


def execute_here(
    server: WarmServer, case: Case, on_progress: OnProgress, abort: Callable[[], bool] = lambda: False
) -> CaseEnd:
    """All ranks of the case on this machine."""
    return execute_at_once(server, [(case, on_progress)], abort)[0]


def execute_at_once(
    server: WarmServer, cases: Sequence[tuple[Case, OnProgress]], abort: Callable[[], bool] = lambda: False
) -> list[CaseEnd]:
    """Cases of one benchmark on this machine at the same time."""
    executions = [
        CaseExecution(
            server,
            case,
            ranks=local_ranks(case.ranks),
            world_size=case.ranks,
            on_progress=on_progress,
            abort=abort,
        )
        for case, on_progress in cases
    ]
    ends = run_at_once(executions, imports_of(cases[0][0]))
    if len(ends) > 1:
        for result in (result for end in ends for result in end.results.values()):
            result.facts["devices_at_once"] = len(ends)
    return ends


def imports_of(case: Case) -> tuple[str, ...]:
    """Modules that a case will want: that of its benchmark, and heavy ones."""
    benchmark = BENCHMARKS.get(case.benchmark)
    return (benchmark.__module__, *benchmark.imports({**case.parameters, "target": case.target}))


@dataclass
class SuiteRun:
    """One execution of a suite's cases."""

    run: Run
    todo: Sequence[Case]
    sink: Sink
    listener: Listener = field(default_factory=Listener)
    attempts: Mapping[int, int] = field(default_factory=dict)  # attempts that were made already, by case
    execute: Execute = execute_here
    several: ExecuteAtOnce | None = None  # cases at the same time; None where they go one after the other
    cpus: frozenset[int] = frozenset()  # that the cases are pinned to; empty for all
    warm: WarmServer | None = None  # for the first cases, started while the run was prepared
    enough: Callable[[], str] = lambda: ""  # why no further case is to be measured; empty while one is
    ended_early: str = ""  # why
    all_ok: bool = True
    put_aside: list[Record] = field(default_factory=list)  # that the sink could not take

    def go(self) -> bool:
        """Measure every case, or as many as are enough; whether all of them are ok."""
        self.listener.started(self.run, self.todo)
        # Copies of one process share its layout in memory, which differs from process to process: so do repetitions.
        started = self.warm
        for _, cases in itertools.groupby(self.todo, key=lambda case: case.repeat):
            with started or WarmServer(self.cpus) as server:
                started = None
                for together in self._at_once(list(cases)):
                    self.ended_early = self.enough()
                    if self.ended_early:
                        return False
                    for record in self._measure(server, together):
                        self._keep(record)
        return self.all_ok

    def _at_once(self, cases: Sequence[Case]) -> list[list[Case]]:
        """The cases in their order, those together that are measured at the same time."""
        groups: dict[object, list[Case]] = {}
        for case in cases:
            is_alone = not case.at_once or self.several is None
            groups.setdefault(case.index if is_alone else case.work_key, []).append(case)
        return list(groups.values())

    def _keep(self, record: Record) -> None:
        try:
            with interrupts_held():
                self.sink.add(record)
        except StoreError as error:  # which says where the record is now: the next case may still count
            self.all_ok = False
            self.put_aside.append(record)
            self.listener.trouble(str(error))
        self.all_ok &= record.is_success
        self.listener.case_ended(record)

    def _measure(self, server: WarmServer, cases: Sequence[Case]) -> list[Record]:
        attempts = [_Attempt(self, case) for case in cases]
        try:
            if len(attempts) > 1 and self.several is not None:
                at_once = [(attempt.case, attempt.on_progress) for attempt in attempts]
                ends: Sequence[CaseEnd | None] = self.several(server, at_once)
            else:
                ends = [self.execute(server, attempt.case, attempt.on_progress) for attempt in attempts]
        except BaseException:  # an interrupt, or a machine that is lost
            for attempt in attempts:
                attempt.keep_new_samples()
            raise
        return [attempt.record(end) for attempt, end in zip(attempts, ends, strict=True) if end is not None]


class _Attempt:
    """One attempt at a case, from its start on."""

    def __init__(self, of: SuiteRun, case: Case) -> None:
        self.case = case
        self._of = of
        self._number = of.attempts.get(case.index, 0) + 1
        self._started_at, self._begun = datetime.now(UTC), time.monotonic()
        self._samples: list[float] = []
        self._metric = self._unit = ""
        self._stored, self._stored_at = 0, self._begun
        of.listener.case_started(case)

    def on_progress(self, progress: dict[str, Any]) -> None:
        """The case goes on."""
        if progress["metric"]:
            if clean(progress["metric"]) != self._metric:  # the next point of a sweep: its samples are others
                self.keep_new_samples()
                self._samples.clear()
                self._stored = 0
            self._metric, self._unit = clean(progress["metric"]), clean(progress["unit"])
            self._samples.extend(progress["samples"])
        self._of.listener.case_progress(self.case, progress, self._samples)
        if time.monotonic() - self._stored_at >= PARTIAL_SECONDS:
            self.keep_new_samples()

    def keep_new_samples(self) -> None:
        """Store what is not stored yet."""
        with interrupts_held():  # the same samples must not be stored twice
            new = self._samples[self._stored :]
            if not new:
                return
            run, index = self._of.run.id, self.case.index
            try:
                self._of.sink.keep_partial(run, index, self._number, self._metric, self._unit, new)
            except StoreError as error:
                self._of.listener.trouble(str(error))
            self._stored, self._stored_at = len(self._samples), time.monotonic()

    def record(self, end: CaseEnd) -> Record:
        """What came of it."""
        result = end.result()
        conditions = result.facts.pop("conditions", {})
        if self._of.cpus:
            result.facts["affinity"] = show_cpu_list(self._of.cpus)
        cause = end.failure.cause if end.failure else None
        if cause is not None:  # messages and tracebacks name files: without the user's home folder and secrets
            cause = cause.model_copy(update={"message": scrub(cause.message), "detail": scrub(cause.detail)})
        record = Record(
            run_id=self._of.run.id,
            case=self.case,
            attempt=self._number,
            outcome=end.failure.outcome if end.failure else Outcome.OK,
            cause=cause,
            started_at=self._started_at,
            seconds=time.monotonic() - self._begun,
            measurements=result.measurements,
            facts=clean_all(result.facts),
            warnings=clean_all([warning.model_dump() for warning in result.warnings]),
            conditions=clean_all(conditions),
        )
        return described(record, self._of.run.environment)
