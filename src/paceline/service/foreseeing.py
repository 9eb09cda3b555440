"""How long jobs will take: learnt from what cases took, and corrected while a job runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.core.case import Case
from paceline.service.engines.base import FollowerState, Item
from paceline.service.jobs import Job
from paceline.service.placing import CPU, cases_of, could_run, task_of
from paceline.service.scheduler.predict import History, together
from paceline.service.scheduler.state import Task
from paceline.store.durations import latest
from paceline.store.store import Store

_REMEMBERED = 4_000  # cases, the latest


class Foresight:
    """Predictions for one leader."""

    def __init__(self) -> None:
        self._history = History()
        self._running: dict[str, Sequence[Case]] = {}  # what each job expanded to where it runs

    def load(self, store: Store) -> None:
        """Learn from what the store has, so that a leader that restarts predicts as well as before."""
        for past in latest(store, _REMEMBERED):
            self.learn(past.case, past.gpus, past.seconds)

    def learn(self, case: Case, gpus: Sequence[str], seconds: float) -> None:
        """A case took so long on a machine with these GPUs."""
        self._history.add(case, _kind(case, gpus), seconds)

    def task(self, job: Job, machines: Iterable[FollowerState]) -> Task:
        """A job as the scheduler sees it, predicted for the first of these machines that could run it."""
        gpus = next((state.gpus for state in machines if could_run(state, job)), (job.needs.gpu,))
        cases = cases_of(job)
        return task_of(job, self._predict(cases, gpus) if cases else None)

    def hear(self, job: Job, gpus: Sequence[str], items: Iterable[Item]) -> bool:
        """Learn from what was told of a job; whether it says anything about when the job will end."""
        is_news = False
        for item in items:
            if item.run is not None:
                self._running[job.id] = item.run.cases
            if item.record is not None:
                self.learn(item.record.case, gpus, item.record.seconds)
            is_news |= item.run is not None or item.record is not None
        return is_news

    def rest(self, job: Job, gpus: Sequence[str], done: int) -> float | None:
        """Seconds until a running job is through, of whose cases so many have ended; None where nothing is known."""
        cases = self._running.setdefault(job.id, cases_of(job))
        return self._predict(cases[done:], gpus)[0] if cases else None

    def ends(self, job_id: str) -> None:
        """A job runs no longer."""
        self._running.pop(job_id, None)

    def _predict(self, cases: Iterable[Case], gpus: Sequence[str]) -> tuple[float, float]:
        return together(self._history.predict(case, _kind(case, gpus)) for case in cases)


def _kind(case: Case, gpus: Sequence[str]) -> str:
    """What a case was measured on: a case on the processor knows nothing of the GPUs beside it."""
    return gpus[0] if gpus and case.target.startswith("cuda") else CPU
