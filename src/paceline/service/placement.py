"""Jobs and machines as the scheduler sees them: what a job needs, how long it will take, and what a machine lacks.

Durations are predicted from what cases took before, and corrected while a job runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from paceline.core.case import Case
from paceline.core.device import is_accelerator
from paceline.core.errors import PacelineError
from paceline.core.suite import Suite, expand, only
from paceline.service.engines.base import FollowerState, Item
from paceline.service.jobs import Job, MachineNeeds
from paceline.service.scheduler.duration_predictor import History, together
from paceline.service.scheduler.state import Demand, Follower, Needs, SchedulerDevice
from paceline.store.dashboard_queries import latest
from paceline.store.store import Store

CPU, GPU = "cpu", "gpu"
_REACHABLE = "reached by the others of a gang"  # a label of its own, as not every engine knows its followers' addresses
_UNKNOWN_SECONDS, _UNKNOWN_ERROR = 60.0, 1.5
_REMEMBERED = 4_000  # cases, the latest


class DurationPredictor:
    """How long jobs will take, learnt from the cases of one leader's store."""

    def __init__(self) -> None:
        self._history = History()
        self._running: dict[str, Sequence[Case]] = {}  # what each job expanded to where it runs

    def load(self, store: Store) -> None:
        """Learn from the store, so that a leader that restarts predicts as well as before."""
        for past in latest(store, _REMEMBERED):
            self.learn(past.case, past.gpus, past.seconds)

    def learn(self, case: Case, gpus: Sequence[str], seconds: float) -> None:
        """A case took so long on a machine with these GPUs."""
        self._history.add(case, _kind(case, gpus), seconds)

    def demand(self, job: Job, machines: Iterable[FollowerState]) -> Demand:
        """A job as the scheduler sees it, predicted for the first of these machines that could run it."""
        gpus = next((state.gpus for state in machines if could_run(state, job.needs)), (job.needs.gpu,))
        cases = cases_of(job)
        seconds, error = self._predict(cases, gpus) if cases else (_UNKNOWN_SECONDS, _UNKNOWN_ERROR)
        return Demand(
            id=job.id,
            needs=scheduler_needs(job.needs),
            seconds=max(seconds, 1.0),
            submitted_at=job.submitted_at.timestamp(),
            priority=job.priority,
            error=error,
            owner=job.submitted_by,
        )

    def observe(self, job: Job, gpus: Sequence[str], items: Iterable[Item]) -> bool:
        """Learn from a report on a job; whether it says anything about when the job will end."""
        is_news = False
        for item in items:
            if item.run is not None:
                self._running[job.id] = item.run.cases
            if item.record is not None:
                self.learn(item.record.case, gpus, item.record.seconds)
            is_news |= item.run is not None or item.record is not None
        return is_news

    def remaining(self, job: Job, gpus: Sequence[str], done: int) -> float | None:
        """Seconds until a running job is through, of whose cases so many have ended; None if its cases are unknown."""
        cases = self._running.setdefault(job.id, cases_of(job))
        return self._predict(cases[done:], gpus)[0] if cases else None

    def forget(self, job_id: str) -> None:
        """A job runs no longer."""
        self._running.pop(job_id, None)

    def _predict(self, cases: Iterable[Case], gpus: Sequence[str]) -> tuple[float, float]:
        return together(self._history.predict(case, _kind(case, gpus)) for case in cases)


def cases_of(job: Job) -> list[Case]:
    """What the job will probably expand to where it runs; empty if that cannot be known here."""
    from paceline.core.benchmark import BENCHMARKS

    try:
        suite = Suite.read(job.suite, "the job", origin="network")
        return only(expand(suite, BENCHMARKS.registry().get, job.needs.here(), job.overrides), job.only, suite.name)
    except PacelineError:
        return []


def scheduler_follower(state: FollowerState) -> Follower:
    """A machine: its processor is a device as well, which a job without GPUs measures."""
    labels = frozenset(word.casefold() for word in state.labels)
    labels |= {_REACHABLE} if state.address else frozenset()
    gpus = zip(state.gpus, state.gpu_memory_gib, strict=True)
    # The memory of the processor does not count: of two machines that are alike, one may show less.
    devices = [SchedulerDevice(CPU, labels=labels)]
    devices += [SchedulerDevice(GPU, memory, labels | _words(name)) for name, memory in gpus]
    return Follower(state.id, tuple(devices))


