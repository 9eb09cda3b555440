"""Jobs for a leader, and an engine whose followers do exactly what a test says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from paceline.core.case import Case
from paceline.core.record import Outcome, Record
from paceline.core.run import Run
from paceline.service.engines.base import (
    Assignment,
    AttemptProgress,
    AttemptReport,
    CaseSamples,
    FollowerGone,
    FollowerState,
    Item,
    Meeting,
)
from paceline.service.jobs import STOPPED, FailureKind, Job, JobFailure, MachineNeeds

START = datetime(2030, 1, 1, tzinfo=UTC)


def naps(*durations: str, steps: int = 5) -> dict[str, Any]:
    """A suite of naps, for processes that know the plug-in of the tests."""
    return {"name": "nap", "cases": [{"benchmark": "nap", "duration": list(durations), "steps": steps}]}


def a_job(name: str = "job", at: datetime = START, **more: Any) -> Job:
    return Job.model_validate(
        {"id": name, "name": "nap", "suite": naps("50ms"), "submitted_at": at, "state_at": at, **more}
    )


def gpu_job(name: str, gpus: int = 1) -> Job:
    return a_job(name, needs=MachineNeeds(gpus=gpus))


def case(index: int = 0) -> Case:
    return Case(index=index, benchmark="nap", parameters={}, title=f"nap {index}")


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> datetime:
        return self.time

    def pass_(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@dataclass
class Measured:
    """One attempt on a scripted follower."""

    assignment: Assignment
    items: list[Item] = field(default_factory=list)
    is_stopping: bool = False
    meeting: Meeting | None = None
    progress: AttemptProgress = field(default_factory=AttemptProgress)

    @property
    def has_ended(self) -> bool:
        return bool(self.items) and self.items[-1].kind == "ended"

    def tell(self, kind: str, **content: Any) -> None:
        self.items.append(Item.model_validate({"number": len(self.items) + 1, "at": START, "kind": kind, **content}))

    def begin(self, cases: int = 1) -> None:
        run = Run(
            id=self.assignment.run_id,
            name="nap",
            started_at=START,
            version="1",
            command=[],
            environment={},
            cases=[case(index) for index in range(cases)],
        )
        self.tell("began", run=run)

    def samples(self, *values: float) -> None:
        self.tell("samples", samples=CaseSamples(case_index=0, attempt=1, metric="step_time", unit="s", values=values))

    def record(self, index: int = 0, outcome: Outcome = Outcome.OK) -> None:
        run_id = self.assignment.run_id
        record = Record(run_id=run_id, case=case(index), outcome=outcome, started_at=START, seconds=1.0)
        self.tell("record", record=record)

    def end(self, failure: JobFailure | None = None) -> None:
        self.tell("ended", failure=failure)

    def die(self) -> None:
        self.end(JobFailure(kind=FailureKind.LOST, message="the process that measured is gone"))

    def stop(self) -> None:
        """What it does that was told to."""
        assert self.is_stopping
        self.end(JobFailure(kind=FailureKind.LOST, message=STOPPED))

    def all_of_it(self) -> None:
        self.begin()
        self.record()
        self.end()


class ScriptedEngine:
    """Followers that keep what they were given, like workers with a spool, and can be silent or gone."""

    name = "scripted"
    invitation = ""

    def __init__(self, followers: Iterable[str] = ("one",), gpus: int = 0) -> None:
        self.gpus = gpus
        self.present = list(followers)
        self.silent: set[str] = set()
        self.draining: set[str] = set()  # take nothing new
        self.refused: dict[str, str] = {}  # why those are not believed who are not
        self.attempts: dict[str, dict[tuple[str, int], Measured]] = {}
        self.begun: list[tuple[str, str, int]] = []
        self.asked: list[dict[tuple[str, int], int]] = []
        self.before_begin: list[Any] = []  # called with each assignment

    def attempt(self, job_id: str, number: int = 1) -> Measured:
        """The attempt on its first follower."""
        found = (held[job_id, number] for held in self.attempts.values() if (job_id, number) in held)
        return next(measured for measured in found if measured.assignment.place == 0)

    def followers(self) -> Sequence[FollowerState]:
        gpus, memory = ("H200",) * self.gpus, (141,) * self.gpus
        return [
            FollowerState(
                id=one,
                host=one,
                address=one,
                seen_at=START,
                gpus=gpus,
                gpu_memory_gib=memory,
                draining=one in self.draining,
                refused=self.refused.get(one, ""),
            )
            for one in self.present
        ]

    def begin(self, follower: str, assignment: Assignment) -> None:
        self._reach(follower)
        for look in self.before_begin:
            look(assignment)
        self.begun.append((follower, assignment.job_id, assignment.attempt))
        held = self.attempts.setdefault(follower, {})
        held.setdefault((assignment.job_id, assignment.attempt), Measured(assignment))

    def poll(self, follower: str, acknowledged: dict[tuple[str, int], int]) -> Sequence[AttemptReport]:
        self._reach(follower)
        self.asked.append(dict(acknowledged))
        reports = []
        held = self.attempts.setdefault(follower, {})
        for (job_id, number), measured in list(held.items()):
            heard = acknowledged.get((job_id, number), 0)
            items = [item for item in measured.items if item.number > heard]
            if not items and measured.has_ended:
                del held[job_id, number]
                continue
            place, meeting, progress = measured.assignment.place, measured.meeting, measured.progress
            more: dict[str, Any] = {"place": place, "meeting": meeting, "progress": progress}
            reports.append(AttemptReport(job_id=job_id, attempt=number, items=tuple(items), **more))
        return reports

    def cancel(self, follower: str, job_id: str, attempt: int) -> None:
        self._reach(follower)
        measured = self.attempts.get(follower, {}).get((job_id, attempt))
        if measured is not None:
            measured.is_stopping = True

    def close(self) -> None:
        pass

    def _reach(self, follower: str) -> None:
        if follower in self.silent or follower not in self.present:
            raise FollowerGone("it does not answer")
