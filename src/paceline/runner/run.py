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
from paceline.runner.execute import CaseEnd, CaseExecution, local_ranks
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


# Runs a case and returns its end; None where another process keeps the record.
Execute = Callable[[WarmServer, Case, Callable[[dict[str, Any]], None]], CaseEnd | None]


def execute_here(server: WarmServer, case: Case, on_progress: Callable[[dict[str, Any]], None]) -> CaseEnd:
    """All ranks of the case on this machine."""
    execution = CaseExecution(
        server, case, ranks=local_ranks(case.ranks), world_size=case.ranks, on_progress=on_progress
    )
    return execution.run(imports_of(case))


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
    cpus: frozenset[int] = frozenset()  # that the cases are pinned to; empty for all
    warm: WarmServer | None = None  # for the first cases, started while the run was prepared
    all_ok: bool = True
    put_aside: list[Record] = field(default_factory=list)  # that the sink could not take

    def go(self) -> bool:
        """Measure every case; whether all of them are ok."""
        self.listener.started(self.run, self.todo)
        # Copies of one process share its layout in memory, which differs from process to process: so do repetitions.
        started = self.warm
        for _, cases in itertools.groupby(self.todo, key=lambda case: case.repeat):
            with started or WarmServer(self.cpus) as server:
                started = None
                for case in cases:
                    record = self._measure(server, case)
                    if record is not None:
                        self._keep(record)
        return self.all_ok

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

    def _measure(self, server: WarmServer, case: Case) -> Record | None:
        attempt = self.attempts.get(case.index, 0) + 1
        started_at, begun = datetime.now(UTC), time.monotonic()
        samples: list[float] = []
        metric = unit = ""
        stored, stored_at = 0, begun

        def on_progress(progress: dict[str, Any]) -> None:
            nonlocal metric, unit, stored
            if progress["metric"]:
                if clean(progress["metric"]) != metric:  # the next point of a sweep: its samples are others
                    keep_new_samples()
                    samples.clear()
                    stored = 0
                metric, unit = clean(progress["metric"]), clean(progress["unit"])
                samples.extend(progress["samples"])
            self.listener.case_progress(case, progress, samples)
            if time.monotonic() - stored_at >= PARTIAL_SECONDS:
                keep_new_samples()

        def keep_new_samples() -> None:
            nonlocal stored, stored_at
            with interrupts_held():  # the same samples must not be stored twice
                if len(samples) > stored:
                    try:
                        self.sink.keep_partial(self.run.id, case.index, attempt, metric, unit, samples[stored:])
                    except StoreError as error:
                        self.listener.trouble(str(error))
                    stored, stored_at = len(samples), time.monotonic()

        self.listener.case_started(case)
        try:
            end = self.execute(server, case, on_progress)
        except KeyboardInterrupt:
            keep_new_samples()
            raise
        if end is None:
            return None
        result = end.result()
        conditions = result.facts.pop("conditions", {})
        if self.cpus:
            result.facts["affinity"] = show_cpu_list(self.cpus)
        cause = end.failure.cause if end.failure else None
        if cause is not None:  # messages and tracebacks name files: without the user's home folder and secrets
            cause = cause.model_copy(update={"message": scrub(cause.message), "detail": scrub(cause.detail)})
        record = Record(
            run_id=self.run.id,
            case=case,
            attempt=attempt,
            outcome=end.failure.outcome if end.failure else Outcome.OK,
            cause=cause,
            started_at=started_at,
            seconds=time.monotonic() - begun,
            measurements=result.measurements,
            facts=clean_all(result.facts),
            warnings=clean_all([warning.model_dump() for warning in result.warnings]),
            conditions=clean_all(conditions),
        )
        return described(record, self.run.environment)