def scheduler_needs(needs: MachineNeeds) -> Needs:
    """What a job needs; one that measures the processor is exclusive, as it would disturb any other."""
    labels = frozenset(label.casefold() for label in needs.labels)
    labels |= {_REACHABLE} if needs.nodes > 1 else frozenset()
    if not needs.gpus and not needs.gpu:
        return Needs(
            kind=CPU, labels=labels, whole_node=True, nodes=needs.nodes, cpu_heavy=True, follower=needs.follower
        )
    return Needs(
        kind=GPU,
        count=needs.gpus or 1,
        memory_gib=needs.memory_gib,
        labels=labels | _words(needs.gpu),
        whole_node=needs.whole_node,
        nodes=needs.nodes,
        follower=needs.follower,
    )


def gpu_indices(devices: tuple[int, ...]) -> tuple[int, ...]:
    """Indices of the GPUs among a follower's devices, the first of which is its processor."""
    return tuple(device - 1 for device in devices if device > 0)


def could_run(state: FollowerState, needs: MachineNeeds) -> bool:
    """Whether a machine has what is needed of each of a job's machines."""
    is_named = needs.follower in ("", state.id)
    return is_named and scheduler_follower(state).shape.match(scheduler_needs(needs)) is not None


def lacks(state: FollowerState, needs: MachineNeeds) -> list[str]:
    """What keeps a machine from running a job, in words."""
    if needs.follower not in ("", state.id):
        return [f"is not {needs.follower}"]
    required = scheduler_needs(needs)
    devices = [device for device in scheduler_follower(state).devices if device.kind == required.kind]
    if not devices:
        return ["has no GPU"]  # whatever else it lacks: a machine with one is nearer
    reasons = []
    if missing := min((required.labels - device.labels for device in devices), key=len):
        reasons.append(f"is not {', '.join(sorted(missing))}")
    if (largest := max(device.memory_gib for device in devices)) < required.memory_gib:
        reasons.append(f"has GPUs of {largest} GiB, not {required.memory_gib}")
    if (most := max(devices.count(device) for device in devices)) < required.count:
        reasons.append(f"has {most} of the {required.count} GPUs")
    return reasons or ([] if could_run(state, needs) else ["has no GPUs that are all of that together"])


def why_it_waits(needs: MachineNeeds, here: Sequence[FollowerState], recorded: Iterable[FollowerState]) -> str:
    """Why a job cannot run on the machines that are here, and what would help; empty if it only waits for its turn.

    `recorded` has every machine that was ever here.
    """
    able = _most_alike(needs, here)
    if able >= needs.nodes:
        return ""
    if able:
        return f"it needs {needs.nodes} machines with the same GPUs and labels at once, and {able} can be had now"
    present = {state.id for state in here}
    away = [state.id for state in recorded if state.id not in present and could_run(state, needs)]
    if away:
        more = f" and {len(away) - 3} more" if len(away) > 3 else ""
        return f"none of the machines here can run it; it waits for {', '.join(away[:3])}{more} to return"
    if not here:
        return "no machine is here"
    nearest = min(here, key=lambda state: (not state.gpus, len(lacks(state, needs))))
    among = "none of the machines here can run it; the nearest, " if len(here) > 1 else "the only machine here, "
    return f"{among}{nearest.id}, {' and '.join(lacks(nearest, needs))}"


def is_unheard_of(needs: MachineNeeds, recorded: Iterable[FollowerState]) -> bool:
    """Whether a job could run on no machines that were ever seen."""
    return _most_alike(needs, recorded) < needs.nodes


def _most_alike(needs: MachineNeeds, states: Iterable[FollowerState]) -> int:
    """How many machines that could run a job are alike, as those of a gang must be."""
    able = (scheduler_follower(state).devices for state in states if could_run(state, needs))
    return max(Counter(able).values(), default=0)


def _kind(case: Case, gpus: Sequence[str]) -> str:
    """The kind of device that a case was measured on: the GPUs say nothing of a case on the processor."""
    return gpus[0] if gpus and is_accelerator(case.target) else CPU


def _words(name: str) -> frozenset[str]:
    """The words of a model's name: nvidia, h200."""
    return frozenset(re.findall(r"[a-z0-9]+", name.casefold()))
